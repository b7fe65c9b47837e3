/*
 * per/replay.h - a replay buffer: transitions, and batches of them drawn by priority.
 *
 * A program declares the fields of a transition, adds the steps of its environments, draws batches, and writes the TD
 * errors of each batch back by the ids that came with it. Reward and the two flags that end an episode are always
 * present. Fields are passed and returned as arrays, in the order of their declaration.
 *
 *     #include <per.h>
 *     #include <stdio.h>
 *     #include <stdlib.h>
 *
 *     static void check(per_status status) {
 *         if (status == PER_OK) return;
 *         fprintf(stderr, "%s\n", per_last_error());
 *         exit(1);
 *     }
 *
 *     int main(void) {
 *         per_field fields[2] = {{.name = "observation", .dtype = PER_FLOAT32},
 *                                {.name = "action", .dtype = PER_INT32}};
 *         per_replay_options options;
 *         per_replay* replay;
 *         check(per_replay_options_init(&options, sizeof options));
 *         options.capacity = 10000;
 *         options.fields = fields;
 *         options.n_fields = 2;
 *         options.field_size = sizeof *fields;
 *         check(per_replay_create(&options, &replay));
 *
 *         for (int t = 0; t < 100; t++) { // episodes of ten steps, with a reward at the end
 *             float observation = t % 10, next_observation = t % 10 + 1, reward = t % 10 == 9;
 *             int32_t action = rand() % 2;
 *             uint8_t terminated = t % 10 == 9, truncated = 0;
 *             per_array arrays[2] = {{.data = &observation, .dtype = PER_FLOAT32},
 *                                    {.data = &action, .dtype = PER_INT32}};
 *             per_array next_arrays[2] = {{.data = &next_observation, .dtype = PER_FLOAT32}};
 *             per_steps steps;
 *             check(per_steps_init(&steps, sizeof steps));
 *             steps.fields = arrays;
 *             steps.next_fields = next_arrays;
 *             steps.reward = (per_array){.data = &reward, .dtype = PER_FLOAT32};
 *             steps.terminated = (per_array){.data = &terminated, .dtype = PER_BOOL};
 *             steps.truncated = (per_array){.data = &truncated, .dtype = PER_BOOL};
 *             check(per_replay_add(replay, &steps, NULL, NULL));
 *         }
 *
 *         float observation[4], next_observation[4], reward[4], discount[4], weights[4], td_errors[4];
 *         int32_t action[4];
 *         int64_t ids[4];
 *         void* field_arrays[2] = {observation, action};
 *         void* next_field_arrays[2] = {next_observation, NULL};
 *         per_batch batch;
 *         check(per_batch_init(&batch, sizeof batch));
 *         batch.fields = field_arrays;
 *         batch.next_fields = next_field_arrays;
 *         batch.reward = reward;
 *         batch.discount = discount; // 0 where the episode ended, else gamma
 *         batch.weights = weights;
 *         batch.ids = ids;
 *         check(per_replay_sample(replay, NULL, 4, &batch, NULL));
 *         for (int i = 0; i < 4; i++) { // the TD errors of a learner whose values are all 0
 *             td_errors[i] = reward[i];
 *             printf("%g -> %g, reward %g, weight %.2f\n", observation[i], next_observation[i], reward[i], weights[i]);
 *         }
 *         per_priorities priorities;
 *         check(per_priorities_init(&priorities, sizeof priorities));
 *         priorities.count = 4;
 *         priorities.ids = ids;
 *         priorities.td_errors = td_errors;
 *         check(per_replay_update_priorities(replay, &priorities, NULL));
 *         per_replay_free(replay);
 *         return 0;
 *     }
 */
#ifndef PER_REPLAY_H
#define PER_REPLAY_H

#include "base.h"
#include "hindsight.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ choices */

/* Rule that turns priorities into probabilities. */
typedef enum per_prioritization {
    PER_PROPORTIONAL = 0, /* P(i) = p_i^alpha / sum_k p_k^alpha (paper, equation 1) */
    PER_RANK = 1,         /* P(i) in proportion to 1 / rank(i)^alpha (section 3.3, second variant). Priorities within a
                             32nd of each other may share the mean weight of their ranks, and ranks are recomputed once
                             more than a 32nd of the transitions have changed. Transitions of priority 0 have the last
                             ranks, and are drawn like others */
    PER_UNIFORM = 2       /* P(i) = 1 / N */
} per_prioritization;

/* Divisor of importance-sampling weights. */
typedef enum per_normalization {
    PER_BATCH_MAX = 0,  /* the largest weight of the batch (section 3.4) */
    PER_BUFFER_MAX = 1, /* the largest current weight of any live transition of positive priority. A transition of
                           priority 0 (drawn only by PER_RANK or uniform_fraction) may weigh more than 1 */
    PER_NONE = 2        /* 1: raw weights (N P)^-beta */
} per_normalization;

/* Initial priority of a transition added without one. */
typedef enum per_max_priority {
    PER_MAX_EVER = 0, /* the largest priority seen so far, at least 1 */
    PER_MAX_NOW = 1   /* the largest priority of the live transitions; 1 if none is live */
} per_max_priority;

/* Unit of the age of a transition; see per_freshness. */
typedef enum per_age {
    PER_AGE_STEPS = 0,   /* rows that its lane has taken since */
    PER_AGE_VERSIONS = 1 /* the current version (see per_replay_settings) minus the one under which it was added */
} per_age;

/* Handling of an invalid TD error or priority; in per_replay_get_windows(), of an id that is not live. */
typedef enum per_on_invalid {
    PER_INVALID_ERROR = 0, /* the call fails and changes nothing */
    PER_INVALID_SKIP = 1   /* the entry is skipped and, if it was to change something, counted. PER_CUDA always skips;
                              with PER_INVALID_ERROR per_replay_synchronize() then reports it */
} per_on_invalid;

/* Combination of the TD errors of several critics. */
typedef enum per_critics {
    PER_CRITICS_MEAN = 0, /* the mean of their absolute values */
    PER_CRITICS_MAX = 1   /* the largest of their absolute values */
} per_critics;

/* Handling of a step whose observation differs from the one announced by the previous step; see per_replay_add(). */
typedef enum per_on_gap {
    PER_GAP_CUT = 0,  /* the trajectory is cut there, and the cut is counted */
    PER_GAP_ERROR = 1 /* PER_ERROR_INVALID_ARGUMENT */
} per_on_gap;

/* Handling of a NaN passed to per_replay_add() in an observation, a next observation or a reward. */
typedef enum per_on_nan {
    PER_NAN_ALLOW = 0, /* it is stored like any other value */
    PER_NAN_ERROR = 1  /* PER_ERROR_INVALID_ARGUMENT */
} per_on_nan;

/* Reset mode of the environments, in Gymnasium's terms; see per_replay_add(). */
typedef enum per_autoreset {
    PER_AUTORESET_DISABLED = 0,
    PER_AUTORESET_NEXT_STEP = 1,
    PER_AUTORESET_SAME_STEP = 2
} per_autoreset;

/* Role of a field in a transition. */
typedef enum per_role {
    PER_ROLE_DEFAULT = 0,        /* OBSERVATION for the name "observation" and names that begin with "observation.",
                                    PLAIN for all others */
    PER_ROLE_PLAIN = 1,          /* stored and returned */
    PER_ROLE_OBSERVATION = 2,    /* observed before the step; field x also gives next_x, observed after it */
    PER_ROLE_RECURRENT_STATE = 3 /* returned for the first step of a sequence only */
} per_role;

/* Contents of stack frames that precede the first step of the episode. */
typedef enum per_padding {
    PER_PADDING_REPEAT = 0, /* copies of the frame of that first step */
    PER_PADDING_ZERO = 1    /* zeros */
} per_padding;

/* Storage of the frames of a field in memory; see per_replay_create(). */
typedef enum per_compression {
    PER_COMPRESSION_NONE = 0, /* uncompressed */
    PER_COMPRESSION_DELTA = 1 /* as differences from a recent earlier frame */
} per_compression;

/* Purpose of memory allocated by the caller; see `allocate` of per_memory. */
typedef enum per_memory_use {
    PER_MEMORY_ROWS = 0,      /* fields, rewards and flags: most of the memory */
    PER_MEMORY_PRIORITIES = 1 /* priorities, their sum tree, and which rows are live */
} per_memory_use;

/* ------------------------------------------------------------------- buffer */

/*
 * A replay buffer stores transitions and draws batches of them.
 *
 *   transition  one step of one environment: observation, action, reward, terminated, truncated, and any further fields
 *               that the options declare
 *   lane        the ring of one environment: ceil(capacity / n_envs) rows in time order
 *   id          number of a row, never reused: k * n_envs + environment, where k counts the rows of the lane. Batches
 *               carry ids and priority updates take them, so an update that arrives too late changes nothing
 *   live        a live transition can be drawn. Its window (n_step, frame_stack, sequence) is complete, no part of it
 *               has been overwritten, it has not been drawn max_times_sampled times, and it is not older than max_age
 *   sequence    the unit drawn if sequence_length L > 0: T = burn_in + L consecutive transitions of one episode,
 *               identified by the first. Sequences start at multiples of sequence_stride, counted from the first step
 *               of each episode. A sequence is live once it has T transitions with complete returns, or once its
 *               episode has ended after the burn-in; it is then padded to T. Statements in this header about live
 *               transitions, their number, weights, ids and priorities then apply to the starts of sequences
 *   priority    p >= 0, always stored without the exponent: p = |td_error| + epsilon, and
 *               P(i) = p_i^alpha / sum_k p_k^alpha (equation 1). alpha may therefore change at any time
 *
 * Next observations are not stored twice: a row's next observation is the observation of the following row. At the end
 * of an episode the final observation takes a separate row, which is never live; a truncated episode thus keeps its
 * true final observation. `capacity` counts rows: a full lane holds at least rows - 1 - ends - (n_step - 1) -
 * (frame_stack - 1) live transitions, where `ends` is the number of episodes that end in it. If sequences are drawn, it
 * holds at least the sequences that start among these transitions, the last T - 1 excepted. max_times_sampled retires
 * some of them. per_replay_compute_capacity() computes the rows needed. Memory is allocated once, at creation, except
 * that of compressed fields and of rows of any length; per_replay_create() lists the few calls that allocate later.
 */
typedef struct per_replay per_replay;

/*
 * A field of a transition. Set unused members to 0. reward (float32), terminated and truncated (flags) always exist and
 * are not declared. At least one field must have the role of an observation.
 */
typedef struct per_field {
    const char* name;     /* 1 to 255 bytes of UTF-8 without control characters (U+0000 .. U+001F, U+007F .. U+009F).
                             Unique, and none of: reward, terminated, truncated, weights, ids, discount, mask, n_steps,
                             priorities, probabilities, gamma_m, times_sampled, or a name that begins with "next_" */
    const int64_t* shape; /* [ndim], each >= 1; may be NULL if ndim is 0 */
    int32_t ndim;         /* 0 .. 8 */
    int32_t dtype;        /* a per_dtype */
    int32_t role;         /* a per_role */
    int32_t stack;        /* frames returned in a batch; 0: frame_stack of the options for an observation, 1
                             otherwise */
    const per_array* default_value; /* value for steps added without this field, such as advantages computed later:
                                       [shape], or one number for all elements (ndim 0, and any non-NULL shape; NULL:
                                       all elements are read). Cast and checked like arrays of steps; copied; in host
                                       memory. NULL: the field must be given. Must be NULL for an observation
                                       and with max_length */
    int32_t padding;                /* a per_padding: start of a stack */
    int32_t compression;            /* a per_compression; with PER_COMPRESSION_DELTA a frame has 8 .. 2^24 bytes */
    int64_t max_length;             /* 0: each row has one value of `shape`. Above 0: a row has any number of them, from
                                       0 to max_length, and at most 2^31 - 1 bytes; see per_ragged */
} per_field;

/*
 * Rows of any length in a batch, such as tokens, points or sets. If a field has max_length, its entry of `fields` or
 * `next_fields` points to a per_ragged. A row of such a field is a number of values, each of the field's shape.
 *
 * Values are packed: row i of the batch is values offsets[i] .. offsets[i + 1] - 1. Or, with padded_length, row i
 * begins at value i * padded_length, and zeros follow its own values. If `values` has too little room for the batch,
 * the call is PER_ERROR_FULL and changes nothing but `total`, which it sets for every field with max_length. This holds
 * for every call that writes a batch. Make room for `total` values, or with padded_length for rows of that length, and
 * repeat the call: it draws the same batch, unless another thread has changed the buffer meanwhile.
 */
typedef struct per_ragged {
    void* values;          /* [capacity, shape], or with padded_length [n, padded_length, shape]; NULL: only lengths are
                              wanted */
    int64_t* offsets;      /* [n + 1] sums of lengths, the first is 0; NULL: not written */
    int64_t capacity;      /* number of values `values` has room for; ignored with padded_length */
    int64_t padded_length; /* 0: packed; 1 .. max_length: padded to this length, and a longer row is PER_ERROR_FULL */
    int64_t total;         /* set by the call: number of values of all rows; with padded_length, of the longest row */
} per_ragged;

/*
 * Checks one field as per_replay_create() does.
 *
 *   field       its name may be NULL, and is then not checked
 *   field_size  sizeof(per_field) of the caller
 *
 * PER_ERROR_INVALID_ARGUMENT, PER_ERROR_OUT_OF_MEMORY (the size of a row exceeds 63 bits), PER_ERROR_UNSUPPORTED
 * (max_length with a stack, compression or a default value).
 */
PER_API per_status per_field_check(const per_field* field, int64_t field_size);

/* Location of the rows and priorities of a buffer on PER_CPU: `memory` of the options. See per_replay_create(). */
typedef struct per_memory {
    /* Functions that allocate and free the memory. Set both or neither; without them the system's memory is used.
       _init: NULL */
    void* (*allocate)(void* context, int64_t bytes, int64_t alignment, int32_t use);
    void (*deallocate)(void* context, void* memory, int64_t bytes, int32_t use);
    void* context;       /* given to both; _init: NULL */
    const char* storage; /* a directory: rows are kept in a file there, so that there can be more rows than fit in
                            memory; NULL: in memory; _init: NULL */
    int32_t storage_preallocated; /* 1: per_replay_create() reserves disk space for all rows in `storage`; 0: calls that
                                     add steps reserve it, in blocks of 64 KiB or more in each lane (4 MiB in a file of
                                     1 TiB); _init: 0 */
    int32_t reserved;             /* 0 */
    int64_t max_heap_bytes;       /* limit, in bytes, on the memory for values of fields with compression or max_length,
                                     whose rows differ in size; >= 0. A call that would exceed it by adding, setting or
                                     loading rows is PER_ERROR_FULL, and changes nothing but memory_bytes. Memory is
                                     allocated in pieces: allow at least 1 MiB for each such field. Rows that a save in
                                     the background still needs count, too. 0: no limit; _init: 0 */
} per_memory;

/*
 * Preference for recent transitions: `freshness` of the options. With a half-life H equation 1 becomes
 *
 *   P(i) = p_i^alpha 2^(-age_i / H) / sum_k p_k^alpha 2^(-age_k / H)
 *
 * and weights follow from this P. The age of a sequence is that of its first transition. The passing of time costs
 * nothing, since all priorities decay alike: only calls that write priorities compute a decay, for those that they
 * write. A live transition of positive priority can be drawn however old it is; its share is at least one part in 2^62.
 * With PER_AGE_STEPS, transitions of different lanes are compared by their row numbers, so lanes should advance at the
 * same pace; if they do not, use versions.
 *
 * Precision ends 90 to 122 half-lives before the newest transition that was ever live: transitions of priority 1 that
 * are older than that count as equally old. Within that range, as in any sum tree of integer units, a share far below
 * all others is rounded up to one unit. An add passes over all rows about once in six half-lives; H should therefore
 * not be much less than a thousandth of the capacity.
 *
 * A half-life needs PER_PROPORTIONAL, because the other distributions have no p^alpha that could decay.
 */
typedef struct per_freshness {
    double half_life; /* H, in the unit of `age`: 0.01 .. 1e12; 0: priorities do not decay; _init: 0 */
    int64_t max_age;  /* transitions of a larger age are not live; 0 .. 2^40, in steps at least the rows that a lane
                         needs (see per_replay_create()); -1: no limit; _init: -1 */
    int32_t age;      /* a per_age; _init: PER_AGE_STEPS */
    int32_t reserved; /* 0 */
} per_freshness;

/* Keeps adds and draws in step: `rate_limit` of the options. See per_replay_wait_to_add(). */
typedef struct per_rate_limit {
    double samples_per_insert;  /* transitions drawn for each step added; 0: unlimited; _init: 0 */
    int64_t samples_tolerance;  /* slack of the ratio, in transitions, in both directions: at least n_envs
                                   samples_per_insert, and at least the largest batch; 0 without samples_per_insert;
                                   _init: 0 */
    int64_t min_size_to_sample; /* steps added before the first draw; with samples_per_insert 0 means 1; _init: 0 */
} per_rate_limit;

/* Fill with per_replay_options_init(), then set capacity, fields, n_fields and field_size, and change what differs. */
typedef struct per_replay_options {
    uint64_t struct_size; /* set by _init; do not change */

    /* Contents. */
    int64_t capacity;        /* total rows, 1 .. 2^40; rounded up to a multiple of n_envs; _init: 0, to be set */
    const per_field* fields; /* [n_fields]; copied; _init: NULL, to be set */
    int64_t n_fields;        /* 1 .. 256; _init: 0, to be set */
    int32_t field_size;      /* sizeof(per_field) in the program; _init: 0, to be set */
    int32_t overwrite;       /* 0: a full lane is PER_ERROR_FULL; 1: its oldest row is overwritten; _init: 1 */
    int64_t n_envs;          /* lanes, 1 .. 2^20; _init: 1 */

    /* Batches. */
    int64_t n_step;          /* steps of a return, 1 .. 64; _init: 1 */
    double gamma;            /* discount of a step, 0 .. 1; _init: 0.99 */
    int64_t frame_stack;     /* frames of an observation, 1 .. 64; _init: 1 */
    int64_t sequence_length; /* L, transitions of a sequence used for learning; 0: single transitions; _init: 0 */
    int64_t burn_in;         /* preceding transitions that only warm up the recurrent state; needs L; _init: 0 */
    int64_t sequence_stride; /* distance between sequence starts; 0: sequence_length; needs L; _init: 0 */
    uint64_t seed;           /* seed of the draws; _init: 0 */
    int32_t scheme;          /* a per_scheme; _init: PER_STRATIFIED */
    int32_t gather_threads;  /* threads that copy a batch of 4 MiB or more, including the caller's; the others start
                                with the first such batch; a batch of sequences is copied by one thread; unused on
                                PER_CUDA; 0 .. 64, 0 means 1; _init: 1 */

    /* Prioritization. */
    double alpha;              /* exponent of priorities (equation 1), >= 0; _init: 0.6 */
    double epsilon;            /* p = |td_error| + epsilon (section 3.3), 0 .. FLT_MAX; _init: 1e-6 */
    double beta;               /* exponent of weights (section 3.4) for the first batch, >= 0; _init: 0.4 */
    double beta_final;         /* value of beta after beta_steps batches, linear in between, >= 0; _init: 1 */
    int64_t beta_steps;        /* batches until beta reaches beta_final; 0: beta is constant; _init: 0 */
    double uniform_fraction;   /* u of P = (1 - u) p^alpha / sum + u / N, 0 .. 1; _init: 0 */
    double sequence_eta;       /* eta of R2D2 priorities (Kapturowski et al. 2019), 0 .. 1; _init: 0.9 */
    int32_t prioritization;    /* a per_prioritization; _init: PER_PROPORTIONAL */
    int32_t normalize_weights; /* a per_normalization; _init: PER_BATCH_MAX */
    int32_t max_priority;      /* a per_max_priority; _init: PER_MAX_EVER */
    int32_t critics;           /* a per_critics; _init: PER_CRITICS_MEAN */
    per_freshness freshness;   /* _init: priorities do not depend on age */

    /* Resets, gaps and invalid values. */
    int32_t autoreset;  /* a per_autoreset; _init: PER_AUTORESET_DISABLED */
    int32_t on_gap;     /* a per_on_gap; _init: PER_GAP_CUT */
    int32_t on_nan;     /* a per_on_nan; _init: PER_NAN_ALLOW */
    int32_t on_invalid; /* a per_on_invalid; _init: PER_INVALID_ERROR */

    /* Location and saving. */
    int32_t device;                 /* a per_device; _init: PER_CPU */
    int32_t device_index;           /* index of the CUDA device; 0 for PER_CPU; _init: 0 */
    int32_t store_next_observation; /* 1: next observations are stored in separate arrays, as needed if rows are not in
                                       time order or if the capacity must be exact; _init: 0 */
    int32_t save_compression;       /* compression of saves: 0: none; 1 .. 19: zstd level; higher levels take longer and
                                       save little more. Above 0 it is PER_ERROR_UNSUPPORTED if this library was built
                                       without zstd; _init: 0 */
    per_memory memory;              /* _init: the system's memory, and no storage */

    /* Limits. */
    per_rate_limit rate_limit;  /* _init: no limit */
    int32_t keep_times_sampled; /* 1: count how often each transition, or sequence, is drawn; see per_replay_sample();
                                   _init: 0 */
    int32_t max_times_sampled;  /* k: a transition, or sequence, is live until it has been drawn k times. Needs
                                   PER_WITHOUT_REPLACEMENT and samples_per_insert <= k, and sets keep_times_sampled. 0:
                                   no limit; _init: 0 */
} per_replay_options;

/* Like per_tree_options_init(). */
PER_API per_status per_replay_options_init(per_replay_options* options, uint64_t struct_size);

/*
 * Creates an empty buffer and stores it in *replay_out (NULL on failure). Free it with per_replay_free(). Synchronises.
 *
 * A lane needs at least n_step + frame_stack + 1 rows, or n_step + frame_stack + T with sequences, where frame_stack is
 * the largest stack of any field; with store_next_observation it needs two rows fewer, so one row is enough for single
 * steps. A smaller lane is PER_ERROR_INVALID_ARGUMENT; the message names the purpose of each row.
 *
 * Memory per row: the bytes of all fields, 6 bytes for reward and flags, and 9 bytes for priorities. All of it is
 * allocated here, except the frames of compressed fields and rows of any length. Small values of a row are stored side
 * by side, padded by at most 6 bytes or a sixteenth, so that a drawn transition touches few cache lines; frames of 1024
 * bytes and more are aligned to cache lines of 64 bytes. PER_RANK takes 7 more bytes, PER_BUFFER_MAX and PER_MAX_NOW a
 * quarter of a byte each. If a call requests PER_RANK or PER_BUFFER_MAX and the buffer's own options do not, the first
 * such call allocates that memory, even if the call fails. With `storage` fields and reward are on the disk. On
 * PER_CUDA nothing is padded, reward and flags take 5 bytes, priorities 12.4, PER_RANK 8.3 more, PER_BUFFER_MAX and
 * PER_MAX_NOW an eighth of a byte each; the first batch or update of a size beyond 4096 also allocates. A call that
 * allocates cannot be captured. Enable PER_RANK and PER_BUFFER_MAX before capturing: a call that allocates for them
 * fails after a capture, because graphs captured earlier do not maintain them. keep_times_sampled and PER_AGE_VERSIONS
 * each take 4 more bytes, on every device.
 *
 * Memory from the caller.  With `allocate` the caller provides the memory of the arrays of rows and priorities: shared
 * memory, huge pages, pinned memory. per_replay_create() calls it a few times, and no other function calls it.
 * `deallocate` is called once for each array, by per_replay_free() or if this call fails. Both run on the thread of the
 * call.
 *
 *   bytes      size of the array, a multiple of alignment; deallocate gets the same
 *   alignment  64
 *   use        a per_memory_use
 *   returns    memory at a multiple of alignment, owned by the library until deallocate gets it. Its contents do not
 *              matter: the library clears all of it. NULL: the call fails with PER_ERROR_OUT_OF_MEMORY
 *
 * Neither function may leave by an exception or longjmp, or end its thread. Later calls, such as the first with an
 * option that needs more arrays, allocate from the system. If fork() does not copy the memory, only one of the two
 * processes may use the buffer; a child that leaves it to its parent must not free it either. On PER_CUDA all memory is
 * the device's own, and `allocate` is PER_ERROR_UNSUPPORTED.
 *
 * Compressed fields.  Frames of a field with PER_COMPRESSION_DELTA are stored as the difference from a key frame: an
 * earlier frame of the same environment, stored uncompressed. Frames similar to their predecessors, such as game
 * screens, shrink to a fraction. Batches, files and everything else are bit-identical. A frame that differs too much is
 * stored uncompressed; it then takes up to 100 bytes and a sixtieth of its size more than without compression, and all
 * frames of a field together 2 MiB more. Small frames always take more. Each frame of a batch is decompressed when it
 * is read, from its key frame and its difference, on the threads that copy the batch.
 *
 * The memory of these frames is allocated when steps are added, not by this call, in pieces of 128 KiB and, beyond 16
 * MiB or for frames above 16 KiB, of 2 MiB and more. It is reused for frames of any size once rows are overwritten, and
 * returned to the system when the buffer is freed. The frames that a call adds take memory beside the stored ones while
 * it runs: at most that of twice as many frames as the buffer has rows, even if it overwrites slots several times. So
 * split long data into several calls. If memory runs out, per_replay_add() and per_replay_set() are
 * PER_ERROR_OUT_OF_MEMORY, or PER_ERROR_FULL beyond max_heap_bytes, and change only memory_bytes. The data of the
 * steps, including those from a channel's writer, determines the compression and thus the memory used, up to the limits
 * above. On PER_CUDA, with `allocate` and with `storage` a compressed field is PER_ERROR_UNSUPPORTED: there all frames
 * have fixed places from creation, and are uncompressed. A file holds uncompressed frames and a mark that the field is
 * compressed; a buffer loaded to a place that does not support compression is uncompressed.
 *
 * Rows of any length.  A row of a field with max_length takes a pointer of 8 bytes, and a block for its values and a
 * header of 4 bytes (8 from 64 KiB on). An empty row has no block. Block sizes are multiples of 4 bytes; above 32 bytes
 * each is up to a sixth larger than the one before. This memory is allocated, reused and returned like that of
 * compressed fields, with two differences: each row of more than 32 KiB has its own allocation, and per_replay_clear()
 * makes the memory of all rows available to others. The following are PER_ERROR_UNSUPPORTED with such fields: a stack
 * above 1, compression, a default value, `allocate`, `storage`, PER_CUDA (also for the batches of a loader), use as a
 * goal of hindsight, and hindsight with n_step above 1 if their next observations are requested.
 *
 * More rows than memory.  With `storage` rows are kept in a mapped file in that directory: the system holds as many of
 * them in memory as fit, and the others on the disk. The directory is created if it does not exist; its parent must
 * exist. Batches are bit-identical. Each batch requests all of its rows at once before it reads the first. 9.7 bytes a
 * row remain in memory: priorities, their tree and flags, so that neither choosing rows nor updating priorities needs
 * the disk. PER_RANK, PER_BUFFER_MAX, PER_MAX_NOW and keep_times_sampled take the memory stated above. `allocate`
 * provides what is kept in memory.
 *
 * The file has no name unless per_replay_checkpoint() in that directory gives it one. It disappears once the buffer is
 * freed or its process has ended in any way, and each child forked in the meantime has freed the buffer or ended too.
 * (On a file system without O_TMPFILE it has a name for a moment; a process killed in that moment leaves a file
 * rows-*.tmp.) It belongs to the process that created it: in a forked child every call on the buffer except
 * per_replay_free() is PER_ERROR_INVALID_ARGUMENT.
 *
 * If the disk is full, the call that needs the space fails with PER_ERROR_IO before it changes anything. This requires
 * a file system that can reserve space (fallocate()); one that reports that it cannot is PER_ERROR_UNSUPPORTED.
 * Copy-on-write file systems (btrfs without nodatacow, ZFS) reserve none for rows that are overwritten: there a full
 * disk ends the process by SIGBUS. A read error while a mapped row is fetched does the same on any file system. On
 * PER_CUDA `storage` is PER_ERROR_UNSUPPORTED.
 *
 * PER_ERROR_INVALID_ARGUMENT, PER_ERROR_OUT_OF_MEMORY, PER_ERROR_NO_DEVICE, PER_ERROR_UNSUPPORTED (naming the option),
 * PER_ERROR_CALLBACK if `allocate` returns memory that is not at a multiple of alignment, PER_ERROR_IO if no file, or
 * none of that length, can be created in `storage`.
 */
PER_API per_status per_replay_create(const per_replay_options* options, per_replay** replay_out);

/*
 * Writes the smallest capacity that keeps at least the given number of transitions, or sequences, live at all times
 * once every lane is full. Episodes may have any length of at least episode_length, each with its final observation.
 * Without sequences and store_next_observation the capacity is, with divisions rounded down,
 *
 *   n_envs (t + (t - 1) / episode_length + n_step + frame_stack),  t = (transitions + n_envs - 1) / n_envs
 *
 * For a buffer that is cleared after each rollout of K steps in every environment, the capacity for K n_envs
 * transitions holds a whole rollout, even if overwrite is 0 and an episode continues from the previous rollout.
 *
 *   options         as for per_replay_create(); set their `capacity` to the result. `capacity` and max_age are ignored
 *                   here, and so are fields and field_size if n_fields is 0: no field then has its own stack
 *   transitions     1 .. 2^40
 *   episode_length  steps of the shortest episode; with sequences more than burn_in; 0: episodes are longer than a lane
 *
 * PER_ERROR_INVALID_ARGUMENT, also if the result would exceed 2^40. Cost: constant.
 */
PER_API per_status per_replay_compute_capacity(const per_replay_options* options, int64_t transitions,
                                               int64_t episode_length, int64_t* capacity_out);

/* NULL is allowed. Synchronises, and waits for a running save to end. */
PER_API void per_replay_free(per_replay* replay);

/*
 * Writes the current options of the buffer: as given, with capacity, stacks, roles and stride resolved, and with the
 * latest alpha, beta, gamma, n_step and save_compression. *options_out must have been filled by _init. Its `fields`
 * then point into the handle and are valid as long as the handle. field_size is their distance in bytes, which may
 * differ from the program's sizeof(per_field): field i is i field_size bytes after the first, and has only the members
 * that both program and library know. Synchronises.
 */
PER_API per_status per_replay_describe(per_replay* replay, per_replay_options* options_out);

/* -------------------------------------------------------------------- steps */

/*
 * One or several consecutive steps of some or all environments: per_replay_add(). K = length, n = n_envs. Shapes are
 * [K, n, shape of the field]. Axes K and n may be omitted if they are 1: for a field of shape [3], one step of one
 * environment is [3], one step of four environments is [4, 3].
 */
typedef struct per_steps {
    uint64_t struct_size;    /* set by _init; do not change */
    int64_t length;          /* K >= 0; _init: 1 */
    int64_t n_envs;          /* n: number of env_ids; if env_ids is NULL, ignored, and n is the buffer's; _init: 0 */
    const int64_t* env_ids;  /* [n] 0 .. n_envs - 1, each at most once; NULL: all, in order; _init: NULL. Host memory */
    const per_array* fields; /* [n_fields] one for each declared field, in that order; of an observation given as
                                stacked frames [K, n, stack, shape] the newest is used. With max_length: the values of
                                all rows, [total, shape], with their offsets; row k n + j is step k of environment j.
                                data NULL: the field's default_value, if it has one */
    const per_array* next_fields; /* [n_fields] also by field, used for observations only; NULL or data NULL: omitted.
                                     Give all observations or none */
    per_array reward;             /* [K, n] */
    per_array terminated;         /* [K, n] flags: the episode ended in a terminal state */
    per_array truncated;          /* [K, n] flags: it ended otherwise, such as by a time limit */
    per_array mask;               /* [K, n] flags or not given: where 0, nothing is added and no value is read */
    per_array next_mask;          /* [K, n] flags or not given: where 0, the next observation is not available */
    per_array priorities;         /* [K, n] or not given: p of each transition */
    per_array td_errors;          /* [K, n] or not given: p = |td_error| + epsilon. At most one of the two */
} per_steps;

PER_API per_status per_steps_init(per_steps* steps, uint64_t struct_size);

/*
 * Adds all of the transitions or, on any error, none. One call with K steps is equivalent to K calls with one step: a
 * saved file has the same bytes.
 *
 * Each environment's steps must come in time order. next_fields may be omitted on steps that do not end an episode; the
 * transition is then live once the environment's next step is added. If given, the transition is live at once (n_step
 * 1).
 *
 *   Start.  The first step of a lane, and the first one after an end, a cut or per_replay_clear(), starts an episode.
 *   End.    On a terminated or truncated step the final observation must be given, or marked unknown by next_mask 0.
 *           terminated with an unknown final observation: the transition is live; its discount is 0 and its next
 *           observation repeats its observation. truncated with an unknown final observation: the transition is not
 *           live, and earlier ones bootstrap from its observation.
 *   Cut.    If a step's observations differ from those announced by the previous step, the trajectory has a gap: the
 *           previous step counts as truncated there (or see on_gap). Values are compared as numbers, after casting: -0
 *           equals 0, any NaN equals any other, and the announced values stay stored. This detects an unreported reset
 *           only if next observations are given: otherwise flag every end or call per_replay_cut().
 *   Autoreset.  PER_AUTORESET_NEXT_STEP: after an end, a step whose observation equals the final one is the reset step,
 *               and is not added (id -1). PER_AUTORESET_SAME_STEP: at an end next_fields holds the next episode's first
 *               observation unless the caller replaces it with the final one; next_mask must therefore be given with
 *               every step that ends an episode, and states which of the two it is. PER_AUTORESET_DISABLED: no special
 *               handling.
 *   Resets that autoreset does not declare.  If an environment resets automatically after an end although autoreset is
 *           PER_AUTORESET_DISABLED, its final observation comes twice: either the step that repeats it is the reset
 *           step (next step), or the observation given as final is the first one of the next episode (same step). Such
 *           ends are counted in suspected_resets, also with PER_AUTORESET_SAME_STEP. With PER_AUTORESET_NEXT_STEP the
 *           repeating step is not added, and is counted only if it has a reward other than 0 or ends an episode, which
 *           no reset does: the environment then resets in the same step. Nothing else distinguishes the two cases. It
 *           is not an error, because an episode may begin with the same observation that the previous one ended with.
 *   NaN.    With PER_NAN_ERROR a NaN in an observation, a next observation or a reward is an error, whose message names
 *           the entry. Infinities are allowed, and other fields may hold NaN.
 *   Priority.  When a transition becomes live it gets the largest priority (see per_max_priority), or the priority that
 *              was given for it earlier. The largest priority is determined once for each step of a call, before the
 *              step is added for any environment: transitions that the step overwrites still count, and priorities
 *              given with it count from the next step on. Priorities given for steps at which no sequence starts are
 *              validated but have no effect.
 *   store_next_observation.  next_fields must be given with every step, and only per_replay_cut() cuts. Sequences, and
 *                            n_step above 1, assume that the rows of an environment are steps in time order.
 *
 *   ids_out  [K, n] or NULL: id of each row; -1 where nothing was added
 *
 * PER_ERROR_INVALID_ARGUMENT, PER_ERROR_FULL; PER_ERROR_BUSY if the rate limiter does not allow this many steps yet
 * (see per_replay_wait_to_add()); PER_ERROR_IO if rows are in `storage` and its disk is full; PER_ERROR_OUT_OF_MEMORY.
 * On PER_CUDA values known only to the device are checked there, step by step: an invalid step is skipped as if its
 * mask were 0, and counted; so is an invalid priority.
 *
 * On PER_CUDA any of the arrays may also be in host memory, except while `stream` is captured. Such an array is read
 * before the call returns, and cast on the host. A value that does not fit its dtype is then an error as above, unless
 * a mask that applies to it (mask; for next observations also next_mask) is on the device. All other invalid values are
 * detected on the device only. Host arrays go through a ring of pinned memory, and so do env_ids of more than 256
 * environments. If the ring is full, the call waits for the device, and other threads' calls on the buffer wait for
 * this one. ids_out must be memory that the device can write (its own, managed or pinned), and is written in stream
 * order.
 */
PER_API per_status per_replay_add(per_replay* replay, const per_steps* steps, int64_t* ids_out, void* stream);

/*
 * Ends the running episodes of the environments as truncated: the next step of each does not continue its last one. The
 * observation after the last step becomes the final observation if it is known, and otherwise counts as unknown.
 * Environments without a running episode are not affected.
 *
 *   count    number of env_ids; ignored if env_ids is NULL
 *   env_ids  [count] 0 .. n_envs - 1, or NULL: all. Host memory; on PER_CUDA more than 256 may make the call wait, as
 *            host arrays do in per_replay_add()
 */
PER_API per_status per_replay_cut(per_replay* replay, int64_t count, const int64_t* env_ids, void* stream);

/* ------------------------------------------------------------------ batches */

/* Fill with per_sample_options_init(), then change what differs from the buffer's own options for this call. */
typedef struct per_sample_options {
    uint64_t struct_size;      /* set by _init; do not change */
    double beta;               /* >= 0; NAN: by the buffer's schedule, which only calls with NAN advance; _init: NAN */
    double uniform_fraction;   /* 0 .. 1; NAN: the buffer's; _init: NAN */
    int64_t n_step;            /* 1 .. the buffer's; 0: the buffer's; _init: 0. With sequences, set it if another thread
                                  might change the buffer's, because it determines the size of observations */
    int32_t scheme;            /* a per_scheme; -1: the buffer's; _init: -1 */
    int32_t prioritization;    /* a per_prioritization; -1: the buffer's; _init: -1 */
    int32_t normalize_weights; /* a per_normalization; -1: the buffer's; _init: -1 */
    int32_t newest;            /* number of rows, 0 .. batch_size - 1, that hold the newest live transitions instead of
                                  drawn ones; only for per_replay_sample(), which describes it; _init: 0 */
    int64_t n_step_min;        /* not 0: each transition, or sequence, gets a random n instead of n_step, drawn
                                  uniformly from n_step_min .. n_step; _init: 0 */
    const uint64_t* key;       /* [2] or NULL, for per_replay_sample() only: makes the draw that this buffer would make
                                  with seed key[0] after key[1] draws; _init: NULL. On PER_CUDA each launch of a graph
                                  reads the current key */
    const per_hindsight_options* hindsight; /* relabels some of the transitions with other goals; see per/hindsight.h.
                                               Only for per_replay_sample(), with key NULL, and
                                               per_replay_get_windows(). NULL: no relabelling; _init: NULL */
} per_sample_options;

PER_API per_status per_sample_options_init(per_sample_options* options, uint64_t struct_size);

/*
 * Destination of a batch of B transitions. Every array may be NULL: it is then not written. Transition i begins at step
 * i, and m_i, or m, is the number of steps in its window: its n, which is n_step or drawn from n_step_min .. n_step, or
 * fewer if its episode ends inside the window. s is the stack of the field, and the axis is omitted if s is 1. The
 * frames of a stack are ordered from oldest to newest; the field's padding defines those before the first step of the
 * episode.
 *
 * For sequences, weights, ids, priorities, probabilities and times_sampled have shape [B]. Everything else has a value
 * for each step t < T, as if the step were drawn alone, with the n of its sequence:
 *
 *   fields       observations [B, T + n_step, s, shape]: entry t belongs to step t, and entry t + n_steps[t] is the one
 *                to bootstrap from; fields of role PER_ROLE_RECURRENT_STATE [B, s, shape], of the start; others
 *                [B, T, s, shape]. Stacks of the first steps may reach back beyond the start, but not beyond the
 *                episode
 *   next_fields  NULL, or NULL entries only: next observations are among the observations
 *   reward, discount, n_steps, terminated, truncated, gamma_m, mask  [B, T]; mask is 1 for steps that exist
 *
 * A sequence is padded with zeros after the end of its episode (n_steps is 0 in the padding). Observations that neither
 * belong to a step nor serve a bootstrap are also zeros: with n > T, those in between. The last step of an episode
 * truncated at an unknown observation is padding, except for its observation. If the observation of a terminal state is
 * unknown, the last observation is repeated.
 */
typedef struct per_batch {
    uint64_t struct_size;     /* set by _init; do not change */
    void* const* fields;      /* [n_fields] by field: [B, s, shape of the field] at step i; with max_length a per_ragged
                                 of B rows. _init: NULL: none */
    void* const* next_fields; /* [n_fields] by field, ignored for fields that are not observations: [B, s, shape] at
                                 step i + m. _init: NULL: none */
    float* reward;            /* [B] sum over k < m of gamma^k r_(i+k) */
    float* discount;        /* [B] gamma^m if step i + m - 1 is not terminated, else 0: factor of the bootstrap value */
    int32_t* n_steps;       /* [B] m */
    uint8_t* terminated;    /* [B] flag of step i + m - 1; a step with both flags is terminated only */
    uint8_t* truncated;     /* [B] flag of step i + m - 1 */
    float* weights;         /* [B] importance-sampling weights; see per_replay_sample() */
    int64_t* ids;           /* [B] */
    float* priorities;      /* [B] p, before alpha */
    float* probabilities;   /* [B] P(i), from which the weights are computed */
    uint8_t* mask;          /* [B, T] 0 where a sequence is padded. Not for single transitions */
    float* gamma_m;         /* [B] gamma^m, however the window ends; `discount` equals it except where terminated, where
                               it is 0. For learners that drop the bootstrap value by `terminated` themselves */
    int32_t* times_sampled; /* [B] times the transition has been drawn; see per_replay_sample(). Must be NULL without
                               keep_times_sampled */
} per_batch;

PER_API per_status per_batch_init(per_batch* batch, uint64_t struct_size);

/*
 * Draws batch_size live transitions with probability P(i), and their importance-sampling weights
 *
 *   w_i = (N P(i))^-beta / max_j (N P(j))^-beta     (section 3.4; j by per_normalization, over the batch by default)
 *
 * where N is the number of live transitions. Without replacement (N P(i))^-beta becomes (N pi_i / B)^-beta with
 * inclusion probabilities pi. If all priorities are 0 the draw is uniform and all weights are 1.
 *
 * n_step and n_step_min change windows only. They do not affect which transitions are live or drawn, or their weights.
 *
 *   options     NULL: those of the buffer
 *   batch_size  1 .. 2^24
 *   batch       see per_batch
 *
 * With a key, the same transitions and the same key give the same draw, regardless of earlier draws. It counts as one
 * draw of the buffer: the next draw without a key is what it would have been after any other draw.
 *
 * With `newest` k > 0 the last k rows of the batch are not drawn: they are the k live transitions, or sequences, with
 * the largest ids, the newest first (k = 1 is combined experience replay: Zhang and Sutton 2017, "A Deeper Look at
 * Experience Replay", section 4). Their weights are 1, and their probabilities those of the draw. The other rows are
 * drawn and weighted as a batch of batch_size - k, from all live transitions, so they may repeat the newest. Fewer than
 * k live transitions are PER_ERROR_INVALID_ARGUMENT (PER_CUDA: ids -1, weights 0, rows zero, and counted), and a buffer
 * with max_times_sampled is PER_ERROR_UNSUPPORTED.
 *
 * With keep_times_sampled each place of the batch, also one of `newest`, counts as a use of its transition, or sequence,
 * but not of the others in its window. times_sampled of a batch is the number of uses since the transition was added,
 * including this batch, up to 2^31 - 1: a transition drawn twice into one batch has the same number at both places. A
 * loader's draws count as uses when they are made, even if their batches are never handed out. Epochs and reads by id
 * or unit do not count as uses; they return the number of uses so far.
 *
 * With max_times_sampled k > 0 no transition is drawn more than k times. The k-th draw still returns it complete; after
 * that it is permanently not live. Any scheme other than PER_WITHOUT_REPLACEMENT is PER_ERROR_INVALID_ARGUMENT, because
 * one batch with replacement could exceed the limit. So is a draw of more transitions than are left, as always without
 * replacement.
 *
 * PER_ERROR_EMPTY if nothing is live; PER_ERROR_BUSY if the rate limiter does not allow this many yet (see
 * per_replay_wait_to_sample()); PER_ERROR_CALLBACK with hindsight; PER_ERROR_INVALID_ARGUMENT. A failed call does not
 * count as a draw and does not advance beta. On PER_CUDA, if only the device knows that nothing is live: ids -1,
 * weights 0, rows zero.
 */
PER_API per_status per_replay_sample(per_replay* replay, const per_sample_options* options, int64_t batch_size,
                                     const per_batch* batch, void* stream);

/* --------------------------------------------------------------- priorities */

/*
 * Priorities of transitions, or of sequences: per_replay_update_priorities(). Fill with per_priorities_init(), then set
 * count, ids, and either td_errors or priorities.
 */
typedef struct per_priorities {
    uint64_t struct_size;    /* set by _init; do not change */
    int64_t count;           /* >= 0; 0 changes nothing, and the arrays are ignored; _init: 0, to be set */
    const int64_t* ids;      /* [count] as batches carry them; _init: NULL, to be set */
    const float* td_errors;  /* [n_critics, count], for sequences [n_critics, count, n_steps]: finite, any sign. NULL:
                                not given; _init: NULL */
    const float* priorities; /* [count] the priorities themselves: finite, >= 0; without alpha, and nothing is added.
                                NULL: not given; _init: NULL */
    int64_t n_critics;       /* >= 1, and 1 with priorities. Above 16 it must not equal `count` for single transitions:
                                that is the shape of a broadcast by mistake, [n, 1] minus [n]; _init: 1 */
    int64_t n_steps;         /* TD errors of each sequence: T, or sequence_length, which omits the burn-in; 0 means T. 0
                                for single transitions, and with priorities; _init: 0 */
} per_priorities;

/* Like per_tree_options_init(). */
PER_API per_status per_priorities_init(per_priorities* priorities, uint64_t struct_size);

/*
 * Sets the priority of each id: the given one, or p = |td_error| + epsilon (section 3.3, proportional). With several
 * critics |td_error| is the mean or the largest of theirs (see per_critics). If an id occurs more than once, the last
 * entry wins. Updates of id -1, and of transitions that were overwritten or can never be drawn (again), are ignored and
 * counted (stale_updates).
 *
 * TD errors of sequences give (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement
 * Learning", section 2.3)
 *
 *   p = sequence_eta max_t |d_t| + (1 - sequence_eta) mean_t |d_t| + epsilon
 *
 * where |d_t| is the combined error of the critics at step t, and t runs over the steps after the burn-in that are not
 * padding. Entries of other steps and of stale sequences are ignored. A sequence that is not live yet may already get a
 * priority. TD errors, however, set it only if the sequence has a step after the burn-in whose return is complete;
 * otherwise they are ignored and counted (stale_updates).
 *
 * PER_ERROR_INVALID_ARGUMENT for an id that was never issued and, unless on_invalid is PER_INVALID_SKIP, for an invalid
 * TD error or priority, or a priority that overflows: nothing is changed. On PER_CUDA such entries are skipped and
 * counted.
 */
PER_API per_status per_replay_update_priorities(per_replay* replay, const per_priorities* priorities, void* stream);

/*
 * Reads the priorities p of ids; 0 for transitions that are not live.
 *
 *   priorities_out  [count]
 *
 * PER_ERROR_INVALID_ARGUMENT for an id that was never issued (PER_CUDA: 0, and counted).
 */
PER_API per_status per_replay_get_priorities(per_replay* replay, int64_t count, const int64_t* ids,
                                             float* priorities_out, void* stream);

/* --------------------------------------------------------------------- rows */

/*
 * Gathers rows by id as they were added: one step, one frame, regardless of n_step, frame_stack and sequence_length.
 * The next observation is that of the following row.
 *
 *   batch  fields, next_fields, reward, discount, n_steps (1), terminated, truncated, gamma_m, ids, priorities and
 *          times_sampled are written; weights, probabilities and mask must be NULL
 *
 * PER_ERROR_INVALID_ARGUMENT for an id that was never issued, was overwritten, or belongs to a final observation; and,
 * with next_fields, for a step whose next observation is not known yet. (PER_CUDA: zero rows, counted.)
 */
PER_API per_status per_replay_get(per_replay* replay, int64_t count, const int64_t* ids, const per_batch* batch,
                                  void* stream);

/*
 * Writes the live transitions, or sequences, of these ids as per_replay_sample() writes a batch: n-step returns,
 * stacks, priorities, and the probabilities and weights that a draw would give them now. It does not count as a draw:
 * the random state, the schedule of beta and all statistics are unchanged. With n_step_min or hindsight, however,
 * window lengths or goals are random: such a call advances the random state by one draw, as an epoch does, and counts
 * in `samples`.
 *
 * P and weights are those of one draw with replacement from all N live transitions, whatever the scheme. PER_BATCH_MAX
 * divides by the largest weight among these ids. A transition that cannot be drawn because its priority is 0 has P = 0
 * and weight 0. With PER_RANK ranks are recomputed whenever a draw would recompute them.
 *
 *   options     NULL: those of the buffer. If beta is NAN, the beta of the next batch is used
 *   on_invalid  a per_on_invalid. PER_INVALID_SKIP: for an id that is -1, was never issued or is not live, the batch
 *               gets id -1 and zeros
 *   count       0 .. 2^24; 0 writes nothing, and ids may then be NULL
 *   ids         [count] in any order; duplicates are allowed
 *   batch       see per_batch
 *
 * PER_ERROR_INVALID_ARGUMENT, also for an id that is not live, unless on_invalid is PER_INVALID_SKIP: the message names
 * the first one. On PER_CUDA such ids are always skipped; with PER_INVALID_ERROR they are counted. PER_ERROR_CALLBACK
 * with hindsight.
 */
PER_API per_status per_replay_get_windows(per_replay* replay, const per_sample_options* options, int32_t on_invalid,
                                          int64_t count, const int64_t* ids, const per_batch* batch, void* stream);

/*
 * Overwrites fields of transitions, by id. Ids of overwritten rows and -1 are ignored and counted (stale_updates). If
 * an id occurs more than once, the last entry wins.
 *
 *   fields  [n_fields] by field, [count, shape of the field], with max_length count rows and their offsets; data NULL:
 *           the field is unchanged
 *
 * PER_ERROR_INVALID_ARGUMENT for an id that was never issued, and for a field that is an observation, because rows
 * share observations; PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_replay_set(per_replay* replay, int64_t count, const int64_t* ids, const per_array* fields,
                                  void* stream);

/* ----------------------------------------------------------------- settings */

/*
 * Empties all lanes. Ids continue counting; random state, maximum priority and the schedule of beta are kept. So is the
 * knowledge that an environment resets in its next step (PER_AUTORESET_NEXT_STEP). Cost: on PER_CPU proportional to the
 * live transitions, and to the capacity if there are fields with max_length, whose memory it frees for other rows; on
 * PER_CUDA that of clearing the memory of priorities.
 */
PER_API per_status per_replay_clear(per_replay* replay, void* stream);

/* Fill with per_replay_settings_init(), then set the options to change; see per_replay_change_settings(). */
typedef struct per_replay_settings {
    uint64_t struct_size;     /* set by _init; do not change */
    double alpha;             /* NAN: unchanged; _init: NAN */
    double beta;              /* NAN: unchanged; _init: NAN */
    double gamma;             /* NAN: unchanged; _init: NAN */
    int64_t n_step;           /* 0: unchanged; _init: 0 */
    int32_t save_compression; /* -1: unchanged; _init: -1 */
    int32_t reserved;         /* 0 */
    int64_t version;          /* -1: unchanged; _init: -1 */
} per_replay_settings;

PER_API per_status per_replay_settings_init(per_replay_settings* settings, uint64_t struct_size);

/*
 * Changes options of the buffer: all that are set, in this order, or, on any error, none.
 *
 *   alpha             >= 0, also to and from 0 (p^0 = 1 for every live transition). Cost: one pass over the buffer
 *   beta              >= 0; ends the schedule of beta
 *   gamma             0 .. 1. Transitions keep their rewards: returns are formed when a batch is drawn
 *   n_step            1 .. 64, if the lanes have enough rows for it. Transitions may become live or cease to be live.
 *                     Cost: one pass. Draws in a CUDA graph keep the n_step that they were captured with; if it now
 *                     exceeds the buffer's, they give ids -1 and are counted
 *   save_compression  0 .. 19, for later saves
 *   version           the latest version or a later one, up to 2^31 - 1; needs PER_AGE_VERSIONS. Steps added from here
 *                     on have this version. With max_age, transitions that are now too old cease to be live. Cost: that
 *                     of these transitions
 *
 * PER_ERROR_INVALID_ARGUMENT, also while `stream` is captured, unless only save_compression is set: options change at
 * the call, not at a launch of a graph. PER_ERROR_UNSUPPORTED for a save_compression above 0 if this library was built
 * without zstd.
 */
PER_API per_status per_replay_change_settings(per_replay* replay, const per_replay_settings* settings, void* stream);

/* ------------------------------------------------------------- rate limiter */

/*
 * The rate limiter keeps a ratio between adds and draws, also across threads. It counts the steps added, a, and the
 * transitions drawn, d, both since creation or the last per_replay_clear(), and allows
 *
 *   an add of k steps            if floor(r (a + k - m)) - d <= e
 *   a draw of b transitions      if a >= m, and floor(r (a - m)) - d - b >= -e
 *
 * where r = samples_per_insert, e = samples_tolerance and m = min_size_to_sample, at least 1. With r = 0 all adds are
 * allowed, and all draws once a >= m. Adds of zero steps are always allowed. A call that is not allowed yet is
 * PER_ERROR_BUSY. A call for more than e transitions, or for more than e / r steps beyond the first m, can never be
 * allowed and is always PER_ERROR_INVALID_ARGUMENT.
 *
 * The first m steps are free, in calls of any size. A call that goes beyond them is allowed if the same steps would be
 * allowed one per call: a single call can fill a buffer with s steps before the first draw if m >= s - e / r. A larger
 * call is refused as a whole, because later adds would have to wait for the draws that it owes.
 *
 * The limits thus always let one of the two sides proceed, and a thread that both adds and draws need not wait. But the
 * limiter does not consider other reasons for a call to fail. m must be large enough for a draw to succeed: something
 * must be live, and with PER_WITHOUT_REPLACEMENT a whole batch. Otherwise both sides wait for ever. They also wait for
 * ever if max_times_sampled leaves fewer transitions live than a batch needs while adds wait for that batch: a step can
 * be drawn at most max_times_sampled times, and fewer if it is overwritten earlier or never live. r should therefore be
 * well below max_times_sampled; a larger r is refused at creation. For sequences, which start at every
 * sequence_stride-th step of an episode, r should be well below max_times_sampled / sequence_stride, which is not
 * checked. With overwrite 0, m is at most the capacity, and once all lanes are full, draws continue until they are e
 * transitions ahead. Waiters are not served in order: calls for few transitions may overtake one for many.
 *
 *   k    K n steps of per_replay_add(). Steps masked out are not counted, except on PER_CUDA, where the mask may be
 *        known only to the device. A step that autoreset drops is counted
 *   b    batch_size of per_replay_sample() and of each draw of a loader, at the time of the draw. A sequence counts as
 *        one, whatever its length, and so does a window of n steps. Epochs and reads by id or unit do not count as
 *        draws and are not limited
 *
 * Loaders.   A prefetched draw that is not allowed fails, and is retried when its turn comes. If it is still not
 *            allowed, per_loader_next() is PER_ERROR_BUSY, even if it may wait. per_loader_stop() does not end waits in
 *            per_replay_wait_to_sample(). A loader's prefetched draws stay counted when it ends.
 * Channels.  The thread of a channel waits instead of its writers, which see a full ring. It adds as many of the
 *            available steps as are allowed. per_channel_free() adds the remaining steps without a limit. Without a
 *            thread per_channel_move() adds as many steps as are allowed, and per_channel_flush() waits. A thread that
 *            draws must not wait for a flush without a timeout: the channel may be waiting for its draws.
 * Device.    On PER_CUDA calls count when they are made, whatever the device finds. A captured call counts once, and
 *            launches of its graph do not count: if draws are captured and adds are not, adds soon become
 *            PER_ERROR_BUSY permanently. A coordinator, which draws from its shards by unit, has no rate limiter.
 *
 * This function waits until an add of `count` steps is allowed; the add may still be PER_ERROR_BUSY if another thread
 * adds first. While waiting it blocks neither other calls nor fork(). It returns at once if there are no limits.
 *
 *   count       k >= 0
 *   timeout_ms  milliseconds, >= 0; or -1: no limit
 *
 * PER_ERROR_BUSY if the add is not allowed in time, or if other calls hold the buffer for longer;
 * PER_ERROR_INVALID_ARGUMENT, also if it can never be allowed.
 */
PER_API per_status per_replay_wait_to_add(per_replay* replay, int64_t count, int64_t timeout_ms);

/*
 * Waits until a draw is allowed, as per_replay_wait_to_add() does for an add.
 *
 *   batch_size  b, 1 .. 2^24
 */
PER_API per_status per_replay_wait_to_sample(per_replay* replay, int64_t batch_size, int64_t timeout_ms);

/*
 * Removes all limits permanently, for example when one side has ended, and wakes all waiters. samples_per_insert,
 * samples_tolerance and min_size_to_sample are then 0.
 */
PER_API per_status per_replay_stop_limiting(per_replay* replay);

/* -------------------------------------------------------------------- state */

/*
 * Counts the live transitions, or sequences, and writes their ids: environment by environment, in time order.
 *
 *   capacity   >= 0: number of ids that ids_out has room for; if there are more, the first are written. 0: only counts,
 *              at constant cost
 *   ids_out    [capacity] host memory, on PER_CUDA too; may be NULL if capacity is 0
 *   count_out  their number, even if it exceeds capacity
 *
 * PER_ERROR_INVALID_ARGUMENT, PER_ERROR_OUT_OF_MEMORY. Cost with ids: one pass over the buffer. Synchronises.
 */
PER_API per_status per_replay_get_live_ids(per_replay* replay, int64_t capacity, int64_t* ids_out, int64_t* count_out);

/* Contents and counters of a buffer: per_replay_get_statistics(). Counters count since creation. */
typedef struct per_replay_statistics {
    uint64_t struct_size;       /* set by the call */
    int64_t capacity;           /* total rows: n_envs * rows of a lane */
    int64_t live;               /* transitions, or sequences, that can be drawn now */
    int64_t added;              /* transitions added */
    int64_t dropped;            /* steps not added because the environment was resetting (autoreset) */
    int64_t episodes;           /* episodes that ended, cuts included */
    int64_t cuts;               /* episodes that ended by a cut */
    int64_t samples;            /* batches drawn, including a loader's prefetched ones; each epoch counts as one, and so
                                   does each call of per_replay_get_windows() with n_step_min or hindsight */
    int64_t beta_step;          /* batches that advanced beta; a loader's count once they are handed out */
    int64_t stale_updates;      /* entries of updates, including those of fields, that came too late */
    int64_t rejected_updates;   /* invalid entries of calls that write, which were skipped */
    double total;               /* sum of p^alpha over the live transitions; with a half-life, each times its factor */
    double max_priority;        /* priority that the next transition gets */
    double alpha;               /* exponent of the priorities */
    double beta;                /* exponent of the weights of the next batch */
    double gamma;               /* discount of a step */
    int64_t updates;            /* entries of updates that set a priority */
    int64_t last_batch_size;    /* transitions of the last batch drawn. Without one, all values of the last batch
                                   are 0 */
    int64_t last_max_age;       /* largest age in the last batch: rows added to the lane between a transition and the
                                   draw, one for each step and one for each final observation; (newest id of the lane -
                                   id) / n_envs */
    double last_mean_age;       /* mean age in the last batch */
    double last_effective_size; /* (sum of w)^2 / sum of w^2 of the last batch: the number of equally weighted
                                   transitions with the same information */
    double last_duplicates;     /* share of the last batch that repeats another of its transitions, 0 .. 1 */
    int64_t memory_bytes;       /* bytes allocated for rows and priorities */
    int64_t suspected_resets;   /* ends after which an environment seems to have reset in a way other than autoreset
                                   declares */
    int64_t huge_page_bytes;    /* part of memory_bytes on huge pages, judged by the first page of each array; 0 on
                                   CUDA. If it is much less than memory_bytes in a buffer of many MB, draws are slower,
                                   because the kernel does not grant huge pages on request (madvise) */
    int64_t version;            /* version of steps that are added now; 0 at creation, and always if age counts steps */
} per_replay_statistics;

/*
 * Fills *statistics_out. Cost: independent of the size of the buffer; the first call after a batch computes the weights
 * of that batch. Synchronises.
 *
 *   struct_size  sizeof(per_replay_statistics) of the caller
 */
PER_API per_status per_replay_get_statistics(per_replay* replay, per_replay_statistics* statistics_out,
                                             uint64_t struct_size);

/*
 * Waits until all work that this buffer enqueued on `stream` is done, and reports each error on the device since the
 * last report once, with the number of entries, steps or calls of each kind, and of steps skipped for each reason. The
 * status is the first in this list of which any occurred:
 *
 *   PER_ERROR_INVALID_ARGUMENT  ids, priorities, TD errors, steps or values were skipped; calls of
 *                               per_replay_compute_advantages() changed nothing; draws without replacement found too
 *                               little
 *   PER_ERROR_FULL              steps were not added because their lane was full
 *   PER_ERROR_EMPTY             draws found nothing live
 *
 * PER_ERROR_CUDA. Does nothing on PER_CPU.
 */
PER_API per_status per_replay_synchronize(per_replay* replay, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* PER_REPLAY_H */

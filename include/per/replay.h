/*
 * per/replay.h - a replay buffer: transitions, and batches of them drawn by priority.
 *
 * A program declares what a transition consists of, adds the steps of its environments, draws batches, and writes the TD
 * errors of each batch back by the ids that came with it. Reward and the two flags that end an episode are always there.
 * Fields are given and returned as arrays, in the order in which they were declared.
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
 *         for (int t = 0; t < 100; t++) { // episodes of ten steps, at the end of which there is a reward
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
 *         for (int i = 0; i < 4; i++) { // what a learner computes of the batch: here all values are 0
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

/* What the probability of a transition follows. */
typedef enum per_prioritization {
    PER_PROPORTIONAL = 0, /* P(i) = p_i^alpha / sum_k p_k^alpha (paper, equation 1) */
    PER_RANK = 1,         /* P(i) in proportion to 1 / rank(i)^alpha (section 3.3, second variant). Priorities within a
                             32nd of each other may share the mean of what their ranks weigh, and ranks are taken anew
                             once more than a 32nd of the transitions have changed. Those of priority 0 have the last
                             ranks, and are drawn like others */
    PER_UNIFORM = 2       /* P(i) = 1 / N */
} per_prioritization;

/* What importance-sampling weights are divided by. */
typedef enum per_normalization {
    PER_BATCH_MAX = 0,  /* the largest weight of the batch (section 3.4) */
    PER_BUFFER_MAX = 1, /* the largest weight that any live transition of positive priority has now. One of priority 0,
                           which ranks and uniform_fraction may draw, can weigh more than 1 */
    PER_NONE = 2        /* 1: raw weights (N P)^-beta */
} per_normalization;

/* The priority of a transition that is added without one. */
typedef enum per_max_priority {
    PER_MAX_EVER = 0, /* the largest priority seen so far, at least 1 */
    PER_MAX_NOW = 1   /* the largest priority of the live transitions; 1 if none is live */
} per_max_priority;

/* What happens with a TD error or priority that is not allowed; in per_replay_get_windows() with an id that is not live.
 */
typedef enum per_on_invalid {
    PER_INVALID_ERROR = 0, /* the call fails and changes nothing */
    PER_INVALID_SKIP = 1   /* the entry is skipped and, if it was to change something, counted. Always so on PER_CUDA,
                              where PER_INVALID_ERROR makes per_replay_synchronize() report it */
} per_on_invalid;

/* What the TD errors of several critics make together. */
typedef enum per_critics {
    PER_CRITICS_MEAN = 0, /* the mean of their absolute values */
    PER_CRITICS_MAX = 1   /* the largest of their absolute values */
} per_critics;

/* What happens with a step whose observation is not the one announced by the step before; see per_replay_add(). */
typedef enum per_on_gap {
    PER_GAP_CUT = 0,  /* the trajectory is cut there, and the cut counted */
    PER_GAP_ERROR = 1 /* PER_ERROR_INVALID_ARGUMENT */
} per_on_gap;

/* What happens with a NaN given to per_replay_add() in an observation, a next observation or a reward. */
typedef enum per_on_nan {
    PER_NAN_ALLOW = 0, /* it is stored as any other value */
    PER_NAN_ERROR = 1  /* PER_ERROR_INVALID_ARGUMENT */
} per_on_nan;

/* How environments reset after an end, in Gymnasium's words; see per_replay_add(). */
typedef enum per_autoreset {
    PER_AUTORESET_DISABLED = 0,
    PER_AUTORESET_NEXT_STEP = 1,
    PER_AUTORESET_SAME_STEP = 2
} per_autoreset;

/* What a field is to a transition. */
typedef enum per_role {
    PER_ROLE_DEFAULT = 0,        /* OBSERVATION for the name "observation" and names that begin with "observation.",
                                    PLAIN for all others */
    PER_ROLE_PLAIN = 1,          /* stored and returned */
    PER_ROLE_OBSERVATION = 2,    /* observed before the step; field x also gives next_x, observed after it */
    PER_ROLE_RECURRENT_STATE = 3 /* given for the first step of a sequence only */
} per_role;

/* What fills the frames of a stack from before the first step of its episode. */
typedef enum per_padding {
    PER_PADDING_REPEAT = 0, /* the frame of that first step, once more each */
    PER_PADDING_ZERO = 1    /* zeros */
} per_padding;

/* How the frames of a field lie in memory; see per_replay_create(). */
typedef enum per_compression {
    PER_COMPRESSION_NONE = 0, /* as they are */
    PER_COMPRESSION_DELTA = 1 /* as what they differ by from a frame that came shortly before */
} per_compression;

/* What memory from the caller is for; see `allocate` of per_memory. */
typedef enum per_memory_use {
    PER_MEMORY_ROWS = 0,      /* fields, rewards and flags: most of the memory */
    PER_MEMORY_PRIORITIES = 1 /* priorities, their sum tree, and which rows are live */
} per_memory_use;

/* ------------------------------------------------------------------- buffer */

/*
 * A replay buffer stores transitions and draws batches of them.
 *
 *   transition  one step of one environment: what was observed, what was done, reward, terminated, truncated, and
 *               any further fields that the options declare
 *   lane        the ring of one environment: ceil(capacity / n_envs) rows in order of time
 *   id          number of a row, never used again: k * n_envs + environment, k counting the rows of the lane. Batches
 *               carry ids, and priority updates take them, so that an update which comes too late touches nothing
 *   live        of a transition: it can be drawn. Its window (n_step, frame_stack, sequence) is complete, none of it
 *               has been overwritten, and it has not been drawn max_times_sampled times
 *   sequence    with sequence_length L > 0, what is drawn: T = burn_in + L transitions in a row of one episode, named
 *               by the transition that it starts with. Sequences start at multiples of sequence_stride, counted from
 *               the first step of each episode. One is live once T transitions with complete returns are there, or its
 *               episode has ended after the burn-in: what is missing to T is then padding. Wherever this header speaks
 *               of live transitions, their number, weights, ids and priorities, it means the starts of sequences
 *   priority    p >= 0, always before the exponent: p = |td_error| + epsilon, and P(i) = p_i^alpha / sum_k p_k^alpha
 *               (equation 1). alpha may therefore change at any time
 *
 * Next observations are not stored a second time: a row's next observation is the observation of the row that follows
 * it. At the end of an episode the final observation takes a row of its own, which is never live; so a truncated
 * episode keeps its true final observation. `capacity` counts rows: a full lane holds at least
 * rows - 1 - ends - (n_step - 1) - (frame_stack - 1) live transitions, or the sequences that start among all of these
 * but the last T - 1, less those that max_times_sampled has ended; per_replay_compute_capacity() says how many rows that
 * takes. Memory is allocated at creation, once, but for that of compressed fields.
 */
typedef struct per_replay per_replay;

/*
 * A field of a transition; members that are not set are 0. reward (float32), terminated and truncated (flags) are always there and are not declared.
 * At least one field must have the role of an observation.
 */
typedef struct per_field {
    const char* name;     /* 1 to 255 bytes of UTF-8 without control characters (U+0000 .. U+001F, U+007F .. U+009F).
                             Unique, and none of: reward, terminated, truncated, weights, ids, discount, mask, n_steps,
                             priorities, probabilities, gamma_m, times_sampled, and what begins with "next_" */
    const int64_t* shape; /* [ndim], each >= 1; may be NULL if ndim is 0 */
    int32_t ndim;         /* 0 .. 8 */
    int32_t dtype;        /* a per_dtype */
    int32_t role;         /* a per_role */
    int32_t stack;        /* frames given in a batch; 0: frame_stack of the options for an observation, 1 otherwise */
    const per_array* default_value; /* what steps get that are added without this field, such as advantages that are
                                       computed later: [shape], or one number for all elements (ndim 0, and shape any
                                       pointer but NULL; NULL: all elements are read). Cast and checked as arrays of steps are; copied; in host memory. NULL: the
                                       field must be given. Must be NULL for an observation */
    int32_t padding;                /* a per_padding: how stacks begin */
    int32_t compression;            /* a per_compression; with PER_COMPRESSION_DELTA a frame has 8 .. 2^24 bytes */
} per_field;

/*
 * Checks a field by itself, as per_replay_create() does.
 *
 *   field       its name may be NULL, and is then not looked at
 *   field_size  sizeof(per_field) of the caller
 *
 * PER_ERROR_INVALID_ARGUMENT, PER_ERROR_OUT_OF_MEMORY (a row of it is beyond 63 bits).
 */
PER_API per_status per_field_check(const per_field* field, int64_t field_size);

/* Where the rows and priorities of a buffer on PER_CPU lie: `memory` of the options. See per_replay_create(). */
typedef struct per_memory {
    /* Functions that give the memory and take it back. Both or none: the system's memory. _init: NULL */
    void* (*allocate)(void* context, int64_t bytes, int64_t alignment, int32_t use);
    void (*deallocate)(void* context, void* memory, int64_t bytes, int32_t use);
    void* context;       /* given to both; _init: NULL */
    const char* storage; /* a directory: rows lie in a file there, so that there can be more of them than memory
                                     has room for; NULL: in memory; _init: NULL */
    int32_t storage_preallocated; /* 1: per_replay_create() takes the room on the disk for all rows in `storage`; 0:
                                     calls that add steps take it, a MiB at a time at most in each lane; _init: 0 */
    int32_t reserved;             /* 0 */
} per_memory;

/* Keeps adds and draws in step: `rate_limit` of the options. See per_replay_wait_to_add(). */
typedef struct per_rate_limit {
    double samples_per_insert;  /* transitions to be drawn for each step added; 0: as many as calls ask for; _init: 0 */
    int64_t samples_tolerance;  /* by how many transitions draws may be ahead of that, or behind: at least n_envs
                                   samples_per_insert, and at least the largest batch; 0 without samples_per_insert;
                                   _init: 0 */
    int64_t min_size_to_sample; /* steps to be added before the first draw; with samples_per_insert 0 is 1; _init: 0 */
} per_rate_limit;

/* Fill with per_replay_options_init(), then set capacity, fields, n_fields and field_size, and change what differs. */
typedef struct per_replay_options {
    uint64_t struct_size; /* set by _init; do not change */

    /* What the buffer holds. */
    int64_t capacity;        /* rows in all, 1 .. 2^40; rounded up to a multiple of n_envs; _init: 0, to be set */
    const per_field* fields; /* [n_fields]; copied; _init: NULL, to be set */
    int64_t n_fields;        /* 1 .. 256; _init: 0, to be set */
    int32_t field_size;      /* sizeof(per_field) in the program; _init: 0, to be set */
    int32_t overwrite;       /* 0: a full lane is PER_ERROR_FULL; 1: its oldest row is overwritten; _init: 1 */
    int64_t n_envs;          /* lanes, 1 .. 2^20; _init: 1 */

    /* What a batch is. */
    int64_t n_step;          /* steps of a return, 1 .. 64; _init: 1 */
    double gamma;            /* discount of a step, 0 .. 1; _init: 0.99 */
    int64_t frame_stack;     /* frames of an observation, 1 .. 64; _init: 1 */
    int64_t sequence_length; /* L, transitions that a sequence is learned from; 0: single transitions; _init: 0 */
    int64_t burn_in;         /* transitions before them that only warm up the recurrent state; needs L; _init: 0 */
    int64_t sequence_stride; /* distance of sequence starts; 0: sequence_length; needs L; _init: 0 */
    uint64_t seed;           /* of the draws; _init: 0 */
    int32_t scheme;          /* a per_scheme; _init: PER_STRATIFIED */
    int32_t gather_threads;  /* threads that copy a batch of 4 MiB or more, the caller's among them; the others start
                                with the first such batch; a batch of sequences is copied by one; not used on PER_CUDA;
                                0 .. 64, 0 being 1; _init: 1 */

    /* Prioritization. */
    double alpha;              /* exponent of priorities (equation 1), >= 0; _init: 0.6 */
    double epsilon;            /* p = |td_error| + epsilon (section 3.3), 0 .. FLT_MAX; _init: 1e-6 */
    double beta;               /* exponent of weights (section 3.4) for the first batch, >= 0; _init: 0.4 */
    double beta_final;         /* and after beta_steps batches, linear in between, >= 0; _init: 1 */
    int64_t beta_steps;        /* batches until beta reaches beta_final; 0: beta stays; _init: 0 */
    double uniform_fraction;   /* u of P = (1 - u) p^alpha / sum + u / N, 0 .. 1; _init: 0 */
    double sequence_eta;       /* eta of R2D2 priorities (Kapturowski et al. 2019), 0 .. 1; _init: 0.9 */
    int32_t prioritization;    /* a per_prioritization; _init: PER_PROPORTIONAL */
    int32_t normalize_weights; /* a per_normalization; _init: PER_BATCH_MAX */
    int32_t max_priority;      /* a per_max_priority; _init: PER_MAX_EVER */
    int32_t critics;           /* a per_critics; _init: PER_CRITICS_MEAN */

    /* What is done about resets, gaps and values that are not allowed. */
    int32_t autoreset;  /* a per_autoreset; _init: PER_AUTORESET_DISABLED */
    int32_t on_gap;     /* a per_on_gap; _init: PER_GAP_CUT */
    int32_t on_nan;     /* a per_on_nan; _init: PER_NAN_ALLOW */
    int32_t on_invalid; /* a per_on_invalid; _init: PER_INVALID_ERROR */

    /* Where the buffer lies, and how it is saved. */
    int32_t device;                 /* a per_device; _init: PER_CPU */
    int32_t device_index;           /* which CUDA device; 0 for PER_CPU; _init: 0 */
    int32_t store_next_observation; /* 1: next observations in arrays of their own, needed where rows are in no order
                                       of time, or where the capacity must be exact; _init: 0 */
    int32_t save_compression;       /* of what is saved: 0: none; 1 .. 19: that level of zstd, of which higher ones take
                                       longer and save little more. Above 0 PER_ERROR_UNSUPPORTED where this library was
                                       built without zstd; _init: 0 */
    per_memory memory;              /* _init: the system's memory, and no storage */

    /* Limits. */
    per_rate_limit rate_limit;  /* _init: no limit */
    int32_t keep_times_sampled; /* 1: the buffer counts how often each transition, or sequence, is drawn; see
                                   per_replay_sample(); _init: 0 */
    int32_t max_times_sampled;  /* k: a transition, or sequence, is live until it has been drawn k times. Needs
                                   PER_WITHOUT_REPLACEMENT, and samples_per_insert to be at most k, and sets
                                   keep_times_sampled. 0: however often it is drawn; _init: 0 */
} per_replay_options;

/* As per_tree_options_init(). */
PER_API per_status per_replay_options_init(per_replay_options* options, uint64_t struct_size);

/*
 * Creates an empty buffer and stores it in *replay_out (NULL on failure). Free it with per_replay_free(). Synchronises.
 *
 * A lane needs n_step + frame_stack + 1 rows at least, with sequences n_step + frame_stack + T, and two rows fewer with
 * store_next_observation: a lane of one row is enough for single steps then. Fewer is PER_ERROR_INVALID_ARGUMENT, naming
 * what each row is for.
 * Memory: the bytes of all fields, of reward and flags (6 bytes), and 9 bytes of priorities, a row; all of it but the
 * frames of compressed fields is allocated here. What is small lies side by side, padded by at most 6 bytes or a
 * sixteenth, so that a drawn transition touches few cache lines; frames of 1024 bytes and more lie on lines of 64 bytes
 * of their own. PER_RANK takes 7 bytes more, PER_BUFFER_MAX and PER_MAX_NOW a quarter of one each; where only the
 * options of a call ask for one of the first two, the first such call allocates it, even if it fails. With `storage`
 * fields and reward lie on the disk. On PER_CUDA nothing is padded, reward and flags take 5 bytes, priorities 12.4,
 * PER_RANK 8.3 more and the others an eighth of one; the first batch or update of a size beyond 4096 allocates, too. A
 * call that allocates cannot be captured, and of the first two kinds cannot follow calls that were: their graphs would
 * go on without what it adds. keep_times_sampled takes 4 bytes more on each device.
 *
 * Memory from the caller.  With `allocate` the arrays of rows and priorities lie where the caller wants them: in shared
 * memory, on huge pages, in pinned memory. It is called by this call only, a few times, and `deallocate` once for each
 * array, by per_replay_free() or where this call fails; both on the thread of the call.
 *
 *   bytes      of the array, a multiple of alignment; deallocate gets the same
 *   alignment  64
 *   use        a per_memory_use
 *   returns    memory at a multiple of alignment, which is the library's until deallocate gets it. What it holds does
 *              not matter: the library clears all of it. NULL: there is none, and the call is PER_ERROR_OUT_OF_MEMORY
 *
 * Neither function may leave by an exception, by longjmp or by the end of its thread. What later calls need, such as
 * the arrays of options that only a call asks for, is the system's memory. Where fork() does not copy the memory, the buffer must be used in
 * one of the two processes only: a child that leaves it to its parent does not free it either. On PER_CUDA all lies in
 * the device's own memory, and `allocate` is PER_ERROR_UNSUPPORTED.
 *
 * Compressed fields.  Frames of a field with PER_COMPRESSION_DELTA are kept as what they differ by from a key frame:
 * one of their environment that came some steps before, and is kept as it is. Of frames that are much like those before
 * them, such as screens of games, a small part is left. Batches, files and all else are the same, bit for bit. A frame
 * that differs too much is kept as it is, and takes up to 100 bytes and a sixtieth of its own more than without
 * compression, and those of a field 2 MiB more in all; small frames take more in any case. Each frame of a batch is
 * unpacked when it is read, from its key frame and what it differs by, on the threads that copy the batch.
 *
 * The memory of these frames is not allocated by this call but when steps are added, in pieces of 128 KiB and, beyond
 * 16 MiB, of 2 MiB and more. It is used again for frames of any size once rows are overwritten, and goes back to the
 * system when the buffer is freed. A call needs room for its frames beside those that are there, of one that takes
 * slots several times at most twice the rows of the buffer: add long data in pieces. Where there is none,
 * per_replay_add() and per_replay_set() are PER_ERROR_OUT_OF_MEMORY, and change nothing but memory_bytes. Whoever
 * writes the steps, a writer of a channel too, decides how well they compress, and so how far memory grows: to what is
 * said above. On PER_CUDA, with `allocate` and with `storage` such a field is PER_ERROR_UNSUPPORTED: there frames have
 * their places when the buffer is made, and are as they are. A file holds frames as they are, and that the field is
 * compressed; loaded to where that cannot be, it is not.
 *
 * More rows than memory.  With `storage` rows lie in a file in that directory, which is mapped: as many of them are in
 * memory as the system has room for, and the others on the disk. The directory is made if it is not there; the one above
 * it must be there. Batches are the same, bit for bit. Each batch asks for all of its rows at once before it reads the
 * first. What remains in memory are 9.7 bytes a row: priorities, their tree and flags, so that neither which rows are
 * drawn nor updates of priorities need the disk. PER_RANK, PER_BUFFER_MAX, PER_MAX_NOW and keep_times_sampled take in
 * memory what is said above. `allocate` is asked for what lies in memory.
 *
 * The file has no name, unless per_replay_checkpoint() in that directory gives it one: nothing is left of it once the
 * buffer is freed, or its process has ended in any way, and each child that was forked meanwhile has freed the buffer or
 * ended, too. (On a file system without O_TMPFILE it has a name for a moment; a process that is killed in it leaves a
 * file rows-*.tmp.) It belongs to the process that made it: in a forked child every call on the buffer but
 * per_replay_free() is PER_ERROR_INVALID_ARGUMENT.
 *
 * A disk that is full is PER_ERROR_IO, by the call that would need the room, before it changes anything. This needs a
 * file system that reserves room (fallocate()); one that says that it cannot is PER_ERROR_UNSUPPORTED. Those that write
 * each change to another place (btrfs without nodatacow, ZFS) reserve none for rows that are overwritten: there a disk
 * that is full, and everywhere one that cannot be read when a mapped row is fetched, ends the process by SIGBUS.
 * On PER_CUDA `storage` is PER_ERROR_UNSUPPORTED.
 *
 * PER_ERROR_INVALID_ARGUMENT, PER_ERROR_OUT_OF_MEMORY, PER_ERROR_NO_DEVICE, PER_ERROR_UNSUPPORTED (naming the option),
 * PER_ERROR_CALLBACK if `allocate` returns memory at no multiple of alignment, PER_ERROR_IO where no file can be made in
 * `storage`, or none of that length.
 */
PER_API per_status per_replay_create(const per_replay_options* options, per_replay** replay_out);

/*
 * Writes the smallest capacity with which at least so many transitions, or sequences, are live in all at any time after
 * every lane became full, whatever happens then: episodes may be of any lengths from episode_length on, each with its
 * final observation. Without sequences and store_next_observation that is, divisions rounded down,
 *
 *   n_envs (t + (t - 1) / episode_length + n_step + frame_stack),  t = (transitions + n_envs - 1) / n_envs
 *
 * A buffer that is emptied after each rollout of K steps in every environment holds all of them with the capacity for
 * K n_envs transitions, also if overwrite is 0 and an episode that began before goes on in it.
 *
 *   options         as for per_replay_create(), for which `capacity` is then to be set to the result. It is not looked
 *                   at here; neither are fields and field_size if n_fields is 0, none having a stack of its own then
 *   transitions     1 .. 2^40
 *   episode_length  steps of the shortest episode, of sequences more than burn_in; 0: episodes are longer than a lane
 *
 * PER_ERROR_INVALID_ARGUMENT, also if the result would be beyond 2^40. Cost: none that grows.
 */
PER_API per_status per_replay_compute_capacity(const per_replay_options* options, int64_t transitions,
                                               int64_t episode_length, int64_t* capacity_out);

/* NULL is allowed. Synchronises, and waits for the end of a save that was started. */
PER_API void per_replay_free(per_replay* replay);

/*
 * The options that the buffer has now: as given, with capacity, stacks, roles and stride as they were resolved and
 * alpha, beta, gamma, n_step and save_compression as they were set since. *options_out must have been filled by _init;
 * its `fields` then point into the handle and are valid as long as it. They are the library's own: field_size says how
 * far they are apart, which may differ from the program's sizeof(per_field). Field i lies i field_size bytes after the
 * first, and has only the members that both know. Synchronises.
 */
PER_API per_status per_replay_describe(per_replay* replay, per_replay_options* options_out);

/* -------------------------------------------------------------------- steps */

/*
 * One or several consecutive steps of some or all environments: per_replay_add(). K = length, n = n_envs. Shapes are
 * [K, n, shape of the field]; the axis K may be left out if it is 1, and so may n: for a field of shape [3] one step of
 * one environment is [3], one step of four is [4, 3].
 */
typedef struct per_steps {
    uint64_t struct_size;    /* set by _init; do not change */
    int64_t length;          /* K >= 0; _init: 1 */
    int64_t n_envs;          /* n: number of env_ids; not looked at without them, n then being all; _init: 0 */
    const int64_t* env_ids;  /* [n] 0 .. n_envs - 1, each at most once; NULL: all, in order; _init: NULL. Host memory */
    const per_array* fields; /* [n_fields] one for each declared field, in that order; an observation that gives
                                     stacked frames [K, n, stack, shape] is taken by its newest. data NULL: the field's
                                     default_value, if it has one */
    const per_array* next_fields; /* [n_fields] by field too, used for those that are observations; NULL or data NULL:
                                     left out. All or none of the observations */
    per_array reward;             /* [K, n] */
    per_array terminated;         /* [K, n] flags: the episode ended in a terminal state */
    per_array truncated;          /* [K, n] flags: it ended otherwise, such as by a time limit */
    per_array mask;               /* [K, n] flags or not given: where 0, nothing is added and no value is looked at */
    per_array next_mask;          /* [K, n] flags or not given: where 0, the next observation is not available */
    per_array priorities;         /* [K, n] or not given: p of each transition */
    per_array td_errors;          /* [K, n] or not given: p = |td_error| + epsilon. At most one of the two */
} per_steps;

PER_API per_status per_steps_init(per_steps* steps, uint64_t struct_size);

/*
 * Adds transitions, all of them or, on any error, none. A call with K steps does what K calls with one step do: a file
 * of the buffer has the same bytes.
 *
 * Each environment's steps come in order of time. next_fields may be left out on steps that do not end an episode; the
 * transition is then live once the environment's next step is added. If given, it is live at once (n_step 1).
 *
 *   Start.  The first step of a lane, and the first one after an end, a cut or per_replay_clear(), starts an episode.
 *   End.    On a step that is terminated or truncated the final observation must be given, or be marked unknown by
 *           next_mask 0. Unknown and terminated: the transition is live, its discount 0, its next observation its own.
 *           Unknown and truncated: it is not live, and earlier ones bootstrap from its observation.
 *   Cut.    If a step's observations differ from those that the step before announced, the trajectory has a gap: the
 *           step before counts as truncated there (or see on_gap). Numbers are compared, after casting: -0 equals 0,
 *           any NaN equals any other, and the announced values stay stored. An unreported reset is detected this way
 *           only if next observations are given: otherwise flag every end or call per_replay_cut().
 *   Autoreset.  PER_AUTORESET_NEXT_STEP: after an end, a step whose observation equals the final one is the one in
 *           which the environment resets, and is not added (id -1). PER_AUTORESET_SAME_STEP: at an end next_fields is
 *           the next episode's first observation unless the caller puts the final one there; so next_mask must be given
 *           with every step that ends an episode, and say which of the two it is. PER_AUTORESET_DISABLED: nothing.
 *   Resets that autoreset does not tell of.  An environment that resets by itself after an end, though autoreset is
 *           PER_AUTORESET_DISABLED, gives its final observation twice: the step that brings it again is the one in
 *           which it resets (next step), or what was given as the final observation is the first one of the next
 *           episode (same step). Such ends are counted in suspected_resets, also with PER_AUTORESET_SAME_STEP. With
 *           PER_AUTORESET_NEXT_STEP that step is not added, and counted only if it has a reward other than 0 or ends
 *           an episode, as no reset does: its environment resets in the same step. Nothing else tells the two apart,
 *           and it is no error, since an episode may begin with the very observation that the last one ended with.
 *   NaN.    With PER_NAN_ERROR a NaN in an observation, a next observation or a reward is an error, which names the
 *           entry. Infinities are numbers, and other fields may hold NaN.
 *   Priority.  A transition takes the largest priority (see per_max_priority) when it becomes live, or the one that
 *           was given for it before then. The largest is taken once for each step of a call, before any environment's
 *           is added: transitions that the step overwrites still count, and priorities given with it count from the
 *           next step on. Priorities given for steps at which no sequence starts are checked, and have no effect.
 *   store_next_observation.  next_fields must be given with every step, and cuts are made by hand only. Sequences, and
 *           n_step above 1, take the rows of an environment for what they are: steps in order of time.
 *
 *   ids_out  [K, n] or NULL: id of each row; -1 where nothing was added
 *
 * PER_ERROR_INVALID_ARGUMENT, PER_ERROR_FULL; PER_ERROR_BUSY where the rate limiter does not allow so many yet (see
 * per_replay_wait_to_add()); PER_ERROR_IO where rows lie in `storage` and its disk has no room for them;
 * PER_ERROR_OUT_OF_MEMORY.
 * On PER_CUDA what is known on the device only is checked there, step by step: one that would be an error is skipped
 * as if its mask were 0, and counted; so is a priority that is not valid.
 *
 * On PER_CUDA any of the arrays may also lie in host memory, but not while `stream` is captured. Such an array is read
 * before the call returns, and cast on the host, where a value that does not fit its dtype is an error as above, unless
 * a mask that is given lies on the device. All else that is wrong with values is known to the device only.
 * It goes through a ring of pinned memory, and so do env_ids of more than 256 environments; where that is full, the call
 * waits for the device, and calls of other threads on the buffer for this one. ids_out must be memory that the device
 * can write, be it its own, managed or pinned, and is written when the stream gets there.
 */
PER_API per_status per_replay_add(per_replay* replay, const per_steps* steps, int64_t* ids_out, void* stream);

/*
 * Ends the running episodes of the environments as truncated: by what follows, the next step of each has nothing to do
 * with its last. Where the observation after the last step is known, it is the final one; else it counts as unknown.
 * Environments without a running episode are left alone.
 *
 *   count    number of env_ids; not looked at if env_ids is NULL
 *   env_ids  [count] 0 .. n_envs - 1, or NULL: all. Host memory; on PER_CUDA more than 256 may make the call wait as
 *            arrays in host memory do with per_replay_add()
 */
PER_API per_status per_replay_cut(per_replay* replay, int64_t count, const int64_t* env_ids, void* stream);

/* ------------------------------------------------------------------ batches */

/* Fill with per_sample_options_init(), then change what differs from the buffer's own options for this call. */
typedef struct per_sample_options {
    uint64_t struct_size;      /* set by _init; do not change */
    double beta;               /* >= 0; NAN: by the buffer's schedule, which only such calls advance; _init: NAN */
    double uniform_fraction;   /* 0 .. 1; NAN: the buffer's; _init: NAN */
    int64_t n_step;            /* 1 .. the buffer's; 0: the buffer's; _init: 0. Give it with sequences if another thread
                                  might set the buffer's, since it decides the size of observations */
    int32_t scheme;            /* a per_scheme; -1: the buffer's; _init: -1 */
    int32_t prioritization;    /* a per_prioritization; -1: the buffer's; _init: -1 */
    int32_t normalize_weights; /* a per_normalization; -1: the buffer's; _init: -1 */
    int32_t reserved;          /* 0 */
    int64_t n_step_min;        /* not 0: each transition, or sequence, has an n of its own in place of n_step, drawn for
                                  it from n_step_min .. n_step, each equally likely; _init: 0 */
    const uint64_t* key;       /* [2] or NULL, for per_replay_sample() only: the draw is the one that this buffer would
                                  make if its seed were key[0] and it had made key[1] others; _init: NULL. On PER_CUDA
                                  each launch of a graph may find another one there */
    const per_hindsight_options* hindsight; /* for per_replay_sample(), where key is NULL then, and
                                               per_replay_get_windows() only: other goals are put into some of the
                                               transitions; see per/hindsight.h. NULL: none; _init: NULL */
} per_sample_options;

PER_API per_status per_sample_options_init(per_sample_options* options, uint64_t struct_size);

/*
 * Where a batch of B transitions goes. Every array may be NULL: it is then not written. m_i is the number of steps in
 * the window of transition i: its n, which is n_step or drawn from n_step_min .. n_step, or fewer if its episode ends
 * inside the window. (s: stack of the field, left out if 1.) The frames of a stack go from the oldest to the newest.
 * Those from before the first step of the episode are what the field's padding says.
 *
 * Of sequences weights, ids, priorities, probabilities and times_sampled are [B], all else has a value for each step
 * t < T, as if it were drawn by itself, with the n of its sequence:
 *
 *   fields       observations [B, T + n_step, s, shape], of which t is that of step t, and t + n_steps[t] the one to
 *                bootstrap from; fields of role PER_ROLE_RECURRENT_STATE [B, s, shape], of the start; others
 *                [B, T, s, shape]. Stacks of the first steps reach back to before the start, never to before the
 *                episode
 *   next_fields  NULL, or NULL entries only: they are among the observations
 *   reward, discount, n_steps, terminated, truncated, gamma_m, mask  [B, T]; mask is 1 for steps that there are
 *
 * A sequence is padded with zeros where its episode has ended (n_steps is 0 in the padding). Observations that are
 * neither a step's nor one that a step bootstraps from are zeros, too: with n > T those in between. The last step
 * of an episode that was truncated at an unknown observation is padding, but for its observation. After a terminal
 * state whose observation is unknown the last one is given once more.
 */
typedef struct per_batch {
    uint64_t struct_size;     /* set by _init; do not change */
    void* const* fields;      /* [n_fields] by field: [B, s, shape of the field] at step i. _init: NULL: none */
    void* const* next_fields; /* [n_fields] by field, not looked at for those that are no observations:
                                 [B, s, shape] at step i + m. _init: NULL: none */
    float* reward;            /* [B] sum over k < m of gamma^k r_(i+k) */
    float* discount;        /* [B] gamma^m if step i + m - 1 is not terminated, else 0: factor of the bootstrap value */
    int32_t* n_steps;       /* [B] m */
    uint8_t* terminated;    /* [B] of step i + m - 1; a step flagged both ways is terminated only */
    uint8_t* truncated;     /* [B] of step i + m - 1 */
    float* weights;         /* [B] importance-sampling weights; see per_replay_sample() */
    int64_t* ids;           /* [B] */
    float* priorities;      /* [B] p, before alpha */
    float* probabilities;   /* [B] the P of the weights */
    uint8_t* mask;          /* [B, T] 0 where a sequence is padded. Not for single transitions */
    float* gamma_m;         /* [B] gamma^m, however the window ends: `discount` is 0 where it is terminated, and this
                             else. For learners that leave out the bootstrap value by `terminated` themselves */
    int32_t* times_sampled; /* [B] how often it has been drawn; see per_replay_sample(). Must be NULL without
                               keep_times_sampled */
} per_batch;

PER_API per_status per_batch_init(per_batch* batch, uint64_t struct_size);

/*
 * Draws batch_size live transitions with probability P(i), and their importance-sampling weights
 *
 *   w_i = (N P(i))^-beta / max_j (N P(j))^-beta     (section 3.4; j by per_normalization, over the batch by default)
 *
 * N being the number of live transitions. Without replacement (N pi_i / B)^-beta with inclusion probabilities pi. If
 * all priorities are 0 the draw is uniform and the weights 1.
 *
 * n_step and n_step_min change windows only: what is live, which transitions are drawn and what they weigh is the same
 * whatever they are.
 *
 *   options     NULL: those of the buffer
 *   batch_size  1 .. 2^24
 *   batch       see per_batch
 *
 * With a key the same transitions and the same key give the same draw, whatever was drawn before. It counts as any
 * other draw: the next one without a key is what it would have been after another.
 *
 * With keep_times_sampled each place of the batch is a use of its transition, or sequence: of the one that was drawn,
 * not of the others that its window reaches. times_sampled of a batch says how often each has been used since it was
 * added, this batch included, up to 2^31 - 1: a transition that was drawn twice into one batch has the same number at
 * both places. Draws ahead by a loader are uses when they are made, also of batches that nobody takes before it ends.
 * Epochs, and calls that get transitions by ids or units, are none, and say how often each has been used so far.
 *
 * With max_times_sampled k > 0 no transition is drawn more than k times. The draw that uses it for the k-th time still
 * returns it whole; then it is not live any more, whatever is called. As one batch with replacement could use it more
 * often than that, another scheme than PER_WITHOUT_REPLACEMENT is PER_ERROR_INVALID_ARGUMENT; and so is, as always
 * without replacement, a draw of more transitions than are left.
 *
 * PER_ERROR_EMPTY if nothing is live; PER_ERROR_BUSY where the rate limiter does not allow so many yet (see
 * per_replay_wait_to_sample()); PER_ERROR_CALLBACK with hindsight; PER_ERROR_INVALID_ARGUMENT. A call that fails is no
 * draw and does not advance beta. On PER_CUDA, where it is known on the device only that nothing is live: ids -1,
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
    uint64_t struct_size;   /* set by _init; do not change */
    int64_t count;          /* >= 0; 0 changes nothing, and the arrays are not looked at; _init: 0, to be set */
    const int64_t* ids;     /* [count] as batches carry them; _init: NULL, to be set */
    const float* td_errors; /* [n_critics, count], of sequences [n_critics, count, n_steps]: finite, any sign. NULL: not
                               given; _init: NULL */
    const float* priorities; /* [count] the priorities themselves: finite, >= 0; before alpha, and nothing is added.
                                NULL: not given; _init: NULL */
    int64_t n_critics;       /* >= 1, and 1 with priorities. Above 16 it must not be `count` for single transitions:
                                values of shape [n, 1], subtracted from [n], would look like that; _init: 1 */
    int64_t n_steps;         /* TD errors of each sequence: T, or sequence_length, which leaves out the burn-in; 0 is T.
                                0 for single transitions, and with priorities; _init: 0 */
} per_priorities;

/* As per_tree_options_init(). */
PER_API per_status per_priorities_init(per_priorities* priorities, uint64_t struct_size);

/*
 * Sets the priority of each id: the one that is given, or p = |td_error| + epsilon (section 3.3, proportional), with
 * several critics for the mean or the largest of their |td_error| (see per_critics). Of equal ids the last one wins.
 * Updates of transitions that were overwritten or can never be drawn (again), and of id -1, are ignored and counted
 * (stale_updates).
 *
 * TD errors of sequences give (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement
 * Learning", section 2.3)
 *
 *   p = sequence_eta max_t |d_t| + (1 - sequence_eta) mean_t |d_t| + epsilon
 *
 * with |d_t| for what the critics make together at step t, t over steps after the burn-in that are no padding. Entries
 * of other steps, and of sequences that came too late, are not looked at. A sequence that is not live yet may be given
 * its priority, too; by TD errors if it has a step after the burn-in whose return is complete. If it has none, its TD
 * errors are not looked at, and counted (stale_updates).
 *
 * PER_ERROR_INVALID_ARGUMENT for an id that was never issued and, unless on_invalid is PER_INVALID_SKIP, for a TD error
 * or priority that is not allowed, or a priority that overflows: nothing is changed. On PER_CUDA such entries are
 * skipped and counted.
 */
PER_API per_status per_replay_update_priorities(per_replay* replay, const per_priorities* priorities, void* stream);

/*
 * Reads p by id; 0 for transitions that are not live.
 *
 *   priorities_out  [count]
 *
 * PER_ERROR_INVALID_ARGUMENT for an id that was never issued (PER_CUDA: 0, and counted).
 */
PER_API per_status per_replay_get_priorities(per_replay* replay, int64_t count, const int64_t* ids,
                                             float* priorities_out, void* stream);

/* --------------------------------------------------------------------- rows */

/*
 * Gathers rows by id, as they were added: one step, one frame, whatever n_step, frame_stack and sequence_length. The
 * next observation is that of the row that follows.
 *
 *   batch  fields, next_fields, reward, discount, n_steps (1), terminated, truncated, gamma_m, ids, priorities and
 *          times_sampled are written; weights, probabilities and mask must be NULL
 *
 * PER_ERROR_INVALID_ARGUMENT for an id that was never issued, was overwritten, or is a final observation's; and, if
 * next_fields are asked for, for a step whose next observation is not there yet. (PER_CUDA: zero rows, counted.)
 */
PER_API per_status per_replay_get(per_replay* replay, int64_t count, const int64_t* ids, const per_batch* batch,
                                  void* stream);

/*
 * Writes the live transitions, or sequences, of these ids as per_replay_sample() writes those that it draws: n-step
 * returns, stacks, priorities, and the probabilities and weights that a draw would give them now. It is no draw: the
 * random state, the schedule of beta and all statistics stay as they are. With n_step_min it is random how long windows
 * are, and with hindsight which transitions get which goals: such a call takes a number from the draws, as an
 * epoch does, and counts in `samples`.
 *
 * P and weights are those of one draw with replacement from all N live transitions, whatever the scheme; PER_BATCH_MAX
 * looks for the largest weight among these ids. A transition that a draw would never give, as its priority is 0, has
 * P = 0 and weight 0. With PER_RANK ranks are taken anew where a draw would take them.
 *
 *   options     NULL: those of the buffer. Where beta is NAN, it is that of the next batch
 *   on_invalid  a per_on_invalid. PER_INVALID_SKIP: where an id is -1, was never issued or is not live, the batch gets
 *               id -1 and zeros
 *   count       0 .. 2^24; 0 writes nothing, and ids may then be NULL
 *   ids         [count] in any order; one may be given several times
 *   batch       see per_batch
 *
 * PER_ERROR_INVALID_ARGUMENT, also for an id that is not live, unless on_invalid is PER_INVALID_SKIP: the message names
 * the first one. On PER_CUDA such ids are always skipped; with PER_INVALID_ERROR they are counted. PER_ERROR_CALLBACK
 * with hindsight.
 */
PER_API per_status per_replay_get_windows(per_replay* replay, const per_sample_options* options, int32_t on_invalid,
                                          int64_t count, const int64_t* ids, const per_batch* batch, void* stream);

/*
 * Writes fields of transitions back, by id. Ids of overwritten rows and -1 are ignored and counted (stale_updates).
 * Of equal ids the last one wins.
 *
 *   fields  [n_fields] by field, [count, shape of the field]; data NULL: the field stays as it is
 *
 * PER_ERROR_INVALID_ARGUMENT for an id that was never issued, and for a field that is an observation: rows share those;
 * PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_replay_set(per_replay* replay, int64_t count, const int64_t* ids, const per_array* fields,
                                  void* stream);

/* ----------------------------------------------------------------- settings */

/*
 * Empties all lanes. Ids go on counting; random state, maximum priority and the schedule of beta stay. An environment
 * that resets in its next step (PER_AUTORESET_NEXT_STEP) is still known to. Cost: on PER_CPU that of what is live, on
 * PER_CUDA of clearing the memory of priorities.
 */
PER_API per_status per_replay_clear(per_replay* replay, void* stream);

/* Fill with per_replay_settings_init(), then set what is to change; see per_replay_change_settings(). */
typedef struct per_replay_settings {
    uint64_t struct_size;     /* set by _init; do not change */
    double alpha;             /* NAN: stays; _init: NAN */
    double beta;              /* NAN: stays; _init: NAN */
    double gamma;             /* NAN: stays; _init: NAN */
    int64_t n_step;           /* 0: stays; _init: 0 */
    int32_t save_compression; /* -1: stays; _init: -1 */
    int32_t reserved;         /* 0 */
} per_replay_settings;

PER_API per_status per_replay_settings_init(per_replay_settings* settings, uint64_t struct_size);

/*
 * Gives options of the buffer other values: all that are set, in this order, or, on any error, none.
 *
 *   alpha             >= 0, also to and from 0 (p^0 = 1 for every live transition). Cost: one pass over the buffer
 *   beta              >= 0; ends the schedule of beta
 *   gamma             0 .. 1. Transitions keep their rewards: returns are formed when a batch is drawn
 *   n_step            1 .. 64, as far as the lanes have rows for it. Transitions become live or stop being so. One pass.
 *                     Draws of a CUDA graph keep the n_step that they were captured with; where that is now more, they
 *                     give ids -1 and are counted
 *   save_compression  0 .. 19, of later saves
 *
 * PER_ERROR_INVALID_ARGUMENT, also while `stream` is captured, unless save_compression alone is set: the call changes
 * them, and no launch of a graph does. PER_ERROR_UNSUPPORTED for a save_compression above 0, where this library was
 * built without zstd.
 */
PER_API per_status per_replay_change_settings(per_replay* replay, const per_replay_settings* settings, void* stream);

/* ------------------------------------------------------------- rate limiter */

/*
 * The rate limiter keeps adds and draws in step, also where they are made by several threads. It counts a steps that
 * were added and d transitions that were drawn, both since creation or the last per_replay_clear(), and allows
 *
 *   an add of k steps            if floor(r (a + k - m)) - d <= e
 *   a draw of b transitions      if a >= m, and floor(r (a - m)) - d - b >= -e
 *
 * with r = samples_per_insert, e = samples_tolerance and m = min_size_to_sample, at least 1. With r = 0 all adds are
 * allowed, and all draws once a >= m. Adds of zero steps are always allowed. A call that is not allowed yet is
 * PER_ERROR_BUSY. A call for more than e transitions, or for more than e / r steps beyond the first m, is never allowed:
 * it is PER_ERROR_INVALID_ARGUMENT at any time.
 *
 * The first m steps are free, in calls of any size. A call that goes beyond them is allowed if the same steps, added one
 * a call, would be: one call can fill a buffer with s steps before the first draw if m >= s - e / r. A larger call is
 * refused as a whole, because later adds would have to wait for the draws that it owes.
 *
 * So the limits always let one of the two sides go on, and a thread that has both need not wait. But they do not know
 * why else a call fails: m must be large enough for a draw to succeed by then - for something to be live, and with
 * PER_WITHOUT_REPLACEMENT a whole batch -, or both sides wait for ever. So they do where max_times_sampled leaves fewer
 * live than a batch takes while adds wait for that batch: a step can be drawn max_times_sampled times at most, and
 * fewer where it is overwritten before, or never live. So r should be well below that number; above it, it is refused
 * at creation. Of sequences, which begin at every sequence_stride-th step of an episode, it should be well below
 * max_times_sampled / sequence_stride, which is not looked at. With overwrite 0 m is at most the capacity, and once all
 * lanes are full draws go on until e are ahead. Of several that wait on one side no turns are kept: calls for few may
 * overtake one for many.
 *
 *   k    K n steps of per_replay_add(). Those that its mask leaves out are counted neither, but on PER_CUDA, where the
 *        mask may be known on the device only. A step that autoreset drops is counted
 *   b    batch_size of per_replay_sample() and each draw of a loader, when it is made. A sequence counts as one, whatever
 *        its length, and so does a window of n steps. Epochs, and calls that get transitions by ids or units, are no
 *        draws, and not limited
 *
 * Loaders.  A draw ahead that is not allowed fails, and is made again when its turn comes; per_loader_next() is then
 *           PER_ERROR_BUSY, even if it may wait, unless it is allowed by then. per_loader_stop() does not end waits of
 *           per_replay_wait_to_sample(). What a loader drew ahead stays counted when it ends.
 * Channels. Their thread waits instead of its writers, which see a full ring. It adds as many of the steps that are
 *           there as are allowed. per_channel_free() adds those that are left without a limit. Where there is no thread
 *           per_channel_move() adds what is allowed, and per_channel_flush() waits. A thread that draws must not wait
 *           for a flush for ever: the channel may be waiting for its draws.
 * Device.   On PER_CUDA calls count when they are made, whatever the device finds. A captured call counts once, and
 *           launches of its graph do not: where draws are captured and adds are not, adds are soon PER_ERROR_BUSY for
 *           ever. A coordinator, which draws from its shards by units, has no rate limiter.
 *
 * This function waits until an add of so many steps is allowed; the add may still be PER_ERROR_BUSY if another thread
 * adds before it. While it waits it holds up neither other calls nor fork(). It returns at once if nothing is limited.
 *
 *   count       k >= 0
 *   timeout_ms  milliseconds, >= 0; or -1: for as long as it takes
 *
 * PER_ERROR_BUSY if it is not allowed by then, or other calls hold the buffer for longer; PER_ERROR_INVALID_ARGUMENT,
 * also if it never will be.
 */
PER_API per_status per_replay_wait_to_add(per_replay* replay, int64_t count, int64_t timeout_ms);

/*
 * The same for a draw.
 *
 *   batch_size  b, 1 .. 2^24
 */
PER_API per_status per_replay_wait_to_sample(per_replay* replay, int64_t batch_size, int64_t timeout_ms);

/*
 * Ends all limits for good, such as when one side has ended: whoever waits goes on. samples_per_insert,
 * samples_tolerance and min_size_to_sample are 0 from then on.
 */
PER_API per_status per_replay_stop_limiting(per_replay* replay);

/* -------------------------------------------------------------------- state */

/*
 * Counts the live transitions, or sequences, and writes their ids: environment by environment, in order of time.
 *
 *   capacity   >= 0: for how many ids_out has room; if there are more, the first are written. 0: they are only counted,
 *              which costs nothing that grows
 *   ids_out    [capacity] host memory, on PER_CUDA too; may be NULL if capacity is 0
 *   count_out  how many there are, also if that is more than capacity
 *
 * PER_ERROR_INVALID_ARGUMENT, PER_ERROR_OUT_OF_MEMORY. Cost with ids: one pass over the buffer. Synchronises.
 */
PER_API per_status per_replay_get_live_ids(per_replay* replay, int64_t capacity, int64_t* ids_out, int64_t* count_out);

/* What a buffer holds and has done: per_replay_get_statistics(). Counters count since creation. */
typedef struct per_replay_statistics {
    uint64_t struct_size;       /* set by the call */
    int64_t capacity;           /* rows in all: n_envs * rows of a lane */
    int64_t live;               /* transitions, or sequences, that can be drawn now */
    int64_t added;              /* transitions added */
    int64_t dropped;            /* steps not added because the environment was resetting (autoreset) */
    int64_t episodes;           /* episodes that ended, cuts included */
    int64_t cuts;               /* of them, those that were cut */
    int64_t samples;            /* batches drawn, also ahead by a loader; each epoch counts as one, and
                                   each call of per_replay_get_windows() with n_step_min or hindsight */
    int64_t beta_step;          /* batches that advanced beta; those of a loader once they are handed out */
    int64_t stale_updates;      /* entries of updates, also of fields, that came too late */
    int64_t rejected_updates;   /* entries of calls that write, not allowed and skipped */
    double total;               /* sum of p^alpha over the live transitions */
    double max_priority;        /* priority that the next transition gets */
    double alpha;               /* exponent of the priorities */
    double beta;                /* exponent of the weights of the next batch */
    double gamma;               /* discount of a step */
    int64_t updates;            /* entries of updates that set a priority */
    int64_t last_batch_size;    /* transitions of the last batch that was sampled; 0, and so is all else of it, before
                                 the first */
    int64_t last_max_age;       /* largest age in the last batch: rows that its lane took after a transition until the
                                 draw, one for each step and one for each final observation; (newest id of the lane -
                                 id) / n_envs */
    double last_mean_age;       /* mean age in the last batch */
    double last_effective_size; /* (sum of w)^2 / sum of w^2 of the last batch: so many transitions of equal weight say
                                   as much */
    double last_duplicates;     /* share of the last batch that repeats another of its transitions, 0 .. 1 */
    int64_t memory_bytes;       /* bytes allocated for rows and priorities */
    int64_t suspected_resets;   /* ends after which an environment seems to have reset in another way than autoreset
                                   says */
    int64_t huge_page_bytes;    /* of memory_bytes, those on huge pages, as the kernel gave the first one of each array;
                                   0 on CUDA. Much less than memory_bytes in a buffer of many MB: draws are slower,
                                   as the kernel does not give huge pages to those who ask (madvise) */
} per_replay_statistics;

/*
 * Fills *statistics_out. Cost: that of a few weights, once for each batch; nothing that grows with the buffer.
 * Synchronises.
 *
 *   struct_size  sizeof(per_replay_statistics) of the caller
 */
PER_API per_status per_replay_get_statistics(per_replay* replay, per_replay_statistics* statistics_out,
                                             uint64_t struct_size);

/*
 * Waits until all work on `stream` that this buffer queued is done, and reports once what went wrong on the device
 * since the last report, with the number of entries, steps or calls of each kind, and of steps skipped for each reason.
 * The status is that of the first of these that happened at all:
 *
 *   PER_ERROR_INVALID_ARGUMENT  ids, priorities, TD errors, steps or values were skipped; calls of
 *                               per_replay_compute_advantages() changed nothing; draws without replacement found too little
 *   PER_ERROR_FULL              steps were not added, as their lane was full
 *   PER_ERROR_EMPTY             draws found nothing live
 *
 * PER_ERROR_CUDA. Does nothing on PER_CPU.
 */
PER_API per_status per_replay_synchronize(per_replay* replay, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* PER_REPLAY_H */

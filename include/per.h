/*
 * per.h - prioritized experience replay (Schaul et al. 2016, arXiv:1511.05952), for every language.
 *
 * Two objects. A per_tree holds priorities and draws indices in proportion to them; a per_replay stores whole
 * transitions on top of one and draws batches of them with importance-sampling weights.
 *
 * This header needs C99 or C++ and nothing but the two standard headers below. What holds for every function:
 *
 * Status.   A function that can fail returns a per_status. After any status but PER_OK the handle is as it was before
 *           the call and nothing was written to the outputs, unless the function says otherwise.
 * Threads.  A handle may be used by several threads; each call is atomic with respect to the others. Different handles
 *           share nothing, and wait for each other only while a thread forks. _free is a handle's last call: no other
 *           may be inside of it or wait in it, and none may follow. That is not detected. A thread that waits in
 *           per_loader_next() is sent away by per_loader_stop() and must have returned before per_loader_free().
 * Timeouts. timeout_ms is in milliseconds, >= 0, or -1: for as long as it takes. It bounds all waits of a call: also
 *           those for another thread's call on the same handle, or for one that holds the buffer, such as a save. For
 *           such a call up to 100 ms more are waited, so that a call that only looks does not fail by chance.
 * Fork.     fork() waits until no call is inside any handle, and calls that begin meanwhile wait for it. Handles on
 *           PER_CPU stay usable in a forked child, which then has its own copy. In a child every call but _free on a
 *           PER_CUDA handle, a buffer with `storage`, a loader, a reader, a save, a channel or a writer is an error. Of
 *           file descriptors a child keeps those of the memory of channels and shared loaders only: a lock on a file ends
 *           with the process that took it.
 * Memory.   The caller owns every buffer passed in or out, and nothing is kept after the call returns; but on PER_CUDA
 *           arrays are read and written when the stream gets there, and must stay until then. Array arguments lie in
 *           host memory for handles on PER_CPU and in the memory of the device for handles on PER_CUDA. Options
 *           structs, names and shapes always lie in host memory. Arrays are contiguous, the last axis fastest, and
 *           aligned to the size of their elements, else PER_ERROR_INVALID_ARGUMENT. NULL is an error unless it is said
 *           to be allowed. An array that a call writes must not overlap another one of the call, read or written: what
 *           is then in it, or stored, is not said, and nothing worse happens. Arrays that are only read may overlap.
 *           Instead of in its own, arrays for a device may lie in managed or pinned memory, which it can reach too. Of
 *           other host memory, and of another GPU's, a kernel would make a fault, after which the process cannot use
 *           the device any more: so one array of each call is looked at - its ids, indices or key, or else the first
 *           that is given; by per_replay_add() each that is read - and is PER_ERROR_INVALID_ARGUMENT if it lies on
 *           another GPU, or in host memory unless the device reads all of that.
 * Streams.  `stream` is a cudaStream_t, NULL being the legacy default stream; it must be NULL for handles on PER_CPU.
 *           On PER_CUDA a call that takes a stream queues its work there and returns; the others, and those that say
 *           so, synchronise. Calls of one handle on different streams run one after the other all the same. But for
 *           those that synchronise and those that set an option they can be captured in a CUDA graph, on one stream,
 *           and each launch of it is as if the calls were made again; the caller orders launches with each other and
 *           with other calls. If a launch runs beside another one or beside a call of the same handle, what the handle
 *           holds is undefined. Blocks of the two may then wait for each other: they give up after about half a minute.
 *           From then on the calls that synchronise and say something of the handle, per_tree_synchronize() and
 *           per_replay_synchronize() among them, are PER_ERROR_INVALID_ARGUMENT, and the handle can only be freed.
 *           A thread's current device stays what it is, and no device but a handle's own gets a context for it. A
 *           kernel that the caller launches behind a call with programmatic stream serialization must call
 *           cudaGridDependencySynchronize() before it touches what the call reads or writes.
 * Random.   Numbers come from Philox4x32-10, a counter-based generator: the seed of the handle and the number of draws
 *           made so far are the whole random state. The same seed and the same calls give the same indices and ids, bit
 *           for bit, from every language and on every device.
 * Counts.   Arrays that a call reads have at most 2^40 entries, all axes but the shape of a field counted. Where
 *           another thread writes to such an array meanwhile, any of its values may count, and nothing worse happens.
 * Sizes.    Options, batches and statistics begin with struct_size, which their _init function sets and which tells the
 *           library what the program knows. A program built against an older header works with a newer library: fields
 *           are only ever appended, one that a program does not have behaves as before it existed, and nothing beyond
 *           the program's struct is read or written. A program built against a newer header works with an older
 *           library while the fields that this does not have are 0, as _init leaves them; one that is set is
 *           PER_ERROR_UNSUPPORTED, and those of results stay 0.
 */
#ifndef PER_H
#define PER_H

#include <stddef.h>
#include <stdint.h>

#ifndef PER_API
#if defined(__GNUC__)
#define PER_API __attribute__((visibility("default")))
#else
#define PER_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------- version */

/* Number of this interface, and of libper.so.N. It grows when a program must be compiled anew. */
enum { PER_ABI_VERSION = 1 };

/* The PER_ABI_VERSION that the loaded library was built with. */
PER_API int32_t per_abi_version(void);

/* The library's version, such as "0.1.0". */
PER_API const char* per_version(void);

/* ------------------------------------------------------------------ status */

/* Values never change meaning and are never reused. */
typedef enum per_status {
    PER_OK = 0,
    PER_ERROR_INVALID_ARGUMENT = 1, /* per_last_error() names the argument, its value and what is allowed */
    PER_ERROR_OUT_OF_MEMORY = 2,
    PER_ERROR_EMPTY = 3,         /* nothing can be drawn */
    PER_ERROR_FULL = 4,          /* a lane is full and overwrite is 0 */
    PER_ERROR_BUSY = 5,          /* the buffer has a loader already, or a save that is still running; a loader that may
                                    not wait has no batch yet, or a save has not ended; a channel has a writer already,
                                    or no room in time; a shared loader has all its readers, or no batch in time; the
                                    rate limiter does not allow so much yet, also where a loader may wait; a directory
                                    of checkpoints is locked by others; or the function that a buffer is being saved by
                                    calls it */
    PER_ERROR_UNSUPPORTED = 6,   /* an option, device or file format that this version does not have */
    PER_ERROR_NO_DEVICE = 7,     /* no usable CUDA device; the message says why. A driver must be for the major version
                                    of CUDA that libper was built with, or a later one: 580 or later for CUDA 13 */
    PER_ERROR_CUDA = 8,          /* CUDA reported an error; the message has its name. A part of the call may be done */
    PER_ERROR_IO = 9,            /* a file could not be read or written; the message has the system's reason */
    PER_ERROR_CORRUPT_FILE = 10, /* a file is not one of this library's, or is damaged */
    PER_ERROR_INTERNAL = 11,     /* a defect of this library; the message is for its maintainers */
    PER_ERROR_CALLBACK = 12      /* a function that the caller gave failed; the message has what it returned */
} per_status;

/* "PER_OK", "PER_ERROR_EMPTY", ...; "unknown status" for a number that is none. Never NULL. */
PER_API const char* per_status_name(int32_t status);

/*
 * One line about the latest failure on this thread; "" if there was none. Valid until the next failing call on this
 * thread: calls that succeed, and _free, leave it alone.
 */
PER_API const char* per_last_error(void);

/* ----------------------------------------------------------------- choices */

/* Where a handle keeps its memory and does its work. */
typedef enum per_device { PER_CPU = 0, PER_CUDA = 1 } per_device;

/* How the `batch_size` draws of one batch are made. Section 3.3 of the paper uses the first. */
typedef enum per_scheme {
    PER_STRATIFIED = 0,         /* draw i comes from the i-th of batch_size equal parts of the total */
    PER_INDEPENDENT = 1,        /* each draw from the whole */
    PER_SYSTEMATIC = 2,         /* stratified, the same random number in every part */
    PER_WITHOUT_REPLACEMENT = 3 /* no index twice; each next draw in proportion to what is left */
} per_scheme;

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

/* What a TD error or priority does that is not allowed; and for per_replay_get_windows() an id that is not live. */
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

/* What a step does whose observation is not the one announced by the step before; see per_replay_add(). */
typedef enum per_on_gap {
    PER_GAP_CUT = 0,  /* the trajectory is cut there, and the cut counted */
    PER_GAP_ERROR = 1 /* PER_ERROR_INVALID_ARGUMENT */
} per_on_gap;

/* What a NaN does that is given to per_replay_add() in an observation, a next observation or a reward. */
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

/* Type of an element. Flags are bytes: 0 false, 1 true. Fields of PER_BOOL keep the bytes that they are given. */
typedef enum per_dtype {
    PER_BOOL = 0,
    PER_UINT8 = 1,
    PER_INT8 = 2,
    PER_UINT16 = 3,
    PER_INT16 = 4,
    PER_UINT32 = 5,
    PER_INT32 = 6,
    PER_UINT64 = 7,
    PER_INT64 = 8,
    PER_FLOAT16 = 9,   /* IEEE binary16 */
    PER_BFLOAT16 = 10, /* the upper half of a binary32 */
    PER_FLOAT32 = 11,
    PER_FLOAT64 = 12
} per_dtype;

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

/* What memory from the caller is for; see `allocate` of per_replay_options. */
typedef enum per_memory_use {
    PER_MEMORY_ROWS = 0,      /* fields, rewards and flags: most of the memory */
    PER_MEMORY_PRIORITIES = 1 /* priorities, their sum tree, and which rows are live */
} per_memory_use;

/* -------------------------------------------------------------------- tree */

/*
 * A tree holds `capacity` priorities and draws indices in proportion to them (section 3.3). Setting a priority and
 * drawing an index cost O(log capacity).
 *
 * Priorities are float32, finite and not negative. A leaf of priority p weighs mass(p) = ceil(p * 2^scale), a whole
 * number, and the probability of a draw is mass / sum of masses to within 2^-64, as random numbers have 64 bits; with
 * strata to within (batch_size + 2) 2^-64 on the average of the batch. Sums of whole numbers are exact: no history of
 * updates, however long or uneven, wears leaves away, draws a leaf of priority 0, or shifts the total. The tree
 * chooses the scale by itself, and again when priorities grow or shrink by orders of magnitude. With 1e8 leaves and
 * priorities as training produces them, probabilities differ from those of unrounded priorities by less than 1e-13 in
 * total variation.
 */
typedef struct per_tree per_tree;

/* Fill with per_tree_options_init(), then change what differs. */
typedef struct per_tree_options {
    uint64_t struct_size; /* set by _init; do not change */
    int64_t capacity;     /* number of leaves, 1 to 2^40; _init: 0, to be set */
    uint64_t seed;        /* of the draws; _init: 0 */
    int32_t device;       /* a per_device; _init: PER_CPU */
    int32_t device_index; /* which CUDA device; 0 for PER_CPU; _init: 0 */
} per_tree_options;

/*
 * Fills *options with the values named above. struct_size is sizeof(per_tree_options) of the caller.
 *
 * PER_ERROR_INVALID_ARGUMENT for a struct_size that no version of the struct has had, unless it is larger: then a
 * multiple of 8 up to 4096 is taken for that of a newer header.
 */
PER_API per_status per_tree_options_init(per_tree_options* options, uint64_t struct_size);

/*
 * Creates a tree with all priorities 0 and stores it in *tree_out (NULL on failure). Free it with per_tree_free().
 * Memory: 4.6 bytes a leaf, 8.3 on PER_CUDA; there the first update of a size beyond 4096 allocates up to 32 bytes
 * for each entry, and cannot be captured. Synchronises.
 *
 * PER_ERROR_INVALID_ARGUMENT, PER_ERROR_OUT_OF_MEMORY, PER_ERROR_NO_DEVICE, PER_ERROR_CUDA.
 */
PER_API per_status per_tree_create(const per_tree_options* options, per_tree** tree_out);

/* NULL is allowed. Synchronises. */
PER_API void per_tree_free(per_tree* tree);

/*
 * Sets priorities[i] at indices[i] for i = 0 .. count - 1; of equal indices the last one wins.
 *
 *   count       >= 0, on PER_CUDA at most 2^32 - 2; 0 changes nothing, and the arrays may then be NULL
 *   indices     [count]  0 .. capacity - 1
 *   priorities  [count]  finite, >= 0
 *
 * PER_ERROR_INVALID_ARGUMENT for any bad entry: nothing is changed. On PER_CUDA bad entries are skipped, counted, and
 * reported by per_tree_synchronize(). PER_ERROR_OUT_OF_MEMORY where it allocates (per_tree_create()): nothing is
 * changed.
 */
PER_API per_status per_update(per_tree* tree, int64_t count, const int64_t* indices, const float* priorities,
                              void* stream);

/*
 * Draws batch_size indices with probability P(i) = p_i / sum_k p_k, and their importance-sampling weights
 *
 *   w_i = (min_j P(j) / P(i))^beta, j over the batch     (section 3.4, normalised by the batch's maximum)
 *
 * without replacement with the inclusion probability in place of P.
 *
 *   batch_size      1 .. 2^24
 *   scheme          a per_scheme. PER_WITHOUT_REPLACEMENT needs batch_size leaves of positive priority
 *   beta            finite, >= 0; 0 gives weights 1
 *   indices_out     [batch_size]
 *   priorities_out  [batch_size] or NULL
 *   weights_out     [batch_size] or NULL
 *
 * PER_ERROR_EMPTY if all priorities are 0; PER_ERROR_INVALID_ARGUMENT. A call that fails is no draw: the next one draws
 * what it would have drawn. On PER_CUDA, where it is known on the device only that a tree is empty, or has too few
 * leaves to draw from without replacement, all indices are then -1, priorities and weights 0.
 */
PER_API per_status per_sample(per_tree* tree, int64_t batch_size, int32_t scheme, float beta, int64_t* indices_out,
                              float* priorities_out, float* weights_out, void* stream);

/*
 * Finds, for each prefix sum s, the index i with  p_0 + .. + p_(i-1) <= s < p_0 + .. + p_i.
 *
 *   prefix_sums  [count]  0 <= s < per_tree_total(), in units of priority
 *   indices_out  [count]
 *
 * A prefix sum names the unit of mass floor(s * 2^scale); per_tree_find_mass() names units themselves.
 *
 * PER_ERROR_EMPTY, PER_ERROR_INVALID_ARGUMENT; on PER_CUDA bad entries give -1 and are counted.
 */
PER_API per_status per_tree_find(per_tree* tree, int64_t count, const double* prefix_sums, int64_t* indices_out,
                                 void* stream);

/*
 * Finds, for each unit of mass u, the index i with  m_0 + .. + m_(i-1) <= u < m_0 + .. + m_i.
 *
 *   units        [count]  0 .. total mass - 1; see per_tree_mass()
 *   indices_out  [count]
 *
 * PER_ERROR_EMPTY, PER_ERROR_INVALID_ARGUMENT; on PER_CUDA bad entries give -1 and are counted.
 */
PER_API per_status per_tree_find_mass(per_tree* tree, int64_t count, const uint64_t* units, int64_t* indices_out,
                                      void* stream);

/*
 * Reads priorities.
 *
 *   count           number of indices; with indices == NULL it must be the capacity
 *   indices         [count], or NULL: 0 .. capacity - 1 in order
 *   priorities_out  [count]
 *
 * PER_ERROR_INVALID_ARGUMENT; on PER_CUDA bad indices give 0 and are counted.
 */
PER_API per_status per_tree_priorities(per_tree* tree, int64_t count, const int64_t* indices, float* priorities_out,
                                       void* stream);

/* Number of leaves. */
PER_API per_status per_tree_capacity(const per_tree* tree, int64_t* capacity_out);

/* Sum of all masses in units of priority: total mass / 2^scale. Synchronises. */
PER_API per_status per_tree_total(per_tree* tree, double* total_out);

/*
 * The whole numbers that draws are made of: the sum of all masses (below 2^62), and the scale s of
 * mass(p) = ceil(p * 2^s). Either output may be NULL. Both may change with the next per_update(). Synchronises.
 */
PER_API per_status per_tree_mass(per_tree* tree, uint64_t* total_mass_out, int32_t* scale_out);

/* Sets all priorities to 0. The random state stays. */
PER_API per_status per_tree_reset(per_tree* tree, void* stream);

/*
 * Waits until all work on `stream` that this tree queued is done, and reports once what went wrong on the device since
 * the last report: PER_ERROR_INVALID_ARGUMENT with the number of entries skipped, in all and of each array,
 * PER_ERROR_EMPTY, PER_ERROR_CUDA. Does nothing on PER_CPU.
 */
PER_API per_status per_tree_synchronize(per_tree* tree, void* stream);

/* ------------------------------------------------------------------ replay */

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
 * but the last T - 1, less those that max_times_sampled has ended; per_replay_capacity_for() says how many rows that
 * takes. Memory is allocated at creation, once, but for that of compressed fields.
 */
typedef struct per_replay per_replay;

/*
 * An array given to a call. Elements of another type than the field's are cast where numpy's "same_kind" rule allows
 * (to the same kind or a later one of bool, integer, float; a signed integer does not become an unsigned one), and a
 * value out of the target's range is an error. A flag is a boolean, or 0 or 1 of any dtype: any other value, also of a
 * byte of PER_BOOL, is an error.
 */
typedef struct per_array {
    const void* data;     /* NULL: not given */
    const int64_t* shape; /* [ndim], checked; or NULL: the caller vouches for the full shape */
    int32_t ndim;         /* 0 .. 16; not looked at if shape is NULL */
    int32_t dtype;        /* a per_dtype: the type of *data */
} per_array;

/*
 * A field of a transition. reward (float32), terminated and truncated (flags) are always there and are not declared.
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
                                       computed later: [shape], or one number for all elements (ndim 0, and shape not
                                       NULL). Cast and checked as arrays of steps are; copied; in host memory. NULL: the
                                       field must be given. Must be NULL for an observation */
    int32_t padding;                /* a per_padding: how stacks begin */
    int32_t compression;            /* a per_compression; with PER_COMPRESSION_DELTA a frame has 8 .. 2^24 bytes */
} per_field;

/*
 * Checks a field by itself, as per_replay_create() does.
 *
 *   field  its name may be NULL, and is then not looked at
 *
 * PER_ERROR_INVALID_ARGUMENT, PER_ERROR_OUT_OF_MEMORY (a row of it is beyond 63 bits).
 */
PER_API per_status per_field_check(const per_field* field);

/* Fill with per_replay_options_init(), then set capacity, fields and n_fields, and change what differs. */
typedef struct per_replay_options {
    uint64_t struct_size;      /* set by _init; do not change */
    int64_t capacity;          /* rows in all, 1 .. 2^40; rounded up to a multiple of n_envs; _init: 0, to be set */
    const per_field* fields;   /* [n_fields]; copied; _init: NULL, to be set */
    int64_t n_fields;          /* 1 .. 256; _init: 0, to be set */
    int64_t n_envs;            /* lanes, 1 .. 2^20; _init: 1 */
    uint64_t seed;             /* of the draws; _init: 0 */
    int64_t n_step;            /* steps of a return, 1 .. 64; _init: 1 */
    int64_t frame_stack;       /* frames of an observation, 1 .. 64; _init: 1 */
    int64_t sequence_length;   /* L, transitions that a sequence is learned from; 0: single transitions; _init: 0 */
    int64_t burn_in;           /* transitions before them that only warm up the recurrent state; needs L; _init: 0 */
    int64_t sequence_stride;   /* distance of sequence starts; 0: sequence_length; needs L; _init: 0 */
    int64_t beta_steps;        /* batches until beta reaches beta_final; 0: beta stays; _init: 0 */
    double gamma;              /* discount of a step, 0 .. 1; _init: 0.99 */
    double alpha;              /* exponent of priorities (equation 1), >= 0; _init: 0.6 */
    double beta;               /* exponent of weights (section 3.4) for the first batch, >= 0; _init: 0.4 */
    double beta_final;         /* and after beta_steps batches, linear in between, >= 0; _init: 1 */
    double epsilon;            /* p = |td_error| + epsilon (section 3.3), 0 .. FLT_MAX; _init: 1e-6 */
    double sequence_eta;       /* eta of R2D2 priorities (Kapturowski et al. 2019), 0 .. 1; _init: 0.9 */
    double uniform_fraction;   /* u of P = (1 - u) p^alpha / sum + u / N, 0 .. 1; _init: 0 */
    int32_t prioritization;    /* a per_prioritization; _init: PER_PROPORTIONAL */
    int32_t scheme;            /* a per_scheme; _init: PER_STRATIFIED */
    int32_t normalize_weights; /* a per_normalization; _init: PER_BATCH_MAX */
    int32_t max_priority;      /* a per_max_priority; _init: PER_MAX_EVER */
    int32_t on_invalid;        /* a per_on_invalid; _init: PER_INVALID_ERROR */
    int32_t on_gap;            /* a per_on_gap; _init: PER_GAP_CUT */
    int32_t autoreset;         /* a per_autoreset; _init: PER_AUTORESET_DISABLED */
    int32_t store_next_observation; /* 1: next observations in arrays of their own, needed where rows are in no order
                                      of time, or where the capacity must be exact; _init: 0 */
    int32_t overwrite;              /* 0: a full lane is PER_ERROR_FULL; 1: its oldest row is overwritten; _init: 1 */
    int32_t device;                 /* a per_device; _init: PER_CPU */
    int32_t device_index;           /* which CUDA device; 0 for PER_CPU; _init: 0 */
    int32_t critics;                /* a per_critics; _init: PER_CRITICS_MEAN */
    int32_t gather_threads;         /* threads that copy a batch of 4 MiB or more, the caller's among them; the others
                                       start with the first such batch; a batch of sequences is copied by one; not used
                                       on PER_CUDA; 0 .. 64, 0 being 1; _init: 1 */
    int32_t on_nan;                 /* a per_on_nan; _init: PER_NAN_ALLOW */
    int32_t save_compression;       /* of what is saved: 0: none; 1 .. 19: that level of zstd, of which higher ones take
                                       longer and save little more. Above 0 PER_ERROR_UNSUPPORTED where this library was
                                       built without zstd; _init: 0 */
    int32_t storage_preallocated;   /* 1: per_replay_create() takes the room on the disk for all rows in `storage`; 0:
                                       calls that add steps take it, a MiB at a time at most in each lane; _init: 0 */
    /* Memory from the caller; see per_replay_create(). Both functions or none: the system's memory. _init: NULL */
    void* (*allocate)(void* context, int64_t bytes, int64_t alignment, int32_t use);
    void (*deallocate)(void* context, void* memory, int64_t bytes, int32_t use);
    void* memory_context;       /* given to both; _init: NULL */
    double samples_per_insert;  /* transitions to be drawn for each step added; 0: as many as calls ask for; see
                                       per_replay_wait_to_add(); _init: 0 */
    int64_t samples_tolerance;  /* by how many transitions draws may be ahead of that, or behind: at least n_envs
                                       samples_per_insert, and at least the largest batch; 0 without
                                       samples_per_insert; _init: 0 */
    int64_t min_size_to_sample; /* steps to be added before the first draw; with samples_per_insert 0 is 1;
                                       _init: 0 */
    int32_t keep_times_sampled; /* 1: the buffer counts how often each transition, or sequence, is drawn; see
                                       per_replay_sample(); _init: 0 */
    int32_t max_times_sampled;  /* k: a transition, or sequence, is live until it has been drawn k times. Needs
                                       PER_WITHOUT_REPLACEMENT, and samples_per_insert to be at most k, and sets
                                       keep_times_sampled. 0: however often it is drawn; _init: 0 */
    /* More rows than memory; see per_replay_create() */
    const char* storage; /* a directory: rows lie in a file there; NULL: in memory; _init: NULL */
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
 * the arrays of options that only a call asks for, is the system's memory, and so is that of a buffer that
 * per_replay_load() or per_replay_load_from() creates. Where fork() does not copy the memory, the buffer must be used in
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
 *                   at here; neither are fields if n_fields is 0, none having a stack of its own then
 *   transitions     1 .. 2^40
 *   episode_length  steps of the shortest episode, of sequences more than burn_in; 0: episodes are longer than a lane
 *
 * PER_ERROR_INVALID_ARGUMENT, also if the result would be beyond 2^40. Cost: none that grows.
 */
PER_API per_status per_replay_capacity_for(const per_replay_options* options, int64_t transitions,
                                           int64_t episode_length, int64_t* capacity_out);

/* NULL is allowed. Synchronises, and waits for the end of a save that was started. */
PER_API void per_replay_free(per_replay* replay);

/*
 * The options that the buffer has now: as given, with capacity, stacks, roles and stride as they were resolved and
 * alpha, beta, gamma and n_step as they were set since. *options_out must have been filled by _init; its `fields` then
 * point into the handle and are valid as long as it. Synchronises.
 */
PER_API per_status per_replay_describe(per_replay* replay, per_replay_options* options_out);

/*
 * One or several consecutive steps of some or all environments: per_replay_add(). K = length, n = n_envs. Shapes are
 * [K, n, shape of the field]; the axis K may be left out if it is 1, and so may n.
 */
typedef struct per_steps {
    uint64_t struct_size;    /* set by _init; do not change */
    int64_t length;          /* K >= 0; _init: 1 */
    int64_t n_envs;          /* n: number of env_ids; not looked at if env_ids is NULL; _init: 0 */
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
 * Walks, and calls that get transitions by ids or units, are none, and say how often each has been used so far.
 *
 * With max_times_sampled k > 0 no transition is drawn more than k times. The draw that uses it for the k-th time still
 * returns it whole; then it is not live any more, whatever is called. As one batch with replacement could use it more
 * often than that, another scheme than PER_WITHOUT_REPLACEMENT is PER_ERROR_INVALID_ARGUMENT; and so is, as always
 * without replacement, a draw of more transitions than are left.
 *
 * PER_ERROR_EMPTY if nothing is live; PER_ERROR_BUSY where the rate limiter does not allow so many yet (see
 * per_replay_wait_to_sample()); PER_ERROR_INVALID_ARGUMENT. A call that fails is no draw and does not advance beta. On
 * PER_CUDA, where it is known on the device only that nothing is live: ids -1, weights 0, rows zero.
 */
PER_API per_status per_replay_sample(per_replay* replay, const per_sample_options* options, int64_t batch_size,
                                     const per_batch* batch, void* stream);

/*
 * Sets p = |td_error| + epsilon (section 3.3, proportional) for each id, with several critics for the mean or the
 * largest of their |td_error| (see per_critics). Of equal ids the last one wins. Updates of transitions that were
 * overwritten or can never be drawn (again), and of id -1, are ignored and counted (stale_updates).
 *
 *   count      >= 0; 0 changes nothing, and the arrays may then be NULL
 *   ids        [count] as batches carry them
 *   n_critics  >= 1; if it is above 16, not `count`: values of shape [n, 1], subtracted from [n], would look like that
 *   td_errors  [n_critics, count] finite, any sign
 *
 * Of sequences (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning", section
 * 2.3), with |d_t| for what the critics make together at step t, t over steps after the burn-in that are no padding:
 *
 *   p = sequence_eta max_t |d_t| + (1 - sequence_eta) mean_t |d_t| + epsilon
 *
 *   td_errors  [n_critics, count, T]; entries of other steps, and of sequences that came too late, are not looked at
 *
 * A sequence that is not live yet may be given its priority, too; by TD errors if it has a step after the burn-in whose
 * return is complete. If it has none, its TD errors are not looked at, and counted (stale_updates).
 *
 * PER_ERROR_INVALID_ARGUMENT for an id that was never issued and, unless on_invalid is PER_INVALID_SKIP, for a TD error
 * that is not finite or a priority that overflows: nothing is changed. On PER_CUDA such entries are skipped and
 * counted.
 */
PER_API per_status per_replay_update_priorities(per_replay* replay, int64_t count, const int64_t* ids,
                                                int64_t n_critics, const float* td_errors, void* stream);

/*
 * As per_replay_update_priorities() does for sequences, with TD errors that may leave the burn-in out.
 *
 *   n_steps    of each sequence: T, or sequence_length, which are the steps after the burn-in
 *   td_errors  [n_critics, count, n_steps]
 *
 * PER_ERROR_INVALID_ARGUMENT also for another n_steps, and where single transitions are drawn.
 */
PER_API per_status per_replay_update_sequences(per_replay* replay, int64_t count, const int64_t* ids, int64_t n_critics,
                                               int64_t n_steps, const float* td_errors, void* stream);

/*
 * As per_replay_update_priorities(), with the priorities themselves.
 *
 *   priorities  [count] finite, >= 0; before alpha, and nothing is added
 */
PER_API per_status per_replay_set_priorities(per_replay* replay, int64_t count, const int64_t* ids,
                                             const float* priorities, void* stream);

/*
 * Reads p by id; 0 for transitions that are not live.
 *
 *   priorities_out  [count]
 *
 * PER_ERROR_INVALID_ARGUMENT for an id that was never issued (PER_CUDA: 0, and counted).
 */
PER_API per_status per_replay_priorities(per_replay* replay, int64_t count, const int64_t* ids, float* priorities_out,
                                         void* stream);

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
 * are: such a call takes a number from the draws, as an epoch of a walk does, and counts in `samples`.
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
 * the first one. On PER_CUDA such ids are always skipped; with PER_INVALID_ERROR they are counted.
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

/*
 * Empties all lanes. Ids go on counting; random state, maximum priority and the schedule of beta stay. An environment
 * that resets in its next step (PER_AUTORESET_NEXT_STEP) is still known to. Cost: on PER_CPU that of what is live, on
 * PER_CUDA of clearing the memory of priorities.
 */
PER_API per_status per_replay_clear(per_replay* replay, void* stream);

/*
 * Sets alpha >= 0, also to and from 0 (p^0 = 1 for every live transition). Cost: one pass over the buffer. This
 * function and the three below are PER_ERROR_INVALID_ARGUMENT while `stream` is captured: an option is set by the call.
 */
PER_API per_status per_replay_set_alpha(per_replay* replay, double alpha, void* stream);

/* Sets beta >= 0 and ends its schedule. */
PER_API per_status per_replay_set_beta(per_replay* replay, double beta, void* stream);

/* Sets gamma, 0 .. 1. Transitions keep their rewards; returns are formed when a batch is drawn. */
PER_API per_status per_replay_set_gamma(per_replay* replay, double gamma, void* stream);

/*
 * Sets n_step, 1 .. 64, as far as the lanes have rows for it. Transitions become live or stop being so. One pass. Draws
 * of a CUDA graph keep the n_step that they were captured with; where that is now more, they give ids -1 and are
 * counted.
 */
PER_API per_status per_replay_set_n_step(per_replay* replay, int64_t n_step, void* stream);

/*
 * Sets save_compression, 0 .. 19, of later saves.
 *
 * PER_ERROR_INVALID_ARGUMENT; PER_ERROR_UNSUPPORTED above 0, where this library was built without zstd.
 */
PER_API per_status per_replay_set_save_compression(per_replay* replay, int32_t save_compression);

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
 *   b    batch_size of per_replay_sample(), per_replay_sample_hindsight() and each draw of a loader, when it is made. A
 *        sequence counts as one, whatever its length, and so does a window of n steps. Walks, and calls that get
 *        transitions by ids or units, are no draws, and not limited
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

/* Number of live transitions, or of live sequences. Synchronises. */
PER_API per_status per_replay_live(per_replay* replay, int64_t* live_out);

/*
 * Writes the ids of the live transitions: environment by environment, in order of time.
 *
 *   capacity   >= 0: for how many ids_out has room; if there are more, the first are written
 *   ids_out    [capacity] host memory, on PER_CUDA too; may be NULL if capacity is 0
 *   count_out  how many there are, also if that is more than capacity
 *
 * PER_ERROR_INVALID_ARGUMENT, PER_ERROR_OUT_OF_MEMORY. Cost: one pass over the buffer. Synchronises.
 */
PER_API per_status per_replay_live_ids(per_replay* replay, int64_t capacity, int64_t* ids_out, int64_t* count_out);

/* What a buffer holds and has done: per_replay_stats(). Counters count since creation. */
typedef struct per_replay_statistics {
    uint64_t struct_size;       /* set by _init; do not change */
    int64_t capacity;           /* rows in all: n_envs * rows of a lane */
    int64_t live;               /* transitions, or sequences, that can be drawn now */
    int64_t added;              /* transitions added */
    int64_t dropped;            /* steps not added because the environment was resetting (autoreset) */
    int64_t episodes;           /* episodes that ended, cuts included */
    int64_t cuts;               /* of them, those that were cut */
    int64_t samples;            /* batches drawn, also ahead by a loader; each epoch of a walk counts as one, and
                                   each call of per_replay_get_windows_hindsight(), and of per_replay_get_windows()
                                   with n_step_min */
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

PER_API per_status per_replay_statistics_init(per_replay_statistics* statistics, uint64_t struct_size);

/*
 * Fills *statistics_out, which must have been filled by _init. Cost: that of a few weights, once for each batch;
 * nothing that grows with the buffer. Synchronises.
 */
PER_API per_status per_replay_stats(per_replay* replay, per_replay_statistics* statistics_out);

/*
 * Writes the whole buffer to a file, so that a loaded one continues bit for bit: fields, priorities, lanes, counters,
 * maximum, schedules, random state. The file takes its place at `path` once it is complete and on the disk; until then,
 * and after an error, what was there before stays. It is compressed as save_compression says. Synchronises.
 *
 * It is written beside `path`, under a name that begins with the path's and ends in ".libper-N.tmp". A process that is
 * killed leaves it there; the next save to the same path removes it. Several savers of one path do not disturb each
 * other: the last one's file stays. Where `path` is a symbolic link, the file that it leads to is replaced. The mode of
 * a file that is replaced is kept.
 *
 * PER_ERROR_IO, also where `path` is a directory, a FIFO or a device, and where the folder that the file was put in
 * cannot be synced: the file is there then, and the message says so. PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_replay_save(per_replay* replay, const char* path);

/* Default timeout, in milliseconds, of the wait for a directory of checkpoints; see per_replay_checkpoint_within(). */
enum { PER_DIRECTORY_TIMEOUT_MS = 60000 };

/*
 * Writes a checkpoint of the buffer into a directory, and of its bytes only those that the last checkpoint there does
 * not hold: rows that came since then or were set, priorities, and what else has changed, compressed as save_compression
 * says. per_replay_load() loads it. Synchronises, and holds the buffer for as long as it takes to read all of it.
 *
 *   directory          made if it is not there; the one above it must be there. It gets the files manifest.per and
 *                      pack-*.per, a pack a call, and takes at most some two times what a file of per_replay_save()
 *                      does; packs that are no longer needed are removed. No other files in it are touched
 *   bytes_written_out  [1] what this call wrote to the disk, or NULL
 *
 * At any time, also after an error, a kill or a power failure, the directory holds this checkpoint or the one before it,
 * whole; once the call has succeeded, this one. It may have been written by another process or another buffer: what
 * differs is found by hashes (XXH3 of 128 bits).
 *
 * Calls for one directory take turns, in all processes of the machine: one that writes needs it alone, and those that
 * load it share it. This call waits PER_DIRECTORY_TIMEOUT_MS at most for its turn, before it locks the buffer, which
 * other calls use meanwhile. The directory's lock is flock(), which anybody can hold who may read the directory; on a
 * file system that has none the caller sees to the turns.
 *
 * Rows on the disk.  Where the directory is the buffer's `storage`, rows stay in their file, which gets the name
 * rows-*.per: what is not on the disk yet is brought there, and not counted in *bytes_written_out. The file has up to
 * 4096 pieces, of 1 MiB or more (256 MiB in a file of 1 TiB), each of which may be a mapping of its own. Pieces that this
 * checkpoint names are not written before the next one in this directory is there: a call that would write to one, such
 * as the first that adds to each environment, copies it first. Room for the copy is taken then, also with
 * storage_preallocated; a disk that is full is PER_ERROR_IO, and nothing has changed. The file may so become twice as
 * large as the rows, and larger while checkpoints fail. The call hashes pieces that were written since the last one.
 * Where the file cannot have a name (no O_TMPFILE, no /proc, or somebody removed its name), and once the disk has failed
 * to write it, all rows are written as in any other directory. per_replay_save_start() writes all rows, too.
 *
 * PER_ERROR_IO; PER_ERROR_CORRUPT_FILE if the manifest that is there is damaged; PER_ERROR_UNSUPPORTED if it is of a
 * newer library; PER_ERROR_BUSY, naming the directory, if its lock is not free in time; PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_replay_checkpoint(per_replay* replay, const char* directory, int64_t* bytes_written_out);

/*
 * As per_replay_checkpoint(), with a timeout.
 *
 *   timeout_ms  milliseconds to wait for the directory, >= 0; or -1: for as long as it takes. The time of writing does
 *               not count
 *
 * A PER_ERROR_BUSY that comes sooner has another reason than the directory.
 */
PER_API per_status per_replay_checkpoint_within(per_replay* replay, const char* directory, int64_t timeout_ms,
                                                int64_t* bytes_written_out);

/*
 * A save that a thread of the library writes while the buffer goes on.
 *
 * It needs no help: it ends by itself, with a file or with an error that per_save_wait() tells. per_replay_free() waits
 * for it. Where the process ends before it does, what was at its path stays, as with per_replay_save().
 *
 * Fork.  fork() does not wait for a save, which stays with the parent: in the child every call on it but
 * per_save_free() is PER_ERROR_INVALID_ARGUMENT, and nothing is written. The child's copy of a buffer on PER_CPU may be
 * changed, saved and freed.
 */
typedef struct per_save per_save;

/*
 * Begins to write what per_replay_save() would write, and stores the save in *save_out (NULL on failure), to be freed
 * with per_save_free(). What the file holds is the buffer of this moment, bit for bit, whatever is called on the buffer
 * from then on: adds, draws, updates, clears, settings and loaders go on while it is written. It takes its place at
 * `path` as per_replay_save() says.
 *
 * PER_CPU.  The call copies what there is of each environment, and no rows. The thread reads these in pieces of up to
 * 256 KiB, or of one frame if that is larger, and no call on the buffer waits for more than one piece. A row that is
 * about to be changed before it was read is copied first: memory grows by such rows, and by a quarter of a byte for
 * each row, until the last was read. Where there is none, the save ends with PER_ERROR_OUT_OF_MEMORY, and the call that
 * changes the row goes on.
 *
 * PER_CUDA.  The call copies all that the file will hold to memory of the host, after all work of the handle that was
 * queued before; the caller orders launches of graphs with it, as with other calls. Synchronises.
 *
 * PER_ERROR_BUSY if an earlier save of this buffer is still running; PER_ERROR_IO where no file can be begun at `path`;
 * PER_ERROR_OUT_OF_MEMORY. Other errors of per_replay_save() come from per_save_wait().
 */
PER_API per_status per_replay_save_start(per_replay* replay, const char* path, per_save** save_out);

/*
 * How far a save has come, in bytes of rows, which is most of what is written. Once all are, the file has still to be
 * brought to the disk: per_save_wait() says when it is there. After an error the numbers stay as they are.
 *
 *   written_out, total_out  0 <= *written_out <= *total_out; NULL: not asked for
 *
 * PER_ERROR_INVALID_ARGUMENT.
 */
PER_API per_status per_save_progress(per_save* save, int64_t* written_out, int64_t* total_out);

/*
 * Waits until a save has ended. Several threads may, and each call says the same.
 *
 *   timeout_ms  milliseconds, >= 0; or -1: for as long as it takes
 *
 * PER_ERROR_BUSY if the save is still running then; PER_ERROR_INVALID_ARGUMENT; and the errors of per_replay_save(),
 * with their messages, if it has failed.
 */
PER_API per_status per_save_wait(per_save* save, int64_t timeout_ms);

/* NULL is allowed. Waits for nothing: a save that is still running goes on, and ends as it would have. */
PER_API void per_save_free(per_save* save);

/*
 * Creates a buffer from a file of per_replay_save() or a directory of per_replay_checkpoint(), on the device asked for,
 * and stores it in *replay_out (NULL on failure). Free it with per_replay_free(). Synchronises. What any earlier release
 * wrote is read too.
 *
 * Cost: that of what the file holds, and of the environments, whatever capacity it names. (On PER_CUDA all memory is
 * allocated and cleared, as by per_replay_create().) For a directory it may wait, as per_replay_checkpoint() does: as long
 * as somebody writes to it.
 *
 * PER_ERROR_IO, also where `path` is a FIFO, a device, or a directory without a checkpoint; PER_ERROR_CORRUPT_FILE, also
 * where a single bit has changed, and where all checksums are right but no buffer can have been in the state that the
 * file holds; PER_ERROR_UNSUPPORTED for the format of a newer library, and for what was compressed where this one was
 * built without zstd; PER_ERROR_BUSY, naming the directory, if its lock is not free in time; and the errors of
 * per_replay_create().
 */
PER_API per_status per_replay_load(const char* path, int32_t device, int32_t device_index, per_replay** replay_out);

/*
 * Creates a buffer as per_replay_load() does, which lies where some options say.
 *
 *   place  filled by per_replay_options_init(). Of it device, device_index, allocate, deallocate, memory_context, storage
 *          and storage_preallocated are looked at; all others are those of the file. With PER_CUDA, `allocate` or
 *          `storage` no field is compressed
 *
 * What per_replay_load_from() reads cannot lie in `storage`, nor in memory of the caller's.
 *
 * Where `path` is a directory with a checkpoint that left rows in their file, and `storage` is that directory, the buffer
 * goes on from the file: rows are mapped, and none is read. Their hashes are not looked at, the size of the file is. A
 * file that a buffer has, in this process or another, or in a child that was forked from either, is PER_ERROR_BUSY. With
 * any other `storage`, or none, rows are copied, and their hashes looked at.
 *
 * The errors of per_replay_load() and per_replay_create(); PER_ERROR_BUSY.
 */
PER_API per_status per_replay_load_with(const char* path, const per_replay_options* place, per_replay** replay_out);

/* As per_replay_load_with(), with a timeout as per_replay_checkpoint_within() has it. */
PER_API per_status per_replay_load_within(const char* path, const per_replay_options* place, int64_t timeout_ms,
                                          per_replay** replay_out);

/*
 * Writes what per_replay_save() writes by a function of the caller: to memory, to a socket, into a larger file. The
 * bytes are those of a file, which per_replay_load() reads, too. Synchronises.
 *
 *   write    called with the bytes in order, `size` of them at a time, 1 .. 2^20. Returns how many of these it took,
 *            from the first on: 1 .. size. It is called again with the others. What it returns else ends the call
 *   context  given to write; may be NULL
 *
 * `write` runs on the thread of the call, and all that it is given is the buffer of one moment: calls of other threads
 * on the buffer wait for the end of the save. (fork() does not.) Its own calls on the buffer, and on walks and loaders
 * of it, and per_channel_flush() of its channels are PER_ERROR_BUSY. It may use any other handle, but two threads whose
 * functions call each other's buffers wait for ever, and so does one that waits for a reader of its own buffer. A
 * checkpoint of another thread that waits for the end of the save keeps its directory locked meanwhile. It must
 * free neither the buffer nor its loader nor its channels. It must not leave by an exception or longjmp; it may end its
 * thread by pthread_exit(), which is as if it failed. On PER_CUDA the buffer's device is current while it runs, and must
 * be when it returns.
 *
 * PER_ERROR_CALLBACK if `write` fails: what it took until then is no checkpoint. PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_replay_save_to(per_replay* replay,
                                      int64_t (*write)(void* context, const void* bytes, int64_t size), void* context);

/*
 * Creates a buffer as per_replay_load() does, from the bytes that a function of the caller gives.
 *
 *   read     writes the next bytes to bytes_out, as many as there are and at most `size`, which is 1 .. 2^20. Returns
 *            how many: 1 .. size, and it is called again for the others; or 0, and there are no more. What it returns
 *            else ends the call
 *   context  given to read; may be NULL
 *
 * A checkpoint says where it ends, and no byte after that is asked for: others may follow in the same stream, and be
 * read by the next call. For `read` holds what does for `write` above, but that it may use any handle.
 *
 * PER_ERROR_CALLBACK if `read` fails, and the errors of per_replay_load() but PER_ERROR_IO; PER_ERROR_CORRUPT_FILE also
 * where the bytes end early. How much was read by then is not said.
 */
PER_API per_status per_replay_load_from(int64_t (*read)(void* context, void* bytes_out, int64_t size), void* context,
                                        int32_t device, int32_t device_index, per_replay** replay_out);

/*
 * Waits until all work on `stream` that this buffer queued is done, and reports once what went wrong on the device
 * since the last report, with the number of entries, steps or calls of each kind, and of steps skipped for each reason.
 * The status is that of the first of these that happened at all:
 *
 *   PER_ERROR_INVALID_ARGUMENT  ids, priorities, TD errors, steps or values were skipped; calls of
 *                               per_replay_advantages() changed nothing; draws without replacement found too little
 *   PER_ERROR_FULL              steps were not added, as their lane was full
 *   PER_ERROR_EMPTY             draws found nothing live
 *
 * PER_ERROR_CUDA. Does nothing on PER_CPU.
 */
PER_API per_status per_replay_synchronize(per_replay* replay, void* stream);

/* --------------------------------------------------------------- hindsight */

/* Which steps of its episode may give a transition its other goal (Andrychowicz et al. 2017, arXiv:1707.01495, section
   4.5): what was achieved after them. */
typedef enum per_goal_strategy {
    PER_GOAL_FUTURE = 0, /* its own step and all later ones, each equally likely */
    PER_GOAL_FINAL = 1,  /* the last one */
    PER_GOAL_EPISODE = 2 /* all, each equally likely */
} per_goal_strategy;

/* Fill with per_hindsight_options_init(), then set the fields and `reward`, and change what differs. */
typedef struct per_hindsight_options {
    uint64_t struct_size;   /* set by _init; do not change */
    int32_t achieved_field; /* number of an observation: the goal that a state is one of; _init: -1, to be set */
    int32_t goal_field;     /* number of the field with the goal pursued, of the same dtype and shape; _init: -1, to be
                               set */
    int32_t strategy;       /* a per_goal_strategy; _init: PER_GOAL_FUTURE */
    int32_t reserved;       /* 0 */
    double fraction;        /* probability that a transition gets another goal, 0 .. 1: k / (k + 1) for k such goals to
                               each one pursued; _init: 0.8 */
    /* The reward function; see per_replay_sample_hindsight(). _init: NULL, to be set */
    int32_t (*reward)(void* context, int64_t count, const void* achieved, const void* goals, float* rewards_out,
                      uint8_t* terminated_out);
    void* context; /* given to reward; _init: NULL */
} per_hindsight_options;

/* As per_tree_options_init(). */
PER_API per_status per_hindsight_options_init(per_hindsight_options* options, uint64_t struct_size);

/*
 * Draws a batch as per_replay_sample() does, and puts other goals into some of its transitions: hindsight experience
 * replay (Andrychowicz et al. 2017, section 3.3). The buffer stays as it is.
 *
 * Each transition is relabelled with probability `fraction`. Its goal field, and of an observation the next one, both
 * in every frame of a stack, become what was achieved after a step of its episode that `strategy` allows; frames that
 * are zeros because they are from before the episode (PER_PADDING_ZERO) stay zeros. Of an episode
 * count the steps whose rows have not been overwritten and whose next observation is known; of a running one those that
 * were added so far. A window that ends in a terminal state which nobody knows (next_mask 0) is not relabelled. Which
 * are drawn, their weights and priorities do not depend on relabelling. The random choices are the handle's: the same
 * seed and the same calls give the same goals.
 *
 * The rewards of all steps in the windows of relabelled transitions are then asked for in one call, if there are any,
 * with arrays in host memory, on PER_CUDA too: the same function serves both.
 *
 *   count           steps, window after window in the order of the batch, each in order of time
 *   achieved        [count, shape of the field] what was achieved after the step
 *   goals           [count, shape of the field] the goal of its transition
 *   rewards_out     [count] to be written
 *   terminated_out  [count] whether it ends in a terminal state: as it was stored, and may be changed (nonzero is true)
 *   returns         0; with anything else the call fails
 *
 * From the answers reward, discount, gamma_m, n_steps, terminated and next_fields are formed as from stored steps: a
 * window ends at its first terminal step. `truncated` is that of the step where a window ends, as it was stored: 0 for
 * a step that was stored with both flags, which is then terminated, or neither if the function says so. A sequence gets
 * one goal, for PER_GOAL_FUTURE from its first step on; asked for are the rewards of all its steps and of those that
 * its last returns reach. A terminal step ends the windows of returns, as it does of transitions drawn by themselves;
 * what is padding stays as it is.
 *
 *   options    NULL: those of the buffer
 *   hindsight  as above
 *
 * `reward` runs on the thread of the call, and the buffer is not locked: it may use any handle, this one too, but not
 * free it. The batch does not see what happens meanwhile. It must not leave by an exception or longjmp; it may end its
 * thread by pthread_exit(), which is as if it failed.
 *
 * PER_ERROR_CALLBACK if `reward` fails, and the errors of per_replay_sample(). After PER_ERROR_CALLBACK, and possibly
 * after PER_ERROR_OUT_OF_MEMORY, the arrays of the batch have been written to. A call that fails is no draw, but for
 * one whose `reward` fails after others drew meanwhile: its number is used up. Where `reward` or memory fails once the
 * transitions are drawn, they have been used all the same (keep_times_sampled). Cost: that of the draw, and of reading
 * a byte a step of the episodes up to their ends. Synchronises.
 */
PER_API per_status per_replay_sample_hindsight(per_replay* replay, const per_sample_options* options,
                                               const per_hindsight_options* hindsight, int64_t batch_size,
                                               const per_batch* batch, void* stream);

/*
 * As per_replay_get_windows(), with other goals in some of the transitions, as per_replay_sample_hindsight() puts them
 * there. Which they are, and which goals they get, is random: the call takes a number from the draws, as an epoch of a
 * walk does, which serves n_step_min too, and counts in `samples`; one that fails gives it back as described above.
 *
 * PER_ERROR_CALLBACK if `reward` fails, and the errors of per_replay_get_windows(). Synchronises.
 */
PER_API per_status per_replay_get_windows_hindsight(per_replay* replay, const per_sample_options* options,
                                                    const per_hindsight_options* hindsight, int32_t on_invalid,
                                                    int64_t count, const int64_t* ids, const per_batch* batch,
                                                    void* stream);

/* --------------------------------------------------------------- on-policy */

/*
 * A walk over all live transitions or sequences, several times (epochs), each time in another random order, in
 * minibatches. Several threads may take from one walk: each minibatch is given out once. The transitions are those that
 * were live when the walk was created; what is added later has no part in it.
 *
 * A walk keeps a pointer to its buffer, which must not be freed before the last call of per_epochs_next().
 */
typedef struct per_epochs per_epochs;

/*
 * Begins a walk and stores it in *epochs_out (NULL on failure). Free it with per_epochs_free(). Synchronises: a walk is
 * kept in host memory.
 *
 *   n_epochs    1 .. 2^24
 *   batch_size  1 .. 2^24: transitions of a minibatch
 *   drop_last   0: the last minibatch of an epoch has what is left. Else it is left out if that is fewer than
 *               batch_size, which must then not be larger than the number of live transitions
 *
 * Orders are uniform random permutations. Each epoch counts as one draw, all of them made by this call: the seed and
 * the number of draws before it decide every order, whatever is drawn while the walk goes on. Cost: one pass over the
 * buffer, and 8 bytes a transition until per_epochs_free().
 *
 * PER_ERROR_EMPTY if nothing is live; PER_ERROR_INVALID_ARGUMENT; PER_ERROR_OUT_OF_MEMORY. Then nothing was drawn.
 */
PER_API per_status per_epochs_create(per_replay* replay, int64_t n_epochs, int64_t batch_size, int32_t drop_last,
                                     void* stream, per_epochs** epochs_out);

/*
 * Writes the next minibatch, as per_replay_sample() writes a batch: n_step, gamma and stacks as the buffer has them
 * now. All transitions being given equally often, weights are 1, and probabilities 1 over the transitions of the walk.
 *
 *   batch      its arrays have room for batch_size transitions
 *   count_out  transitions written; 0: the walk is over, and nothing was written
 *
 * PER_ERROR_INVALID_ARGUMENT if a transition of the minibatch is not live any more: overwritten, cleared, drawn
 * max_times_sampled times, or short of a window after per_replay_set_n_step(); of sequences also if n_step, and so the
 * size of observations, is not what it was when the walk was created. The walk then stays where it is. (PER_CUDA: for a
 * transition that is not live id -1 and zeros, counted, and the walk goes on.) A captured call writes the same
 * minibatch with every launch. On PER_CUDA the ids of more than 256 transitions go through a ring of pinned memory;
 * where that is full, the call waits for the device, and calls of other threads on the buffer for this one.
 */
PER_API per_status per_epochs_next(per_epochs* epochs, const per_batch* batch, int64_t* count_out, void* stream);

/* NULL is allowed. Does not touch the buffer. */
PER_API void per_epochs_free(per_epochs* epochs);

/*
 * Gathers the transitions whose next observation needs a value for per_replay_advantages() that no row has: the last
 * step of each truncated episode whose final observation is known, and the latest step of each running episode if the
 * observation after it is known. Environment by environment, in order of time.
 *
 *   capacity   >= 0: for how many the arrays of the batch have room; if there are more, the first are written
 *   batch      single steps, also where sequences are drawn, with stacks: fields, next_fields, reward, discount,
 *              n_steps (1), terminated, truncated, gamma_m, ids, priorities and times_sampled; weights, probabilities
 *              and mask must be NULL. May be NULL if capacity is 0
 *   count_out  how many there are, also if that is more than capacity
 *
 * PER_ERROR_INVALID_ARGUMENT. Cost: one pass over the buffer. Synchronises.
 */
PER_API per_status per_replay_bootstraps(per_replay* replay, int64_t capacity, const per_batch* batch,
                                         int64_t* count_out, void* stream);

/*
 * Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, equation 16), written to a field:
 *
 *   A_t     = delta_t + gamma lambda A_(t+1)          (A_(t+1) taken as 0 after the end of an episode)
 *   delta_t = r_t + gamma V(next_t) - V_t             (V(next_t) taken as 0 after a terminal state)
 *
 * over the rows of each lane that would be live with n_step 1. V_t is the value field of row t and V(next_t) that of
 * the row after it, or the bootstrap value where per_replay_bootstraps() names the transition. A row that is not
 * reached by that - the latest step of a running episode if the observation after it is not known, the last of one
 * that was truncated at an unknown observation - keeps its advantage, and the row before it takes A_(t+1) as 0.
 *
 *   value_field       number of a plain float32 field of shape (): V, as it was when the step was added or set since
 *   advantage_field   number of another one: where A goes
 *   return_field      number of a third one: where A + V goes, what V is fitted to; -1: nowhere
 *   lambda            0 .. 1
 *   count             as per_replay_bootstraps() counts now; if 0, the arrays may be NULL
 *   ids               [count] those of per_replay_bootstraps(), in its order
 *   bootstrap_values  [count] V of their next observations, finite
 *
 * PER_ERROR_INVALID_ARGUMENT: nothing is changed. (PER_CUDA: for ids and values known on the device only, nothing is
 * changed either, and that is counted.) Cost: one pass over the buffer.
 */
PER_API per_status per_replay_advantages(per_replay* replay, int32_t value_field, int32_t advantage_field,
                                         int32_t return_field, double lambda, int64_t count, const int64_t* ids,
                                         const float* bootstrap_values, void* stream);

/* ------------------------------------------------------------------ loader */

/*
 * A loader draws batches ahead, on a thread of its own, into slots that it uses again and again, and hands them out in
 * the order in which it drew them. The consumer gives each slot back when it is done with it; a slot that is out is
 * never written.
 *
 * Order.  What a loader draws depends on the order of the consumer's calls alone. Creating one asks for `slots`
 * batches, and handing one out asks for the next, so that up to `slots` batches are drawn before what the consumer does
 * with the latest; where no memory is free for it, the release that frees some asks in its place. Every call on the
 * buffer waits for the draws that were asked for before it - add, updates, set, clear, settings, save, samples of its
 * own - and so do not overtake them. The same seed and calls give the same batches for the same `slots`; if nothing is
 * changed in between, they are those that per_replay_sample() would have drawn.
 *
 * Device. The loader of a buffer on PER_CPU may hand out its batches in the memory of a CUDA device. Its thread then
 * draws into pinned memory of the host, from where they are copied on a stream of the loader's own. The consumer's
 * stream waits for the copy, and the copy for the stream that the slot was released on, both on the device. The loader
 * of a buffer on PER_CUDA hands out its batches there: they are drawn into the slots, on a stream of the loader's own,
 * and its thread waits until they are there, as only then is it known whether anything could be drawn. No call on the
 * loader waits for the device; the thread that draws does, once the consumer is more than `slots` batches ahead of it,
 * and whoever waits for that draw then waits too.
 *
 * Gather. With gather_on_device the frames of large fields - those of at least 1024 bytes, which have an array of their
 * own - come to the device without the CPU having copied them: their arrays are pinned as long as the loader runs, the
 * thread that draws only writes down where each frame lies, and a kernel on the loader's stream copies them from there
 * into the slot. Everything else takes the way above. Batches are the same, bit for bit. per_replay_add() and
 * per_replay_set() wait, holding the buffer's lock, until the device has read a frame that they are to overwrite: until
 * that kernel has ended, and what the streams of earlier releases had to do before those. So nothing that a stream does
 * before a release may wait for a call on the buffer, of whatever thread. If that wait fails they are PER_ERROR_CUDA
 * and change nothing. Only the end of the loader waits so, too.
 *
 * Counts.  A batch counts for beta's schedule when it is handed out, and has the beta of its turn. For `samples` and
 * the random state it counts when it is drawn, also if it is never handed out.
 *
 * Fork.  In a forked child a loader is gone: every call on it but per_loader_free() is PER_ERROR_INVALID_ARGUMENT. A
 * buffer on PER_CPU stays usable there; how many of the batches asked for were drawn before the fork is not known.
 * With gather_on_device fork before the loader is created: fork() may copy pinned memory at once, and on kernels before
 * Linux 5.9 the device may go on reading rows as they were.
 *
 * A buffer has one loader at a time, which must be freed before it. Several threads may take from one loader.
 */
typedef struct per_loader per_loader;

/* Fill with per_loader_options_init(), then set batch_size, and change what differs. */
typedef struct per_loader_options {
    uint64_t struct_size;             /* set by _init; do not change */
    int64_t batch_size;               /* as in per_replay_sample(); _init: 0, to be set */
    int64_t slots;                    /* batches drawn ahead, and most that may be out at a time, 1 .. 1024; _init: 3 */
    const per_sample_options* sample; /* of every batch; copied; NULL: those of the buffer; _init: NULL */
    int32_t device;                   /* a per_device: in whose memory batches are handed out; for a buffer on PER_CUDA
                                         to be set to that; _init: PER_CPU */
    int32_t device_index;             /* which CUDA device; that of a buffer on PER_CUDA; 0 for PER_CPU; _init: 0 */
    int32_t gather_on_device;         /* 1: the device copies the frames of large fields out of the rows itself. For
                                         batches on PER_CUDA of a buffer on PER_CPU that has neither `allocate` nor
                                         `storage`; _init: 0 */
    int32_t reserved;                 /* 0 */
} per_loader_options;

PER_API per_status per_loader_options_init(per_loader_options* options, uint64_t struct_size);

/*
 * Creates a loader, which begins to draw, and stores it in *loader_out (NULL on failure). Free it with
 * per_loader_free().
 *
 * Memory: slots + 1 batches, and for a buffer on PER_CPU whose batches are on PER_CUDA as many in pinned memory, too;
 * all of it is allocated here. gather_on_device takes 8 bytes more a row, and pins the arrays of large fields: all of
 * their memory, whether rows are there or not, and the system can then neither move nor swap it.
 *
 * PER_ERROR_BUSY if the buffer has a loader that was not stopped; PER_ERROR_INVALID_ARGUMENT; PER_ERROR_OUT_OF_MEMORY;
 * PER_ERROR_NO_DEVICE; PER_ERROR_CUDA; PER_ERROR_UNSUPPORTED where gather_on_device meets rows in memory of the
 * caller's or in `storage`, a compressed field, or a device that does not reach pinned memory by the host's own addresses.
 */
PER_API per_status per_loader_create(per_replay* replay, const per_loader_options* options, per_loader** loader_out);

/*
 * Hands out the next batch. Its arrays are all there are of per_batch (mask for sequences only, times_sampled with
 * keep_times_sampled); they lie in the slot and may be read and written until the slot is released. Sequences keep the
 * n_step that the loader was created with.
 *
 * A draw that failed ahead of its turn - nothing was live then, say - is made again when its turn comes. If it fails
 * once more, this call has its status and message - or the next one, if this call does not wait - and the call after
 * that tries anew. So it is PER_ERROR_BUSY, even if it may wait, where the rate limiter allows no draw yet: wait by
 * per_replay_wait_to_sample(), and call it again.
 *
 *   wait       0: PER_ERROR_BUSY where the call would have to wait for a batch that is still being drawn, also for one
 *              that it asks for as those drawn ahead failed; because `slots` batches are out; or, on PER_CUDA, for
 *              another call on the buffer. Else it waits: for ever if no other thread releases one
 *   batch_out  filled by per_batch_init(); gets pointers into the slot
 *   slot_out   what per_loader_release() takes
 *
 *   stream     NULL for PER_CPU. On PER_CUDA work that is queued on it after the call sees the whole batch. It must not
 *              be captured: as slots take turns, a graph has arrays of its own, which each batch is copied to
 *
 * PER_ERROR_BUSY, PER_ERROR_INVALID_ARGUMENT (the loader was stopped, also while the call waited), PER_ERROR_CUDA, and
 * the errors of per_replay_sample(), also on PER_CUDA: per_replay_synchronize() does not report these. Then no batch
 * was handed out. After an error of CUDA the next call tries the same batch again, or the one after it where the buffer
 * is on PER_CUDA and the error was one of the draw.
 */
PER_API per_status per_loader_next(per_loader* loader, int32_t wait, per_batch* batch_out, int64_t* slot_out,
                                   void* stream);

/*
 * Gives a slot back, which a later batch will be written into: on PER_CUDA once the work that was queued on `stream`
 * before is done. It may be another stream than that of per_loader_next(), and must not be captured.
 *
 * PER_ERROR_INVALID_ARGUMENT for a slot that is not out; PER_ERROR_CUDA. The slot is then still out.
 */
PER_API per_status per_loader_release(per_loader* loader, int64_t slot, void* stream);

/*
 * Ends a loader: waits for the draws that were asked for, so that the buffer's random state depends on the order of
 * calls alone, and for its thread. Batches that are out stay as they are until per_loader_free(), and every later call
 * but that and this one is PER_ERROR_INVALID_ARGUMENT. Another loader may then be created. With gather_on_device it
 * waits until the device has read the rows, which then are pinned no more.
 *
 * PER_ERROR_CUDA: it has ended all the same; with gather_on_device rows may still be pinned until per_loader_free(), and
 * batches that are out hold what is written to the rows meanwhile.
 */
PER_API per_status per_loader_stop(per_loader* loader);

/* Stops the loader and frees its slots. NULL is allowed. On PER_CUDA it synchronises. */
PER_API void per_loader_free(per_loader* loader);

/* -------------------------------------------------------------- many as one */

/*
 * Several buffers, the shards, that draw as one buffer with all their lanes does: the same ids, transitions, weights and
 * priorities, bit for bit, for any number of them. They may be in several processes and on several machines.
 * Steps that are added with priorities or TD errors are to be added one of each environment a call: of several, new ones
 * of the other environments get the largest priority so far, which a shard would know of its own only.
 *
 * A draw is a whole number: unit u of the total mass, and the transition that owns it, transitions counted environment
 * by environment. So where each shard has a run of environments, unit u of the whole is unit u - C of a shard, C being
 * the mass of the shards before it. A coordinator has what does not belong to any of them: the random numbers, the
 * schedule of beta, the scale of all masses and the largest priority. It keeps no transitions, and calls no shard: the
 * program carries what the one says to the other.
 *
 *   after calls that change shards   per_replay_law() of each, per_coordinator_tell(), and per_coordinator_settle() until
 *                                    it asks for nothing more. One buffer looks at its scale after each step that is
 *                                    added and after every other call; so must a coordinator, if draws are to be those
 *                                    of one buffer
 *   a batch                          per_coordinator_draw(), then per_coordinator_units(), per_replay_get_units() of the
 *                                    shards and per_coordinator_found() for each round, then per_coordinator_finish()
 *   before steps are added           per_replay_raise_max_priority() with the largest priority of the coordinator
 *   updates                          per_coordinator_locate() says to which shards ids belong
 */

/* The scale that a buffer chooses by itself, as trees do. */
enum { PER_SCALE_AUTOMATIC = 2147483647 };

/* What draws from a buffer are made of, in whole numbers: per_replay_law(). Masses are those of p^alpha, ranks apart. */
typedef struct per_law {
    uint64_t struct_size;   /* set by _init; do not change */
    uint64_t total_mass;    /* sum of mass(p^alpha) = ceil(p^alpha 2^scale) over the live transitions, below 2^62 */
    uint64_t smallest_mass; /* the smallest of them that is not 0; 0 if there is none, or if the buffer was created with
                               another normalize_weights than PER_BUFFER_MAX */
    int64_t live;           /* N */
    int64_t changes;        /* calls on this handle that may have changed what is drawn; not launches of CUDA graphs */
    uint64_t measured_low;  /* the sum of all masses at measured_scale: its lower 64 bits */
    uint64_t measured_high; /* and its upper ones */
    float max_priority;     /* priority that the next transition gets */
    float largest_leaf;     /* the largest p^alpha, if it was measured */
    int32_t scale;          /* of the masses */
    int32_t is_scale_fixed; /* 1: it is the one that was set; 0: the buffer chose it */
    int32_t measured_scale; /* PER_SCALE_AUTOMATIC: nothing was measured, and what is measured is 0 */
    int32_t scale_needed;   /* the scale that this buffer would choose by itself now, if it was measured */
} per_law;

PER_API per_status per_law_init(per_law* law, uint64_t struct_size);

/*
 * Fills *law_out, which must have been filled by _init.
 *
 *   measured_scale  PER_SCALE_AUTOMATIC: nothing is measured, and the call costs nothing that grows. -120 .. 200: the
 *                   sum of the masses at that scale is, each being 2^52 at most, and the largest leaf. One pass
 *
 * PER_ERROR_INVALID_ARGUMENT. Synchronises.
 */
PER_API per_status per_replay_law(per_replay* replay, int32_t measured_scale, per_law* law_out);

/*
 * Sets the scale of all masses, which then stays until a call makes a leaf, or the sum, too large for it, or sets alpha:
 * no such call fails, but the buffer then chooses a scale by itself, and its law says so. Draws by rank have a scale of
 * their own. The scale of a checkpoint is the one that the buffer had; a buffer that is loaded chooses the next.
 *
 *   scale  -120 .. 200, at which each leaf is at most 2^52 - 1 and the total below 2^62; or PER_SCALE_AUTOMATIC: as the
 *          buffer would choose now
 *
 * PER_ERROR_INVALID_ARGUMENT: the message says which scales are allowed, and nothing is changed. Cost: some passes over
 * the buffer. Synchronises.
 */
PER_API per_status per_replay_set_scale(per_replay* replay, int32_t scale);

/*
 * Makes the largest priority ever seen at least this one, as if a transition had been given it. With PER_MAX_NOW that
 * changes nothing which new transitions get.
 *
 *   priority  finite, >= 0
 */
PER_API per_status per_replay_raise_max_priority(per_replay* replay, float priority, void* stream);

/*
 * Writes the transitions that own units of the total mass, as per_replay_get_windows() writes those of ids.
 *
 *   options          as there
 *   count            0 .. 2^24; 0 writes nothing, and the arrays may then be NULL
 *   units            [count] each 0 .. total_mass - 1 of the law: a unit of mass; or -1 - r, 0 <= r < live: the transition
 *                    with r live ones before it, environment by environment, and by place in the ring of each
 *   batch            see per_batch
 *   masses_out       [count] mass of the transition, or NULL
 *   first_units_out  [count] the first of its units, for -1 - r too; or NULL
 *
 * PER_ERROR_INVALID_ARGUMENT names the first unit that there is not. (PER_CUDA: id -1, mass 0 and zeros, and counted.)
 */
PER_API per_status per_replay_get_units(per_replay* replay, const per_sample_options* options, int64_t count,
                                        const int64_t* units, const per_batch* batch, uint64_t* masses_out,
                                        uint64_t* first_units_out, void* stream);

/* See above. It lies in host memory, and so do all arrays of its calls. */
typedef struct per_coordinator per_coordinator;

/*
 * Creates the coordinator of a buffer with these options that is cut into shards, and stores it in *coordinator_out
 * (NULL on failure). Free it with per_coordinator_free(). Fields and device are not looked at.
 *
 *   n_shards  1 .. n_envs: shard s has the environments from s n_envs / n_shards on, up to those of the next
 *
 * PER_ERROR_UNSUPPORTED for PER_RANK and PER_MAX_NOW, which need more than the shards' laws, for a rate limiter, and
 * for keep_times_sampled, as shards do not know what is drawn; PER_ERROR_INVALID_ARGUMENT, PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_coordinator_create(const per_replay_options* options, int64_t n_shards,
                                          per_coordinator** coordinator_out);

/* NULL is allowed. */
PER_API void per_coordinator_free(per_coordinator* coordinator);

/*
 * What a shard is to be created with: capacity and n_envs.
 *
 *   first_env_out  the environment of the whole that is the shard's environment 0
 */
PER_API per_status per_coordinator_shard(per_coordinator* coordinator, int64_t shard, int64_t* capacity_out,
                                         int64_t* n_envs_out, int64_t* first_env_out);

/*
 * Takes what per_replay_law() says of a shard.
 *
 *   law  NULL: the shard is gone, and its mass with it, until it tells of itself again
 *
 * PER_ERROR_INVALID_ARGUMENT for a law that no buffer has: total_mass above 2^52 - 1 for each live transition, measured
 * masses above 2^52 for each, smallest_mass above total_mass, and what a field does not allow.
 */
PER_API per_status per_coordinator_tell(per_coordinator* coordinator, int64_t shard, const per_law* law);

/* What per_coordinator_settle() asks for. */
typedef enum per_settling {
    PER_SETTLED = 0,        /* nothing: batches can be drawn */
    PER_SETTLE_MEASURE = 1, /* per_replay_law() with the scale as measured_scale, of each shard that is there */
    PER_SETTLE_SET = 2      /* per_replay_set_scale(), and then per_replay_law(), of each shard that is there */
} per_settling;

/*
 * Brings all shards to one scale: the one that one buffer with all their lanes would have. It asks, by *todo_out and
 * *scale_out, for something to be done with every shard, whose law is then to be told; and is called again. Most calls
 * ask for nothing.
 *
 *   chooses_anew  1: as after per_replay_set_alpha(), the scale is chosen whatever it was; for the first of the calls
 *
 * PER_ERROR_INVALID_ARGUMENT if a shard has never told, has not done what was asked for, or has grown since it was
 * measured so that all have a total mass of 2^62 or more. The next call then begins anew, and still knows of
 * chooses_anew: until PER_SETTLED the scale, and what is known of it, stay as they were.
 */
PER_API per_status per_coordinator_settle(per_coordinator* coordinator, int32_t chooses_anew, int32_t* todo_out,
                                          int32_t* scale_out);

/*
 * Begins a batch; one that was begun before and not finished is no draw. After an error that one is still under way.
 *
 *   options     NULL: those of the coordinator. n_step is not looked at: it is for the shards. n_step_min must be 0
 *   batch_size  1 .. 2^24
 *   count_out   units of the first round. There is one round; without replacement there may be several
 *
 * PER_ERROR_EMPTY if nothing is live; PER_ERROR_UNSUPPORTED for PER_RANK, for another n_step_min, for PER_BUFFER_MAX
 * where the shards have no smallest_mass, and for PER_WITHOUT_REPLACEMENT with a uniform_fraction between 0 and 1;
 * PER_ERROR_INVALID_ARGUMENT, also where per_coordinator_settle() has not said PER_SETTLED since a shard told of itself.
 */
PER_API per_status per_coordinator_draw(per_coordinator* coordinator, const per_sample_options* options,
                                        int64_t batch_size, int64_t* count_out);

/*
 * The round that is under way.
 *
 *   count       as the call gave it that began the round
 *   shards_out  [count] where unit i is
 *   units_out   [count] what per_replay_get_units() of that shard takes
 *
 * PER_ERROR_INVALID_ARGUMENT, also for another count: a thread may have begun another round.
 */
PER_API per_status per_coordinator_units(per_coordinator* coordinator, int64_t count, int64_t* shards_out,
                                         int64_t* units_out);

/*
 * Takes what the shards have found for the round, in the order of its units.
 *
 *   count        as in per_coordinator_units()
 *   ids          [count] as the shards have them
 *   masses       [count]
 *   first_units  [count]; may be NULL with replacement
 *   count_out    units of the next round; 0: per_coordinator_finish() comes next
 *
 * PER_ERROR_INVALID_ARGUMENT for another count, for an id that is no shard's, and for masses and first_units that are
 * not within the mass of the shard, or do not hold the unit: the round is still under way. Also where without
 * replacement fewer than batch_size can be drawn, or a round finds only what was taken out: then no batch is.
 */
PER_API per_status per_coordinator_found(per_coordinator* coordinator, int64_t count, const int64_t* ids,
                                         const uint64_t* masses, const uint64_t* first_units, int64_t* count_out);

/*
 * Ends a batch, which counts from now on. With replacement its transitions are those of the round, in that order;
 * without, per_replay_get_windows() of the shards has them, by per_coordinator_locate().
 *
 *   batch_size         that of per_coordinator_draw()
 *   ids_out            [batch_size] ids of the whole
 *   weights_out        [batch_size] or NULL
 *   probabilities_out  [batch_size] or NULL
 *
 * PER_ERROR_INVALID_ARGUMENT, also for another batch_size.
 */
PER_API per_status per_coordinator_finish(per_coordinator* coordinator, int64_t batch_size, int64_t* ids_out,
                                          float* weights_out, float* probabilities_out);

/*
 * Says which shards ids belong to. An id of the whole is k n_envs + environment, as in one buffer.
 *
 *   ids            [count] of the whole, >= -1
 *   shards_out     [count] -1 for id -1
 *   shard_ids_out  [count] as the shard has it
 */
PER_API per_status per_coordinator_locate(per_coordinator* coordinator, int64_t count, const int64_t* ids,
                                          int64_t* shards_out, int64_t* shard_ids_out);

/* The other way round: ids of the whole, from those of a shard; -1 stays -1. */
PER_API per_status per_coordinator_ids(per_coordinator* coordinator, int64_t shard, int64_t count,
                                       const int64_t* shard_ids, int64_t* ids_out);

/* What a coordinator knows: per_coordinator_state(). */
typedef struct per_coordinator_status {
    uint64_t struct_size;    /* set by _init; do not change */
    int64_t samples;         /* batches drawn; with the seed the whole random state */
    int64_t beta_step;       /* batches that advanced beta */
    uint64_t total_mass;     /* of the shards that were there when they were last settled */
    uint64_t rescales_below; /* a total mass below this asks for another scale */
    int64_t live;            /* N of the shards that are there */
    int64_t shards;          /* how many are there */
    double beta;             /* exponent of the weights of the next batch */
    float max_priority;      /* the largest priority that any shard ever told of, at least 1 */
    int32_t scale;           /* of all masses */
} per_coordinator_status;

PER_API per_status per_coordinator_status_init(per_coordinator_status* status, uint64_t struct_size);

/* Fills *status_out, which must have been filled by _init. */
PER_API per_status per_coordinator_state(per_coordinator* coordinator, per_coordinator_status* status_out);

/*
 * Makes a coordinator that of a checkpoint: of the same options, before any shard has told. With shards that were saved
 * at the same time it goes on bit for bit, if they tell of themselves and are settled before anything is changed: until
 * then buffers that were loaded choose their scales by themselves. `live`, `shards` and `beta` are not looked at.
 *
 * PER_ERROR_INVALID_ARGUMENT.
 */
PER_API per_status per_coordinator_restore(per_coordinator* coordinator, const per_coordinator_status* status);

/* ----------------------------------------------------------------- channel */

/*
 * A channel brings steps from another process into a buffer, through a ring in shared memory: what per_replay_add()
 * does, with nothing sent or pickled. The process of the buffer creates one for each process that writes, and names it
 * to that by a path or a descriptor; there a per_writer attaches to it. A thread of the library moves what is there
 * into the buffer, in the order in which it was written, many steps at a time. Between channels there is no order.
 *
 * Calls.   With PER_MOVED_BY_CALLS there is no thread, and the buffer changes at the calls of its owner alone: steps come
 *          into it during per_channel_move() and per_channel_flush(), on the thread of the call. Writers wait at a full
 *          ring until such a call has made room. per_channel_free() moves nothing then.
 * Writer.  One per_writer is attached to a channel at a time. Values are cast and checked where they are written, and
 *          errors told there. What only the buffer can tell - a full lane with overwrite 0, a gap with PER_GAP_ERROR -
 *          makes a step that is left out there, and counted (refused).
 * Memory.  A step that the buffer has no memory or disk for, or that its device fails on, is not lost: it stays in the
 *          ring and is tried again after 100 ms, if there is a thread, and with each call of per_channel_flush() and
 *          per_channel_move(), which say why. Writers find the ring full meanwhile.
 * Deaths.  A process that ends, by SIGKILL too, at whatever instruction, loses at most the call that it was in, and
 *          harms nobody: what the calls before it wrote comes into the buffer, and another writer may attach. Where the
 *          process of the buffer ends, writers find out once their ring is full, and with PER_MOVED_BY_CALLS by their
 *          next call. The memory is in no folder, and goes with the last process that has it.
 * Gaps.    The episodes of the channel's environments are cut, as by per_replay_cut(), where a writer attaches, where
 *          steps were dropped, and where the buffer refused one.
 * Trust.   The memory is the writer's to write. Whatever it writes there, the buffer gets steps, possibly senseless
 *          ones, of the channel's environments, or the writer is cut off: its calls fail from then on, and those of the
 *          channel are PER_ERROR_CORRUPT_FILE. So are calls of the writer that find a number in the memory which no
 *          channel writes.
 * Device.  On PER_CUDA steps are added on the legacy default stream. While they may come capture no graph of calls on
 *          the buffer, and none on a stream that waits for that one. What only the device can tell is counted by the
 *          buffer, as with per_replay_add(), and not here.
 * Fork.    In a forked child channels and writers are gone: every call on them but _free is
 *          PER_ERROR_INVALID_ARGUMENT. A child may attach to a channel of its parent as any process may.
 *
 * A buffer may have any number of channels, which must be freed before it. An environment should be in one of them.
 */
typedef struct per_channel per_channel;

/* What a full ring does with steps; see per_writer_add(). */
typedef enum per_when_full {
    PER_FULL_WAITS = 0, /* the call waits until there is room */
    PER_FULL_DROPS = 1  /* they are dropped, and counted */
} per_when_full;

/* Who moves steps out of the ring into the buffer. */
typedef enum per_moved_by {
    PER_MOVED_BY_THREAD = 0, /* a thread of the library, as they come */
    PER_MOVED_BY_CALLS = 1   /* per_channel_move() and per_channel_flush(), and nothing else */
} per_moved_by;

/* Fill with per_channel_options_init(), then change what differs. */
typedef struct per_channel_options {
    uint64_t struct_size;   /* set by _init; do not change */
    int64_t n_envs;         /* number of env_ids; not looked at if env_ids is NULL; _init: 0 */
    const int64_t* env_ids; /* [n_envs] those whose steps are written, each once: the writer's environment i is
                               env_ids[i] of the buffer. NULL: all, in order; copied; _init: NULL */
    int64_t slots;          /* steps, each of all n_envs, that the ring has room for, 2 .. 2^31; 0: as many as take
                               4 MiB, and at least 16; _init: 0 */
    int32_t when_full;      /* a per_when_full; _init: PER_FULL_WAITS */
    int32_t moved_by;       /* a per_moved_by; _init: PER_MOVED_BY_THREAD */
} per_channel_options;

/* As per_tree_options_init(). */
PER_API per_status per_channel_options_init(per_channel_options* options, uint64_t struct_size);

/*
 * Creates a channel, and stores it in *channel_out (NULL on failure). Free it with per_channel_free().
 *
 *   options  NULL: those of _init
 *
 * Memory: each slot takes for each environment what a step has, of observations twice, and 12 bytes, and 4 bytes more;
 * all of it is allocated here.
 *
 * PER_ERROR_INVALID_ARGUMENT, PER_ERROR_OUT_OF_MEMORY, also where the system has no descriptor or thread.
 */
PER_API per_status per_channel_create(per_replay* replay, const per_channel_options* options,
                                      per_channel** channel_out);

/*
 * What per_writer_attach() takes in another process of the same user that sees the same processes: such as
 * "/proc/4711/fd/9#0123456789abcdef", where what follows the '#' is a number that only this channel has. It is valid
 * as long as the channel.
 */
PER_API per_status per_channel_path(per_channel* channel, const char** path_out);

/*
 * The descriptor of the channel's memory, to be passed on, such as by SCM_RIGHTS. It stays the channel's, and is closed
 * by exec.
 */
PER_API per_status per_channel_descriptor(per_channel* channel, int32_t* descriptor_out);

/*
 * Waits until all that was written before the call is in the buffer, or was refused: also for draws that the rate
 * limiter asks for, which must come from another thread. With PER_MOVED_BY_CALLS it moves the steps itself: timeout_ms
 * bounds the waits for draws, for the buffer and for other calls that move steps.
 *
 *   timeout_ms  milliseconds, >= 0; or -1: for as long as it takes
 *
 * PER_ERROR_BUSY if it is not by then, and from the function of per_replay_save_to(); PER_ERROR_CORRUPT_FILE if the
 * writer was cut off; PER_ERROR_INVALID_ARGUMENT; PER_ERROR_OUT_OF_MEMORY, PER_ERROR_CUDA, PER_ERROR_IO where steps could
 * not be added for that reason, which are tried again.
 */
PER_API per_status per_channel_flush(per_channel* channel, int64_t timeout_ms);

/*
 * Moves steps of a channel with PER_MOVED_BY_CALLS into the buffer: as many of those that are there as `max_steps` and
 * the rate limiter allow, in their order. It waits neither for writers nor for draws.
 *
 *   max_steps  steps of single environments, >= 0, without those that masks leave out. A step of the channel comes in
 *              for all of its environments or not at all; one that is of more than what is left of max_steps, and all
 *              behind it, wait for another call
 *   steps_out  how many came in
 *
 * PER_ERROR_INVALID_ARGUMENT, also for a channel that has a thread; PER_ERROR_BUSY from the function of
 * per_replay_save_to(); PER_ERROR_CORRUPT_FILE if the writer was cut off. PER_ERROR_OUT_OF_MEMORY, PER_ERROR_CUDA,
 * PER_ERROR_IO where no step could be added for that reason: it stays in the ring. If some came in before, the next call
 * says so.
 */
PER_API per_status per_channel_move(per_channel* channel, int64_t max_steps, int64_t* steps_out);

/* What a channel has done: per_channel_stats(). A step is one of all n_envs here. */
typedef struct per_channel_statistics {
    uint64_t struct_size; /* set by _init; do not change */
    int64_t slots;        /* of the ring */
    int64_t waiting;      /* steps in it */
    int64_t added;        /* steps that were moved into the buffer */
    int64_t refused;      /* steps that the buffer refused, and that were left out */
    int64_t dropped;      /* steps dropped as the ring was full; this, waits and writers are what the writers say */
    int64_t waits;        /* times that a writer began to wait for room */
    int64_t gaps;         /* times that episodes were cut: by the writer, or as told at per_channel */
    int64_t writers;      /* writers that attached so far */
    int64_t attached;     /* the process, in its own numbers, of the one that is; 0: none is */
} per_channel_statistics;

PER_API per_status per_channel_statistics_init(per_channel_statistics* statistics, uint64_t struct_size);

/* Fills *statistics_out, which must have been filled by _init; also where the writer was cut off. */
PER_API per_status per_channel_stats(per_channel* channel, per_channel_statistics* statistics_out);

/*
 * Moves what was written until now into the buffer, and ends the channel: every later call of its writer but _free is
 * PER_ERROR_INVALID_ARGUMENT. What there is no memory for now is lost, and with PER_MOVED_BY_CALLS all that was not moved
 * before. NULL is allowed.
 */
PER_API void per_channel_free(per_channel* channel);

/*
 * The writing end of a channel, in the process that writes. Several threads may use one writer: the steps of a call
 * stay together, and a call that waits for room holds up no other, which may use the room that there is.
 */
typedef struct per_writer per_writer;

/*
 * Attaches to a channel, and stores the writer in *writer_out (NULL on failure). Free it with per_writer_free().
 *
 *   path        of per_channel_path(); one without '#' is that of any channel. NULL: the descriptor is used
 *   descriptor  of a channel's memory; stays the caller's. Not looked at unless path is NULL
 *   fields      [n_fields] what the caller will write: names, shapes and dtypes must be those of the buffer, and roles,
 *               stacks and defaults are not looked at. NULL, and n_fields 0: nothing is checked
 *
 * PER_ERROR_BUSY if a writer is attached already; PER_ERROR_IO if there is nothing to open; PER_ERROR_CORRUPT_FILE if
 * it is no channel; PER_ERROR_INVALID_ARGUMENT, naming the first field that differs, and for a channel that was closed
 * or is another one than the path names; PER_ERROR_UNSUPPORTED for one of a library with another layout of it;
 * PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_writer_attach(const char* path, int32_t descriptor, const per_field* fields, int64_t n_fields,
                                     per_writer** writer_out);

/*
 * The options of the buffer when the channel was created, n_envs and capacity being those of the channel's environments,
 * and those of the rate limiter 0. *options_out must have been filled by _init; its `fields` then point into the
 * writer, and are valid as long as it.
 */
PER_API per_status per_writer_describe(per_writer* writer, per_replay_options* options_out);

/*
 * Writes steps, as per_replay_add() takes them, all of them or, on any error, none. Their n_envs and env_ids count the
 * environments of the channel. Ids are not known here.
 *
 *   steps       length: fewer than the ring has slots. All arrays lie in host memory
 *   timeout_ms  for room with PER_FULL_WAITS: milliseconds, >= 0; or -1: for as long as it takes
 *
 * Steps that are dropped (PER_FULL_DROPS) are no error.
 *
 * PER_ERROR_BUSY if there is no room by then; PER_ERROR_INVALID_ARGUMENT, also if the channel was closed or, where the
 * ring is full, its process has ended; PER_ERROR_CORRUPT_FILE if the channel's memory is damaged;
 * PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_writer_add(per_writer* writer, const per_steps* steps, int64_t timeout_ms);

/*
 * As per_replay_cut(), after what was written before.
 *
 *   count, env_ids  [count] of the channel's environments; NULL: all
 *   timeout_ms      as above. With PER_FULL_DROPS and a full ring it takes place before the next step that is written
 *
 * The errors of per_writer_add().
 */
PER_API per_status per_writer_cut(per_writer* writer, int64_t count, const int64_t* env_ids, int64_t timeout_ms);

/*
 * Waits until all that this writer wrote is in the buffer, or was refused, as per_channel_flush().
 *
 * PER_ERROR_BUSY if it is not by then; PER_ERROR_INVALID_ARGUMENT as above.
 */
PER_API per_status per_writer_flush(per_writer* writer, int64_t timeout_ms);

/* Detaches: another writer may attach. What was written comes into the buffer. NULL is allowed. */
PER_API void per_writer_free(per_writer* writer);

/* ----------------------------------------------------------- shared loader */

/*
 * A shared loader is a loader whose slots lie in shared memory, so that several processes - the ranks of a data-parallel
 * learner, evaluators - take batches of one buffer, each where it was drawn, and send priorities back: nothing is
 * copied, sent or pickled. The process of the buffer creates it, and names it to the others by a path or a descriptor;
 * there a per_reader attaches to it, also in the same process. A thread of the library hands batches out and applies
 * what comes back.
 *
 * Order.  Each batch goes to one reader, and readers get theirs in the order in which they asked. All of them together
 *         get the batches of one per_loader with `readers` times `slots` slots, in that order. What a reader does takes
 *         effect in the order of its calls; between readers there is no order. So with one reader the batches are those
 *         that a per_loader gives for the same calls, bit for bit, also where priorities change in between, up to the
 *         first per_reader_next() that ends without a batch. That call has asked all the same: whether what the reader
 *         does next, such as an update, comes before or after the draws that follow from it is chance then. Each batch
 *         still is the next one of the loader, and was drawn by the priorities of its moment.
 * Turns.  A reader has at most `slots` batches at a time, so that none of them can keep all. One that asks for more
 *         waits until it gives one back. A draw that fails is an error of the reader whose turn it was; where the rate
 *         limiter does not allow it yet readers wait.
 * Deaths. A process that ends, by SIGKILL too, at whatever instruction, loses at most the call that it was in. What the
 *         calls before it sent is applied, and its slots are given back within some 100 ms, then to be drawn into
 *         again. A save that holds the buffer delays only the mail of the reader, and the next reader in its
 *         place. The batches that it had are not given to another reader: they count as handed out. Where the process
 *         of the buffer ends, readers that wait hear of it; what they have of batches stays readable. The memory is in
 *         no folder, and goes with the last process that has it.
 * Trust.  The memory is the readers' to write. Whatever one of them writes there, the loader neither reads a batch nor
 *         believes a number: priorities of transitions change, as per_replay_update_priorities() may change them, or the
 *         reader is cut off, and its calls are PER_ERROR_CORRUPT_FILE. So are calls of a reader that find a number in
 *         the memory which no loader writes. Readers of one loader trust each other: each could spoil the batches of
 *         all.
 * Fork.   In a forked child shared loaders and readers are gone: every call on them but _free is
 *         PER_ERROR_INVALID_ARGUMENT. A child may attach to the loader of its parent as any process may.
 *
 * It is the one loader of its buffer, which is on PER_CPU, and must be freed before it.
 */
typedef struct per_shared_loader per_shared_loader;

/* Fill with per_shared_loader_options_init(), then set batch_size and readers, and change what differs. */
typedef struct per_shared_loader_options {
    uint64_t struct_size;             /* set by _init; do not change */
    int64_t batch_size;               /* as in per_replay_sample(); _init: 0, to be set */
    int64_t readers;                  /* most that may be attached at a time, 1 .. 1024; _init: 0, to be set */
    int64_t slots;                    /* most batches that each of them may have at a time; with those of all readers at
                                         most 1024. As many of all are drawn ahead as are free; _init: 2 */
    const per_sample_options* sample; /* of every batch; copied; NULL: those of the buffer; _init: NULL */
} per_shared_loader_options;

/* As per_tree_options_init(). */
PER_API per_status per_shared_loader_options_init(per_shared_loader_options* options, uint64_t struct_size);

/*
 * Creates a shared loader, which begins to draw, and stores it in *loader_out (NULL on failure). Free it with
 * per_shared_loader_free().
 *
 * Memory: readers * slots + 1 batches, and for each reader 64 KiB and what the TD errors of 16 critics for a batch take;
 * all of it is allocated here.
 *
 * PER_ERROR_BUSY if the buffer has a loader that was not stopped; PER_ERROR_INVALID_ARGUMENT; PER_ERROR_UNSUPPORTED for
 * a buffer on PER_CUDA; PER_ERROR_OUT_OF_MEMORY, also where the system has no descriptor or thread.
 */
PER_API per_status per_shared_loader_create(per_replay* replay, const per_shared_loader_options* options,
                                            per_shared_loader** loader_out);

/* What per_reader_attach() takes, as per_channel_path(). It is valid as long as the loader. */
PER_API per_status per_shared_loader_path(per_shared_loader* loader, const char** path_out);

/* The descriptor of the loader's memory, as per_channel_descriptor(). */
PER_API per_status per_shared_loader_descriptor(per_shared_loader* loader, int32_t* descriptor_out);

/* What a shared loader has done: per_shared_loader_stats(). */
typedef struct per_shared_loader_statistics {
    uint64_t struct_size; /* set by _init; do not change */
    int64_t places;       /* readers that may be attached at a time */
    int64_t attached;     /* readers that are attached */
    int64_t readers;      /* readers that attached so far, as they say */
    int64_t handed;       /* batches handed out */
    int64_t out;          /* batches that readers have */
    int64_t returned;     /* batches that readers had when they ended */
    int64_t updates;      /* calls of readers whose priorities are in the buffer */
    int64_t refused;      /* calls of readers that the buffer refused, such as for an id that was never issued, or for
                             which it had no memory */
} per_shared_loader_statistics;

PER_API per_status per_shared_loader_statistics_init(per_shared_loader_statistics* statistics, uint64_t struct_size);

/* Fills *statistics_out, which must have been filled by _init. */
PER_API per_status per_shared_loader_stats(per_shared_loader* loader, per_shared_loader_statistics* statistics_out);

/*
 * Applies the priorities that were sent until now, and ends the loader: every later call of its readers but _stop and
 * _free is PER_ERROR_INVALID_ARGUMENT, also of those that wait. Their batches stay as they are. NULL is allowed.
 */
PER_API void per_shared_loader_free(per_shared_loader* loader);

/* The reading end of a shared loader. Several threads may use one reader; each of its batches goes to one of them. */
typedef struct per_reader per_reader;

/*
 * Attaches to a shared loader, and stores the reader in *reader_out (NULL on failure). Free it with per_reader_free().
 *
 *   path        of per_shared_loader_path(); one without '#' is that of any. NULL: the descriptor is used
 *   descriptor  of a shared loader's memory; stays the caller's. Not looked at unless path is NULL
 *
 * PER_ERROR_BUSY if as many readers are attached as there are places; PER_ERROR_IO if there is nothing to open;
 * PER_ERROR_CORRUPT_FILE if it is no shared loader; PER_ERROR_INVALID_ARGUMENT for one that was closed or is another one
 * than the path names; PER_ERROR_UNSUPPORTED for one of a library with another layout of it; PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_reader_attach(const char* path, int32_t descriptor, per_reader** reader_out);

/*
 * The options of the buffer when the loader was created, with the n_step of its draws, and those of the rate limiter 0.
 * *options_out must have been filled by _init; its `fields` then point into the reader, and are valid as long as it.
 */
PER_API per_status per_reader_describe(per_reader* reader, per_replay_options* options_out, int64_t* batch_size_out);

/*
 * Takes the next batch. Its arrays are all there are of per_batch (mask for sequences only); they lie in the slot, and
 * may be read and written until the slot is released or the reader ends.
 *
 *   timeout_ms  milliseconds, >= 0; or -1: for as long as it takes. A call that ends in time has asked all the same: the
 *               batch that it gets is kept for the next call
 *   batch_out   filled by per_batch_init(); gets pointers into the slot
 *   slot_out    what per_reader_release() takes
 *
 * PER_ERROR_BUSY if there is none by then: it is being drawn, the rate limiter does not allow it yet, or this reader has
 * as many as it may; the errors of per_replay_sample(): then no batch was handed out, and the next call tries anew;
 * PER_ERROR_INVALID_ARGUMENT, also if the loader was closed or its process has ended, or the reader was stopped.
 */
PER_API per_status per_reader_next(per_reader* reader, int64_t timeout_ms, per_batch* batch_out, int64_t* slot_out);

/*
 * Gives a slot back, which a later batch will be written into. It does not wait.
 *
 * PER_ERROR_INVALID_ARGUMENT for a slot that is not out.
 */
PER_API per_status per_reader_release(per_reader* reader, int64_t slot);

/*
 * Sends TD errors, as per_replay_update_priorities() takes them. They are applied a little later, as updates from
 * several processes always are: those of transitions that are overwritten by then are ignored.
 *
 *   count       ids and values may take what per_shared_loader_create() has room for
 *   timeout_ms  for room, as above. There is some unless many calls are not applied yet
 *
 * What is wrong with values is told here, but for those of sequences, and but for ids that were never issued: the
 * buffer then refuses the call, changes nothing, and counts it (refused).
 *
 * PER_ERROR_BUSY if there is no room by then; PER_ERROR_INVALID_ARGUMENT as above.
 */
PER_API per_status per_reader_update_priorities(per_reader* reader, int64_t count, const int64_t* ids,
                                                int64_t n_critics, const float* td_errors, int64_t timeout_ms);

/* As per_replay_update_sequences(), by a reader. */
PER_API per_status per_reader_update_sequences(per_reader* reader, int64_t count, const int64_t* ids, int64_t n_critics,
                                               int64_t n_steps, const float* td_errors, int64_t timeout_ms);

/* As per_replay_set_priorities(), by a reader. */
PER_API per_status per_reader_set_priorities(per_reader* reader, int64_t count, const int64_t* ids,
                                             const float* priorities, int64_t timeout_ms);

/*
 * Waits until all that this reader sent is in the buffer, or was refused.
 *
 * PER_ERROR_BUSY if it is not by then; PER_ERROR_INVALID_ARGUMENT as above.
 */
PER_API per_status per_reader_flush(per_reader* reader, int64_t timeout_ms);

/*
 * Ends a reader: its place is free for another. What it sent is applied, and its slots are given back: the arrays of its
 * batches stay mapped until per_reader_free(), and later batches are written into them. Every later call but that and
 * this one is PER_ERROR_INVALID_ARGUMENT, also of threads that wait in per_reader_next().
 */
PER_API per_status per_reader_stop(per_reader* reader);

/* Stops the reader and unmaps its memory. NULL is allowed. */
PER_API void per_reader_free(per_reader* reader);

#ifdef __cplusplus
}
#endif

#endif /* PER_H */

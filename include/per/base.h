/*
 * per/base.h - what all of libper has in common.
 *
 * A function that can fail returns a status, and per_last_error() then says in a line what was wrong: the argument, its
 * value and what is allowed. A call that fails changes nothing, so a program can go on.
 *
 *     #include <per.h>
 *     #include <stdio.h>
 *
 *     int main(void) {
 *         per_tree_options options;
 *         per_tree* tree;
 *         per_tree_options_init(&options, sizeof options);
 *         options.capacity = -1;
 *         per_status status = per_tree_create(&options, &tree);
 *         printf("%s: %s\n", per_status_name(status), per_last_error());
 *         return status == PER_ERROR_INVALID_ARGUMENT ? 0 : 1;
 *     }
 *
 * What holds for every function:
 *
 * Status.     A function that can fail returns a per_status. After any status but PER_OK the handle is as it was before
 *             the call and nothing was written to the outputs, unless the function says otherwise.
 * Threads.    A handle may be used by several threads; each call is atomic with respect to the others. Different
 *             handles share nothing, and wait for each other only while a thread forks. _free is a handle's last call:
 *             no other may be inside of it or wait in it, and none may follow. That is not detected. A thread that
 *             waits in per_loader_next() is sent away by per_loader_stop() and must have returned before
 *             per_loader_free().
 * Timeouts.   timeout_ms is in milliseconds, >= 0, or -1: for as long as it takes. It bounds all waits of a call: also
 *             those for another thread's call on the same handle, or for one that holds the buffer, such as a save. A
 *             call that finds its handle in use waits up to 100 ms beyond its timeout, also if that is 0, so that a
 *             call that only looks does not fail by chance. A call without a timeout waits only for calls of other
 *             threads on its handle, for a fork, for a directory of checkpoints, and for the device where it
 *             synchronises. _free and _stop also wait for work that the library has begun itself.
 * Fork.       fork() waits until no call is inside any handle, and calls that begin meanwhile wait for it. Handles on
 *             PER_CPU stay usable in a forked child, which then has its own copy. In a child every call but _free on a
 *             PER_CUDA handle, a buffer with `storage`, a loader, a reader, a save, a channel or a writer is an error.
 *             Of file descriptors a child keeps those of the memory of channels and shared loaders only: a lock on a
 *             file ends with the process that took it.
 * Signals.    A signal handler may call per_abi_version(), per_version() and per_status_name(), and nothing else: all
 *             other functions take locks or memory. A call that a handler interrupts goes on afterwards, and so does
 *             its wait. A thread must not be cancelled (pthread_cancel()) while it is in a call: it disables that
 *             before.
 * Callbacks.  Functions of the caller - allocate, deallocate, write, read, reward - run on the thread of the call that
 *             was given them. None may leave by longjmp or an exception: a program in C++ catches what they throw, as
 *             per.hpp does, and fails the call by what the function returns.
 * Memory.     The caller owns every buffer passed in or out, and nothing is kept after the call returns; but on
 *             PER_CUDA arrays are read and written when the stream gets there, and must stay until then. Array
 *             arguments lie in host memory for handles on PER_CPU and in the memory of the device for handles on
 *             PER_CUDA. Options structs, names and shapes always lie in host memory. Arrays are contiguous, the last
 *             axis fastest, and aligned to the size of their elements, else PER_ERROR_INVALID_ARGUMENT. NULL is an
 *             error unless it is said to be allowed. An array that a call writes must not overlap another one of the
 *             call, read or written: what is then in it, or stored, is not said, and nothing worse happens. Arrays that
 *             are only read may overlap. Instead of in its own, arrays for a device may lie in managed or pinned
 *             memory, which it can reach too. Of other host memory, and of another GPU's, a kernel would make a fault,
 *             after which the process cannot use the device any more: so one array of each call is looked at - its ids,
 *             indices or key, or else the first that is given; by per_replay_add() each that is read - and is
 *             PER_ERROR_INVALID_ARGUMENT if it lies on another GPU, or in host memory unless the device reads all of
 *             that.
 * Streams.    `stream` is a cudaStream_t, NULL being the legacy default stream; it must be NULL for handles on PER_CPU.
 *             On PER_CUDA a call that takes a stream queues its work there and returns; the others, and those that say
 *             so, synchronise. Calls of one handle on different streams run one after the other all the same. But for
 *             those that synchronise and those that set an option they can be captured in a CUDA graph, on one stream,
 *             and each launch of it is as if the calls were made again; the caller orders launches with each other and
 *             with other calls. If a launch runs beside another one or beside a call of the same handle, what the
 *             handle holds is undefined. Blocks of the two may then wait for each other: they give up after about half
 *             a minute. From then on the calls that synchronise and say something of the handle, per_tree_synchronize()
 *             and per_replay_synchronize() among them, are PER_ERROR_INVALID_ARGUMENT, and the handle can only be
 *             freed. A thread's current device stays what it is, and no device but a handle's own gets a context for
 *             it. A kernel that the caller launches behind a call with programmatic stream serialization must call
 *             cudaGridDependencySynchronize() before it touches what the call reads or writes.
 * Random.     Numbers come from Philox4x32-10, a counter-based generator: the seed of the handle and the number of
 *             draws made so far are the whole random state. The same seed and the same calls give the same indices and
 *             ids, bit for bit, from every language and on every device.
 * Counts.     Arrays that a call reads have at most 2^40 entries, all axes but the shape of a field counted. Where
 *             another thread writes to such an array meanwhile, any of its values may count, and nothing worse happens.
 * Sizes.      Most structs begin with struct_size, which tells the library what the program knows. A struct's _init
 *             function is called first and is given sizeof of that very struct: so many bytes are written, as a larger
 *             size counts as that of a newer header. Structs that a call fills and whose size it takes, such as
 *             statistics, need no _init: the call sets struct_size itself. A per_field has no struct_size; field_size,
 *             which goes with an array of them, says the same. A program built against an older header works with a
 *             newer library: members are only ever appended, one that a program does not have behaves as before it
 *             existed, and nothing beyond the program's struct is read or written. A program built against a newer
 *             header works with an older library while the members that this does not have are 0, as _init leaves them;
 *             one that is set is PER_ERROR_UNSUPPORTED, and those of results are 0. A size that no version of a struct
 *             has had is PER_ERROR_INVALID_ARGUMENT, unless it is larger than that of this library's header, a multiple
 *             of 8 and at most 4096: that is taken for a newer header's.
 */
#ifndef PER_BASE_H
#define PER_BASE_H

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

/* ------------------------------------------------------------------ version */

/* Number of this interface, and of libper.so.N. It grows when a program must be compiled anew. */
enum { PER_ABI_VERSION = 1 };

/* The PER_ABI_VERSION that the loaded library was built with. */
PER_API int32_t per_abi_version(void);

/* The library's version, such as "0.1.0". */
PER_API const char* per_version(void);

/* ------------------------------------------------------------------- status */

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

/* ------------------------------------------------------- arrays and choices */

/*
 * An array given to a call. Members that are not set are 0. Elements of another type than the field's are cast where numpy's "same_kind" rule allows
 * (to the same kind or a later one of bool, integer, float; a signed integer does not become an unsigned one), and a
 * value out of the target's range is an error. A flag is a boolean, or 0 or 1 of any dtype: any other value, also of a
 * byte of PER_BOOL, is an error.
 */
typedef struct per_array {
    const void* data;     /* NULL: not given */
    const int64_t* shape; /* [ndim], checked; or NULL: not checked, and as many elements are read as the call's
                             parameter has. Give it while you write a program */
    int32_t ndim;         /* 0 .. 16; not looked at if shape is NULL */
    int32_t dtype;        /* a per_dtype: the type of *data */
    const void* reserved; /* NULL */
} per_array;

/* Where a handle keeps its memory and does its work. */
typedef enum per_device { PER_CPU = 0, PER_CUDA = 1 } per_device;

/* How the `batch_size` draws of one batch are made. Section 3.3 of the paper uses the first. */
typedef enum per_scheme {
    PER_STRATIFIED = 0,         /* draw i comes from the i-th of batch_size equal parts of the total */
    PER_INDEPENDENT = 1,        /* each draw from the whole */
    PER_SYSTEMATIC = 2,         /* stratified, the same random number in every part */
    PER_WITHOUT_REPLACEMENT = 3 /* no index twice; each next draw in proportion to what is left */
} per_scheme;

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

#ifdef __cplusplus
}
#endif

#endif /* PER_BASE_H */

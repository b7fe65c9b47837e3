/*
 * per/base.h - conventions and types shared by all of libper.
 *
 * A function that can fail returns a status. On failure per_last_error() returns one line that names the argument, its
 * value and what is allowed. A call that fails changes nothing, so the program can continue.
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
 * The following holds for every function:
 *
 * Status.     A function that can fail returns a per_status. After any status other than PER_OK the handle is unchanged
 *             and no output has been written, unless the function's comment says otherwise.
 * Threads.    A handle may be used by several threads; each call is atomic with respect to the others. Different
 *             handles share no state and wait for each other only while a thread forks. _free must be the last call on
 *             a handle: no other call may be running or waiting in it, and none may follow. Violations are not
 *             detected. If a thread may wait in per_loader_next(), call per_loader_stop() before per_loader_free(): the
 *             thread's call then returns, and must have returned before per_loader_free().
 * Timeouts.   timeout_ms is in milliseconds, >= 0, or -1 for no limit. It bounds all waits of a call, including those
 *             for another thread's call on the same handle and for a call that holds the buffer, such as a save. A call
 *             that finds its handle in use waits up to 100 ms beyond its timeout, even if that is 0, so that a poll
 *             does not fail by chance. A call without a timeout waits only for other threads' calls on its handle, for
 *             a fork, for a checkpoint directory, and for the device if it synchronises. _free and _stop also wait for
 *             work that the library itself has started.
 * Fork.       fork() waits until no call is inside any handle, and calls that begin meanwhile wait for it. Handles on
 *             PER_CPU stay usable in a forked child, which then has its own copy. In a child every call except _free on
 *             a PER_CUDA handle, a buffer with `storage`, a loader, a reader, a save, a channel or a writer is an
 *             error. Of the library's file descriptors a child keeps only those of the memory of channels and shared
 *             loaders, so a file lock ends with the process that took it.
 * Signals.    A signal handler may call per_abi_version(), per_version() and per_status_name(), and nothing else: all
 *             other functions take locks or allocate. A call that a handler interrupts continues afterwards, and so
 *             does its wait. A thread must not be cancelled (pthread_cancel()) during a call: it must disable
 *             cancellation first.
 * Callbacks.  Functions of the caller - allocate, deallocate, write, read, reward - run on the thread of the call that
 *             they were given to. None may leave by longjmp or an exception: a C++ program must catch what they throw
 *             and make the function return a failure, as per.hpp does.
 * Memory.     The caller owns every buffer passed in or out, and the library keeps no pointer after the call returns.
 *             On PER_CUDA, however, arrays are read and written in stream order and must stay valid until then. Array
 *             arguments must be in host memory for handles on PER_CPU and in device memory for handles on PER_CUDA.
 *             Options structs, names and shapes are always in host memory. Arrays are contiguous, the last axis
 *             fastest, and aligned to the size of their elements, else PER_ERROR_INVALID_ARGUMENT. NULL is an error
 *             unless documented as allowed. An array that a call writes must not overlap any other array of the call:
 *             if it does, its contents and what is stored are undefined, but nothing worse happens. Arrays that are
 *             only read may overlap. Arrays for a device may also be in managed or pinned memory, which the device can
 *             reach. A kernel that touches any other host memory, or another GPU's, faults and makes the CUDA device
 *             unusable for the process. Each call therefore validates one array: its ids, indices or key, or else the
 *             first one given. The array is PER_ERROR_INVALID_ARGUMENT if it is on another GPU, or in host memory on a
 *             system where the device cannot read all host memory. per_replay_add() validates each array that it reads,
 *             and also takes arrays in host memory.
 * Streams.    `stream` is a cudaStream_t, NULL being the legacy default stream; it must be NULL for handles on PER_CPU.
 *             On PER_CUDA a call that takes a stream enqueues its work there and returns; calls without a stream, and
 *             those documented to do so, synchronise. Calls on one handle run one after the other even on different
 *             streams. All calls can be captured in a CUDA graph, on one stream, except those that synchronise and
 *             those that set an option. Each launch of the graph acts as if the calls were made again. The caller must
 *             order launches with respect to each other and to other calls. If a launch runs concurrently with another
 *             launch or with a call on the same handle, the contents of the handle are undefined. Blocks of the two may
 *             then wait for each other; they give up after about half a minute. After that, calls that synchronise and
 *             report on the handle, including per_tree_synchronize() and per_replay_synchronize(), are
 *             PER_ERROR_INVALID_ARGUMENT, and the handle can only be freed. The library does not change a thread's
 *             current device, and a handle creates a context on no device but its own.
 * Random.     Numbers come from Philox4x32-10, a counter-based generator: the handle's seed and the number of draws
 *             made so far are the whole random state. The same seed and the same calls give bit-identical indices and
 *             ids in every language and on every device.
 * Counts.     Arrays that a call reads have at most 2^40 entries, counting all axes except the shape of a field. If
 *             another thread writes to such an array during the call, any of the values may be used, but nothing worse
 *             happens.
 * Sizes.      Most structs begin with struct_size, which tells the library which members the program knows. Call a
 *             struct's _init function first, and pass it the sizeof of exactly that struct: _init writes that many
 *             bytes, since it takes a larger size for that of a newer header. Structs that a call fills and whose size
 *             it takes, such as statistics, need no _init: the call sets struct_size itself. A per_field has no
 *             struct_size; the field_size given with an array of fields serves the same purpose. A program built
 *             against an older header works with a newer library: members are only ever appended, members unknown to
 *             the program keep their earlier behaviour, and nothing beyond the program's struct is read or written. A
 *             program built against a newer header works with an older library as long as the members unknown to the
 *             library are 0, as _init leaves them. Setting one is PER_ERROR_UNSUPPORTED; in results they are 0. A size
 *             that no version of a struct has had is PER_ERROR_INVALID_ARGUMENT, unless it is larger than that of this
 *             library's header, a multiple of 8 and at most 4096: it then counts as that of a newer header.
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

/* Version of this interface, and the N of libper.so.N. It increases when programs must be recompiled. */
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
    PER_ERROR_FULL = 4,          /* a lane is full and overwrite is 0, a per_ragged has too little room, or
                                    max_heap_bytes is used up */
    PER_ERROR_BUSY = 5,          /* the buffer already has a loader; a save is still running; a channel already has a
                                    writer, or a shared loader its maximum number of readers; a batch, room in a ring
                                    or the lock of a checkpoint directory was not available in time; the rate limiter
                                    does not allow the call yet (per_loader_next() does not wait for it); or the call
                                    comes from inside the buffer's own save callback */
    PER_ERROR_UNSUPPORTED = 6,   /* an option, device, file format or function that this version or build does not
                                    have */
    PER_ERROR_NO_DEVICE = 7,     /* no usable CUDA device; the message says why. The driver must support the major
                                    version of CUDA that libper was built with, or a later one: 580 or later for CUDA
                                    13 */
    PER_ERROR_CUDA = 8,          /* CUDA reported an error; the message has its name. The call may be partly done */
    PER_ERROR_IO = 9,            /* a file could not be read or written; the message has the system's reason */
    PER_ERROR_CORRUPT_FILE = 10, /* the file was not written by this library, or is damaged */
    PER_ERROR_INTERNAL = 11,     /* a defect of this library; the message is for its maintainers */
    PER_ERROR_CALLBACK = 12      /* a callback failed; the message has its return value */
} per_status;

/* "PER_OK", "PER_ERROR_EMPTY", ...; "unknown status" for any other number. Never NULL. */
PER_API const char* per_status_name(int32_t status);

/*
 * Returns one line about the latest failure on this thread, or "" if no call has failed. Valid until the next failing
 * call on this thread: successful calls and _free do not change it.
 */
PER_API const char* per_last_error(void);

/* ------------------------------------------------------- arrays and choices */

/*
 * An array passed to a call. Set unused members to 0. Elements whose type differs from the field's are cast if numpy's
 * "same_kind" rule allows it (to the same kind or a later one of bool, integer, float; never from signed to unsigned
 * integers); a value out of the target's range is an error. A flag is a boolean, or 0 or 1 of any dtype: any other
 * value, including that of a PER_BOOL byte, is an error.
 */
typedef struct per_array {
    const void* data;     /* NULL: not given */
    const int64_t* shape; /* [ndim], checked; or NULL: not checked, and the call reads as many elements as its parameter
                             has. Set it during development */
    int32_t ndim;         /* 0 .. 16; ignored if shape is NULL */
    int32_t dtype;        /* a per_dtype: the type of *data */
    const int64_t* offsets; /* [n + 1] ascending, for the n rows of a field with max_length: row i has the values
                               offsets[i] .. offsets[i + 1] - 1. NULL: there is one row, which has all shape[0] values.
                               Must be NULL for all other arrays. `data` is needed even if all rows are empty */
} per_array;

/* The device that holds a handle's memory and does its work. */
typedef enum per_device { PER_CPU = 0, PER_CUDA = 1 } per_device;

/* Sampling scheme of the `batch_size` draws of one batch. Section 3.3 of the paper uses the first. */
typedef enum per_scheme {
    PER_STRATIFIED = 0,         /* draw i comes from the i-th of batch_size equal parts of the total */
    PER_INDEPENDENT = 1,        /* each draw comes from the whole total */
    PER_SYSTEMATIC = 2,         /* stratified, with the same random number in every part */
    PER_WITHOUT_REPLACEMENT = 3 /* no index twice; each draw in proportion to the remaining priorities */
} per_scheme;

/* Element type. Flags are bytes: 0 false, 1 true. Fields of PER_BOOL keep the bytes that they are given. */
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

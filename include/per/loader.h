/*
 * per/loader.h - draws batches ahead, on a background thread.
 *
 * While the learner works on one batch, the next ones are drawn into reused memory and, for a learner on a GPU, copied
 * there. The batches are the same as if the learner had drawn them itself.
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
 *         per_field field = {.name = "observation", .dtype = PER_FLOAT32};
 *         per_replay_options options;
 *         per_replay* replay;
 *         check(per_replay_options_init(&options, sizeof options));
 *         options.capacity = 1000;
 *         options.fields = &field;
 *         options.n_fields = 1;
 *         options.field_size = sizeof field;
 *         check(per_replay_create(&options, &replay));
 *
 *         float observations[10], next_observations[10], rewards[10];
 *         uint8_t flags[10] = {0};
 *         for (int t = 0; t < 10; t++) observations[t] = t, next_observations[t] = t + 1, rewards[t] = t;
 *         per_array array = {.data = observations, .dtype = PER_FLOAT32};
 *         per_array next_array = {.data = next_observations, .dtype = PER_FLOAT32};
 *         per_steps steps;
 *         check(per_steps_init(&steps, sizeof steps));
 *         steps.length = 10; // ten steps in one call
 *         steps.fields = &array;
 *         steps.next_fields = &next_array;
 *         steps.reward = (per_array){.data = rewards, .dtype = PER_FLOAT32};
 *         steps.terminated = steps.truncated = (per_array){.data = flags, .dtype = PER_BOOL};
 *         check(per_replay_add(replay, &steps, NULL, NULL));
 *
 *         per_loader_options loader_options;
 *         per_loader* loader;
 *         check(per_loader_options_init(&loader_options, sizeof loader_options));
 *         loader_options.batch_size = 4;
 *         check(per_loader_create(replay, &loader_options, &loader));
 *         for (int i = 0; i < 3; i++) {
 *             per_batch batch; // gets pointers to the loader's memory
 *             int64_t slot;
 *             check(per_batch_init(&batch, sizeof batch));
 *             check(per_loader_next(loader, -1, &batch, &slot, NULL));
 *             printf("rewards %g %g %g %g\n", batch.reward[0], batch.reward[1], batch.reward[2], batch.reward[3]);
 *             check(per_loader_release(loader, slot, NULL));
 *         }
 *         per_loader_free(loader);
 *         per_replay_free(replay);
 *         return 0;
 *     }
 */
#ifndef PER_LOADER_H
#define PER_LOADER_H

#include "replay.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A loader prefetches batches on a background thread into reused slots, and hands them out in the order in which it
 * drew them. The consumer releases each slot when it is done with it; the loader never writes to a slot that is handed
 * out.
 *
 * Order.   A loader's draws depend only on the order of the consumer's calls. Creating a loader requests `slots`
 *          batches, and handing one out requests the next, so up to `slots` batches are drawn before the consumer's
 *          response to the latest batch takes effect. If no slot is free, the release that frees one makes the request
 *          instead. Every call on the buffer (add, updates, set, clear, settings, save, direct samples) waits for the
 *          draws requested before it and never overtakes them. The same seed, calls and `slots` give the same batches;
 *          if nothing changes in between, they are those that per_replay_sample() would have drawn. Launches of graphs
 *          wait for nothing: while a buffer on PER_CUDA has a loader, launch no graph with calls on the buffer.
 *
 * Device.  The loader of a buffer on PER_CPU can hand out its batches in the memory of a CUDA device. Its thread then
 *          draws into pinned host memory, and the batches are copied on the loader's own stream. The consumer's stream
 *          waits for the copy, and the copy waits for the stream on which the slot was released, both on the device.
 *          The loader of a buffer on PER_CUDA hands out its batches on that device: they are drawn into the slots on
 *          the loader's own stream, and its thread waits for each draw to finish, because only then is it known whether
 *          anything could be drawn. No call on the loader waits for the device. The drawing thread does once the
 *          consumer is more than `slots` batches ahead of it, and so does any call that waits for that draw.
 *
 * Gather.  With gather_on_device the frames of large fields (at least 1024 bytes, stored in separate arrays) reach the
 *          device without a copy by the CPU: their arrays are pinned as long as the loader runs, the drawing thread
 *          only records the address of each frame, and a kernel on the loader's stream copies the frames into the slot.
 *          Everything else is copied as described above. Batches are bit-identical. per_replay_add() and
 *          per_replay_set() wait, holding the buffer's lock, until the device has read any frame that they overwrite.
 *          They wait for that kernel, and the kernel waits for the work that was enqueued before earlier releases on
 *          the streams of these releases. Work enqueued on a stream before a release must therefore not wait for a call
 *          on the buffer, from any thread. If the wait fails, these calls are PER_ERROR_CUDA and change nothing.
 *          Besides these calls, only the end of the loader waits in this way.
 *
 * Counts.  A batch advances beta's schedule when it is handed out, and has the beta of its position. It advances
 *          `samples` and the random state when it is drawn, even if it is never handed out.
 *
 * Fork.    A loader is unusable in a forked child: every call on it except per_loader_free() is
 *          PER_ERROR_INVALID_ARGUMENT. A buffer on PER_CPU stays usable there, but how many of the requested batches
 *          were drawn before the fork is unspecified. With gather_on_device fork before creating the loader: fork() may
 *          copy pinned memory at once, and before Linux 5.9 the device may keep reading stale rows.
 *
 * A buffer has at most one loader at a time, which must be freed before the buffer. Several threads may share one
 * loader.
 */
typedef struct per_loader per_loader;

/* Fill with per_loader_options_init(), then set batch_size, and change what differs. */
typedef struct per_loader_options {
    uint64_t struct_size;             /* set by _init; do not change */
    int64_t batch_size;               /* as in per_replay_sample(); _init: 0, to be set */
    int64_t slots;                    /* batches drawn ahead, and maximum handed out at a time, 1 .. 1024; _init: 3 */
    const per_sample_options* sample; /* options of every batch, with key and hindsight NULL and newest 0; copied; NULL:
                                         those of the buffer; _init: NULL */
    int32_t device;                   /* a per_device, in whose memory batches are handed out; must be PER_CUDA for a
                                         buffer on PER_CUDA; _init: PER_CPU */
    int32_t device_index;             /* index of the CUDA device; the buffer's if it is on PER_CUDA; 0 for PER_CPU;
                                         _init: 0 */
    int32_t gather_on_device;         /* 1: the device itself copies the frames of large fields from the rows. For
                                         batches on PER_CUDA from a buffer on PER_CPU with neither `allocate` nor
                                         `storage`; _init: 0 */
    int32_t reserved;                 /* 0 */
} per_loader_options;

PER_API per_status per_loader_options_init(per_loader_options* options, uint64_t struct_size);

/*
 * Creates a loader, which begins to draw at once, and stores it in *loader_out (NULL on failure). Free it with
 * per_loader_free().
 *
 * Memory: slots + 1 batches, and the same again in pinned memory for a buffer on PER_CPU whose batches are on PER_CUDA.
 * All of it is allocated here, except for rows of any length: a slot makes room for their values when a batch needs
 * more than those before. gather_on_device takes 8 more bytes per row, and pins all memory of the arrays of large
 * fields, whether rows are used or not; the system can then neither move nor swap it.
 *
 * PER_ERROR_BUSY if the buffer has a loader that was not stopped; PER_ERROR_INVALID_ARGUMENT; PER_ERROR_OUT_OF_MEMORY;
 * PER_ERROR_NO_DEVICE; PER_ERROR_CUDA; PER_ERROR_UNSUPPORTED for a field with max_length if the batches are on
 * PER_CUDA, and for gather_on_device with rows in caller-provided memory
 * or in `storage`, with a compressed field, or on a device that cannot use host addresses of pinned memory.
 */
PER_API per_status per_loader_create(per_replay* replay, const per_loader_options* options, per_loader** loader_out);

/*
 * Hands out the next batch. It has all arrays of per_batch (mask for sequences only, times_sampled with
 * keep_times_sampled). They are in the slot and may be read and written until the slot is released. Rows of any length
 * are packed: the per_ragged of a field, which is read-only, has their values, offsets and total. Sequences keep the
 * n_step that the loader was created with. If the buffer's n_step is set below that, draws fail with
 * PER_ERROR_INVALID_ARGUMENT until a new loader is created.
 *
 * A prefetched draw that failed, for example because nothing was live, is retried when its turn comes. If it fails
 * again, this call returns its status and message (or the next call does, if this one has timed out), and the call
 * after that retries. Thus the call does not wait for steps to be added: on an empty buffer it is PER_ERROR_EMPTY at
 * once, and PER_ERROR_BUSY if the rate limiter allows no draw yet. To wait for steps, set min_size_to_sample and call
 * per_replay_wait_to_sample() first.
 *
 *   timeout_ms  limit of the waits for a batch that is still being drawn, including a retry of a failed draw; for a
 *               slot, if `slots` batches are handed out; and, on PER_CUDA, for another call on the buffer. 0: no wait.
 *               -1: no limit; the call never returns if no other thread releases a slot
 *   batch_out   filled by per_batch_init(); gets pointers into the slot
 *   slot_out    argument of per_loader_release()
 *   stream      NULL for PER_CPU. On PER_CUDA work enqueued on it after the call sees the whole batch. It must not be
 *               captured: slots alternate, so a graph needs its own arrays, into which each batch is copied
 *
 * PER_ERROR_BUSY if there is no batch in time; PER_ERROR_INVALID_ARGUMENT, also if the loader was stopped while the
 * call waited; PER_ERROR_CUDA; and the errors of per_replay_sample(), also on PER_CUDA: per_replay_synchronize() does
 * not report these. On an error no batch is handed out. After PER_ERROR_CUDA the next call retries the same batch, or
 * continues with the one after it if the buffer is on PER_CUDA and the draw failed.
 */
PER_API per_status per_loader_next(per_loader* loader, int64_t timeout_ms, per_batch* batch_out, int64_t* slot_out,
                                   void* stream);

/*
 * Releases a slot, so that a later batch can be written into it: on PER_CUDA once the work enqueued on `stream` so far
 * is done. `stream` may differ from that of per_loader_next(), and must not be captured.
 *
 * PER_ERROR_INVALID_ARGUMENT for a slot that is not handed out; PER_ERROR_CUDA. The slot then stays handed out.
 */
PER_API per_status per_loader_release(per_loader* loader, int64_t slot, void* stream);

/*
 * Ends a loader. Waits for the requested draws, so that the buffer's random state depends only on the order of calls,
 * and for its thread. There is no timeout, because those draws wait only for calls that hold the buffer. Batches that
 * are handed out stay valid until per_loader_free(); every later call except per_loader_free() and this one is
 * PER_ERROR_INVALID_ARGUMENT. Another loader may then be created. With gather_on_device the call waits until the device
 * has read the rows, and then unpins them.
 *
 * PER_ERROR_CUDA: the loader has ended nevertheless; with gather_on_device rows may stay pinned until
 * per_loader_free(), and batches that are handed out may see later writes to the rows.
 */
PER_API per_status per_loader_stop(per_loader* loader);

/* Stops the loader and frees its slots. NULL is allowed. On PER_CUDA it synchronises. */
PER_API void per_loader_free(per_loader* loader);

#ifdef __cplusplus
}
#endif

#endif /* PER_LOADER_H */

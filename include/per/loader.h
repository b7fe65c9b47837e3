/*
 * per/loader.h - draws batches ahead, on a thread of its own.
 *
 * While the learner works on one batch the next ones are drawn, into memory that is used again and again; for a learner
 * on a GPU they are copied there meanwhile. The batches are those that the learner would have drawn itself.
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
 * once more, this call has its status and message - or the next one, if this call ends before - and the call after that
 * tries again. So it does not wait for steps to be added: from an empty buffer it is PER_ERROR_EMPTY at once, and
 * PER_ERROR_BUSY where the rate limiter allows no draw yet. To wait for them set min_size_to_sample, and call
 * per_replay_wait_to_sample() before.
 *
 *   timeout_ms  bounds the waits for a batch that is still being drawn, also for one that it asks for as those drawn
 *               ahead failed; for a slot, if `slots` batches are out; and, on PER_CUDA, for another call on the buffer.
 *               0: it waits for none of these. -1: for as long as it takes, for ever if no other thread releases a slot
 *   batch_out   filled by per_batch_init(); gets pointers into the slot
 *   slot_out    what per_loader_release() takes
 *   stream      NULL for PER_CPU. On PER_CUDA work that is queued on it after the call sees the whole batch. It must not
 *               be captured: as slots take turns, a graph has arrays of its own, which each batch is copied to
 *
 * PER_ERROR_BUSY if there is no batch by then; PER_ERROR_INVALID_ARGUMENT, also if the loader was stopped while the call
 * waited; PER_ERROR_CUDA; and the errors of per_replay_sample(), also on PER_CUDA: per_replay_synchronize() does not
 * report these. Then no batch was handed out. After an error of CUDA the next call tries the same batch again, or the
 * one after it where the buffer is on PER_CUDA and the error was one of the draw.
 */
PER_API per_status per_loader_next(per_loader* loader, int64_t timeout_ms, per_batch* batch_out, int64_t* slot_out,
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
 * calls alone, and for its thread. It has no timeout, as those draws wait only for calls that hold the buffer. Batches
 * that are out stay as they are until per_loader_free(), and every later call but that and this one is
 * PER_ERROR_INVALID_ARGUMENT. Another loader may then be created. With gather_on_device it waits until the device has
 * read the rows, which then are pinned no more.
 *
 * PER_ERROR_CUDA: it has ended all the same; with gather_on_device rows may still be pinned until per_loader_free(), and
 * batches that are out hold what is written to the rows meanwhile.
 */
PER_API per_status per_loader_stop(per_loader* loader);

/* Stops the loader and frees its slots. NULL is allowed. On PER_CUDA it synchronises. */
PER_API void per_loader_free(per_loader* loader);

#ifdef __cplusplus
}
#endif

#endif /* PER_LOADER_H */

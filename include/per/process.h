/*
 * per/process.h - steps from other processes, and batches for them, through shared memory.
 *
 * A channel moves the steps that one process writes, such as an actor, into the buffer of another. A shared loader
 * hands batches to several processes, such as the ranks of a learner, and takes their priorities back. Nothing is sent
 * or pickled, and killing one process does not harm the others. A library built with PER_PORTABLE has neither: every
 * function below except _free is PER_ERROR_UNSUPPORTED.
 *
 *     #include <per.h>
 *     #include <stdio.h>
 *     #include <stdlib.h>
 *     #include <sys/wait.h>
 *     #include <unistd.h>
 *
 *     static void check(per_status status) {
 *         if (status == PER_OK) return;
 *         fprintf(stderr, "%s\n", per_last_error());
 *         exit(1);
 *     }
 *
 *     static void act(const char* path) { // the process that writes, which needs nothing but the path
 *         per_writer* writer;
 *         check(per_writer_attach(path, -1, NULL, 0, 0, &writer));
 *         for (int t = 0; t < 100; t++) {
 *             float observation = t, next_observation = t + 1, reward = 1;
 *             uint8_t terminated = 0, truncated = 0;
 *             per_array array = {.data = &observation, .dtype = PER_FLOAT32};
 *             per_array next_array = {.data = &next_observation, .dtype = PER_FLOAT32};
 *             per_steps steps;
 *             check(per_steps_init(&steps, sizeof steps));
 *             steps.fields = &array;
 *             steps.next_fields = &next_array;
 *             steps.reward = (per_array){.data = &reward, .dtype = PER_FLOAT32};
 *             steps.terminated = (per_array){.data = &terminated, .dtype = PER_BOOL};
 *             steps.truncated = (per_array){.data = &truncated, .dtype = PER_BOOL};
 *             check(per_writer_add(writer, &steps, -1));
 *         }
 *         per_writer_free(writer);
 *     }
 *
 *     static void learn(const char* path) { // a process that learns
 *         float td_errors[4] = {0.5f, 0.5f, 0.5f, 0.5f};
 *         per_reader* reader;
 *         per_batch batch;
 *         per_priorities priorities;
 *         int64_t slot;
 *         check(per_reader_attach(path, -1, &reader));
 *         check(per_batch_init(&batch, sizeof batch));
 *         check(per_reader_next(reader, -1, &batch, &slot)); // its arrays lie in the shared memory
 *         check(per_priorities_init(&priorities, sizeof priorities));
 *         priorities.count = 4;
 *         priorities.ids = batch.ids;
 *         priorities.td_errors = td_errors;
 *         check(per_reader_update_priorities(reader, &priorities, -1));
 *         check(per_reader_release(reader, slot));
 *         per_reader_free(reader);
 *     }
 *
 *     static void run(void (*work)(const char* path), const char* path) {
 *         pid_t child = fork();
 *         if (child == 0) {
 *             work(path);
 *             _exit(0);
 *         }
 *         waitpid(child, NULL, 0);
 *     }
 *
 *     int main(void) {
 *         per_field field = {.name = "observation", .dtype = PER_FLOAT32};
 *         per_replay_options options;
 *         per_replay* replay;
 *         per_channel* channel;
 *         per_shared_loader_options loader_options;
 *         per_shared_loader* loader;
 *         per_replay_statistics statistics;
 *         const char* path;
 *         check(per_replay_options_init(&options, sizeof options));
 *         options.capacity = 1000;
 *         options.fields = &field;
 *         options.n_fields = 1;
 *         options.field_size = sizeof field;
 *         check(per_replay_create(&options, &replay));
 *
 *         check(per_channel_create(replay, NULL, &channel));
 *         check(per_channel_get_address(channel, &path, NULL));
 *         run(act, path);
 *         check(per_channel_flush(channel, -1)); // all written steps are now in the buffer
 *         per_channel_free(channel);
 *
 *         check(per_shared_loader_options_init(&loader_options, sizeof loader_options));
 *         loader_options.batch_size = 4;
 *         loader_options.readers = 1;
 *         check(per_shared_loader_create(replay, &loader_options, &loader));
 *         check(per_shared_loader_get_address(loader, &path, NULL));
 *         run(learn, path);
 *         per_shared_loader_free(loader); // all priorities that were sent are now in the buffer
 *
 *         check(per_replay_get_statistics(replay, &statistics, sizeof statistics));
 *         printf("%d transitions, %d new priorities\n", (int)statistics.live, (int)statistics.updates);
 *         per_replay_free(replay);
 *         return 0;
 *     }
 */
#ifndef PER_PROCESS_H
#define PER_PROCESS_H

#include "replay.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ channel */

/*
 * A channel moves steps from another process into a buffer, through a ring in shared memory: per_replay_add() across
 * processes, with nothing sent or pickled. The process that owns the buffer creates one channel for each process that
 * writes, and passes it a path or a descriptor, to which a per_writer attaches there. A thread of the library moves the
 * steps into the buffer in the order in which they were written, many at a time. Different channels are not ordered
 * with respect to each other.
 *
 * Calls.   With PER_MOVED_BY_CALLS there is no thread, and the buffer changes only at calls of its owner:
 *          per_channel_move() and per_channel_flush() move steps on the thread of the call. Writers wait at a full ring
 *          until such a call makes room. per_channel_free() then moves nothing.
 * Writer.  At most one per_writer is attached to a channel at a time. Values are cast and checked by the writer, which
 *          returns the errors. Errors that only the buffer can detect (a full lane with overwrite 0, a gap with
 *          PER_GAP_ERROR, max_heap_bytes used up) make the buffer drop the step and count it (refused).
 * Memory.  A step for which the machine lacks memory or disk space, or on which its device fails, is not lost: it stays
 *          in the ring and is retried after 100 ms, if there is a thread, and at each per_channel_flush() and
 *          per_channel_move(), which return the error. Meanwhile writers see a full ring.
 * Deaths.  A writing process that ends at any instruction, even by SIGKILL, loses at most the call in progress, and
 *          harms no other process: the steps of earlier calls reach the buffer, and another writer may attach. If the
 *          process of the buffer ends, writers notice once their ring is full, and with PER_MOVED_BY_CALLS at their
 *          next call. The memory has no name in any folder, and is freed with the last process that holds it.
 * Gaps.    The episodes of the channel's environments are cut, as by per_replay_cut(), when a writer attaches, where
 *          steps were dropped, and where the buffer refused a step.
 * Trust.   Shared memory is untrusted: the writer can write anything there. Whatever it writes, the buffer either gets
 *          steps, possibly meaningless ones, of the channel's environments, or cuts the writer off: its calls then
 *          fail, and those of the channel are PER_ERROR_CORRUPT_FILE. Calls of the writer that find an impossible value
 *          in the memory are PER_ERROR_CORRUPT_FILE, too.
 * Device.  On PER_CUDA steps are added on the legacy default stream. While steps may arrive, do not capture calls on
 *          the buffer in a graph, nor capture on a stream that synchronises with the legacy default stream. Errors that
 *          only the device can detect are counted by the buffer, as with per_replay_add(), and not by the channel.
 * Fork.    Channels and writers are unusable in a forked child: every call on them except _free is
 *          PER_ERROR_INVALID_ARGUMENT. A child may attach to a channel of its parent like any other process.
 *
 * A buffer may have any number of channels, which must be freed before it. Each environment should belong to at most
 * one channel.
 */
typedef struct per_channel per_channel;

/* Behaviour of a full ring; see per_writer_add(). */
typedef enum per_when_full {
    PER_FULL_WAITS = 0, /* the call waits until there is room */
    PER_FULL_DROPS = 1  /* the steps are dropped and counted */
} per_when_full;

/* Agent that moves steps from the ring into the buffer. */
typedef enum per_moved_by {
    PER_MOVED_BY_THREAD = 0, /* a thread of the library, as steps arrive */
    PER_MOVED_BY_CALLS = 1   /* only per_channel_move() and per_channel_flush() */
} per_moved_by;

/* Fill with per_channel_options_init(), then change what differs. */
typedef struct per_channel_options {
    uint64_t struct_size;   /* set by _init; do not change */
    int64_t n_envs;         /* number of env_ids; ignored if env_ids is NULL; _init: 0 */
    const int64_t* env_ids; /* [n_envs] environments of the channel, each once: the writer's environment i is env_ids[i]
                               of the buffer. NULL: all, in order; copied; _init: NULL */
    int64_t slots;          /* slots of the ring, 2 .. 2^31; each holds a step of all n_envs, or a cut, such as the one
                               with which a writer begins. 0: as many as fit in 4 MiB, at least 16; _init: 0 */
    int32_t when_full;      /* a per_when_full; _init: PER_FULL_WAITS */
    int32_t moved_by;       /* a per_moved_by; _init: PER_MOVED_BY_THREAD */
} per_channel_options;

/* Like per_tree_options_init(). */
PER_API per_status per_channel_options_init(per_channel_options* options, uint64_t struct_size);

/*
 * Creates a channel, and stores it in *channel_out (NULL on failure). Free it with per_channel_free().
 *
 *   options  NULL: those of _init
 *
 * Memory: a slot takes 4 bytes and, for each environment, the bytes of all fields, observations counted twice, and 12
 * bytes for reward, priority and flags. All of it is allocated here, except for rows of any length: a slot reserves
 * addresses for rows of max_length, which count in its size, and the writer allocates memory as its rows need it. Their
 * offsets take 8 bytes for each environment, and 8 more.
 *
 * PER_ERROR_INVALID_ARGUMENT, PER_ERROR_OUT_OF_MEMORY, also where the system has no descriptor or thread.
 */
PER_API per_status per_channel_create(per_replay* replay, const per_channel_options* options,
                                      per_channel** channel_out);

/*
 * Returns the address that another process passes to per_writer_attach(): one of the two is enough.
 *
 *   path_out        for a process of the same user in the same PID namespace, such as
 *                   "/proc/4711/fd/9#0123456789abcdef", where the number after the '#' is unique to this channel. It is
 *                   valid as long as the channel. May be NULL
 *   descriptor_out  descriptor of the channel's memory, to be passed on, for example by SCM_RIGHTS. The channel keeps
 *                   ownership, and exec closes it. May be NULL
 *
 * PER_ERROR_INVALID_ARGUMENT.
 */
PER_API per_status per_channel_get_address(per_channel* channel, const char** path_out, int32_t* descriptor_out);

/*
 * Waits until all steps written before the call are in the buffer or were refused. This includes waits for draws
 * required by the rate limiter, which must come from another thread. With PER_MOVED_BY_CALLS the call moves the steps
 * itself: timeout_ms bounds the waits for draws, for the buffer and for other calls that move steps.
 *
 *   timeout_ms  milliseconds, >= 0; or -1: no limit
 *
 * PER_ERROR_BUSY if that is not done in time, and when called from `write` of per_replay_save(); PER_ERROR_CORRUPT_FILE
 * if the writer was cut off; PER_ERROR_INVALID_ARGUMENT; PER_ERROR_OUT_OF_MEMORY, PER_ERROR_CUDA, PER_ERROR_IO if steps
 * could not be added for that reason; these steps are retried.
 */
PER_API per_status per_channel_flush(per_channel* channel, int64_t timeout_ms);

/*
 * Moves steps of a channel with PER_MOVED_BY_CALLS into the buffer, in order: as many of the available ones as
 * `max_steps` and the rate limiter allow. It waits neither for writers nor for draws.
 *
 *   max_steps  steps of single environments, >= 0, not counting those masked out. A step of the channel is moved for
 *              all of its environments or not at all; a step that exceeds the rest of max_steps, and all after it, stay
 *              in the ring
 *   steps_out  number of steps moved
 *
 * PER_ERROR_INVALID_ARGUMENT, also for a channel that has a thread; PER_ERROR_BUSY when called from `write` of
 * per_replay_save(); PER_ERROR_CORRUPT_FILE if the writer was cut off. PER_ERROR_OUT_OF_MEMORY, PER_ERROR_CUDA,
 * PER_ERROR_IO if no step could be added for that reason: it stays in the ring. If some steps were moved before the
 * error, the next call returns it.
 */
PER_API per_status per_channel_move(per_channel* channel, int64_t max_steps, int64_t* steps_out);

/* Counters of a channel: per_channel_get_statistics(). A step here is one of all n_envs. */
typedef struct per_channel_statistics {
    uint64_t struct_size; /* set by the call */
    int64_t slots;        /* slots of the ring */
    int64_t waiting;      /* steps and cuts in the ring */
    int64_t added;        /* steps moved into the buffer */
    int64_t refused;      /* steps that the buffer refused; they were dropped */
    int64_t dropped;      /* steps dropped because the ring was full; this, waits and writers are as reported by the
                             writers */
    int64_t waits;        /* number of times that a writer began to wait for room */
    int64_t gaps;         /* number of times that episodes were cut: by the writer, or as described at per_channel */
    int64_t writers;      /* writers that attached so far */
    int64_t attached;     /* process id, as the process itself sees it, of the attached writer; 0: none */
} per_channel_statistics;

/*
 * Fills *statistics_out, even if the writer was cut off.
 *
 *   struct_size  sizeof(per_channel_statistics) of the caller
 */
PER_API per_status per_channel_get_statistics(per_channel* channel, per_channel_statistics* statistics_out,
                                              uint64_t struct_size);

/*
 * Moves all steps written so far into the buffer, and ends the channel: every later call of its writer except _free is
 * PER_ERROR_INVALID_ARGUMENT. Steps that there is no memory for are lost; with PER_MOVED_BY_CALLS all steps not moved
 * before are lost. It waits for calls that hold the buffer, but neither for writers nor for draws. NULL is allowed.
 */
PER_API void per_channel_free(per_channel* channel);

/*
 * The writing end of a channel, in the process that writes. Several threads may use one writer: the steps of a call
 * stay together. A call that waits for room does not block other calls, which may use the available room.
 */
typedef struct per_writer per_writer;

/*
 * Attaches to a channel, and stores the writer in *writer_out (NULL on failure). Free it with per_writer_free().
 *
 *   path        path from per_channel_get_address(); without '#' any channel is accepted. NULL: the descriptor is used
 *   descriptor  descriptor of a channel's memory; the caller keeps it. Ignored unless path is NULL
 *   fields      [n_fields] fields that the caller will write: names, shapes, dtypes and max_length must equal those of
 *               the buffer; roles, stacks and defaults are ignored. NULL with n_fields 0: nothing is checked
 *   field_size  sizeof(per_field) of the caller. Ignored if fields is NULL
 *
 * PER_ERROR_BUSY if a writer is already attached; PER_ERROR_IO if there is nothing to open; PER_ERROR_CORRUPT_FILE if
 * it is not a channel; PER_ERROR_INVALID_ARGUMENT, naming the first field that differs, and for a channel that was
 * closed or is not the one that the path names; PER_ERROR_UNSUPPORTED if it was created by a library with a different
 * memory layout; PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_writer_attach(const char* path, int32_t descriptor, const per_field* fields, int64_t n_fields,
                                     int64_t field_size, per_writer** writer_out);

/*
 * Writes the options that the buffer had when the channel was created, with n_envs and capacity of the channel's
 * environments, and with save_compression and rate limiter options of 0. *options_out must have been filled by _init.
 * Its `fields` then point into the writer, are field_size bytes apart, as with per_replay_describe(), and are valid as
 * long as the writer.
 */
PER_API per_status per_writer_describe(per_writer* writer, per_replay_options* options_out);

/*
 * Writes steps, given as for per_replay_add(): all of them or, on any error, none. Their n_envs and env_ids refer to
 * the environments of the channel. Ids are not known here.
 *
 *   steps       length: less than the number of slots of the ring. All arrays are in host memory
 *   timeout_ms  limit of the wait for room with PER_FULL_WAITS: milliseconds, >= 0; or -1: no limit
 *
 * Dropping steps (PER_FULL_DROPS) is not an error.
 *
 * PER_ERROR_BUSY if there is no room in time; PER_ERROR_INVALID_ARGUMENT, also if the channel was closed or, with a
 * full ring, its process has ended; PER_ERROR_CORRUPT_FILE if the channel's memory is damaged; PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_writer_add(per_writer* writer, const per_steps* steps, int64_t timeout_ms);

/*
 * Cuts like per_replay_cut(), after the steps written so far.
 *
 *   count, env_ids  [count] of the channel's environments; NULL: all
 *   timeout_ms      as in per_writer_add(). With PER_FULL_DROPS and a full ring the cut takes effect before the next
 *                   step that is written
 *
 * The errors of per_writer_add().
 */
PER_API per_status per_writer_cut(per_writer* writer, int64_t count, const int64_t* env_ids, int64_t timeout_ms);

/*
 * Waits until all steps of this writer are in the buffer or were refused, like per_channel_flush().
 *
 * PER_ERROR_BUSY if that is not done in time; PER_ERROR_INVALID_ARGUMENT as for per_writer_add().
 */
PER_API per_status per_writer_flush(per_writer* writer, int64_t timeout_ms);

/* Detaches: another writer may attach. Steps already written still reach the buffer. NULL is allowed. */
PER_API void per_writer_free(per_writer* writer);

/* ------------------------------------------------------------ shared loader */

/*
 * A shared loader is a loader whose slots are in shared memory. Several processes (the ranks of a data-parallel
 * learner, evaluators) read batches of one buffer in place, without copying or pickling them, and send priorities back.
 * The process of the buffer creates it, and passes a path or a descriptor to the others, where a per_reader attaches to
 * it; the same process may attach too. A thread of the library hands out batches and applies the priorities.
 *
 * Order.   Each batch goes to one reader, and readers are served in the order of their requests. Together they get the
 *          batches of one per_loader with `readers` times `slots` slots, in that order. A reader's calls take effect in
 *          order; different readers are not ordered. With one reader the batches are therefore bit-identical to those
 *          of a per_loader for the same calls, even if priorities change in between, up to the first per_reader_next()
 *          that ends without a batch. That call's request still stands: it is then undetermined whether the reader's
 *          next action, such as an update, comes before or after the draws that follow from it. Each batch is still the
 *          next one of the loader, drawn with the priorities at that time.
 * Turns.   A reader holds at most `slots` batches at a time, so that no reader can starve the others. Readers at their
 *          quota wait until they release a batch. A failed draw is an error of the reader whose turn it was; if the
 *          rate limiter does not allow the draw yet, readers wait.
 * Deaths.  A reading process that ends at any instruction, even by SIGKILL, loses at most the call in progress. The
 *          priorities of its earlier calls are applied, and its slots are released within about 100 ms and then reused.
 *          A save that holds the buffer delays only the reader's pending priorities and the next reader in its place.
 *          The batches that the reader held are not given to another: they count as handed out. If the process of the
 *          buffer ends, waiting readers get an error, and the batches that readers hold stay readable. The memory has
 *          no name in any folder, and is freed with the last process that holds it.
 * Trust.   Shared memory is untrusted: readers can write anything there. The loader never reads a batch back and
 *          validates every value. Whatever a reader writes, either priorities change, as per_replay_update_priorities()
 *          may change them, or the reader is cut off, and its calls are PER_ERROR_CORRUPT_FILE. So are calls of a
 *          reader that find a value in the memory that no loader writes. Readers of one loader must trust each other:
 *          each can corrupt the batches of all.
 * Fork.    Shared loaders and readers are unusable in a forked child: every call on them except _free is
 *          PER_ERROR_INVALID_ARGUMENT. A child may attach to the loader of its parent like any other process.
 *
 * A shared loader is the only loader of its buffer, which must be on PER_CPU, and must be freed before the buffer.
 */
typedef struct per_shared_loader per_shared_loader;

/* Fill with per_shared_loader_options_init(), then set batch_size and readers, and change what differs. */
typedef struct per_shared_loader_options {
    uint64_t struct_size;             /* set by _init; do not change */
    int64_t batch_size;               /* as in per_replay_sample(); _init: 0, to be set */
    int64_t readers;                  /* maximum number of attached readers, 1 .. 1024; _init: 0, to be set */
    int64_t slots;                    /* maximum number of batches that a reader may hold; readers * slots is at most
                                         1024. Batches are drawn ahead into all free slots; _init: 2 */
    const per_sample_options* sample; /* options of every batch; copied; NULL: those of the buffer; _init: NULL */
} per_shared_loader_options;

/* Like per_tree_options_init(). */
PER_API per_status per_shared_loader_options_init(per_shared_loader_options* options, uint64_t struct_size);

/*
 * Creates a shared loader, which begins to draw at once, and stores it in *loader_out (NULL on failure). Free it with
 * per_shared_loader_free().
 *
 * Memory: readers * slots + 1 batches, and for each reader 64 KiB and the TD errors of 16 critics for a batch. All of
 * it is allocated here, except for rows of any length: a batch reserves addresses for rows of max_length, and memory is
 * allocated as the rows of a draw need it.
 *
 * PER_ERROR_BUSY if the buffer has a loader that was not stopped; PER_ERROR_INVALID_ARGUMENT; PER_ERROR_UNSUPPORTED for
 * a buffer on PER_CUDA; PER_ERROR_OUT_OF_MEMORY, also where the system has no descriptor or thread.
 */
PER_API per_status per_shared_loader_create(per_replay* replay, const per_shared_loader_options* options,
                                            per_shared_loader** loader_out);

/* Returns the address for per_reader_attach(), like per_channel_get_address(). */
PER_API per_status per_shared_loader_get_address(per_shared_loader* loader, const char** path_out,
                                                 int32_t* descriptor_out);

/* Counters of a shared loader: per_shared_loader_get_statistics(). */
typedef struct per_shared_loader_statistics {
    uint64_t struct_size; /* set by the call */
    int64_t places;       /* maximum number of attached readers */
    int64_t attached;     /* readers attached now */
    int64_t readers;      /* readers attached so far, as reported by them */
    int64_t handed;       /* batches handed out */
    int64_t out;          /* batches held by readers */
    int64_t returned;     /* batches held by readers when they ended */
    int64_t updates;      /* readers' calls whose priorities were applied to the buffer */
    int64_t refused;      /* readers' calls that the buffer refused, for example because an id was never issued or
                             memory ran out */
} per_shared_loader_statistics;

/*
 * Fills *statistics_out.
 *
 *   struct_size  sizeof(per_shared_loader_statistics) of the caller
 */
PER_API per_status per_shared_loader_get_statistics(per_shared_loader* loader,
                                                    per_shared_loader_statistics* statistics_out, uint64_t struct_size);

/*
 * Applies the priorities sent so far, and ends the loader: every later call of its readers except _stop and _free is
 * PER_ERROR_INVALID_ARGUMENT, and so are calls that are waiting. Their batches stay valid. It waits for calls that hold
 * the buffer, but not for readers. NULL is allowed.
 */
PER_API void per_shared_loader_free(per_shared_loader* loader);

/* The reading end of a shared loader. Several threads may use one reader; each of its batches goes to one of them. */
typedef struct per_reader per_reader;

/*
 * Attaches to a shared loader, and stores the reader in *reader_out (NULL on failure). Free it with per_reader_free().
 *
 *   path        path from per_shared_loader_get_address(); without '#' any shared loader is accepted. NULL: the
 *               descriptor is used
 *   descriptor  descriptor of a shared loader's memory; the caller keeps it. Ignored unless path is NULL
 *
 * PER_ERROR_BUSY if the maximum number of readers is attached; PER_ERROR_IO if there is nothing to open;
 * PER_ERROR_CORRUPT_FILE if it is not a shared loader; PER_ERROR_INVALID_ARGUMENT for one that was closed or is not the
 * one that the path names; PER_ERROR_UNSUPPORTED if it was created by a library with a different memory layout;
 * PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_reader_attach(const char* path, int32_t descriptor, per_reader** reader_out);

/*
 * Writes the options that the buffer had when the loader was created, with the n_step of its draws, and with
 * save_compression and rate limiter options of 0. *options_out must have been filled by _init. Its `fields` then point
 * into the reader, are field_size bytes apart, as with per_replay_describe(), and are valid as long as the reader.
 */
PER_API per_status per_reader_describe(per_reader* reader, per_replay_options* options_out, int64_t* batch_size_out);

/*
 * Gets the next batch. It has all arrays of per_batch (mask for sequences only, times_sampled with keep_times_sampled).
 * They are in the slot, and may be read and written until the slot is released or the reader ends. Rows of any length
 * are packed: the per_ragged of a field, which is read-only, has their values, and the reader's own copy of the
 * offsets, which no other process can change.
 *
 *   timeout_ms  milliseconds, >= 0; or -1: no limit. After a timeout the request still stands: its batch is kept for
 *               the next call
 *   batch_out   filled by per_batch_init(); gets pointers into the slot
 *   slot_out    argument of per_reader_release()
 *
 * PER_ERROR_BUSY if there is no batch in time: it is being drawn, the rate limiter does not allow it yet, or this
 * reader is at its quota; the errors of per_replay_sample(): no batch is handed out then, and the next call retries;
 * PER_ERROR_INVALID_ARGUMENT, also if the loader was closed or its process has ended, or the reader was stopped.
 */
PER_API per_status per_reader_next(per_reader* reader, int64_t timeout_ms, per_batch* batch_out, int64_t* slot_out);

/*
 * Releases a slot, so that a later batch can be written into it. Does not wait.
 *
 * PER_ERROR_INVALID_ARGUMENT for a slot that is not handed out.
 */
PER_API per_status per_reader_release(per_reader* reader, int64_t slot);

/*
 * Sends priorities or TD errors, as per_replay_update_priorities() takes them. They are applied asynchronously: updates
 * of transitions that are overwritten by then are ignored.
 *
 *   priorities  ids and values must fit in the memory described at per_shared_loader_create()
 *   timeout_ms  limit of the wait for room: milliseconds, >= 0; or -1: no limit. Room is short only if many calls have
 *               not been applied yet
 *
 * Invalid values are errors of this call, except TD errors of sequences and ids that were never issued: for these the
 * buffer refuses the call, changes nothing, and counts it (refused).
 *
 * PER_ERROR_BUSY if there is no room in time; PER_ERROR_INVALID_ARGUMENT as for per_reader_next().
 */
PER_API per_status per_reader_update_priorities(per_reader* reader, const per_priorities* priorities,
                                                int64_t timeout_ms);

/*
 * Waits until all priorities that this reader sent are in the buffer or were refused.
 *
 * PER_ERROR_BUSY if that is not done in time; PER_ERROR_INVALID_ARGUMENT as for per_reader_next().
 */
PER_API per_status per_reader_flush(per_reader* reader, int64_t timeout_ms);

/*
 * Ends a reader: another may take its place. The priorities it sent are applied, and its slots are released: the arrays
 * of its batches stay mapped until per_reader_free(), but later batches are written into them. Every later call except
 * per_reader_free() and this one is PER_ERROR_INVALID_ARGUMENT, and so are calls that wait in per_reader_next().
 */
PER_API per_status per_reader_stop(per_reader* reader);

/* Stops the reader and unmaps its memory. NULL is allowed. */
PER_API void per_reader_free(per_reader* reader);

#ifdef __cplusplus
}
#endif

#endif /* PER_PROCESS_H */

/*
 * per/process.h - steps from other processes, and batches for them, through shared memory.
 *
 * A channel brings the steps that a process writes, such as an actor, into the buffer of another. A shared loader hands
 * batches to several processes, such as the ranks of a learner, and takes their priorities back. Nothing is sent or
 * pickled, and a process that is killed harms no other.
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
 *         check(per_channel_flush(channel, -1)); // what was written is now in the buffer
 *         per_channel_free(channel);
 *
 *         check(per_shared_loader_options_init(&loader_options, sizeof loader_options));
 *         loader_options.batch_size = 4;
 *         loader_options.readers = 1;
 *         check(per_shared_loader_create(replay, &loader_options, &loader));
 *         check(per_shared_loader_get_address(loader, &path, NULL));
 *         run(learn, path);
 *         per_shared_loader_free(loader); // what was sent is now in the buffer
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
 * What per_writer_attach() takes in another process: one of the two is enough.
 *
 *   path_out        for a process of the same user that sees the same processes: such as
 *                   "/proc/4711/fd/9#0123456789abcdef", where what follows the '#' is a number that only this channel
 *                   has. It is valid as long as the channel. May be NULL
 *   descriptor_out  of the channel's memory, to be passed on, such as by SCM_RIGHTS. It stays the channel's, and is
 *                   closed by exec. May be NULL
 *
 * PER_ERROR_INVALID_ARGUMENT.
 */
PER_API per_status per_channel_get_address(per_channel* channel, const char** path_out, int32_t* descriptor_out);

/*
 * Waits until all that was written before the call is in the buffer, or was refused: also for draws that the rate
 * limiter asks for, which must come from another thread. With PER_MOVED_BY_CALLS it moves the steps itself: timeout_ms
 * bounds the waits for draws, for the buffer and for other calls that move steps.
 *
 *   timeout_ms  milliseconds, >= 0; or -1: for as long as it takes
 *
 * PER_ERROR_BUSY if it is not by then, and from `write` of per_replay_save(); PER_ERROR_CORRUPT_FILE if the
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
 * PER_ERROR_INVALID_ARGUMENT, also for a channel that has a thread; PER_ERROR_BUSY from `write` of
 * per_replay_save(); PER_ERROR_CORRUPT_FILE if the writer was cut off. PER_ERROR_OUT_OF_MEMORY, PER_ERROR_CUDA,
 * PER_ERROR_IO where no step could be added for that reason: it stays in the ring. If some came in before, the next call
 * says so.
 */
PER_API per_status per_channel_move(per_channel* channel, int64_t max_steps, int64_t* steps_out);

/* What a channel has done: per_channel_get_statistics(). A step is one of all n_envs here. */
typedef struct per_channel_statistics {
    uint64_t struct_size; /* set by the call */
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

/*
 * Fills *statistics_out, also where the writer was cut off.
 *
 *   struct_size  sizeof(per_channel_statistics) of the caller
 */
PER_API per_status per_channel_get_statistics(per_channel* channel, per_channel_statistics* statistics_out,
                                              uint64_t struct_size);

/*
 * Moves what was written until now into the buffer, and ends the channel: every later call of its writer but _free is
 * PER_ERROR_INVALID_ARGUMENT. What there is no memory for now is lost, and with PER_MOVED_BY_CALLS all that was not moved
 * before. It waits for calls that hold the buffer, but neither for writers nor for draws. NULL is allowed.
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
 *   path        of per_channel_get_address(); one without '#' is that of any channel. NULL: the descriptor is used
 *   descriptor  of a channel's memory; stays the caller's. Not looked at unless path is NULL
 *   fields      [n_fields] what the caller will write: names, shapes and dtypes must be those of the buffer, and roles,
 *               stacks and defaults are not looked at. NULL, and n_fields 0: nothing is checked
 *   field_size  sizeof(per_field) of the caller. Not looked at if fields is NULL
 *
 * PER_ERROR_BUSY if a writer is attached already; PER_ERROR_IO if there is nothing to open; PER_ERROR_CORRUPT_FILE if
 * it is no channel; PER_ERROR_INVALID_ARGUMENT, naming the first field that differs, and for a channel that was closed
 * or is another one than the path names; PER_ERROR_UNSUPPORTED for one of a library with another layout of it;
 * PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_writer_attach(const char* path, int32_t descriptor, const per_field* fields, int64_t n_fields,
                                     int64_t field_size, per_writer** writer_out);

/*
 * The options of the buffer when the channel was created, n_envs and capacity being those of the channel's environments,
 * and those of the rate limiter 0. *options_out must have been filled by _init; its `fields` then point into the
 * writer, are field_size bytes apart, as with per_replay_describe(), and are valid as long as it.
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

/* ------------------------------------------------------------ shared loader */

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

/* What per_reader_attach() takes, as per_channel_get_address() has it. */
PER_API per_status per_shared_loader_get_address(per_shared_loader* loader, const char** path_out,
                                                 int32_t* descriptor_out);

/* What a shared loader has done: per_shared_loader_get_statistics(). */
typedef struct per_shared_loader_statistics {
    uint64_t struct_size; /* set by the call */
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

/*
 * Fills *statistics_out.
 *
 *   struct_size  sizeof(per_shared_loader_statistics) of the caller
 */
PER_API per_status per_shared_loader_get_statistics(per_shared_loader* loader,
                                                    per_shared_loader_statistics* statistics_out, uint64_t struct_size);

/*
 * Applies the priorities that were sent until now, and ends the loader: every later call of its readers but _stop and
 * _free is PER_ERROR_INVALID_ARGUMENT, also of those that wait. Their batches stay as they are. It waits for calls that
 * hold the buffer, but not for readers. NULL is allowed.
 */
PER_API void per_shared_loader_free(per_shared_loader* loader);

/* The reading end of a shared loader. Several threads may use one reader; each of its batches goes to one of them. */
typedef struct per_reader per_reader;

/*
 * Attaches to a shared loader, and stores the reader in *reader_out (NULL on failure). Free it with per_reader_free().
 *
 *   path        of per_shared_loader_get_address(); one without '#' is that of any. NULL: the descriptor is used
 *   descriptor  of a shared loader's memory; stays the caller's. Not looked at unless path is NULL
 *
 * PER_ERROR_BUSY if as many readers are attached as there are places; PER_ERROR_IO if there is nothing to open;
 * PER_ERROR_CORRUPT_FILE if it is no shared loader; PER_ERROR_INVALID_ARGUMENT for one that was closed or is another one
 * than the path names; PER_ERROR_UNSUPPORTED for one of a library with another layout of it; PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_reader_attach(const char* path, int32_t descriptor, per_reader** reader_out);

/*
 * The options of the buffer when the loader was created, with the n_step of its draws, and those of the rate limiter 0.
 * *options_out must have been filled by _init; its `fields` then point into the reader, are field_size bytes apart, as
 * with per_replay_describe(), and are valid as long as it.
 */
PER_API per_status per_reader_describe(per_reader* reader, per_replay_options* options_out, int64_t* batch_size_out);

/*
 * Takes the next batch. Its arrays are all there are of per_batch (mask for sequences only, times_sampled with
 * keep_times_sampled); they lie in the slot, and may be read and written until the slot is released or the reader ends.
 *
 *   timeout_ms  milliseconds, >= 0; or -1: for as long as it takes. A call whose time runs out has asked all the same: the
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
 * Sends priorities or TD errors, as per_replay_update_priorities() takes them. They are applied a little later, as
 * updates from several processes always are: those of transitions that are overwritten by then are ignored.
 *
 *   priorities  ids and values may take what per_shared_loader_create() has room for
 *   timeout_ms  for room, as above. There is some unless many calls are not applied yet
 *
 * What is wrong with values is told here, but for TD errors of sequences, and but for ids that were never issued: the
 * buffer then refuses the call, changes nothing, and counts it (refused).
 *
 * PER_ERROR_BUSY if there is no room by then; PER_ERROR_INVALID_ARGUMENT as above.
 */
PER_API per_status per_reader_update_priorities(per_reader* reader, const per_priorities* priorities,
                                                int64_t timeout_ms);

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

#endif /* PER_PROCESS_H */

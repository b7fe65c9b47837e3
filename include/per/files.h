/*
 * per/files.h - saves and loads buffers.
 *
 * A loaded buffer goes on bit for bit: its next batch is the one that the saved buffer would have drawn. There are three
 * ways to save: a file, a file that is written while the buffer goes on (per_replay_save_start()), and a checkpoint in a
 * directory, which writes only what has changed since the last one. Bytes may also go to a function of the program.
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
 *     static int64_t put(void* file, const void* bytes, int64_t size) { // takes bytes to wherever a program wants them
 *         return (int64_t)fwrite(bytes, 1, (size_t)size, file);
 *     }
 *
 *     static int64_t get(void* file, void* bytes_out, int64_t size) {
 *         return (int64_t)fread(bytes_out, 1, (size_t)size, file);
 *     }
 *
 *     int main(void) {
 *         per_field field = {.name = "observation", .dtype = PER_FLOAT32};
 *         float observations[10] = {0}, rewards[10] = {0};
 *         uint8_t terminated[10] = {0}, truncated[10] = {0};
 *         per_array array = {.data = observations, .dtype = PER_FLOAT32};
 *         per_replay_options options;
 *         per_replay *replay, *loaded;
 *         per_steps steps;
 *         int64_t live;
 *         check(per_replay_options_init(&options, sizeof options));
 *         options.capacity = 1000;
 *         options.fields = &field;
 *         options.n_fields = 1;
 *         options.field_size = sizeof field;
 *         check(per_replay_create(&options, &replay));
 *         check(per_steps_init(&steps, sizeof steps));
 *         steps.length = 10; // ten steps in one call; the observation after the last one comes with a later call
 *         steps.fields = &array;
 *         steps.reward = (per_array){.data = rewards, .dtype = PER_FLOAT32};
 *         steps.terminated = (per_array){.data = terminated, .dtype = PER_BOOL};
 *         steps.truncated = (per_array){.data = truncated, .dtype = PER_BOOL};
 *         check(per_replay_add(replay, &steps, NULL, NULL));
 *
 *         check(per_replay_checkpoint(replay, "checkpoints", NULL, NULL)); // a directory, or else
 *         check(per_replay_save(replay, "buffer.per", NULL));              // a file; both are loaded in the same way
 *         check(per_replay_load("buffer.per", NULL, &loaded));
 *         per_replay_free(loaded);
 *
 *         per_save_options saving;
 *         per_load_options loading;
 *         FILE* file = tmpfile();
 *         if (file == NULL) return 1;
 *         check(per_save_options_init(&saving, sizeof saving));
 *         saving.write = put;
 *         saving.context = file;
 *         check(per_replay_save(replay, NULL, &saving));
 *         rewind(file);
 *         check(per_load_options_init(&loading, sizeof loading));
 *         loading.read = get;
 *         loading.context = file;
 *         check(per_replay_load(NULL, &loading, &loaded));
 *         fclose(file);
 *         check(per_replay_get_live_ids(loaded, 0, NULL, &live));
 *         printf("%d transitions\n", (int)live);
 *         per_replay_free(replay);
 *         per_replay_free(loaded);
 *         return 0;
 *     }
 */
#ifndef PER_FILES_H
#define PER_FILES_H

#include "replay.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Timeout, in milliseconds, of waits for a directory of checkpoints, unless options say another. */
enum { PER_DIRECTORY_TIMEOUT_MS = 60000 };

/* How a buffer is saved. Fill with per_save_options_init(), then change what differs. */
typedef struct per_save_options {
    uint64_t struct_size; /* set by _init; do not change */
    int64_t timeout_ms;   /* milliseconds that per_replay_checkpoint() waits for the directory, >= 0; or -1: for as long
                             as it takes; _init: PER_DIRECTORY_TIMEOUT_MS */
    int32_t compression;  /* as save_compression, 0 .. 19, for this call; -1: that of the buffer; _init: -1 */
    int32_t reserved;     /* 0 */
    /* Takes the bytes instead of a file; see per_replay_save(). Only for that function. _init: NULL */
    int64_t (*write)(void* context, const void* bytes, int64_t size);
    void* context; /* given to write; _init: NULL */
} per_save_options;

/* As per_tree_options_init(). */
PER_API per_status per_save_options_init(per_save_options* options, uint64_t struct_size);

/*
 * Writes the whole buffer to a file, so that a loaded one continues bit for bit: fields, priorities, lanes, counters,
 * maximum, schedules, random state. The file takes its place at `path` once it is complete and on the disk; until then,
 * and after an error, what was there before stays. Synchronises.
 *
 *   path     must be NULL with `write`
 *   options  NULL: those of per_save_options_init()
 *
 * The file is written beside `path`, under a name that begins with the path's and ends in ".libper-N.tmp". A process
 * that is killed leaves it there; the next save to the same path removes it. Several savers of one path do not disturb
 * each other: the last one's file stays. Where `path` is a symbolic link, the file that it leads to is replaced. The
 * mode of a file that is replaced is kept.
 *
 * Functions of the caller.  With `write` the bytes of the file go to a function: to memory, to a socket, into a larger
 * file. It is called with them in order, `size` of them at a time, 1 .. 2^20. It returns how many of these it took, from
 * the first on: 1 .. size. It is called again with the others. Any other return value ends the call.
 *
 * `write` runs on the thread of the call, and all that it is given is the buffer of one moment: calls of other threads
 * on the buffer wait for the end of the save. (fork() does not.) Its own calls on the buffer, and on epochs and loaders
 * of it, and per_channel_flush() of its channels are PER_ERROR_BUSY. It may use any other handle, but two threads whose
 * functions call each other's buffers wait for ever, and so does one that waits for a reader of its own buffer. A
 * checkpoint of another thread that waits for the end of the save keeps its directory locked meanwhile. It must
 * free neither the buffer nor its loader nor its channels. It must not leave by an exception or longjmp; it may end its
 * thread by pthread_exit(), which is as if it failed. On PER_CUDA the buffer's device is current while it runs, and must
 * be when it returns.
 *
 * PER_ERROR_IO, also where `path` is a directory, a FIFO or a device, and where the folder that the file was put in
 * cannot be synced: the file is there then, and the message says so. PER_ERROR_CALLBACK if `write` fails: what it took
 * until then is no checkpoint. PER_ERROR_INVALID_ARGUMENT; PER_ERROR_UNSUPPORTED for a compression above 0 where this
 * library was built without zstd; PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_replay_save(per_replay* replay, const char* path, const per_save_options* options);

/*
 * Writes a checkpoint of the buffer into a directory, and of its bytes only those that the last checkpoint there does
 * not hold: rows that came since then or were set, priorities, and what else has changed. per_replay_load() loads it.
 * Synchronises, and holds the buffer for as long as it takes to read all of it.
 *
 *   directory          made if it is not there; the one above it must be there. It gets the files manifest.per and
 *                      pack-*.per, a pack a call, and takes at most some two times what a file of per_replay_save()
 *                      does; packs that are no longer needed are removed. No other files in it are touched
 *   options            NULL: those of per_save_options_init(). `write` must be NULL
 *   bytes_written_out  [1] what this call wrote to the disk, or NULL
 *
 * At any time, also after an error, a kill or a power failure, the directory holds this checkpoint or the one before it,
 * whole; once the call has succeeded, this one. It may have been written by another process or another buffer: what
 * differs is found by hashes (XXH3 of 128 bits).
 *
 * Calls for one directory take turns, in all processes of the machine: one that writes needs it alone, and those that
 * load it share it. This call waits timeout_ms at most for its turn, before it locks the buffer, which other calls use
 * meanwhile; the time of writing does not count. The directory's lock is flock(), which anybody can hold who may read
 * the directory; on a file system that has none the caller sees to the turns.
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
 * newer library, and as per_replay_save(); PER_ERROR_BUSY, naming the directory, if its lock is not free in time: one
 * that comes sooner has another reason than the directory. PER_ERROR_INVALID_ARGUMENT; PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_replay_checkpoint(per_replay* replay, const char* directory, const per_save_options* options,
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
 *   options  NULL: those of per_save_options_init(). `write` must be NULL
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
PER_API per_status per_replay_save_start(per_replay* replay, const char* path, const per_save_options* options,
                                         per_save** save_out);

/*
 * Waits until a save has ended, and says how far it has come. Several threads may wait, and each call says the same.
 *
 *   timeout_ms              milliseconds, >= 0; or -1: for as long as it takes. 0 only looks
 *   written_out, total_out  bytes of rows, which are most of what is written: 0 <= *written_out <= *total_out; NULL: not
 *                           asked for. They are written also where the status is PER_ERROR_BUSY or the error of the
 *                           save, after which they stay as they are
 *
 * Once all rows are written, the file has still to be brought to the disk: PER_OK says that it is there.
 *
 * PER_ERROR_BUSY if the save is still running then; PER_ERROR_INVALID_ARGUMENT, which writes nothing to the outputs; and
 * the errors of per_replay_save(), with their messages, if it has failed.
 */
PER_API per_status per_save_wait(per_save* save, int64_t timeout_ms, int64_t* written_out, int64_t* total_out);

/* NULL is allowed. Waits for nothing: a save that is still running goes on, and ends as it would have. */
PER_API void per_save_free(per_save* save);

/* Where a buffer is loaded from and to. Fill with per_load_options_init(), then change what differs. */
typedef struct per_load_options {
    uint64_t struct_size; /* set by _init; do not change */
    int32_t device;       /* a per_device; _init: PER_CPU */
    int32_t device_index; /* which CUDA device; 0 for PER_CPU; _init: 0 */
    per_memory memory;    /* as in per_replay_options; _init: the system's memory, and no storage */
    int64_t timeout_ms;   /* milliseconds to wait for a directory of checkpoints, >= 0; or -1: for as long as it takes;
                             _init: PER_DIRECTORY_TIMEOUT_MS */
    /* Gives the bytes instead of a file; see per_replay_load(). Needs the system's memory. _init: NULL */
    int64_t (*read)(void* context, void* bytes_out, int64_t size);
    void* context; /* given to read; _init: NULL */
} per_load_options;

/* As per_tree_options_init(). */
PER_API per_status per_load_options_init(per_load_options* options, uint64_t struct_size);

/*
 * Creates a buffer from a file of per_replay_save() or a directory of per_replay_checkpoint(), and stores it in
 * *replay_out (NULL on failure). Free it with per_replay_free(). Synchronises. What any earlier release wrote is read
 * too. All options of the buffer but those of where it lies are those that the saved one had; with PER_CUDA, `allocate`
 * or `storage` no field is compressed.
 *
 *   path     must be NULL with `read`
 *   options  NULL: those of per_load_options_init()
 *
 * Cost: that of what the file holds, and of the environments, whatever capacity it names. (On PER_CUDA all memory is
 * allocated and cleared, as by per_replay_create().) For a directory it may wait, timeout_ms at most, as
 * per_replay_checkpoint() does: as long as somebody writes to it.
 *
 * Rows on the disk.  Where `path` is a directory with a checkpoint that left rows in their file, and `storage` is that
 * directory, the buffer goes on from the file: rows are mapped, and none is read. Their hashes are not looked at, the
 * size of the file is. A file that a buffer has, in this process or another, or in a child that was forked from either,
 * is PER_ERROR_BUSY. With any other `storage`, or none, rows are copied, and their hashes looked at.
 *
 * Functions of the caller.  With `read` the bytes come from a function. It writes the next ones to bytes_out, as many as
 * there are and at most `size`, which is 1 .. 2^20. It returns how many: 1 .. size, and it is called again for the
 * others; or 0, and there are no more. Any other return value ends the call. A checkpoint says where it ends, and no
 * byte after that is asked for: others may follow in the same stream, and be read by the next call. For `read` holds
 * what does for `write` of per_replay_save(), but that it may use any handle. The buffer lies in the system's memory, or
 * on the device: `allocate` and `storage` are PER_ERROR_INVALID_ARGUMENT.
 *
 * PER_ERROR_IO, also where `path` is a FIFO, a device, or a directory without a checkpoint; PER_ERROR_CORRUPT_FILE, also
 * where a single bit has changed, where the bytes end early, and where all checksums are right but no buffer can have
 * been in the state that the file holds; PER_ERROR_UNSUPPORTED for the format of a newer library, and for what was
 * compressed where this one was built without zstd; PER_ERROR_BUSY, naming the directory, if its lock is not free in
 * time; PER_ERROR_CALLBACK if `read` fails: how much was read by then is not said; and the errors of
 * per_replay_create().
 */
PER_API per_status per_replay_load(const char* path, const per_load_options* options, per_replay** replay_out);

#ifdef __cplusplus
}
#endif

#endif /* PER_FILES_H */

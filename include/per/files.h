/*
 * per/files.h - saves and loads buffers.
 *
 * A loaded buffer continues bit-identically: its next batch is the one that the saved buffer would have drawn. There
 * are three ways to save: to a file, to a file written while the buffer stays in use (per_replay_save_start()), and as
 * a checkpoint in a directory, which writes only the changes since the last one. A callback of the program can also
 * receive the bytes.
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
 *     static int64_t put(void* file, const void* bytes, int64_t size) { // sends the bytes anywhere
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

/* Default timeout, in milliseconds, of waits for a checkpoint directory. */
enum { PER_DIRECTORY_TIMEOUT_MS = 60000 };

/* Options of a save. Fill with per_save_options_init(), then change what differs. */
typedef struct per_save_options {
    uint64_t struct_size; /* set by _init; do not change */
    int64_t timeout_ms;   /* milliseconds that per_replay_checkpoint() waits for the directory, >= 0; or -1: no limit;
                             _init: PER_DIRECTORY_TIMEOUT_MS */
    int32_t compression;  /* like save_compression, 0 .. 19, for this call; -1: that of the buffer; _init: -1 */
    int32_t reserved;     /* 0 */
    /* Receives the bytes instead of a file; see per_replay_save(). Only for that function. _init: NULL */
    int64_t (*write)(void* context, const void* bytes, int64_t size);
    void* context; /* given to write; _init: NULL */
} per_save_options;

/* Like per_tree_options_init(). */
PER_API per_status per_save_options_init(per_save_options* options, uint64_t struct_size);

/*
 * Writes the whole buffer to a file, so that a loaded one continues bit-identically: fields, priorities, lanes,
 * counters, maximum, schedules, random state. The file replaces `path` once it is complete and on the disk; until then,
 * and after an error, `path` is unchanged. Synchronises.
 *
 *   path     must be NULL with `write`
 *   options  NULL: those of per_save_options_init()
 *
 * The file is first written next to `path`, under a name that begins with the path's and ends in ".libper-N.tmp". A
 * process that is killed leaves it there; the next save to the same path removes it. Concurrent saves to one path do
 * not interfere: the file of the last one remains. If `path` is a symbolic link, its target is replaced. The mode of a
 * replaced file is kept.
 *
 * Functions of the caller. With `write` the bytes of the file go to a function: to memory, to a socket, into a larger
 * file. It is called with the bytes in order, `size` of them at a time, 1 .. 2^20. It returns how many of these it
 * consumed, from the first on: 1 .. size, and is called again with the rest. Any other return value aborts the call.
 *
 * `write` runs on the thread of the call, and the bytes are a consistent snapshot: other threads' calls on the buffer
 * wait for the end of the save. (fork() does not.) Calls by `write` on the buffer, on its epochs and loaders, and
 * per_channel_flush() of its channels are PER_ERROR_BUSY. It may use any other handle, but two threads whose callbacks
 * call each other's buffers deadlock, and so does a callback that waits for a reader of its own buffer. Another
 * thread's checkpoint that waits for the end of the save keeps its directory locked meanwhile. If `write` frees the
 * buffer, its loader or a channel of it, they are freed at the end of the call. It must not leave by an exception or
 * longjmp; it may end its thread by pthread_exit(), which counts as a failure. On PER_CUDA the buffer's device is
 * current when it is called, and must be current when it returns.
 *
 * PER_ERROR_IO, also if `path` is a directory, a FIFO or a device, and if the folder of the file cannot be synced: the
 * file is then in place, and the message says so. PER_ERROR_CALLBACK if `write` fails: the bytes consumed so far are
 * not a checkpoint. PER_ERROR_INVALID_ARGUMENT; PER_ERROR_UNSUPPORTED for a compression above 0 if this library was
 * built without zstd; PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_replay_save(per_replay* replay, const char* path, const per_save_options* options);

/*
 * Writes a checkpoint of the buffer into a directory. Only bytes that the last checkpoint there does not hold are
 * written: rows added or set since then, priorities, and other changes. per_replay_load() loads it. Synchronises, and
 * holds the buffer while it reads all of it.
 *
 *   directory          created if it does not exist; its parent must exist. It gets the files manifest.per and
 *                      pack-*.per, one pack per call, and takes at most about twice the space of a file of
 *                      per_replay_save(); packs that are no longer needed are removed. Other files in it are not
 *                      touched
 *   options            NULL: those of per_save_options_init(). `write` must be NULL
 *   bytes_written_out  [1] bytes that this call wrote to the disk, or NULL
 *
 * At any time, even after an error, a kill or a power failure, the directory holds either this checkpoint or the
 * previous one, complete; once the call has succeeded, this one. The previous one may come from another process or
 * another buffer: changes are found by hashes (XXH3 of 128 bits).
 *
 * A directory has a lock across all processes of the machine: exclusive for a writer, shared for loads. This call waits
 * at most timeout_ms for it, before it locks the buffer, which other calls can use meanwhile; the time of writing does
 * not count. The lock is flock(), which anyone who may read the directory can hold; on a file system without it the
 * caller must serialise the calls.
 *
 * Rows on the disk. If the directory is the buffer's `storage`, rows stay in their file, which gets the name
 * rows-*.per. Data not yet on the disk is synced, and not counted in *bytes_written_out. The file has up to 4096
 * pieces, of 1 MiB or more (256 MiB in a file of 1 TiB), each of which may be a separate mapping. Pieces are
 * copy-on-write: those that this checkpoint refers to are not written until the next one in this directory is complete.
 * A call that would write to such a piece, such as the first add to each environment, copies the piece first. Space for
 * the copy is reserved then, even with storage_preallocated; if the disk is full, the call is PER_ERROR_IO and nothing
 * has changed.
 * The file may thus grow to twice the size of the rows, and further while checkpoints fail. The call hashes pieces
 * written since the last checkpoint. If the file cannot have a name (no O_TMPFILE, no /proc, or its name was removed),
 * or once the disk has failed to write it, all rows are written as in any other directory. per_replay_save_start()
 * always writes all rows.
 *
 * PER_ERROR_IO; PER_ERROR_CORRUPT_FILE if the existing manifest is damaged; PER_ERROR_UNSUPPORTED if it was written by
 * a newer library, and as for per_replay_save(); PER_ERROR_BUSY, naming the directory, if its lock is not free in time
 * (a PER_ERROR_BUSY that comes before timeout_ms has another cause); PER_ERROR_INVALID_ARGUMENT;
 * PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_replay_checkpoint(per_replay* replay, const char* directory, const per_save_options* options,
                                         int64_t* bytes_written_out);

/*
 * A save that a thread of the library writes while the buffer stays in use.
 *
 * It completes without further calls, with a file or with an error that per_save_wait() returns. per_replay_free()
 * waits for it. If the process ends first, the file at its path is unchanged, as with per_replay_save().
 *
 * Fork.  fork() does not wait for a save, which stays with the parent: in the child every call on it except
 *        per_save_free() is PER_ERROR_INVALID_ARGUMENT, and nothing is written. The child's copy of a buffer on PER_CPU
 *        may be changed, saved and freed.
 */
typedef struct per_save per_save;

/*
 * Starts writing what per_replay_save() would write, and stores the save in *save_out (NULL on failure). Free it with
 * per_save_free(). The file holds an exact snapshot of the buffer at this call: adds, draws, updates, clears, settings
 * and loaders can continue while it is written. It replaces `path` as described at per_replay_save().
 *
 *   options  NULL: those of per_save_options_init(). `write` must be NULL
 *
 * PER_CPU. The call copies the state of each environment, and the lengths of rows of any length, but no rows. The
 * thread reads the rows in pieces of up to 256 KiB, or of one frame if that is larger, and no call on the buffer waits
 * for more than one piece. Rows are copy-on-write: a row that is about to change before it was read is copied first.
 * Until the last row is read, memory grows by these copies and by a quarter of a byte per row. If memory runs out, the
 * save ends with PER_ERROR_OUT_OF_MEMORY, and the call that changes the row continues.
 *
 * PER_CUDA. The call copies the complete contents of the file to host memory, after all work that the handle has
 * enqueued before; the caller must order launches of graphs with it, as with other calls. Synchronises.
 *
 * PER_ERROR_BUSY if an earlier save of this buffer is still running; PER_ERROR_IO if no file can be created at `path`;
 * PER_ERROR_OUT_OF_MEMORY. per_save_wait() returns the other errors of per_replay_save().
 */
PER_API per_status per_replay_save_start(per_replay* replay, const char* path, const per_save_options* options,
                                         per_save** save_out);

/*
 * Waits until a save has ended, and reports its progress. Several threads may wait, and all get the same result.
 *
 *   timeout_ms              milliseconds, >= 0; or -1: no limit. 0 polls
 *   written_out, total_out  bytes of rows, which make up most of the file: 0 <= *written_out <= *total_out; or NULL.
 *                           They are also set if the status is PER_ERROR_BUSY or the error of the save, after which
 *                           they no longer change
 *
 * After all rows are written the file must still be synced to the disk: PER_OK means that this is done.
 *
 * PER_ERROR_BUSY if the save is still running after timeout_ms; PER_ERROR_INVALID_ARGUMENT, which writes nothing to the
 * outputs; and the errors of per_replay_save(), with their messages, if the save has failed.
 */
PER_API per_status per_save_wait(per_save* save, int64_t timeout_ms, int64_t* written_out, int64_t* total_out);

/* NULL is allowed. Does not wait: a running save continues and completes as usual. */
PER_API void per_save_free(per_save* save);

/* Source and destination of a load. Fill with per_load_options_init(), then change what differs. */
typedef struct per_load_options {
    uint64_t struct_size; /* set by _init; do not change */
    int32_t device;       /* a per_device; _init: PER_CPU */
    int32_t device_index; /* index of the CUDA device; 0 for PER_CPU; _init: 0 */
    per_memory memory;    /* as in per_replay_options; _init: the system's memory, and no storage */
    int64_t timeout_ms;   /* milliseconds to wait for a checkpoint directory, >= 0; or -1: no limit; _init:
                             PER_DIRECTORY_TIMEOUT_MS */
    /* Provides the bytes instead of a file; see per_replay_load(). Requires the system's memory. _init: NULL */
    int64_t (*read)(void* context, void* bytes_out, int64_t size);
    void* context; /* given to read; _init: NULL */
} per_load_options;

/* Like per_tree_options_init(). */
PER_API per_status per_load_options_init(per_load_options* options, uint64_t struct_size);

/*
 * Creates a buffer from a file of per_replay_save() or a directory of per_replay_checkpoint(), and stores it in
 * *replay_out (NULL on failure). Free it with per_replay_free(). Synchronises. Files of all earlier releases can be
 * read. The buffer has the options of the saved one, except those of its location; with PER_CUDA, `allocate` or
 * `storage` no field is compressed.
 *
 *   path     must be NULL with `read`
 *   options  NULL: those of per_load_options_init()
 *
 * Cost: proportional to the contents of the file and the number of environments, not to the capacity. (On PER_CUDA all
 * memory is allocated and cleared, as by per_replay_create().) For a directory the call waits while another process or
 * thread writes to it, at most timeout_ms, like per_replay_checkpoint().
 *
 * Rows on the disk. If `path` is a directory with a checkpoint that left rows in their file, and `storage` is that
 * directory, the buffer continues with that file: rows are mapped, and none is read. The size of the file is checked,
 * the hashes of the rows are not. A file in use by a buffer, in this process or another, or in a child forked from
 * either, is PER_ERROR_BUSY. With any other `storage`, or none, rows are copied and their hashes checked.
 *
 * Functions of the caller. With `read` the bytes come from a function. It writes the next bytes to bytes_out, as many
 * as are available and at most `size`, which is 1 .. 2^20. It returns their number, 1 .. size, and is called again for
 * the rest; 0 means the end. Any other return value aborts the call. A checkpoint marks its own end, and no byte after
 * it is requested: another one may follow in the same stream, to be read by the next call. The rules for `write` of
 * per_replay_save() apply to `read`, except that it may use any handle. The buffer is placed in the system's memory or
 * on the device: `allocate` and `storage` are PER_ERROR_INVALID_ARGUMENT.
 *
 * PER_ERROR_IO, also if `path` is a FIFO, a device, or a directory without a checkpoint; PER_ERROR_CORRUPT_FILE, also
 * if a single bit has changed, if the bytes end early, and if all checksums are right but the state in the file is
 * impossible; PER_ERROR_UNSUPPORTED for the format of a newer library, and for compressed data if this one was built
 * without zstd; PER_ERROR_BUSY, naming the directory, if its lock is not free in time; PER_ERROR_CALLBACK if `read`
 * fails: how much was read by then is unspecified; PER_ERROR_FULL if max_heap_bytes is too little; and the errors of
 * per_replay_create().
 */
PER_API per_status per_replay_load(const char* path, const per_load_options* options, per_replay** replay_out);

#ifdef __cplusplus
}
#endif

#endif /* PER_FILES_H */

/*
 * Rows in a file: the buffer behaves like one in memory, with at most 12 bytes of memory per row. An unusable directory
 * is an error that names it; a full disk is an error that changes nothing. A fork leaves the rows to the parent. No
 * file is left behind, even by errors or kills. Disk space is reserved before rows are written, and a batch requests
 * its rows from the system before it reads them.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel_check.h"
#include "posix_check.h"
#include "saved_bytes.h"

enum { LARGE = 500, N_FIELDS = 3, BATCH = 64 }; /* the large field has 2000 bytes */

static char folder[] = "/tmp/per-storage-XXXXXX";

static int n_entries(const char* path) {
    DIR* const entries = opendir(path);
    int n = 0;
    CHECK(entries != NULL);
    while (readdir(entries) != NULL) ++n;
    closedir(entries);
    return n;
}

static int n_files(void) {
    return n_entries(folder) - 2;
}

/* ---------------------------------------------------- requests of the library */

/* Functions of the C library that libper calls. They record which ranges of the last buffer's file were reserved, and
   which were requested. */
enum { BLOCK = 4096, MAX_BLOCKS = 4096 };
static int row_file = -1;
static unsigned char is_reserved[MAX_BLOCKS], is_asked_for[MAX_BLOCKS];
static int n_reservations_left = -1; /* until the disk is full; negative: never */
static int n_refused;

static void mark(unsigned char* blocks, off_t first, off_t size) {
    for (off_t block = first / BLOCK; block < MAX_BLOCKS && block * BLOCK < first + size; ++block) blocks[block] = 1;
}

int fallocate(int file, int mode, off_t first, off_t size) {
    if (__atomic_load_n(&n_reservations_left, __ATOMIC_RELAXED) == 0) {
        __atomic_add_fetch(&n_refused, 1, __ATOMIC_RELAXED);
        errno = ENOSPC;
        return -1;
    }
    if (n_reservations_left > 0) --n_reservations_left;
    if (first == 0) { /* in a new file */
        row_file = file;
        memset(is_reserved, 0, sizeof is_reserved);
    }
    mark(is_reserved, first, size);
    return (int)syscall(SYS_fallocate, file, mode, first, size);
}

int posix_fadvise(int file, off_t first, off_t size, int advice) {
    if (file == row_file && advice == POSIX_FADV_WILLNEED) mark(is_asked_for, first, size);
    return 0;
}

/* The file holds data only where space was reserved. */
static void check_room(void) {
    off_t first = lseek(row_file, 0, SEEK_DATA), end;
    CHECK(first >= 0);
    for (; first >= 0; first = lseek(row_file, end, SEEK_DATA)) {
        end = lseek(row_file, first, SEEK_HOLE);
        CHECK(end > first && end <= (off_t)MAX_BLOCKS * BLOCK);
        for (; first < end; first += BLOCK) CHECK(is_reserved[first / BLOCK]);
    }
    CHECK(errno == ENXIO);
}

/* The file contains the bytes, and the library has requested them from the system. The file may contain them twice: as
   a final observation and as the first observation of the next episode. */
static void check_asked_for(const void* bytes, size_t size) {
    static unsigned char file[MAX_BLOCKS * BLOCK];
    const ssize_t n = pread(row_file, file, sizeof file, 0);
    const unsigned char *found = file, *const end = file + n;
    int n_asked_for = 0;
    CHECK(n > 0 && n < (ssize_t)sizeof file);
    while ((found = memmem(found, (size_t)(end - found), bytes, size)) != NULL) {
        const size_t first = (size_t)(found - file);
        size_t block = first / BLOCK;
        while (block * BLOCK < first + size && is_asked_for[block]) ++block;
        n_asked_for += block * BLOCK >= first + size;
        ++found;
    }
    CHECK(n_asked_for > 0);
}

/* ------------------------------------------------------------------ buffers */

static per_replay_options options_with_everything(int64_t capacity, const char* storage) {
    static const int64_t large[] = {LARGE};
    static per_field fields[N_FIELDS];
    per_replay_options options = replay_options(capacity, 2);
    fields[0] = field_of("observation", PER_FLOAT32, 1, large);
    fields[1] = field_of("observation.small", PER_INT16, 0, NULL);
    fields[2] = field_of("action", PER_UINT8, 0, NULL);
    set_fields(&options, fields, N_FIELDS);
    options.memory.storage = storage;
    return options;
}

/* n steps of both environments; the last one sometimes ends an episode. */
static per_status try_steps(per_replay* replay, int64_t n, int t, uint64_t seed) {
    static float images[64][2][LARGE], next_images[64][2][LARGE];
    static int16_t numbers[64][2], next_numbers[64][2];
    static uint8_t actions[64][2], ends[64][2], no[64][2];
    static float rewards[64][2];
    CHECK(n <= 64);
    memset(ends, 0, sizeof ends);
    for (int k = 0; k < n; ++k)
        for (int env = 0; env < 2; ++env) {
            for (int i = 0; i < LARGE; ++i) {
                images[k][env][i] = (float)(t + k + env * 1000 + i);
                next_images[k][env][i] = images[k][env][i] + 1;
            }
            numbers[k][env] = (int16_t)(t + k);
            next_numbers[k][env] = (int16_t)(t + k + 1);
            actions[k][env] = (uint8_t)next_random(&seed);
            rewards[k][env] = (float)(next_random(&seed) % 100);
        }
    if (next_random(&seed) % 8 == 0) ends[n - 1][1] = 1;
    per_array fields[N_FIELDS] = {array_of(images, PER_FLOAT32), array_of(numbers, PER_INT16),
                                  array_of(actions, PER_UINT8)};
    per_array next[N_FIELDS] = {array_of(next_images, PER_FLOAT32), array_of(next_numbers, PER_INT16)};
    const per_steps steps = steps_of(n, fields, next, rewards, ends, no);
    return per_replay_add(replay, &steps, NULL, NULL);
}

static void add_steps(per_replay* replay, int64_t n, int t) {
    CHECK_OK(try_steps(replay, n, t, (uint64_t)t));
}

typedef struct drawn {
    int64_t ids[BATCH];
    float weights[BATCH], reward[BATCH], priorities[BATCH];
    float images[BATCH * 8 * LARGE], next_images[BATCH * 4 * LARGE]; /* stacks of four, or sequences of eight */
    int16_t numbers[BATCH * 8];
} drawn;

static void draw_all(per_replay* replay, int has_sequences, drawn* out) {
    static float rewards[BATCH * 8];
    memset(out, 0, sizeof *out);
    void* fields[N_FIELDS] = {out->images, out->numbers, NULL};
    void* next[N_FIELDS] = {out->next_images};
    next[1] = next[2] = NULL;
    per_batch batch = default_batch();
    batch.fields = fields;
    if (!has_sequences) batch.next_fields = next;
    batch.ids = out->ids;
    batch.weights = out->weights;
    batch.priorities = out->priorities;
    batch.reward = rewards;
    CHECK_OK(per_replay_sample(replay, NULL, BATCH, &batch, NULL));
    memcpy(out->reward, rewards, sizeof out->reward);
}

/* The library has requested n adjacent frames, except those of zeros, which are padding. */
static void check_frames_are_asked_for(const float* frames, int n) {
    for (; n > 0; --n, frames += LARGE)
        if (frames[1] != 0) check_asked_for(frames, LARGE * sizeof(float));
}

/* Checks the last batch: transitions with stacks of n_frames, or sequences. */
static void check_batch_is_asked_for(const drawn* batch, int has_sequences, int n_frames) {
    if (has_sequences) check_frames_are_asked_for(batch->images, 6);
    for (int i = 0; i < 8 && !has_sequences; ++i) {
        check_frames_are_asked_for(batch->images + i * n_frames * LARGE, n_frames);
        check_frames_are_asked_for(batch->next_images + i * n_frames * LARGE, n_frames);
    }
}

static void check_same_draws(per_replay* replay, per_replay* twin, int has_sequences, int n_frames, uint64_t* seed) {
    static drawn mine, others;
    float errors[BATCH];
    const uint8_t actions[4] = {(uint8_t)next_random(seed), 1, 2, 3};
    draw_all(twin, has_sequences, &others);
    memset(is_asked_for, 0, sizeof is_asked_for);
    draw_all(replay, has_sequences, &mine);
    CHECK(memcmp(&mine, &others, sizeof mine) == 0);
    if (next_random(seed) % 16 == 0) check_batch_is_asked_for(&mine, has_sequences, n_frames);
    for (int i = 0; i < BATCH; ++i) errors[i] = (float)(next_random(seed) % 50);
    CHECK_OK(write_priorities(replay, BATCH, mine.ids, errors, NULL));
    CHECK_OK(write_priorities(twin, BATCH, mine.ids, errors, NULL));
    per_array fields[N_FIELDS] = {[2] = array_of(actions, PER_UINT8)};
    CHECK_OK(per_replay_set(replay, 4, mine.ids, fields, NULL));
    CHECK_OK(per_replay_set(twin, 4, mine.ids, fields, NULL));
}

/* -------------------------------------------------------------------- cases */

/* Rings that wrap around twice, with all kinds of draws. */
static void the_buffer_is_the_same(void) {
    int n;
    for (int kind = 0; kind < 5; ++kind) {
        per_replay_options plain = options_with_everything(400, NULL), options;
        uint64_t seed = (uint64_t)kind;
        if (kind == 1) plain.n_step = 3, plain.frame_stack = 4;
        if (kind == 2) plain.sequence_length = 6, plain.burn_in = 1;
        if (kind == 3) plain.store_next_observation = 1, plain.prioritization = PER_RANK;
        if (kind == 4) plain.max_priority = PER_MAX_NOW, plain.normalize_weights = PER_BUFFER_MAX;
        options = plain;
        options.memory.storage = folder;
        options.memory.storage_preallocated = kind % 2;
        per_replay *replay = create_replay(&options), *twin = create_replay(&plain);
        for (int t = 0; t < 900; t += n) {
            n = 1 + (int)(next_random(&seed) % 40);
            add_steps(replay, n, t);
            add_steps(twin, n, t);
            check_room();
            if (t > 50) check_same_draws(replay, twin, kind == 2, kind == 1 ? 4 : 1, &seed);
            if (t > 300 && t < 310) {
                CHECK_OK(per_replay_cut(replay, 0, NULL, NULL));
                CHECK_OK(per_replay_cut(twin, 0, NULL, NULL));
            }
        }
        check_same_saves(replay, twin);
        CHECK(n_files() == 0); /* the file has no name */
        free_both(replay, twin);
    }
}

static void twelve_bytes_of_memory_a_row(void) {
    per_replay_options options = options_with_everything(1 << 20, folder);
    per_replay* replay = create_replay(&options);
    CHECK(stats_of(replay).memory_bytes <= (INT64_C(12) << 20));
    per_replay_free(replay);
}

static void options_are_described(void) {
    char path[sizeof folder];
    memcpy(path, folder, sizeof path);
    per_replay_options options = options_with_everything(100, path);
    options.memory.storage_preallocated = 1;
    per_replay* replay = create_replay(&options);
    path[0] = '?';
    const per_replay_options described = describe_replay(replay);
    CHECK(strcmp(described.memory.storage, folder) == 0 && described.memory.storage_preallocated == 1);
    per_replay_free(replay);
}

static void what_is_loaded_lies_there(void) {
    char path[PATH_MAX];
    per_replay_options options = options_with_everything(400, folder);
    per_load_options place;
    per_replay *replay = create_replay(&options), *loaded;
    uint64_t seed = 1;
    snprintf(path, sizeof path, "%s/saved", folder);
    for (int i = 0; i < 10; ++i) add_steps(replay, 30, 30 * i);
    for (int i = 0; i < 2; ++i) { /* a file, and a directory of checkpoints */
        CHECK_OK(i == 0 ? per_replay_save(replay, path, NULL) : per_replay_checkpoint(replay, path, NULL, NULL));
        place = default_load_options();
        place.memory.storage = folder;
        CHECK_OK(per_replay_load(path, &place, &loaded));
        CHECK(stats_of(loaded).memory_bytes == stats_of(replay).memory_bytes);
        check_same_saves(loaded, replay);
        check_room();
        check_same_draws(loaded, replay, 0, 1, &seed);
        per_replay_free(loaded);
        CHECK_OK(per_replay_load(path, NULL, &loaded));
        CHECK(stats_of(loaded).memory_bytes > stats_of(replay).memory_bytes);
        per_replay_free(loaded);
        place.memory.storage = "no/such/folder";
        CHECK_FAILS(per_replay_load(path, &place, &loaded), PER_ERROR_IO, "storage no/such/folder cannot be");
        CHECK(loaded == NULL);
        place.memory.storage = NULL;
        place.memory.storage_preallocated = 1;
        CHECK_REFUSED(per_replay_load(path, &place, &loaded), "storage_preallocated");
        if (i == 0) CHECK(unlink(path) == 0);
    }
    per_replay_free(replay);
    snprintf(path, sizeof path, "rm -r %s/saved", folder);
    CHECK(system(path) == 0);
}

static void what_is_refused(void) {
    per_replay_options options = options_with_everything(100, "no/such/folder");
    per_replay* replay = (per_replay*)&options;
    per_field field = options.fields[0];
    const int64_t huge[] = {INT64_C(1) << 60};
    char file[PATH_MAX];
    CHECK_FAILS(per_replay_create(&options, &replay), PER_ERROR_IO,
                "storage no/such/folder cannot be written: No such file or directory");
    CHECK(replay == NULL);
    options.memory.storage = "";
    CHECK_FAILS(per_replay_create(&options, &replay), PER_ERROR_IO, "storage  cannot be written: No such file");
    options.memory.storage = "/proc"; /* no files can be created there */
    CHECK_FAILS(per_replay_create(&options, &replay), PER_ERROR_IO, "storage /proc cannot be written: ");
    snprintf(file, sizeof file, "%s/file", folder);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    options.memory.storage = file;
    CHECK_FAILS(per_replay_create(&options, &replay), PER_ERROR_IO, "/file cannot be written: Not a directory");
    unlink(file);
    options.memory.storage = folder;
    options.memory.storage_preallocated = 2;
    CHECK_REFUSED(per_replay_create(&options, &replay), "storage_preallocated is 2: allowed are 0 .. 1");
    options.memory.storage_preallocated = 0;
    options.device = PER_CUDA;
    CHECK_FAILS(per_replay_create(&options, &replay), PER_ERROR_UNSUPPORTED, "storage is given: on PER_CUDA ");
    options.device = PER_CPU;
    field.shape = huge;
    set_fields(&options, &field, 1);
    CHECK_FAILS(per_replay_create(&options, &replay), PER_ERROR_OUT_OF_MEMORY, "out of memory");
    options = options_with_everything(100, folder);
    options.capacity = INT64_C(1) << 40; /* some 2 10^15 bytes: larger than a file may be on most file systems */
    CHECK(per_replay_create(&options, &replay) != PER_OK && replay == NULL);
    options.memory.storage = NULL;
    options.memory.storage_preallocated = 1;
    CHECK_REFUSED(per_replay_create(&options, &replay),
                  "storage_preallocated is 1: must be 0 where storage is not given");
    CHECK(n_files() == 0);
}

/* Adds steps until a call fails for lack of space, which changes nothing. Returns the number of steps per
   environment. */
static int add_until_it_is_full(per_replay* replay) {
    per_status status;
    int t = 0;
    while ((status = try_steps(replay, 20, t, 0)) == PER_OK) t += 20;
    CHECK(status == PER_ERROR_IO && strstr(per_last_error(), "No space left on device") != NULL);
    bytes before = saved(replay);
    for (int i = 0; i < 3; ++i) {
        CHECK_FAILS(try_steps(replay, 64, t, 0), PER_ERROR_IO, "storage /tmp/per-storage-");
        check_saved_as(&before, replay);
    }
    free(before.data);
    return t;
}

static void add_where_there_is_room_again(per_replay* replay, int t) {
    for (int i = 0; i < 10; ++i, t += 20) CHECK_OK(try_steps(replay, 20, t, 0));
    CHECK(stats_of(replay).added == 2 * t);
}

static void room_that_is_refused_changes_nothing(void) {
    per_replay_options options = options_with_everything(4000, folder);
    per_replay* replay = create_replay(&options);
    n_reservations_left = 8;
    int t = add_until_it_is_full(replay);
    CHECK(t > 100);
    check_room();
    n_reservations_left = -1;
    add_where_there_is_room_again(replay, t);
    check_room();
    per_replay_free(replay);
}

/* Runs in a child. Passes with a message if processes may not mount file systems. */
static void fill_the_disk(void) {
    char filler[PATH_MAX];
    per_replay_options options = options_with_everything(8000, folder); /* some 16 MB */
    per_replay* replay;
    struct statvfs disk;
    if ((unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("storage", folder, "tmpfs", 0, "size=4m") != 0) {
        fprintf(stderr, "no file system of its own (%s): a disk that really is full is not tested\n", strerror(errno));
        _exit(0);
    }
    options.memory.storage_preallocated = 1;
    CHECK_FAILS(per_replay_create(&options, &replay), PER_ERROR_IO, "cannot be written: No space left on device");
    CHECK(statvfs(folder, &disk) == 0 && disk.f_bfree == disk.f_blocks);
    options.memory.storage_preallocated = 0;
    replay = create_replay(&options);
    snprintf(filler, sizeof filler, "%s/filler", folder);
    int file = open(filler, O_CREAT | O_WRONLY, 0600);
    CHECK(file >= 0 && posix_fallocate(file, 0, 2 << 20) == 0);
    close(file);
    int t = add_until_it_is_full(replay);
    CHECK(t > 200);
    CHECK(unlink(filler) == 0); /* there is space again */
    add_where_there_is_room_again(replay, t);
    per_replay_free(replay);
    CHECK(statvfs(folder, &disk) == 0 && disk.f_bfree == disk.f_blocks); /* and no space is used */
    _exit(0);
}

static void a_full_disk_changes_nothing(void) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) fill_the_disk();
    check_child(child);
}

static void refuse_everything(per_replay* replay) {
    static const char* const why = "its rows in storage are the parent's";
    per_replay_statistics statistics;
    int64_t id = 0, live = 0;
    const float priority = 1;
    per_batch batch = default_batch();
#define REFUSED(call) CHECK_REFUSED(call, why)
    REFUSED(try_steps(replay, 1, 0, 0));
    REFUSED(per_replay_sample(replay, NULL, 4, &batch, NULL));
    REFUSED(per_replay_get(replay, 1, &id, &batch, NULL));
    REFUSED(write_priorities(replay, 1, &id, &priority, NULL));
    REFUSED(per_replay_get_live_ids(replay, 0, NULL, &live));
    REFUSED(per_replay_get_statistics(replay, &statistics, sizeof statistics));
    REFUSED(per_replay_clear(replay, NULL));
    REFUSED(per_replay_cut(replay, 0, NULL, NULL));
    REFUSED(per_replay_save(replay, "/dev/null", NULL));
    REFUSED(per_replay_checkpoint(replay, "no/such/folder/new", NULL, NULL));
#undef REFUSED
}

static void a_child_leaves_the_rows_to_its_parent(void) {
    per_replay_options plain = options_with_everything(400, NULL), options = plain;
    int t;
    options.memory.storage = folder;
    per_replay *replay = create_replay(&options), *twin = create_replay(&plain);
    for (t = 0; t < 100; t += 20) add_steps(replay, 20, t), add_steps(twin, 20, t);
    pid_t child = fork();
    if (child == 0) {
        refuse_everything(replay);
        per_replay_free(replay);
        per_replay* own = create_replay(&options); /* in the same directory */
        add_steps(own, 20, 5000);
        CHECK(stats_of(own).added == 40);
        per_replay_free(own);
        _exit(0);
    }
    check_child(child);
    for (; t < 300; t += 20) add_steps(replay, 20, t), add_steps(twin, 20, t);
    check_same_saves(replay, twin);
    free_both(replay, twin);
}

/* A channel without a thread: the call that moves its steps reports the error, and the steps enter once there is
   space. */
static void a_full_disk_is_told_to_who_moves_the_steps_of_a_channel(void) {
    enum { SLOTS = 4096, CAPACITY = 16 * SLOTS };
    per_replay_options options = replay_options(CAPACITY, 1);
    per_status status;
    int64_t n = 0, steps = 0;
    options.memory.storage = folder;
    per_replay* replay = create_replay(&options);
    per_channel* channel = create_channel_moved_by(PER_MOVED_BY_CALLS, replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    n_reservations_left = 0;
    do {
        for (int i = 0; i < SLOTS / 4; ++i, ++n) CHECK_OK(write_step(writer, (float)n, (float)n + 1, 0, 0));
        status = per_channel_move(channel, INT64_MAX, &steps);
    } while (status == PER_OK && n < CAPACITY);
    CHECK(status == PER_ERROR_IO && steps == 0 && strstr(per_last_error(), "No space left on device") != NULL);
    int64_t added = stats_of(replay).added;
    CHECK(added < n);
    CHECK_FAILS(per_channel_flush(channel, 0), PER_ERROR_IO, "No space left on device");
    n_reservations_left = -1;
    CHECK(moved(channel, INT64_MAX) == n - added);
    CHECK(stats_of(replay).added == n && stats_of(replay).cuts == 0 && channel_stats(channel).refused == 0);
    free_channel(writer, channel, replay);
}

/* The channel's thread retries a few times a second, and a flush reports its errors. */
static void steps_that_a_full_disk_keeps_waiting_come_in_later(void) {
    enum { SLOTS = 16384, CAPACITY = 2 * SLOTS };
    per_replay_options options = replay_options(CAPACITY, 1);
    per_status status;
    int n;
    options.memory.storage = folder;
    per_replay* replay = create_replay(&options);
    per_channel* channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    __atomic_store_n(&n_reservations_left, 0, __ATOMIC_RELAXED); /* beyond the first block */
    for (n = 0; n < SLOTS - 1; ++n) CHECK_OK(write_step(writer, (float)n, (float)n + 1, 0, -1));
    CHECK_FAILS(per_channel_flush(channel, -1), PER_ERROR_IO,
                "No space left on device; what was written is tried again");
    int before = __atomic_load_n(&n_refused, __ATOMIC_RELAXED);
    pause_ns(300000000);
    CHECK(__atomic_load_n(&n_refused, __ATOMIC_RELAXED) - before < 50);
    CHECK(stats_of(replay).added < n && channel_stats(channel).refused == 0);
    __atomic_store_n(&n_reservations_left, -1, __ATOMIC_RELAXED);
    do status = per_channel_flush(channel, -1);
    while (status == PER_ERROR_IO); /* from an attempt before there was space */
    CHECK_OK(status);
    CHECK(stats_of(replay).added == n && stats_of(replay).cuts == 0);
    free_channel(writer, channel, replay);
}

/* Neither a freed buffer nor a killed process leaves files or descriptors. */
static void nothing_is_left_behind(void) {
    per_replay_options options = options_with_everything(400, folder);
    const int descriptors = n_entries("/proc/self/fd");
    int status, ready[2];
    char byte;
    for (int i = 0; i < 50; ++i) per_replay_free(create_replay(&options));
    CHECK(n_entries("/proc/self/fd") == descriptors);
    for (int i = 0; i < 5; ++i) {
        CHECK(pipe(ready) == 0);
        pid_t child = start_child();
        if (child == 0) {
            per_replay* const replay = create_replay(&options);
            int t = 0;
            for (;; t = (t + 20) % 1000) {
                add_steps(replay, 20, t);
                if (t == 500 && write(ready[1], "", 1) != 1) _exit(1);
            }
        }
        CHECK(read(ready[0], &byte, 1) == 1);
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        close(ready[0]);
        close(ready[1]);
        CHECK(n_files() == 0);
    }
}

int main(void) {
    CHECK(mkdtemp(folder) != NULL);
    what_is_refused();
    the_buffer_is_the_same();
    twelve_bytes_of_memory_a_row();
    options_are_described();
    what_is_loaded_lies_there();
    room_that_is_refused_changes_nothing();
    a_full_disk_changes_nothing();
    a_child_leaves_the_rows_to_its_parent();
    a_full_disk_is_told_to_who_moves_the_steps_of_a_channel();
    steps_that_a_full_disk_keeps_waiting_come_in_later();
    nothing_is_left_behind();
    CHECK(rmdir(folder) == 0);
    return 0;
}

/*
 * Checkpoints in the directory of the rows: threads add, draw, update and set meanwhile, and each checkpoint holds
 * whole rows. The disk has room for a few copies; a full disk is an error that changes neither the buffer nor the last
 * checkpoint, and a buffer can still resume from its rows. A file has a single owner, a forked child included.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "posix_check.h"
#include "saved_bytes.h"
#include "thread_check.h"

enum { ENVS = 2, ROWS = 400, LARGE = 4000, FIRST = 20, BATCH = 16, CHECKPOINTS = 8, LAST = 1 << 14, FILES = 30 };

static char folder[] = "/tmp/per-checkpoints-XXXXXX";

/* Rows of 16 kB: a piece of the file holds 65 of them, and the file has seven pieces. */
static per_replay_options options_in(const char* storage) {
    static const int64_t large[] = {LARGE};
    static per_field fields[2];
    per_replay_options options = replay_options(ROWS, ENVS);
    fields[0] = field_of("observation", PER_FLOAT32, 1, large);
    fields[1] = field_of("action", PER_INT16, 0, NULL);
    set_fields(&options, fields, 2);
    options.memory.storage = storage;
    return options;
}

/* Step t of environment e: all elements of its observation are 65536 e + t, the reward is t, the action t modulo 7. */
static per_status try_add(per_replay* replay, int64_t env, int t) {
    float observation[LARGE], next[LARGE];
    const float reward = (float)t;
    const int16_t action = (int16_t)(t % 7);
    const uint8_t no = 0;
    for (int i = 0; i < LARGE; ++i) {
        observation[i] = (float)(65536 * env + t);
        next[i] = observation[i] + 1;
    }
    const per_array fields[2] = {array_of(observation, PER_FLOAT32), array_of(&action, PER_INT16)};
    const per_array next_fields[2] = {array_of(next, PER_FLOAT32)};
    per_steps steps = steps_of(1, fields, next_fields, &reward, &no, &no);
    steps.n_envs = 1;
    steps.env_ids = &env;
    return per_replay_add(replay, &steps, NULL, NULL);
}

typedef struct rows_of_steps {
    int64_t ids[ROWS];
    float observation[ROWS * LARGE], next[ROWS * LARGE], reward[ROWS];
    int16_t action[ROWS];
    void *fields[2], *next_fields[2]; /* of a batch */
} rows_of_steps;

static per_batch batch_into(rows_of_steps* out) {
    out->fields[0] = out->observation;
    out->fields[1] = out->action;
    out->next_fields[0] = out->next;
    out->next_fields[1] = NULL;
    per_batch batch = default_batch();
    batch.fields = out->fields;
    batch.next_fields = out->next_fields;
    batch.reward = out->reward;
    batch.ids = out->ids;
    return batch;
}

static void check_rows(const rows_of_steps* rows, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        const float expected = 65536 * (float)(rows->ids[i] % ENVS) + rows->reward[i];
        for (int64_t k = 0; k < LARGE; ++k) CHECK(rows->observation[i * LARGE + k] == expected);
        for (int64_t k = 0; k < LARGE; ++k) CHECK(rows->next[i * LARGE + k] == expected + 1);
        CHECK(rows->action[i] % 7 == (int)rows->reward[i] % 7);
    }
}

static void check_all_rows(per_replay* replay) {
    rows_of_steps* const rows = malloc(sizeof *rows);
    const int64_t live = live_of(replay);
    int64_t n = 0;
    CHECK(rows != NULL && live > 0);
    CHECK_OK(per_replay_get_live_ids(replay, ROWS, rows->ids, &n));
    CHECK(n == live);
    per_batch batch = batch_into(rows);
    batch.ids = NULL;
    CHECK_OK(per_replay_get(replay, n, rows->ids, &batch, NULL));
    check_rows(rows, n);
    free(rows);
}

static per_replay* loaded(const char* storage) {
    per_replay* replay;
    per_load_options place = default_load_options();
    place.memory.storage = storage;
    CHECK_OK(per_replay_load(folder, &place, &replay));
    return replay;
}

/* The checkpoint equals a save of a buffer with these bytes. */
static void check_checkpoint(bytes expected) {
    per_replay* const replay = loaded(NULL);
    check_saved_as(&expected, replay);
    per_replay_free(replay);
}

static per_replay* filled(int n) {
    const per_replay_options options = options_in(folder);
    per_replay* const replay = create_replay(&options);
    for (int t = 0; t < n; ++t) {
        CHECK_OK(try_add(replay, 0, t));
        CHECK_OK(try_add(replay, 1, t));
    }
    return replay;
}

static void remove_files(void) {
    DIR* const entries = opendir(folder);
    const struct dirent* entry;
    CHECK(entries != NULL);
    while ((entry = readdir(entries)) != NULL)
        if (entry->d_name[0] != '.') CHECK(unlinkat(dirfd(entries), entry->d_name, 0) == 0);
    closedir(entries);
}

/* ------------------------------------------------------------------ threads */

static per_replay* shared;
static int stopping;

static int is_stopping(void) {
    return __atomic_load_n(&stopping, __ATOMIC_RELAXED);
}

static void* add(void* argument) {
    const int64_t env = *(const int64_t*)argument;
    for (int t = FIRST; !is_stopping() && t < LAST; ++t) {
        CHECK_OK(try_add(shared, env, t));
        usleep(300); /* the ring must last for a checkpoint */
    }
    return NULL;
}

static void* draw_update_and_set(void* argument) {
    rows_of_steps* const rows = malloc(sizeof *rows);
    float priorities[BATCH];
    int16_t actions[BATCH];
    (void)argument;
    CHECK(rows != NULL);
    per_array fields[2] = {[1] = array_of(actions, PER_INT16)};
    while (!is_stopping()) {
        per_batch batch = batch_into(rows);
        CHECK_OK(per_replay_sample(shared, NULL, BATCH, &batch, NULL));
        check_rows(rows, BATCH);
        for (int i = 0; i < BATCH; ++i) {
            priorities[i] = (float)(1 + rows->ids[i] % 5);
            actions[i] = (int16_t)((int)rows->reward[i] % 7 + 7 * (i + 1));
        }
        CHECK_OK(write_priorities(shared, BATCH, rows->ids, priorities, NULL));
        CHECK_OK(per_replay_set(shared, BATCH, rows->ids, fields, NULL));
        usleep(300);
    }
    free(rows);
    return NULL;
}

static void* load_batches(void* argument) {
    per_loader* loader;
    per_batch batch;
    int64_t slot;
    (void)argument;
    per_loader_options options = default_loader_options();
    options.batch_size = BATCH;
    CHECK_OK(per_loader_create(shared, &options, &loader));
    while (!is_stopping()) {
        batch = default_batch();
        CHECK_OK(per_loader_next(loader, -1, &batch, &slot, NULL));
        for (int64_t i = 0; i < BATCH; ++i) {
            const float* const observation = (const float*)batch.fields[0] + i * LARGE;
            CHECK(observation[0] == 65536 * (float)(batch.ids[i] % ENVS) + batch.reward[i]);
            CHECK(observation[LARGE - 1] == observation[0]);
        }
        CHECK_OK(per_loader_release(loader, slot, NULL));
        usleep(300);
    }
    per_loader_free(loader);
    return NULL;
}

static void threads_go_on_while_checkpoints_are_made(void) {
    static const int64_t envs[ENVS] = {0, 1};
    void* (*const work[])(void*) = {add, add, draw_update_and_set, load_batches};
    pthread_t threads[4];
    per_replay* again;
    shared = filled(FIRST);
    for (int i = 0; i < 4; ++i) threads[i] = start_thread(work[i], (void*)&envs[i % ENVS]);
    for (int i = 0; i < CHECKPOINTS; ++i) {
        CHECK_OK(per_replay_checkpoint(shared, folder, NULL, NULL));
        again = loaded(NULL);
        check_all_rows(again);
        per_replay_free(again);
        usleep(1000 * (i % 4) * 10);
    }
    __atomic_store_n(&stopping, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 4; ++i) join_thread(threads[i]);
    CHECK_OK(per_replay_checkpoint(shared, folder, NULL, NULL));
    bytes expected = saved(shared);
    check_checkpoint(expected);
    per_replay_free(shared);
    again = loaded(folder);
    check_all_rows(again);
    check_checkpoint(expected);
    free(expected.data);
    per_replay_free(again);
    remove_files();
}

/* --------------------------------------------------------------- full disks */

static int64_t free_bytes(void) {
    struct statvfs disk;
    CHECK(statvfs(folder, &disk) == 0);
    return (int64_t)disk.f_bfree * (int64_t)disk.f_frsize;
}

/* A buffer resumes from its rows even if the disk has room neither for a byte nor for a file. */
static void go_on_without_room(void) {
    static const char zeros[4096];
    char filler[PATH_MAX];
    int i;
    snprintf(filler, sizeof filler, "%s/filler", folder);
    int file = open(filler, O_CREAT | O_WRONLY, 0600);
    CHECK(file >= 0);
    while (write(file, zeros, sizeof zeros) > 0) continue;
    CHECK(errno == ENOSPC && close(file) == 0);
    for (i = 0; i < FILES; ++i) {
        snprintf(filler, sizeof filler, "%s/filler-%d", folder, i);
        file = open(filler, O_CREAT | O_WRONLY, 0600);
        if (file < 0) break;
        close(file);
    }
    CHECK(i < FILES && errno == ENOSPC);
    per_replay* replay = loaded(folder);
    check_all_rows(replay);
    per_replay_free(replay);
}

/* Runs in a child. Passes with a message if processes may not mount file systems. */
static void fill_the_disk(void) {
    char filler[PATH_MAX];
    int t = ROWS / ENVS;
    if ((unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("storage", folder, "tmpfs", 0, "size=16m,nr_inodes=30") != 0) {
        fprintf(stderr, "no file system of its own (%s): a disk that really is full is not tested\n", strerror(errno));
        _exit(0);
    }
    per_replay* replay = filled(t);
    CHECK_OK(per_replay_checkpoint(replay, folder, NULL, NULL));
    bytes named = saved(replay);
    snprintf(filler, sizeof filler, "%s/filler", folder);
    int file = open(filler, O_CREAT | O_WRONLY, 0600);
    CHECK(file >= 0 && posix_fallocate(file, 0, free_bytes() - (3 << 19)) == 0);
    close(file);
    CHECK_OK(try_add(replay, 0, t)); /* there is room for one copy, but not for two */
    bytes before = saved(replay);
    CHECK_FAILS(try_add(replay, 1, t), PER_ERROR_IO, "cannot be written: No space left on device");
    file = open(filler, O_WRONLY | O_APPEND);
    while (write(file, before.data, 4096) > 0) continue;
    CHECK(errno == ENOSPC);
    close(file);
    CHECK_FAILS(per_replay_checkpoint(replay, folder, NULL, NULL), PER_ERROR_IO, "No space left on device");
    check_saved_as(&before, replay);
    check_checkpoint(named);
    free(before.data);
    CHECK(unlink(filler) == 0); /* there is space again */
    CHECK_OK(try_add(replay, 1, t));
    CHECK_OK(try_add(replay, 0, t + 1));
    check_checkpoint(named);
    free(named.data);
    CHECK_OK(per_replay_checkpoint(replay, folder, NULL, NULL));
    before = saved(replay);
    per_replay_free(replay);
    check_checkpoint(before);
    replay = loaded(folder);
    check_all_rows(replay);
    check_checkpoint(before);
    per_replay_free(replay);
    go_on_without_room();
    check_checkpoint(before);
    free(before.data);
    _exit(0);
}

static void a_full_disk_changes_nothing(void) {
    const pid_t child = start_child();
    if (child == 0) fill_the_disk();
    check_child(child);
}

/* ------------------------------------------------------------------- owners */

static void check_busy(void) {
    per_replay* replay;
    per_load_options place = default_load_options();
    place.memory.storage = folder;
    CHECK_FAILS(per_replay_load(folder, &place, &replay), PER_ERROR_BUSY, "a buffer has its rows already");
    CHECK(replay == NULL);
}

/* One child frees the buffer before its parent does, and another one after it. */
static void a_forked_child_has_the_file_too(void) {
    per_replay* replay = filled(FIRST);
    int to_child[2];
    char byte;
    for (int i = 0; i < 2; ++i) {
        CHECK_OK(per_replay_checkpoint(replay, folder, NULL, NULL));
        CHECK(pipe(to_child) == 0);
        pid_t child = start_child();
        if (child == 0) {
            close(to_child[1]);
            if (i == 1) CHECK(read(to_child[0], &byte, 1) == 0);
            CHECK_REFUSED(per_replay_checkpoint(replay, folder, NULL, NULL), "the parent's");
#ifndef SANITIZED /* ThreadSanitizer takes a lock that the child recreated for one that is held */
            per_replay_free(replay);
#endif
            _exit(0);
        }
        close(to_child[0]);
        if (i == 0) check_child(child);
        check_busy();
        CHECK_OK(try_add(replay, 0, FIRST + i));
        check_all_rows(replay);
        if (i == 1) {
            per_replay_free(replay);
            check_busy(); /* the child owns it */
        }
        close(to_child[1]);
        if (i == 1) check_child(child);
    }
    replay = loaded(folder);
    check_all_rows(replay);
    check_busy();
    per_replay_free(replay);
    remove_files();
}

int main(void) {
    CHECK(mkdtemp(folder) != NULL);
    threads_go_on_while_checkpoints_are_made();
    a_full_disk_changes_nothing();
    a_forked_child_has_the_file_too();
    CHECK(rmdir(folder) == 0);
    return 0;
}

/*
 * Readers and writers that are killed at any moment harm no other process: the others continue, each row is from one
 * writer, no batch is overwritten while a reader has it, slots of the dead are reused, and another reader attaches at
 * once. Priorities that were sent are applied. No descriptor leaks.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel_check.h"
#include "posix_check.h"
#include "reader_check.h"

enum { KILLS = 400, READERS = 2, CHILDREN = READERS + 1, BATCH = 32, LIFE = 1 << 15 };

/* Reports of a child: the number of its batches or steps so far, and whether it saw a row that no process wrote. */
typedef struct told {
    volatile int64_t done;
    volatile int64_t wrong;
    volatile int64_t sent;     /* calls that set priorities, in all lives */
    volatile int64_t survivor; /* the child's own child, which outlives it */
} told;

/* Every value of a row identifies its writer and its time. */
static void write_for_ever(const char* path, int life, told* with) {
    per_writer* writer = attach(path);
    for (int64_t t = 0;; ++t) {
        const float step = (float)(life % 500 * (int64_t)LIFE + t % (LIFE - 1));
        const per_status status = write_step(writer, step, step + 1, t % (LIFE - 1) == LIFE - 2, -1);
        if (status != PER_OK) _exit(0); /* the channel has ended */
        with->done = with->done + 1;
        if (t % 16 == 0) pause_ns(20000);
    }
}

static int is_row(const per_batch* batch, int i) {
    const float* observation = batch->fields[0];
    const float* next = batch->next_fields[0];
    return next[i] == observation[i] + 1 && batch->reward[i] == observation[i] && batch->n_steps[i] == 1 &&
           batch->weights[i] > 0 && batch->weights[i] <= 1;
}

static void read_for_ever(const char* path, uint64_t seed, told* with, int has_child) {
    per_reader* reader = attach_reader(path);
    per_batch batch[2];
    int64_t slot[2];
    float errors[BATCH], copy[BATCH];
    uint64_t state = seed;
    int n;
    if (has_child) {
        const pid_t child = fork();
        if (child == 0)
            for (;;) pause();
        with->survivor = child;
    }
    for (;;) {
        n = 1 + (int)(next_random(&state) % 2);
        for (int k = 0; k < n; ++k) {
            const per_status status = try_read(reader, -1, &batch[k], &slot[k]);
            if (status != PER_OK) _exit(0);
            for (int i = 0; i < BATCH; ++i)
                if (!is_row(&batch[k], i)) with->wrong = 1;
        }
        memcpy(copy, batch[0].fields[0], sizeof copy);
        for (int i = 0; i < BATCH; ++i) errors[i] = (float)(next_random(&state) % 100) / 10;
        CHECK_OK(send_td_errors(reader, BATCH, batch[0].ids, 1, errors, -1));
        with->sent = with->sent + 1;
        if (next_random(&state) % 4 == 0) pause_ns((long)(next_random(&state) % 100000));
        if (memcmp(copy, batch[0].fields[0], sizeof copy) != 0) with->wrong = 1;
        for (int k = 0; k < n; ++k) CHECK_OK(per_reader_release(reader, slot[k]));
        with->done = with->done + n;
    }
}

static int n_descriptors(void) {
    DIR* const directory = opendir("/proc/self/fd");
    int n = 0;
    CHECK(directory != NULL);
    while (readdir(directory) != NULL) ++n;
    closedir(directory);
    return n;
}

static pid_t start(int which, int life, per_channel* channel, per_shared_loader* loader, told* with, uint64_t seed) {
    const char* path = which == 0 ? path_of(channel) : path_of_batches(loader);
    with->done = with->survivor = 0;
    pid_t child = start_child();
    if (child != 0) return child;
    if (which == 0)
        write_for_ever(path, life, with);
    else
        read_for_ever(path, seed, with, life % 10 == 0);
    _exit(1);
}

int main(void) {
    const int n_before = n_descriptors();
    told* with = mmap(NULL, CHILDREN * sizeof *with, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    static const int64_t lane = 0;
    pid_t children[CHILDREN];
    uint64_t state = 11;
    int64_t n_sent = 0;
    int status, n_readers = READERS;
    CHECK(with != MAP_FAILED);
    alarm(500); /* a hang ends the test */
    per_replay* replay = create_plain(2000, 2);
    for (int i = 0; i < 100; ++i) add_full(replay, 1, (float)i, (float)i, GOES_ON, (float)i + 1);
    per_channel* channel = create_channel(replay, 1, &lane, 64, PER_FULL_WAITS);
    per_shared_loader* loader = share_batches(replay, BATCH, READERS, 2, NULL);
    for (int k = 0; k < CHILDREN; ++k) children[k] = start(k, 0, channel, loader, &with[k], (uint64_t)k);
    for (int k = 0; k < CHILDREN; ++k)
        while (with[k].done < 2) pause_ns(50000);
    for (int i = 1; i <= rounds(KILLS); ++i) {
        const int which = (int)(next_random(&state) % CHILDREN);
        int64_t done[CHILDREN];
        pause_ns((long)(next_random(&state) % 2000000));
        CHECK(kill(children[which], SIGKILL) == 0);
        CHECK(waitpid(children[which], &status, 0) == children[which] && WIFSIGNALED(status));
        if (with[which].survivor != 0) {
            /* A reader's children do not keep its place. */
            while (which > 0 && sharing_stats(loader).attached == READERS) pause_ns(10000);
            CHECK(kill((pid_t)with[which].survivor, SIGKILL) == 0);
        }
        /* A newborn child may hold the writer's place for a moment. */
        while (which == 0 && channel_stats(channel).attached != 0) pause_ns(10000);
        while (which > 0 && sharing_stats(loader).attached == READERS) pause_ns(10000);
        children[which] = start(which, i, channel, loader, &with[which], next_random(&state));
        if (which > 0) ++n_readers;
        /* All others continue. */
        for (int k = 0; k < CHILDREN; ++k) done[k] = with[k].done;
        for (int k = 0; k < CHILDREN; ++k)
            while (with[k].done < done[k] + 2) {
                CHECK(waitpid(children[k], &status, WNOHANG) == 0);
                pause_ns(50000);
            }
        for (int k = 0; k < CHILDREN; ++k) CHECK(with[k].wrong == 0);
    }
    for (int k = 0; k < CHILDREN; ++k) {
        CHECK(kill(children[k], SIGKILL) == 0);
        if (with[k].survivor != 0) CHECK(kill((pid_t)with[k].survivor, SIGKILL) == 0);
    }
    for (int k = 0; k < CHILDREN; ++k) CHECK(waitpid(children[k], &status, 0) == children[k]);
    while (sharing_stats(loader).out != 0) pause_ns(1000000);
    CHECK(sharing_stats(loader).attached == 0 && sharing_stats(loader).readers == n_readers);
    CHECK(sharing_stats(loader).returned > 0 && sharing_stats(loader).refused == 0);
    /* All updates that were sent are applied. A call in which a reader died is applied as a whole or not at all. */
    for (int k = 1; k < CHILDREN; ++k) n_sent += with[k].sent;
    CHECK(sharing_stats(loader).updates >= n_sent && sharing_stats(loader).updates <= n_sent + n_readers);
    per_shared_loader_free(loader);
    per_channel_free(channel);
    per_replay_free(replay);
    CHECK(n_descriptors() == n_before);
    return 0;
}

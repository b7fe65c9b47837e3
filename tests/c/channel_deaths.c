/*
 * A writer that is killed at any moment loses at most the call in progress: the steps of all completed calls are in the
 * buffer, in order and whole. Another writer can attach at once, even while children of the dead one live.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel_check.h"
#include "posix_check.h"

enum { KILLS = 200, SLOTS = 64, ROWS = 1 << 15 };

/* Memory shared by the processes. */
typedef struct shared {
    volatile int64_t done;     /* steps written before the next one was begun */
    volatile int64_t survivor; /* a child of the writer, which outlives it */
} shared;

/* Writes steps until it is killed. */
static void write_for_ever(const char* path, float first, shared* with, int has_child) {
    per_writer* writer = attach(path);
    if (has_child) {
        const pid_t child = fork();
        if (child == 0)
            for (;;) pause();
        with->survivor = child;
    }
    for (;;) {
        const float step = first + (float)with->done;
        CHECK_OK(write_step(writer, step, step + 1, 0, -1));
        with->done = with->done + 1;
    }
}

/* The rows of one life have consecutive observations first .. first + count - 1. */
static int64_t check_life(per_replay* replay, int64_t id, float first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        rows one;
        fill_rows(&one);
        one.batch.weights = one.batch.probabilities = NULL;
        id += i == 0 ? 0 : 1;
        CHECK_OK(per_replay_get(replay, 1, &id, &one.batch, NULL));
        CHECK(one.observation[0] == first + (float)i);
        CHECK(one.next[0] == first + (float)i + 1);
        CHECK(one.reward[0] == first + (float)i);
    }
    return id;
}

int main(void) {
    shared* with = mmap(NULL, sizeof *with, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t state = 8;
    CHECK(with != MAP_FAILED);
    for (int i = 0; i < rounds(KILLS); ++i) {
        per_replay_options options = replay_options(on_cuda() ? 1 << 10 : ROWS, 1);
        per_replay* replay = create_replay(&options);
        per_channel* channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
        int64_t n[2];
        int status;
        for (int life = 0; life < 2; ++life) {
            const int64_t added = channel_stats(channel).added;
            const char* path = path_of(channel);
            with->done = with->survivor = 0;
            pid_t child = start_child();
            if (child == 0) write_for_ever(path, (float)(1000000 * life), with, i % 10 == 0);
            while (with->done < 3) pause_ns(10000);
            pause_ns((long)(next_random(&state) % 300000));
            CHECK(kill(child, SIGKILL) == 0);
            CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
            CHECK_OK(per_channel_flush(channel, -1));
            n[life] = channel_stats(channel).added - added;
            CHECK(n[life] == with->done || n[life] == with->done + 1);
            /* A newborn child may not have released the writer's place yet. */
            while (channel_stats(channel).attached != 0) pause_ns(10000);
            if (with->survivor != 0) CHECK(kill((pid_t)with->survivor, SIGKILL) == 0);
        }
        CHECK(channel_stats(channel).writers == 2);
        CHECK(stats_of(replay).added == n[0] + n[1]);
        if (n[0] + n[1] + 2 <= options.capacity) {
            /* The row of a final observation lies between the two lives. */
            const int64_t last = check_life(replay, 0, 0, n[0]);
            check_life(replay, last + 2, 1000000, n[1]);
            CHECK(stats_of(replay).cuts == 1);
        }
        per_channel_free(channel);
        per_replay_free(replay);
    }
    return 0;
}

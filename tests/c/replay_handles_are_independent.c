/*
 * Handles share nothing: a buffer behaves the same whether it is alone, alternates with others, or others work at the
 * same time in other threads. Error messages are per thread.
 */

#include "replay_check.h"
#include "thread_check.h"

enum { HANDLES = 4, ROUNDS = 300, BATCH = 32, IDS = ROUNDS * BATCH };

static int64_t alone[HANDLES][IDS];

static per_replay* create(int which) {
    per_replay_options options = replay_options(50 + 10 * which, 1);
    options.seed = (uint64_t)which / 2; /* pairs have the same seed */
    options.n_step = 1 + which;
    return create_replay(&options);
}

/*
 * A failure whose message contains a number specific to this buffer: an id on the CPU, the number of invalid ids on
 * CUDA.
 */
static void fail(per_replay* replay, int which) {
    const int64_t bad[HANDLES + 2] = {-2 - which, -2, -2, -2, -2, -2};
    const float priorities[HANDLES + 2] = {1, 1, 1, 1, 1, 1};
    CHECK(write_priorities(replay, on_cuda() ? which + 2 : 1, bad, priorities, NULL) == PER_ERROR_INVALID_ARGUMENT);
}

/* One round of one buffer: a step, a batch, an update. */
static void play(per_replay* replay, int round, rows* drawn, int64_t* ids) {
    memset(ids, 0, BATCH * sizeof *ids);
    add_full(replay, 0, (float)round, (float)(round % 7), round % 13 == 12 ? TERMINATED : GOES_ON, (float)round + 1);
    if (stats_of(replay).live == 0) return;
    draw(replay, BATCH, drawn);
    for (int i = 0; i < BATCH; ++i) ids[i] = drawn->ids[i];
    CHECK_OK(write_td_errors(replay, BATCH, drawn->ids, 1, drawn->reward, NULL));
}

static void* play_in_thread(void* argument) {
    const int which = *(const int*)argument;
    rows* drawn = malloc(sizeof *drawn);
    per_replay* replay = create(which);
    int64_t ids[BATCH];
    char text[32];
    CHECK(drawn != NULL);
    CHECK(strcmp(per_last_error(), "") == 0);
    sprintf(text, on_cuda() ? "%d ids" : "is -%d", which + 2);
    for (int round = 0; round < rounds(ROUNDS); ++round) {
        fail(replay, which);
        CHECK(strstr(per_last_error(), text) != NULL);
        play(replay, round, drawn, ids);
        CHECK(memcmp(ids, alone[which] + round * BATCH, sizeof ids) == 0);
        CHECK(strstr(per_last_error(), text) != NULL); /* calls that succeed leave the message unchanged */
    }
    per_replay_free(replay);
    CHECK(strstr(per_last_error(), text) != NULL);
    free(drawn);
    return NULL;
}

int main(void) {
    static rows drawn;
    per_replay* replays[HANDLES];
    pthread_t threads[HANDLES];
    int which[HANDLES];
    int64_t ids[BATCH];
    for (int i = 0; i < HANDLES; ++i) {
        per_replay* replay = create(i);
        for (int round = 0; round < rounds(ROUNDS); ++round) play(replay, round, &drawn, alone[i] + round * BATCH);
        per_replay_free(replay);
    }
    for (int i = 0; i < HANDLES; ++i) replays[i] = create(i);
    for (int round = 0; round < rounds(ROUNDS); ++round) {
        for (int i = 0; i < HANDLES; ++i) {
            play(replays[i], round, &drawn, ids);
            CHECK(memcmp(ids, alone[i] + round * BATCH, sizeof ids) == 0);
        }
    }
    for (int i = 0; i < HANDLES; ++i) per_replay_free(replays[i]);
    for (int i = 0; i < HANDLES; ++i) {
        which[i] = i;
        threads[i] = start_thread(play_in_thread, &which[i]);
    }
    for (int i = 0; i < HANDLES; ++i) join_thread(threads[i]);
    return 0;
}

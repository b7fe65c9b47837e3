/*
 * A call that adds many steps leaves the scale of masses that calls of single steps leave, so that later draws are the
 * same to the last bit. Small buffers are overwritten within a call, and priorities lie up to 2^60 apart.
 */
#include "replay_check.h"

enum { LENGTH = 40, N_CALLS = 3 };

static per_replay* create(int64_t capacity, int32_t store_next_observation) {
    per_replay_options options = replay_options(capacity, 1);
    options.alpha = 1;
    options.store_next_observation = store_next_observation;
    return create_replay(&options);
}

static void add(per_replay* replay, int64_t length, const float* observation, const float* next,
                const uint8_t* terminated, const float* priorities) {
    static const float reward[LENGTH];
    call given;
    fill_call(&given, length, observation, next, reward, terminated, NULL);
    given.steps.priorities = array_of(priorities, PER_FLOAT32);
    CHECK_OK(per_replay_add(replay, &given.steps, NULL, NULL));
}

static void check_same_masses(per_replay* at_once, per_replay* one_by_one) {
    per_shard_summary a, b;
    CHECK_OK(per_replay_summarize(at_once, PER_SCALE_AUTOMATIC, 0, &a, sizeof a));
    CHECK_OK(per_replay_summarize(one_by_one, PER_SCALE_AUTOMATIC, 0, &b, sizeof b));
    CHECK(a.scale == b.scale && a.total_mass == b.total_mass && a.live == b.live);
}

/* With three rows the fourth step overwrites the one of 2^31; the scale for three leaves of 1 stays for the 8 as well. */
static void the_largest_row_dies_soon_after_it_came(void) {
    static const float observation[5] = {0, 1, 2, 3, 4}, next[5] = {1, 2, 3, 4, 5};
    static const uint8_t terminated[5] = {1, 1, 1, 1, 1};
    static const float priorities[5] = {0x1p31f, 1, 1, 1, 8};
    per_replay *at_once = create(3, 1), *one_by_one = create(3, 1);
    per_shard_summary summary;
    add(at_once, 5, observation, next, terminated, priorities);
    for (int i = 0; i < 5; ++i) add(one_by_one, 1, observation + i, next + i, terminated + i, priorities + i);
    check_same_masses(at_once, one_by_one);
    CHECK_OK(per_replay_summarize(at_once, PER_SCALE_AUTOMATIC, 0, &summary, sizeof summary));
    CHECK(summary.scale == 45 && summary.total_mass == (1ull << 48) + (1ull << 46));
    free_both(at_once, one_by_one);
}

int main(void) {
    uint64_t state = 7;
    const int rounds = on_cuda() ? 10 : 200;
    the_largest_row_dies_soon_after_it_came();
    for (int round = 0; round < rounds; ++round) {
        const int64_t capacity = 3 + round % 6;
        per_replay *at_once = create(capacity, round % 2), *one_by_one = create(capacity, round % 2);
        for (int c = 0; c < N_CALLS; ++c) {
            float observation[LENGTH], next[LENGTH], priorities[LENGTH];
            uint8_t terminated[LENGTH];
            for (int i = 0; i < LENGTH; ++i) {
                const uint64_t random = next_random(&state);
                observation[i] = (float)(c * LENGTH + i);
                next[i] = observation[i] + 1;
                terminated[i] = random % 2;
                priorities[i] = ldexpf(1, random / 2 % 3 == 0 ? (int)(random / 6 % 61) : 0);
            }
            add(at_once, LENGTH, observation, next, terminated, priorities);
            for (int i = 0; i < LENGTH; ++i)
                add(one_by_one, 1, observation + i, next + i, terminated + i, priorities + i);
            check_same_masses(at_once, one_by_one);
        }
        free_both(at_once, one_by_one);
    }
    return 0;
}

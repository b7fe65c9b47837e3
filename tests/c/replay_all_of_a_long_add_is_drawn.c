/*
 * Every step of a call to an empty buffer can be drawn, however much larger the buffer is: a draw of that many
 * transitions, systematic or without replacement, returns each of them once. The same holds after clear().
 */
#include "replay_check.h"

static void check_all_drawn(per_replay* replay, int64_t first_id, int64_t n) {
    static rows drawn;
    static unsigned char seen[MANY];
    static const int32_t schemes[2] = {PER_WITHOUT_REPLACEMENT, PER_SYSTEMATIC};
    CHECK(live_of(replay) == n && stats_of(replay).total == (double)n);
    for (int s = 0; s < 2; ++s) {
        per_sample_options options = default_sample_options();
        options.scheme = schemes[s];
        draw_with(replay, &options, n, &drawn);
        memset(seen, 0, sizeof seen);
        for (int64_t i = 0; i < n; ++i) {
            CHECK(drawn.ids[i] >= first_id && drawn.ids[i] < first_id + n);
            ++seen[drawn.ids[i] - first_id];
        }
        for (int64_t i = 0; i < n; ++i) CHECK(seen[i] == 1);
    }
}

int main(void) {
    static const int64_t capacities[] = {2100, 5000, 40000, 300000, 2500000};
    static float observation[MANY], next[MANY], reward[MANY];
    const int64_t n_capacities = on_cuda() ? 2 : 5, longest = on_cuda() ? 300 : MANY;
    for (int64_t i = 0; i < MANY; ++i) {
        observation[i] = (float)i;
        next[i] = (float)i + 1;
    }
    for (int64_t c = 0; c < n_capacities; ++c) {
        for (int64_t n = 2; n <= longest; n = n == longest ? n + 1 : (3 * n > longest ? longest : 3 * n)) {
            per_replay* replay = create_plain(capacities[c], 1);
            int64_t first_id = 0;
            for (int again = 0; again < 2; ++again) {
                add_given(replay, n, observation, next, reward, NULL, NULL, NULL);
                check_all_drawn(replay, first_id, n);
                CHECK_OK(per_replay_clear(replay, NULL));
                first_id += n;
            }
            per_replay_free(replay);
        }
    }
    return 0;
}

/*
 * A batch may request only one byte per row; and frames of any number of bytes are complete.
 */
#include "replay_check.h"

static void frames_of_so_many_bytes(int64_t n) {
    enum { MOST = 300, STEPS = 9 };
    per_replay_options options = replay_options(20, 1);
    per_field field = field_of("observation", PER_UINT8, 1, &n);
    static uint8_t frames[STEPS][MOST], drawn[STEPS * MOST];
    const uint8_t no = 0;
    void* const fields[1] = {drawn};
    int64_t ids[STEPS];
    options.fields = &field;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < STEPS; ++t) {
        const float reward = 0;
        const per_array given = array_of(frames[t], PER_UINT8);
        for (int64_t i = 0; i < n; ++i) frames[t][i] = (uint8_t)(1 + 31 * t + i % 200);
        const per_steps steps = steps_of(1, &given, NULL, &reward, &no, &no);
        CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    }
    memset(drawn, 0, sizeof drawn);
    per_batch batch = default_batch();
    batch.fields = fields;
    batch.ids = ids;
    CHECK_OK(per_replay_sample(replay, NULL, STEPS, &batch, NULL));
    for (int t = 0; t < STEPS; ++t) CHECK(memcmp(drawn + t * n, frames[ids[t]], (size_t)n) == 0);
    per_replay_free(replay);
}

int main(void) {
    per_replay_options options = replay_options(10, 1);
    const per_field field = field_of("observation", PER_UINT8, 0, NULL);
    const uint8_t observation = 9, no_flag = 0;
    const float reward = 0;
    const per_array given = array_of(&observation, PER_UINT8);
    uint8_t drawn[4] = {0};
    options.fields = &field;
    per_replay* replay = create_replay(&options);
    const per_steps steps = steps_of(1, &given, &given, &reward, &no_flag, &no_flag);
    for (int i = 0; i < 3; ++i) CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    per_batch batch = default_batch();
    void* fields[1] = {drawn};
    batch.fields = fields;
    CHECK_OK(per_replay_sample(replay, NULL, 4, &batch, NULL));
    for (int i = 0; i < 4; ++i) CHECK(drawn[i] == 9);
    per_replay_free(replay);
    for (int64_t n = 1; n <= 300; ++n) frames_of_so_many_bytes(n);
    return 0;
}

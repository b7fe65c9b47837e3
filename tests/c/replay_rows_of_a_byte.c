/*
 * One byte a row may be all that a batch is asked for.
 */
#include "replay_check.h"

int main(void) {
    per_replay_options options = replay_options(10, 1);
    const per_field field = field_of("observation", PER_UINT8, 0, NULL);
    const uint8_t observation = 9, no_flag = 0;
    const float reward = 0;
    const per_array given = array_of(&observation, PER_UINT8);
    uint8_t drawn[4] = {0};
    void* fields[1];
    per_replay* replay;
    per_steps steps;
    per_batch batch;
    int i;
    options.fields = &field;
    replay = create_replay(&options);
    CHECK_OK(per_steps_init(&steps, sizeof steps));
    steps.fields = steps.next_fields = &given;
    steps.reward = array_of(&reward, PER_FLOAT32);
    steps.terminated = steps.truncated = array_of(&no_flag, PER_BOOL);
    for (i = 0; i < 3; ++i) CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    CHECK_OK(per_batch_init(&batch, sizeof batch));
    fields[0] = drawn;
    batch.fields = fields;
    CHECK_OK(per_replay_sample(replay, NULL, 4, &batch, NULL));
    for (i = 0; i < 4; ++i) CHECK(drawn[i] == 9);
    per_replay_free(replay);
    return 0;
}

/* Prints the bits of everything that libper computes from floating-point numbers, one line per draw. */
#include <inttypes.h>
#include <per.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_STEPS = 500, BATCH = 64 };

static void check(per_status status) {
    if (status != PER_OK) {
        fprintf(stderr, "%s: %s\n", per_status_name(status), per_last_error());
        exit(1);
    }
}

static uint32_t bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

int main(void) {
    static float observation[N_STEPS], reward[N_STEPS], td_error[N_STEPS];
    static uint8_t terminated[N_STEPS], truncated[N_STEPS], next_mask[N_STEPS];
    for (int i = 0; i < N_STEPS; i++) {
        observation[i] = (float)i;
        reward[i] = (float)(i % 17) / 8; /* exact under any flags */
        td_error[i] = (float)(i * i % 101) / 16;
        truncated[i] = i % 50 == 49;
    }

    per_field field = {0};
    field.name = "observation";
    field.dtype = PER_FLOAT32;
    per_replay_options options;
    check(per_replay_options_init(&options, sizeof options));
    options.capacity = N_STEPS;
    options.fields = &field;
    options.n_fields = 1;
    options.field_size = sizeof(per_field);
    options.n_step = 3;
    options.seed = 3;
    per_replay* replay;
    check(per_replay_create(&options, &replay));

    per_array fields = {observation, NULL, 0, PER_FLOAT32};
    per_array rewards = {reward, NULL, 0, PER_FLOAT32}, td_errors = {td_error, NULL, 0, PER_FLOAT32};
    per_array ends = {terminated, NULL, 0, PER_BOOL}, cuts = {truncated, NULL, 0, PER_BOOL};
    per_array known = {next_mask, NULL, 0, PER_BOOL};
    per_steps steps;
    check(per_steps_init(&steps, sizeof steps));
    steps.length = N_STEPS;
    steps.fields = &fields;
    steps.reward = rewards;
    steps.terminated = ends;
    steps.truncated = cuts;
    steps.next_mask = known;
    steps.td_errors = td_errors;
    check(per_replay_add(replay, &steps, NULL, NULL));

    int64_t ids[BATCH];
    float rewards_out[BATCH], discount[BATCH], weights[BATCH], priorities[BATCH], probabilities[BATCH];
    per_batch batch;
    check(per_batch_init(&batch, sizeof batch));
    batch.reward = rewards_out;
    batch.discount = discount;
    batch.weights = weights;
    batch.ids = ids;
    batch.priorities = priorities;
    batch.probabilities = probabilities;
    check(per_replay_sample(replay, NULL, BATCH, &batch, NULL));
    for (int i = 0; i < BATCH; i++) {
        printf("%" PRId64 " %08x %08x %08x %08x %08x\n", ids[i], (unsigned)bits(rewards_out[i]),
               (unsigned)bits(discount[i]), (unsigned)bits(weights[i]), (unsigned)bits(priorities[i]),
               (unsigned)bits(probabilities[i]));
    }
    /* Batches drawn ahead, and an error that passes through the library. */
    per_loader_options loader_options;
    check(per_loader_options_init(&loader_options, sizeof loader_options));
    loader_options.batch_size = BATCH;
    per_loader* loader;
    check(per_loader_create(replay, &loader_options, &loader));
    check(per_loader_stop(loader));
    per_loader_free(loader);
    const per_status status = per_replay_sample(replay, NULL, 0, &batch, NULL);
    printf("%s: %s\n", per_status_name(status), per_last_error());
    per_replay_free(replay);
    return 0;
}

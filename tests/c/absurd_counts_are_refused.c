/*
 * Absurdly large counts are invalid arguments or out of memory in every function that takes one. They never cause a
 * crash or an internal error. The handle is unchanged.
 */
#include "replay_check.h"

static const int64_t absurd[] = {INT64_MAX, INT64_MAX - 1, INT64_C(1) << 62, INT64_C(1) << 60, (INT64_C(1) << 40) + 1};

#define REFUSED(call)                                                                     \
    do {                                                                                  \
        const per_status status = (call);                                                 \
        CHECK(status == PER_ERROR_INVALID_ARGUMENT || status == PER_ERROR_OUT_OF_MEMORY); \
    } while (0)

static void of_a_tree(int64_t n) {
    int64_t index = 1;
    uint64_t unit = 0;
    double sum = 0;
    float priority = 1;
    per_tree* tree = create_tree(10, 0);
    CHECK_OK(per_update(tree, 1, &index, &priority, NULL));
    REFUSED(per_update(tree, n, &index, &priority, NULL));
    REFUSED(per_sample(tree, n, PER_STRATIFIED, 1, &index, NULL, NULL, NULL));
    REFUSED(per_tree_find(tree, n, &sum, &index, NULL));
    REFUSED(per_tree_find_mass(tree, n, &unit, &index, NULL));
    REFUSED(per_tree_get_priorities(tree, n, &index, &priority, NULL));
    REFUSED(per_tree_get_priorities(tree, n, NULL, &priority, NULL));
    per_tree_free(tree);
    per_tree_options options = default_tree_options();
    options.capacity = n;
    options.device = test_device();
    REFUSED(per_tree_create(&options, &tree));
}

static int32_t reward(void* context, int64_t count, const void* achieved, const void* goals, float* rewards_out,
                      uint8_t* terminated_out) {
    (void)context, (void)count, (void)achieved, (void)goals, (void)rewards_out, (void)terminated_out;
    return 0;
}

static void of_a_buffer(int64_t n, int64_t sequence_length) {
    static rows out;
    const float number = 1;
    int64_t id = 0, env_id = 0, count = -7;
    float priority = 1;
    per_replay_options options = replay_options(50, 1), changed;
    per_replay* none;
    per_loader* loader;
    per_epochs* walk;
    call given;
    options.sequence_length = sequence_length;
    per_replay* replay = create_replay(&options);
    add_run(replay, 0, 20);
    CHECK_OK(per_batch_init(&out.batch, sizeof out.batch));
    const per_replay_statistics before = stats_of(replay);
    fill_call(&given, n, &number, NULL, &number, NULL, NULL);
    REFUSED(per_replay_add(replay, &given.steps, NULL, NULL));
    given.steps.length = 1;
    given.steps.n_envs = n;
    given.steps.env_ids = &env_id;
    REFUSED(per_replay_add(replay, &given.steps, NULL, NULL));
    REFUSED(per_replay_cut(replay, n, &env_id, NULL));
    REFUSED(per_replay_sample(replay, NULL, n, &out.batch, NULL));
    REFUSED(write_td_errors(replay, n, &id, 1, &number, NULL));
    REFUSED(write_td_errors(replay, 1, &id, n, &number, NULL));
    REFUSED(write_td_errors(replay, INT64_C(1) << 30, &id, INT64_C(1) << 30, &number, NULL));
    REFUSED(write_priorities(replay, n, &id, &number, NULL));
    REFUSED(per_replay_get_priorities(replay, n, &id, &priority, NULL));
    REFUSED(per_replay_get(replay, n, &id, &out.batch, NULL));
    REFUSED(per_replay_get_windows(replay, NULL, PER_INVALID_SKIP, n, &id, &out.batch, NULL));
    per_array value = array_of(NULL, PER_FLOAT32);
    REFUSED(per_replay_set(replay, n, &id, &value, NULL));
    REFUSED(change_n_step(replay, n, NULL));
    REFUSED(per_replay_compute_advantages(replay, 0, 0, 0, 1, n, &id, &number, NULL));
    REFUSED(per_epochs_create(replay, n, 1, 0, NULL, &walk));
    REFUSED(per_epochs_create(replay, 1, n, 0, NULL, &walk));
    per_hindsight_options hindsight = default_hindsight_options();
    hindsight.reward = reward;
    REFUSED(sample_with_hindsight(replay, NULL, &hindsight, n, &out.batch, NULL));
    REFUSED(get_windows_with_hindsight(replay, NULL, &hindsight, 0, n, &id, &out.batch, NULL));
    per_loader_options loader_options = default_loader_options();
    loader_options.device = test_device();
    loader_options.batch_size = n;
    REFUSED(per_loader_create(replay, &loader_options, &loader));
    loader_options.batch_size = 1;
    loader_options.slots = n;
    REFUSED(per_loader_create(replay, &loader_options, &loader));
    /* Room for more ids than exist is not an error. */
    CHECK_OK(per_replay_get_bootstraps(replay, 0, NULL, &count, NULL));
    CHECK(count == 1);
    check_same_statistics(replay, &before);
    per_replay_free(replay);

    changed = options;
    changed.capacity = n;
    REFUSED(per_replay_create(&changed, &none));
    changed = options;
    changed.n_envs = n;
    REFUSED(per_replay_create(&changed, &none));
    changed = options;
    changed.sequence_length = n;
    REFUSED(per_replay_create(&changed, &none));
    changed = options;
    changed.n_fields = n;
    REFUSED(per_replay_create(&changed, &none));
}

int main(void) {
    for (size_t i = 0; i < sizeof absurd / sizeof *absurd; ++i) {
        of_a_tree(absurd[i]);
        of_a_buffer(absurd[i], 0);
        of_a_buffer(absurd[i], 3);
    }
    return 0;
}

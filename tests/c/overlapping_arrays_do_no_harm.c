/*
 * If an array that a call writes overlaps another array of the call, its content is undefined. But the call touches no
 * other memory, which sanitizers check, and leaves the handle valid, which this program checks.
 */
#include "replay_check.h"

enum { ROWS = 200, BATCH = 64 };

/* All arrays of a call lie here at varying offsets, so that they overlap in every way. */
static union {
    int64_t ids[4 * BATCH];
    double sums[4 * BATCH];
    uint64_t units[4 * BATCH];
    float numbers[8 * BATCH];
    int32_t counts[8 * BATCH];
    uint8_t flags[32 * BATCH];
} memory;

static void fill_ids(int64_t first) {
    for (int i = 0; i < 4 * BATCH; ++i) memory.ids[i] = first + i % BATCH;
}

static void of_a_tree(void) {
    uint64_t mass = 0, after = 0;
    float priorities[ROWS], read[ROWS];
    int64_t indices[ROWS];
    per_tree* tree = create_tree(ROWS, 0);
    for (int i = 0; i < ROWS; ++i) {
        indices[i] = i;
        priorities[i] = (float)(i + 1);
    }
    CHECK_OK(per_update(tree, ROWS, indices, priorities, NULL));
    mass = total_mass_of(tree);
    for (int shift = 0; shift < BATCH; shift += 7) {
        for (int i = PER_STRATIFIED; i <= PER_WITHOUT_REPLACEMENT; ++i) {
            CHECK_OK(per_sample(tree, BATCH, i, 0.5f, memory.ids, memory.numbers + shift, memory.numbers, NULL));
            CHECK_OK(
                per_sample(tree, BATCH, i, 0.5f, memory.ids + shift, memory.numbers, memory.numbers + shift, NULL));
        }
        fill_ids(0);
        (void)per_tree_get_priorities(tree, BATCH, memory.ids, memory.numbers + shift, NULL);
        for (int i = 0; i < 4 * BATCH; ++i) memory.sums[i] = i;
        (void)per_tree_find(tree, BATCH, memory.sums, memory.ids + shift, NULL);
        fill_ids(0);
        (void)per_tree_find_mass(tree, BATCH, memory.units, memory.ids + shift, NULL);
    }
    after = total_mass_of(tree);
    CHECK_OK(per_tree_get_priorities(tree, ROWS, NULL, read, NULL));
    CHECK(mass == after && memcmp(read, priorities, sizeof read) == 0);
    per_tree_free(tree);
}

static per_batch batch_in_memory(int shift, void** fields, void** next_fields, int of_a_draw) {
    per_batch batch = default_batch();
    fields[0] = memory.numbers + shift;
    next_fields[0] = memory.numbers;
    batch.fields = fields;
    batch.next_fields = next_fields;
    batch.reward = memory.numbers + 2 * shift;
    batch.discount = memory.numbers;
    batch.n_steps = memory.counts + shift;
    batch.terminated = memory.flags + shift;
    batch.truncated = memory.flags;
    batch.ids = memory.ids;
    batch.priorities = memory.numbers + shift;
    batch.gamma_m = memory.numbers;
    if (!of_a_draw) return batch;
    batch.weights = memory.numbers + shift;
    batch.probabilities = memory.numbers;
    return batch;
}

static void of_a_buffer(int32_t prioritization) {
    per_replay_options options = replay_options(ROWS, 1);
    void *fields[1], *next_fields[1];
    int64_t live[ROWS], count = 0;
    float priorities[ROWS], read[ROWS];
    options.n_step = 3;
    options.prioritization = prioritization;
    per_replay* replay = create_replay(&options);
    for (int i = 0; i < 150; ++i) add_full(replay, 0, (float)i, 1, i % 40 == 39 ? TERMINATED : GOES_ON, (float)i + 1);
    per_sample_options sample = default_sample_options();
    CHECK_OK(per_replay_get_live_ids(replay, ROWS, live, &count));
    for (int i = 0; i < count; ++i) set_priority(replay, live[i], (float)(i + 1));
    CHECK_OK(per_replay_get_priorities(replay, count, live, priorities, NULL));
    const per_replay_statistics before = stats_of(replay);
    for (int shift = 0; shift < BATCH; shift += 5) {
        per_batch batch = batch_in_memory(shift, fields, next_fields, 1);
        for (int i = PER_STRATIFIED; i <= PER_WITHOUT_REPLACEMENT; ++i) {
            sample.scheme = i;
            sample.uniform_fraction = shift % 2 == 0 ? 0.25 : 0;
            CHECK_OK(per_replay_sample(replay, &sample, BATCH, &batch, NULL));
        }
        fill_ids(0);
        (void)per_replay_get_windows(replay, NULL, PER_INVALID_SKIP, BATCH, memory.ids + shift, &batch, NULL);
        batch = batch_in_memory(shift, fields, next_fields, 0);
        fill_ids(0);
        (void)per_replay_get(replay, BATCH / 2, memory.ids + shift, &batch, NULL);
        fill_ids(0);
        (void)per_replay_get_priorities(replay, BATCH / 2, memory.ids, memory.numbers + shift, NULL);
    }
    const per_replay_statistics after = stats_of(replay);
    CHECK(after.live == before.live && after.added == before.added && after.updates == before.updates);
    CHECK(after.total == before.total && after.stale_updates == before.stale_updates);
    CHECK_OK(per_replay_get_priorities(replay, count, live, read, NULL));
    CHECK(memcmp(read, priorities, (size_t)count * sizeof(float)) == 0);
    per_replay_free(replay);
}

int main(void) {
    of_a_tree();
    of_a_buffer(PER_PROPORTIONAL);
    of_a_buffer(PER_RANK);
    of_a_buffer(PER_UNIFORM);
    return 0;
}

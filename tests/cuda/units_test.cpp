// The shard summary of a buffer on CUDA, setting its scale, raising its largest priority, and the transitions that own
// given units are bit-identical to those of the same buffer on the CPU.
#include <cmath>

#include "replay_twins.h"

namespace per::test {
namespace {

per_shard_summary law_of(per_replay* replay, int32_t measured_scale, int64_t measured_reference = 0) {
    per_shard_summary law;
    EXPECT_EQ(per_replay_summarize(replay, measured_scale, measured_reference, &law, sizeof law), PER_OK)
        << per_last_error();
    return law;
}

per_shard_summary expect_same_law(Twins& twins, int32_t measured_scale, int64_t measured_reference = 0) {
    const per_shard_summary cpu = law_of(twins.cpu.get(), measured_scale, measured_reference);
    const per_shard_summary gpu = law_of(twins.gpu.get(), measured_scale, measured_reference);
    EXPECT_EQ(cpu.total_mass, gpu.total_mass);
    EXPECT_EQ(cpu.scale, gpu.scale);
    EXPECT_EQ(cpu.max_priority, gpu.max_priority);
    EXPECT_EQ(std::memcmp(&cpu, &gpu, sizeof cpu), 0);
    return cpu;
}

void set_same_scale(Twins& twins, int32_t scale, int64_t reference = 0) {
    const per_status status = per_replay_set_scale(twins.cpu.get(), scale, reference);
    const std::string message = status == PER_OK ? "" : per_last_error();
    EXPECT_EQ(per_replay_set_scale(twins.gpu.get(), scale, reference), status);
    if (status != PER_OK) {
        EXPECT_EQ(message, per_last_error());
    }
}

struct UnitsFound {
    TwinBatch batch;
    std::vector<uint64_t> masses, first_units;

    UnitsFound(per_replay* replay, const std::vector<int64_t>& units, void* stream)
        : batch(static_cast<int64_t>(units.size())), masses(units.size(), 7), first_units(units.size(), 7) {
        const per_batch arrays = batch.batch();
        EXPECT_EQ(per_replay_get_units(replay, nullptr, static_cast<int64_t>(units.size()), units.data(), &arrays,
                                       masses.data(), first_units.data(), stream),
                  PER_OK)
            << per_last_error();
    }
};

// Units of every kind, including the first and the last of each.
std::vector<int64_t> some_units(TwinWalk& walk, const per_shard_summary& law) {
    std::vector<int64_t> units;
    for (int i = 0; i < 20; ++i) {
        const uint64_t random = walk.random() << 32 ^ walk.random();
        if (i % 2 == 0 && law.total_mass > 0)
            units.push_back(static_cast<int64_t>(i == 0 ? 0 : i == 2 ? law.total_mass - 1 : random % law.total_mass));
        else
            units.push_back(-1 - (i == 1 ? 0 : i == 3 ? law.live - 1 : static_cast<int64_t>(random >> 1) % law.live));
    }
    return units;
}

TEST(UnitsOnCuda, are_those_of_the_cpu_at_every_scale) {
    for (const int32_t normalization : {PER_BATCH_MAX, PER_BUFFER_MAX}) {
        per_replay_options options = twin_options();
        options.capacity = 3 * 1500;  // more than one node of the top row
        options.normalize_weights = normalization;
        Twins twins(options);
        TwinWalk walk(static_cast<uint64_t>(normalization) + 1);
        int n_refused = 0;
        for (int i = 0; i < 60 && !testing::Test::HasFailure(); ++i) {
            twins.add(walk.next(1 + static_cast<int64_t>(walk.random() % 90)));
            if (i % 7 == 3) {
                const float priority = static_cast<float>(walk.random() % 300);
                twins.both(
                    [&](per_replay* replay, void* on) { return per_replay_raise_max_priority(replay, priority, on); });
            }
            const int32_t scale = static_cast<int32_t>(walk.random() % 80);
            per_shard_summary law = expect_same_law(twins, i % 5 == 0 ? PER_SCALE_AUTOMATIC : scale - 20);
            if (law.live == 0) continue;
            const std::vector<int64_t> ids = live_ids_of(twins.cpu.get());
            if (i % 3 == 0) {
                set_same_scale(twins, i % 30 == 0 ? PER_SCALE_AUTOMATIC : scale);
                n_refused += law_of(twins.cpu.get(), PER_SCALE_AUTOMATIC).is_scale_fixed == 0;
            }
            if (i % 4 == 1) {
                const std::vector<float> errors(ids.size(),
                                                std::ldexp(1.0f, static_cast<int>(walk.random() % 80) - 60));
                twins.update(ids, errors);
            }
            law = expect_same_law(twins, PER_SCALE_AUTOMATIC);
            const std::vector<int64_t> units = some_units(walk, law);
            const UnitsFound on_cpu(twins.cpu.get(), units, nullptr);
            const UnitsFound on_gpu(twins.gpu.get(), units, twins.stream);
            twins.synchronize();
            EXPECT_TRUE(on_cpu.batch == on_gpu.batch);
            EXPECT_EQ(on_cpu.batch.ids, on_gpu.batch.ids);
            EXPECT_EQ(on_cpu.masses, on_gpu.masses);
            EXPECT_EQ(on_cpu.first_units, on_gpu.first_units);
            twins.sample(8);
        }
        EXPECT_GT(n_refused, 0);
    }
}

TEST(ReferencesOnCuda, that_are_raised_are_those_of_the_cpu) {
    for (const int32_t normalization : {PER_BATCH_MAX, PER_BUFFER_MAX}) {
        per_replay_options options = twin_options();
        options.normalize_weights = normalization;
        options.freshness.half_life = 6;
        Twins twins(options);
        TwinWalk walk(static_cast<uint64_t>(normalization) + 5);
        int n_raised = 0;
        for (int i = 0; i < 40 && !testing::Test::HasFailure(); ++i) {
            twins.add(walk.next(1 + static_cast<int64_t>(walk.random() % 40)));
            const per_shard_summary law = expect_same_law(twins, PER_SCALE_AUTOMATIC);
            const int32_t raised = 32 * static_cast<int32_t>(walk.random() % 4);
            expect_same_law(twins, static_cast<int32_t>(walk.random() % 80), law.reference + raised);
            if (i % 3 == 0) {
                const bool is_automatic = i % 2 == 0 || law.scale + raised > 200;
                set_same_scale(twins, is_automatic ? PER_SCALE_AUTOMATIC : law.scale + raised, law.reference + raised);
                const per_shard_summary after = expect_same_law(twins, 40, law.reference + 64);
                EXPECT_EQ(after.reference, law.reference + raised);
                n_raised += raised > 0;
            }
            if (law.live > 0) twins.sample(8);
        }
        EXPECT_GT(n_raised, 5);
    }
}

TEST(ScalesOnCuda, that_were_set_are_left_by_leaves_that_are_too_large_and_by_alpha) {
    Twins twins(twin_options());
    TwinWalk walk(2);
    for (int i = 0; i < 9; ++i) twins.add(walk.next());
    set_same_scale(twins, 20);
    EXPECT_EQ(expect_same_law(twins, PER_SCALE_AUTOMATIC).is_scale_fixed, 1);
    twins.both(&per_replay_clear);
    for (int i = 0; i < 9; ++i) twins.add(walk.next());
    EXPECT_EQ(expect_same_law(twins, PER_SCALE_AUTOMATIC).is_scale_fixed, 1);
    const std::vector<int64_t> ids = live_ids_of(twins.cpu.get());
    ASSERT_FALSE(ids.empty());
    twins.update({ids[0]}, {0x1p90f});
    EXPECT_EQ(expect_same_law(twins, PER_SCALE_AUTOMATIC).is_scale_fixed, 0);
    set_same_scale(twins, -20);
    twins.both([](per_replay* replay, void* on) { return change_alpha(replay, 0.5, on); });
    twins.synchronize();
    EXPECT_EQ(expect_same_law(twins, PER_SCALE_AUTOMATIC).is_scale_fixed, 0);
}

TEST(UnitsOnCuda, that_there_are_not_leave_zeros_and_are_counted) {
    Twins twins(twin_options());
    TwinWalk walk(3);
    for (int i = 0; i < 9; ++i) twins.add(walk.next());
    const per_shard_summary law = law_of(twins.gpu.get(), PER_SCALE_AUTOMATIC);
    ASSERT_GT(law.live, 0);
    const int64_t end = static_cast<int64_t>(law.total_mass);
    const std::vector<int64_t> units = {end, end - 1, -1 - law.live, -law.live};
    const UnitsFound found(twins.gpu.get(), units, twins.stream);
    EXPECT_EQ(per_replay_synchronize(twins.gpu.get(), twins.stream), PER_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(found.batch.ids[0], -1);
    EXPECT_GE(found.batch.ids[1], 0);
    EXPECT_EQ(found.batch.ids[2], -1);
    EXPECT_GE(found.batch.ids[3], 0);
    EXPECT_EQ(found.masses[0], 0u);
    EXPECT_EQ(found.batch.weights[2], 0.0f);
    EXPECT_EQ(found.first_units[0], 0u);
    EXPECT_EQ(found.first_units[2], 0u);
}

}  // namespace
}  // namespace per::test

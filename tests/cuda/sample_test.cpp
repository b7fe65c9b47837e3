// Batches of a buffer on CUDA are bit-identical to those of the same buffer on the CPU: the drawn ids, for every scheme
// and weighting, and all arrays; also the statistics of the last batch.
#include <algorithm>
#include <functional>
#include <set>

#include "both_buffers.h"
#include "run_length.h"

namespace per::test {
namespace {

std::string name_of(const ReplaySample& sample) {
    return "batch_size " + std::to_string(sample.batch_size) + ", n_step " + std::to_string(sample.n_step) +
           ", scheme " + std::to_string(sample.scheme) + ", prioritization " + std::to_string(sample.prioritization) +
           ", normalize_weights " + std::to_string(sample.normalize_weights) + ", uniform_fraction " +
           std::to_string(sample.uniform_fraction) + ", beta " + std::to_string(sample.beta);
}

void expect_same_figures(BothBuffers& buffers) {
    per_replay_statistics expected = {};
    buffers.cpu().statistics(expected);
    const cuda::ReplayState& state = buffers.device_state();
    EXPECT_EQ(state.batches, static_cast<uint64_t>(expected.samples));
    EXPECT_EQ(state.beta.step, expected.beta_step);
    buffers.on_device([&](const cuda::StreamOrder::Call& call) {
        const BatchFigures figures = buffers.queue().last_batch(state.last, call).figures();
        EXPECT_EQ(figures.size, expected.last_batch_size);
        EXPECT_EQ(figures.max_age, expected.last_max_age);
        EXPECT_EQ(figures.mean_age, expected.last_mean_age);
        EXPECT_EQ(figures.effective_size, expected.last_effective_size);
        EXPECT_EQ(figures.duplicates, expected.last_duplicates);
    });
}

// Draws the same batch on both; returns false if nothing could be drawn.
bool draw_same(BothBuffers& buffers, ReplaySample sample) {
    SCOPED_TRACE(name_of(sample));
    const uint64_t skips = buffers.chance(0.3) ? buffers.random()() & buffers.random()() : 0;
    const uint64_t offsets = buffers.chance(0.5) ? 0 : buffers.random()();
    BatchArrays expected(buffers.fields(), sample.batch_size, buffers.steps(), sample.n_step, skips, offsets);
    BatchArrays drawn(buffers.fields(), sample.batch_size, buffers.steps(), sample.n_step, skips, offsets);
    bool is_drawn = true;
    ReplaySample on_cpu = sample;
    on_cpu.batch = expected.batch;
    try {
        buffers.cpu().sample(on_cpu, nullptr);
    } catch (const Error& error) {
        is_drawn = false;
        expected.expect_nothing();
    }
    const cuda::ReplayErrors before = buffers.device_state().errors;
    sample.batch = drawn.batch;
    buffers.on_device([&](const cuda::StreamOrder::Call& call) { buffers.queue().sample(sample, call); });
    drawn.expect_same_as(expected);
    const cuda::ReplayErrors after = buffers.device_state().errors;
    const bool is_empty = buffers.cpu().live() == 0;
    EXPECT_EQ(after.n_empty_draws - before.n_empty_draws, !is_drawn && is_empty);
    EXPECT_EQ(after.n_short_draws - before.n_short_draws, !is_drawn && !is_empty);
    expect_same_figures(buffers);
    return is_drawn;
}

std::vector<BufferShape> shapes() {
    std::vector<BufferShape> shapes;
    for (const bool stores_next : {false, true}) {
        for (const int64_t n_step : {1, 3, 40}) {
            for (const int32_t stack : {1, 4}) {
                BufferShape shape;
                shape.n_step = n_step;
                shape.stack = stack;
                shape.stores_next = stores_next;
                shape.rows = n_step == 40 ? 60 : 40;
                shape.p_end = n_step == 40 ? 0.02 : 0.15;
                shape.padding = n_step == 1 ? PER_PADDING_REPEAT : PER_PADDING_ZERO;
                shapes.push_back(shape);
            }
        }
        BufferShape sequences;
        sequences.stores_next = stores_next;
        sequences.sequence_length = 5;
        sequences.burn_in = 2;
        sequences.stride = 1;
        sequences.n_step = 3;
        sequences.p_end = 0.08;
        shapes.push_back(sequences);
        sequences.n_step = 12;  // more than T
        shapes.push_back(sequences);
        sequences.n_step = 3;
        sequences.stack = 3;
        sequences.padding = stores_next ? PER_PADDING_ZERO : PER_PADDING_REPEAT;
        sequences.stride = 4;
        sequences.sequence_length = 40;
        sequences.rows = 90;
        sequences.p_end = 0.03;
        shapes.push_back(sequences);
    }
    return shapes;
}

class CudaSample : public testing::TestWithParam<std::size_t> {};

TEST_P(CudaSample, batches_are_those_of_the_cpu) {
    BufferShape shape = shapes()[GetParam()];
    const bool is_long = shape.sequence_length > 20;
    for (uint64_t seed = 0; seed < (is_short ? 1 : 2); ++seed) {
        if (seed == 1) {  // more than one chunk
            shape.image_bytes = 5000;
            shape.state_numbers = 600;
        }
        BothBuffers buffers(shape, 100 * GetParam() + seed);
        buffers.add_steps(shape.rows / 2);
        int n_drawn = 0;
        for (int round = 0; round < (is_short ? 1 : 2); ++round) {
            buffers.fill(shape.rows, round == 1 ? 0.9 : 0.1);
            for (const int64_t batch_size : {1, 31, 33, is_long || seed == 1 ? 5 : 256})
                for (int repeat = 0; repeat < (is_short || is_long ? 1 : 3); ++repeat)
                    n_drawn += draw_same(buffers, buffers.any_sample(batch_size));
            if (HasFailure()) return;
        }
        EXPECT_GT(n_drawn, 0);
    }
}

INSTANTIATE_TEST_SUITE_P(shapes, CudaSample, testing::Range(std::size_t{0}, shapes().size()));

TEST(CudaSampleOptions, all_of_them_together) {
    BufferShape shape;
    shape.rows = 100;
    BothBuffers buffers(shape, 7);
    buffers.fill(150, 0.2);
    // With several concurrent blocks, another one ends last.
    simulator::options().all_blocks_resident = true;
    for (int32_t scheme : {PER_STRATIFIED, PER_SYSTEMATIC, PER_INDEPENDENT, PER_WITHOUT_REPLACEMENT})
        for (int32_t prioritization : {PER_PROPORTIONAL, PER_RANK, PER_UNIFORM})
            for (int32_t normalization : {PER_BATCH_MAX, PER_BUFFER_MAX, PER_NONE})
                for (double uniform_fraction : {0.0, 0.3, 1.0}) {
                    ReplaySample sample = buffers.sample_of(33);
                    sample.scheme = scheme;
                    sample.prioritization = prioritization;
                    sample.normalize_weights = normalization;
                    sample.uniform_fraction = uniform_fraction;
                    EXPECT_TRUE(draw_same(buffers, sample));
                }
    simulator::options().all_blocks_resident = false;
}

// Without any of them, a kernel draws that knows none of them.
TEST(CudaSampleOptions, each_of_them_alone) {
    static constexpr uint64_t key[2] = {11, 5};
    const std::function<void(ReplaySample&)> changes[] = {
        [](ReplaySample&) {},
        [](ReplaySample& sample) {
            sample.rows = DrawnRows{key, {}};
        },
        [](ReplaySample& sample) { sample.n_step_min = 1; },
        [](ReplaySample& sample) { sample.n_step = 1; },
        [](ReplaySample& sample) { sample.beta = 0.5; },
        [](ReplaySample& sample) { sample.uniform_fraction = 0.3; },
        [](ReplaySample& sample) { sample.scheme = PER_INDEPENDENT; },
        [](ReplaySample& sample) { sample.scheme = PER_WITHOUT_REPLACEMENT; },
        [](ReplaySample& sample) { sample.prioritization = PER_RANK; },
        [](ReplaySample& sample) { sample.prioritization = PER_UNIFORM; },
        [](ReplaySample& sample) { sample.normalize_weights = PER_BUFFER_MAX; },
        [](ReplaySample& sample) { sample.normalize_weights = PER_NONE; },
        [](ReplaySample& sample) { sample.n_newest = 5; },
    };
    for (const bool stores_next : {false, true})
        for (const int32_t stack : {1, 4})
            for (const int64_t n_step : {1, 3, 40}) {
                BufferShape shape;
                shape.rows = 100;
                shape.stores_next = stores_next;
                shape.stack = stack;
                shape.n_step = n_step;
                shape.image_bytes = 4;  // so that stacks fit, too
                shape.p_end = n_step == 40 ? 0.02 : 0.1;
                BothBuffers buffers(shape, 9);
                buffers.fill(150, 0.2);
                for (const auto& change : changes) {
                    ReplaySample sample = buffers.sample_of(33);
                    change(sample);
                    EXPECT_TRUE(draw_same(buffers, sample));
                }
            }
}

TEST(CudaSampleOptions, newest_rows_are_those_of_the_cpu) {
    BufferShape shape;
    shape.rows = 400;
    BothBuffers buffers(shape, 8);
    buffers.fill(500, 0.2);
    const int64_t n_live = buffers.cpu().live();
    ASSERT_GT(n_live, 600);
    for (const int64_t n_newest : {int64_t{1}, int64_t{31}, int64_t{300}, n_live, n_live + 1})
        for (const int32_t scheme : {PER_STRATIFIED, PER_WITHOUT_REPLACEMENT}) {
            ReplaySample sample = buffers.sample_of(n_newest + 33);
            sample.n_newest = n_newest;
            sample.scheme = scheme;
            EXPECT_EQ(draw_same(buffers, sample), n_newest <= n_live);
        }
}

TEST(CudaSampleOptions, many_rows_are_drawn_and_weighed_by_many_blocks) {
    BufferShape shape;
    shape.rows = 12000;  // enough, in total, for a level between the leaves and the top row
    shape.image_bytes = 16;
    BothBuffers buffers(shape, 11);
    buffers.fill(is_short ? 300 : 2600, 0.1);
    ReplaySample sample = buffers.sample_of(is_short ? 1025 : 5000);
    EXPECT_TRUE(draw_same(buffers, sample));
    sample.scheme = PER_WITHOUT_REPLACEMENT;
    draw_same(buffers, sample);
    sample.uniform_fraction = 0.5;
    sample.normalize_weights = PER_NONE;
    EXPECT_EQ(draw_same(buffers, sample), !is_short);
}

// More than the warps that copy.
TEST(CudaSampleOptions, many_large_rows_are_copied_chunk_by_chunk) {
    if (is_short) GTEST_SKIP() << "too long";
    BufferShape shape;
    shape.image_bytes = 4200;
    shape.stack = 2;
    BothBuffers buffers(shape, 12);
    buffers.fill(60);
    EXPECT_TRUE(draw_same(buffers, buffers.sample_of(1025)));
}

TEST(CudaSampleOptions, all_priorities_zero_are_uniform) {
    BufferShape shape;
    shape.rows = 1000;  // the live rows are below several nodes of the top row
    BothBuffers buffers(shape, 3);
    buffers.fill(30, 1.0);
    for (int32_t scheme : {PER_STRATIFIED, PER_WITHOUT_REPLACEMENT}) {
        ReplaySample sample = buffers.sample_of(20);
        sample.scheme = scheme;
        EXPECT_TRUE(draw_same(buffers, sample));
    }
}

TEST(CudaSampleOptions, without_replacement_takes_out_what_prevails) {
    BothBuffers buffers({}, 5);
    buffers.add_steps(60);
    const std::vector<int64_t> ids = buffers.cpu().live_ids(nullptr);
    std::vector<float> priorities(ids.size(), 1e-4f);
    for (std::size_t i = 0; i < 5; ++i) priorities[7 * i] = 1e6f;
    buffers.cpu().update({static_cast<int64_t>(ids.size()), ids.data(), 1, nullptr, priorities.data()}, nullptr);
    buffers.take_over();
    const int64_t n_live = static_cast<int64_t>(ids.size());
    for (const double uniform_fraction : {0.0, 1e-6, 0.5, 1.0})
        for (const int64_t batch_size : {int64_t{6}, n_live / 2, n_live - 1, n_live, n_live + 1}) {
            ReplaySample sample = buffers.sample_of(batch_size);
            sample.scheme = PER_WITHOUT_REPLACEMENT;
            sample.uniform_fraction = uniform_fraction;
            EXPECT_EQ(draw_same(buffers, sample), batch_size <= n_live);
            // The trees are unchanged.
            sample.scheme = PER_STRATIFIED;
            EXPECT_TRUE(draw_same(buffers, sample));
        }
}

TEST(CudaSampleOptions, nothing_live_gives_ids_minus_one_and_no_draw) {
    for (const int64_t sequence_length : {0, 4}) {
        BufferShape shape;
        shape.sequence_length = sequence_length;
        BothBuffers buffers(shape, 9);
        buffers.take_over();
        for (int32_t scheme = PER_STRATIFIED; scheme <= PER_WITHOUT_REPLACEMENT; ++scheme)
            for (const int64_t batch_size : {5, 2000}) {
                ReplaySample sample = buffers.sample_of(batch_size);
                sample.scheme = scheme;
                EXPECT_FALSE(draw_same(buffers, sample));
            }
        EXPECT_EQ(buffers.device_state().batches, 0u);
    }
}

// Between draws both recompute ranks, or neither does.
TEST(CudaSampleOptions, ranks_and_smallest_priorities_may_be_asked_for_late) {
    BufferShape shape;
    shape.has_extras = false;
    BothBuffers buffers(shape, 17);
    buffers.fill(60, 0.1);
    ReplaySample sample = buffers.sample_of(33);
    EXPECT_TRUE(draw_same(buffers, sample));
    for (int i = 0; i < 2; ++i) {
        sample.normalize_weights = PER_BUFFER_MAX;
        sample.prioritization = PER_PROPORTIONAL;
        EXPECT_TRUE(draw_same(buffers, sample));
        sample.prioritization = PER_RANK;
        EXPECT_TRUE(draw_same(buffers, sample));
    }
}

TEST(CudaSampleOptions, ranks_of_priorities_that_are_all_0) {
    BothBuffers buffers({}, 19);
    buffers.fill(40, 1.0);
    ReplaySample sample = buffers.sample_of(33);
    sample.prioritization = PER_RANK;
    sample.normalize_weights = PER_BUFFER_MAX;
    EXPECT_TRUE(draw_same(buffers, sample));
}

// A failed draw does not change the statistics of the previous one.
TEST(CudaSampleOptions, figures_are_those_of_the_last_batch_that_was_drawn) {
    BothBuffers buffers({}, 13);
    buffers.fill(20);
    EXPECT_TRUE(draw_same(buffers, buffers.sample_of(40)));
    ReplaySample sample = buffers.sample_of(1000);
    sample.scheme = PER_WITHOUT_REPLACEMENT;
    EXPECT_FALSE(draw_same(buffers, sample));
    EXPECT_EQ(buffers.device_state().last.size, 40);
}

}  // namespace
}  // namespace per::test

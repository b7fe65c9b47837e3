// On a device with clusters, draws from few leaves or transitions are made by one cluster, all others as before. All of
// them are bit-identical to those of the CPU.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "replay_twins.h"
#include "run_length.h"
#include "steered_simulator.h"

namespace per::test {
namespace {

constexpr int64_t most_of_cluster = 256;

// A draw per warp, and one more; the largest batch that a cluster draws, and one more.
// A cluster of many blocks has more threads than TSan supports.
std::vector<int64_t> batch_sizes() {
    if (is_short) return {1, 17, 24};
    return {1, 17, 100, 129, 256, 257};
}

// The parameter: blocks of the device's largest cluster.
class Clusters : public SteeredSimulator, public testing::WithParamInterface<int> {
 protected:
    void SetUp() override { simulator::options().cluster_blocks = GetParam(); }

    static uint64_t cluster_launches_of(int64_t batch_size) {
        return GetParam() != 0 && batch_size > 16 && batch_size <= most_of_cluster;
    }

    // A cluster of one block is not counted.
    template <class Draw>
    static void expect_path(int64_t batch_size, const Draw& draw) {
        simulator::reset_counters();
        draw();
        EXPECT_EQ(simulator::counters().cluster_launches, cluster_launches_of(batch_size)) << batch_size;
    }
};

struct Drawn {
    std::vector<int64_t> indices;
    std::vector<float> priorities, weights;

    explicit Drawn(int64_t size)
        : indices(static_cast<std::size_t>(size), -7), priorities(indices.size(), -7.0f), weights(priorities) {}

    per_status draw(per_tree* tree, int32_t scheme) {
        return per_sample(tree, static_cast<int64_t>(indices.size()), scheme, 0.75, indices.data(), priorities.data(),
                          weights.data(), nullptr);
    }
    bool operator==(const Drawn&) const = default;
};

TEST_P(Clusters, draw_from_a_tree_what_the_cpu_draws) {
    for (const int64_t capacity : {700, 40000}) {
        per_tree* const cpu = create_tree(capacity, PER_CPU);
        per_tree* const gpu = create_tree(capacity, PER_CUDA);
        std::vector<float> priorities;
        for (int64_t i = 0; i < capacity; ++i) priorities.push_back(static_cast<float>(i * 37 % 101) * 0.3f);
        std::vector<int64_t> indices;
        for (int64_t i = 0; i < capacity; ++i) indices.push_back(i);
        for (per_tree* const tree : {cpu, gpu})
            expect_status(PER_OK, per_update(tree, capacity, indices.data(), priorities.data(), nullptr));
        expect_status(PER_OK, per_tree_synchronize(gpu, nullptr));
        for (const int64_t batch_size : batch_sizes()) {
            for (const int32_t scheme : {PER_STRATIFIED, PER_SYSTEMATIC, PER_INDEPENDENT}) {
                Drawn expected(batch_size), drawn(batch_size);
                expect_status(PER_OK, expected.draw(cpu, scheme));
                expect_path(batch_size, [&] { expect_status(PER_OK, drawn.draw(gpu, scheme)); });
                expect_status(PER_OK, per_tree_synchronize(gpu, nullptr));
                ASSERT_TRUE(drawn == expected) << "batch_size " << batch_size << ", scheme " << scheme;
                if (is_short || capacity == 40000) break;
            }
        }
        per_tree_free(cpu);
        per_tree_free(gpu);
    }
}

TEST_P(Clusters, a_draw_from_nothing_is_no_draw) {
    per_tree* const tree = create_tree(50, PER_CUDA);
    Drawn drawn(20);
    expect_status(PER_OK, drawn.draw(tree, PER_STRATIFIED));
    expect_status(PER_ERROR_EMPTY, per_tree_synchronize(tree, nullptr));
    EXPECT_EQ(drawn.indices, std::vector<int64_t>(20, -1));
    EXPECT_EQ(drawn.priorities, std::vector<float>(20, 0.0f));
    EXPECT_EQ(drawn.weights, drawn.priorities);
    per_tree_free(tree);
}

TEST_P(Clusters, draw_transitions_that_the_cpu_draws) {
    per_replay_options options = twin_options();
    options.capacity = 600;
    Twins twins(options);
    TwinWalk walk(4);
    for (int i = 0; i < (is_short ? 3 : 12); ++i) twins.add(walk.next(8));
    twins.use(walk, 2);
    for (const int64_t batch_size : batch_sizes()) {
        for (const int32_t normalization : {PER_BATCH_MAX, PER_BUFFER_MAX, PER_NONE}) {
            per_sample_options of_draw = sample_options(of_buffer, normalization);
            of_draw.uniform_fraction = normalization == PER_NONE ? 0.25 : 0.0;
            SCOPED_TRACE("batch_size " + std::to_string(batch_size) + ", " + std::to_string(normalization));
            expect_path(batch_size, [&] { EXPECT_FALSE(twins.sample(batch_size, &of_draw).empty()); });
            if (HasFailure()) return;
            if (is_short) break;
        }
    }
    twins.expect_same();
}

INSTANTIATE_TEST_SUITE_P(blocks, Clusters, testing::Values(0, 8, 16));

}  // namespace
}  // namespace per::test

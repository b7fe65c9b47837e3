// The tree on CUDA is bit-identical to the tree on the CPU - indices, priorities, weights, masses, scale - through
// rescales, on streams in any order that CUDA allows.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "base/error.h"
#include "cpu/tree_backend.h"
#include "cuda/tree/tree_backend.h"
#include "run_length.h"
#include "simulator.h"

namespace per {
namespace {

per_tree_options options_for(int64_t capacity, uint64_t seed) {
    return {sizeof(per_tree_options), capacity, seed, PER_CUDA, 0};
}

// Outputs and inputs of calls that have been enqueued and not waited for.
struct Call {
    std::vector<int64_t> indices, indices_expected;
    std::vector<float> priorities, priorities_expected;
    std::vector<float> weights, weights_expected;
    std::vector<uint64_t> units;
    std::vector<double> prefix_sums;
};

using test::is_short;

class BothTrees {
 public:
    BothTrees(int64_t capacity, uint64_t seed)
        : capacity_(capacity), numbers_(seed), cpu_(capacity, seed), cuda_(options_for(capacity, seed)) {
        simulator::options().seed = seed;
        streams_[0] = nullptr;
        for (int i = 1; i < 3; ++i) cudaStreamCreateWithFlags(&streams_[i], cudaStreamNonBlocking);
    }
    ~BothTrees() {
        for (int i = 1; i < 3; ++i) cudaStreamDestroy(streams_[i]);
        simulator::options().seed = 1;
    }

    void random_call() {
        switch (numbers_() % 10) {
            case 0:
            case 1:
            case 2:
            case 3:
                update(any_count());
                break;
            case 4:
                if (numbers_() % 6 == 0) reset();
                break;
            case 5:
                find();
                break;
            case 6:
                read();
                break;
            default:
                sample(static_cast<int32_t>(numbers_() % 4), 1 + static_cast<int64_t>(numbers_() % 70));
        }
    }

    void update(std::size_t count) {
        Call& call = new_call();
        for (std::size_t i = 0; i < count; ++i) {
            call.indices.push_back(any_index());
            call.priorities.push_back(any_priority());
        }
        update(call);
    }

    void update_all() {
        Call& call = new_call();
        for (int64_t i = 0; i < capacity_; ++i) {
            call.indices.push_back(i);
            call.priorities.push_back(any_priority());
        }
        update(call);
    }

    void set_all(float priority) {
        Call& call = new_call();
        for (int64_t i = 0; i < capacity_; ++i) call.indices.push_back(i);
        call.priorities.assign(call.indices.size(), priority);
        update(call);
    }

    void sample(int32_t scheme, int64_t batch_size) {
        Call& call = new_call();
        const std::size_t n = static_cast<std::size_t>(batch_size);
        for (auto* of : {&call.indices, &call.indices_expected}) of->assign(n, -7);
        for (auto* of : {&call.priorities, &call.priorities_expected, &call.weights, &call.weights_expected})
            of->assign(n, -7.0f);
        const double beta = static_cast<double>(numbers_() % 5) / 4;
        const auto sample_to = [&](std::vector<int64_t>& indices, std::vector<float>& priorities,
                                   std::vector<float>& weights) -> TreeSample {
            return {batch_size, scheme, beta, indices.data(), priorities.data(), weights.data()};
        };
        try {
            cpu_.sample(sample_to(call.indices_expected, call.priorities_expected, call.weights_expected), nullptr);
        } catch (const Error& error) {
            // Nothing, or too little, to draw: the device detects it later.
            (error.status() == PER_ERROR_EMPTY ? n_empty_ : n_short_)++;
            call.indices_expected.assign(n, -1);
            call.priorities_expected.assign(n, 0.0f);
            call.weights_expected.assign(n, 0.0f);
        }
        TreeSample queued = sample_to(call.indices, call.priorities, call.weights);
        if (numbers_() % 8 == 0) {
            queued.priorities_out = nullptr;
            call.priorities = call.priorities_expected;
        }
        if (numbers_() % 8 == 0) {
            queued.weights_out = nullptr;
            call.weights = call.weights_expected;
        }
        cuda_.sample(queued, any_stream());
    }

    // First and last units of leaves, and prefix sums.
    void find() {
        const TreeMass mass = cpu_.mass();
        if (mass.total == 0) return;
        Call& call = new_call();
        uint64_t before = 0;
        const std::vector<float> leaves = cpu_leaves();
        for (const float leaf : leaves) {
            const uint64_t of_leaf = mass_of(leaf, power_of_two(mass.scale));
            if (of_leaf != 0 && numbers_() % leaves.size() < 60) {
                call.units.push_back(before);
                call.units.push_back(before + of_leaf - 1);
            }
            before += of_leaf;
        }
        call.units.push_back(mass.total - 1);
        call.indices.assign(call.units.size(), -7);
        call.indices_expected = call.indices;
        const int64_t count = static_cast<int64_t>(call.units.size());
        cpu_.find_mass(count, call.units.data(), call.indices_expected.data(), nullptr);
        cuda_.find_mass(count, call.units.data(), call.indices.data(), any_stream());
        find_prefix_sums(static_cast<double>(mass.total) / power_of_two(mass.scale));
    }

    void find_prefix_sums(double total) {
        Call& call = new_call();
        for (int i = 0; i < 20; ++i)
            call.prefix_sums.push_back(total * static_cast<double>(numbers_() >> 11) * 0x1p-53);
        call.prefix_sums.push_back(0.0);
        call.prefix_sums.push_back(std::nextafter(total, 0.0));
        call.indices.assign(call.prefix_sums.size(), -7);
        call.indices_expected = call.indices;
        const int64_t count = static_cast<int64_t>(call.prefix_sums.size());
        cpu_.find(count, call.prefix_sums.data(), call.indices_expected.data(), nullptr);
        cuda_.find(count, call.prefix_sums.data(), call.indices.data(), any_stream());
    }

    void read() {
        Call& call = new_call();
        for (int i = 0; i < 40; ++i) call.indices.push_back(any_index());
        call.indices_expected = call.indices;
        call.priorities.assign(40, -7.0f);
        call.priorities_expected = call.priorities;
        cpu_.priorities(40, call.indices.data(), call.priorities_expected.data(), nullptr);
        cuda_.priorities(40, call.indices.data(), call.priorities.data(), any_stream());
    }

    void reset() {
        cpu_.reset(nullptr);
        cuda_.reset(any_stream());
    }

    // Waits, and compares everything since the last call.
    void compare() {
        const TreeMass expected = cpu_.mass();
        const TreeMass mass = cuda_.mass();
        EXPECT_EQ(mass.total, expected.total);
        EXPECT_EQ(mass.scale, expected.scale);
        std::vector<float> leaves(static_cast<std::size_t>(capacity_));
        cuda_.priorities(capacity_, nullptr, leaves.data(), streams_[1]);
        expect_report();
        EXPECT_TRUE(same(leaves, cpu_leaves()));
        for (const Call& call : calls_) {
            if (!call.indices_expected.empty()) {
                EXPECT_EQ(call.indices, call.indices_expected);
            }
            if (!call.priorities_expected.empty()) {
                EXPECT_TRUE(same(call.priorities, call.priorities_expected));
            }
            EXPECT_TRUE(same(call.weights, call.weights_expected));
        }
        calls_.clear();
    }

 private:
    Call& new_call() {
        calls_.emplace_back();
        return calls_.back();
    }

    void update(Call& call) {
        const int64_t count = static_cast<int64_t>(call.indices.size());
        cpu_.update(count, call.indices.data(), call.priorities.data(), nullptr);
        if (count != 0) cuda_.update(count, call.indices.data(), call.priorities.data(), any_stream());
    }

    void expect_report() {
        const int expected = n_short_ != 0 ? PER_ERROR_INVALID_ARGUMENT : n_empty_ != 0 ? PER_ERROR_EMPTY : PER_OK;
        int status = PER_OK;
        try {
            cuda_.synchronize(streams_[1]);
        } catch (const Error& error) {
            status = error.status();
        }
        EXPECT_EQ(status, expected);
        EXPECT_NO_THROW(cuda_.synchronize(nullptr));  // the error is reported once
        n_short_ = n_empty_ = 0;
    }

    // Bits, not values: -0 is not 0.
    static bool same(const std::vector<float>& a, const std::vector<float>& b) {
        return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                          [](float x, float y) { return std::memcmp(&x, &y, sizeof x) == 0; });
    }

    std::vector<float> cpu_leaves() {
        std::vector<float> leaves(static_cast<std::size_t>(capacity_));
        cpu_.priorities(capacity_, nullptr, leaves.data(), nullptr);
        return leaves;
    }

    cudaStream_t any_stream() { return streams_[numbers_() % 3]; }
    // Mostly few. 256 entries have one block of 256 threads, 1024 one of 1024, more several.
    std::size_t any_count() {
        const uint64_t kind = numbers_() % 32;
        return kind == 0 ? 1000 + numbers_() % 300 : kind < 8 ? numbers_() % 300 : 1 + numbers_() % 40;
    }
    int64_t any_index() { return static_cast<int64_t>(numbers_() % static_cast<uint64_t>(capacity_)); }

    // Mostly of one magnitude, which changes occasionally, with zeros and extremes.
    float any_priority() {
        const uint64_t kind = numbers_() % 400;
        if (kind < 60) return kind < 10 ? -0.0f : 0.0f;
        if (kind == 60) return FLT_TRUE_MIN;
        if (kind == 61) return FLT_MAX;
        if (kind == 62) exponent_ = static_cast<int>(numbers_() % 260) - 140;
        return static_cast<float>(std::ldexp(static_cast<double>(numbers_() >> 11) * 0x1p-53, exponent_));
    }

    int64_t capacity_;
    std::mt19937_64 numbers_;
    cpu::CpuTreeBackend cpu_;
    cuda::CudaTreeBackend cuda_;
    cudaStream_t streams_[3];
    std::deque<Call> calls_;
    int exponent_ = 0;
    int n_empty_ = 0;
    int n_short_ = 0;
};

TEST(CudaTreeModel, random_calls_on_three_streams) {
    for (const int64_t capacity : {1, 31, 32, 33, 200, 1023, 1024, 1025})
        for (uint64_t seed = 1; seed <= (is_short ? 1 : 4); ++seed) {
            BothTrees trees(capacity, seed * 100 + static_cast<uint64_t>(capacity));
            for (int i = 0; i < (is_short ? 2 : 8); ++i) {
                for (int j = 0; j < 8; ++j) trees.random_call();
                trees.compare();
                ASSERT_FALSE(testing::Test::HasFailure()) << "capacity " << capacity << ", seed " << seed;
            }
        }
}

// Above 32768 leaves there is one level between the leaves' sums and the top row, above 2^20 another.
TEST(CudaTreeModel, deeper_trees) {
    for (const int64_t capacity : {40000, 32769, 32768, 32767}) {
        BothTrees trees(capacity, static_cast<uint64_t>(capacity));
        trees.update_all();
        for (int i = 0; i < 3; ++i) {
            for (int scheme = PER_STRATIFIED; scheme <= PER_WITHOUT_REPLACEMENT; ++scheme) trees.sample(scheme, 33);
            trees.find();
            trees.update(100);
        }
        trees.compare();
        if (is_short) break;
    }
}

// Updates so large that each stage is a separate launch, with many duplicates, starting from an empty tree.
TEST(CudaTreeModel, large_updates) {
    for (const int64_t capacity : {1000, 5000}) {
        BothTrees trees(capacity, 7);
        for (int i = 0; i < 4; ++i) {
            trees.update(4097 + static_cast<std::size_t>(i) * 500);
            trees.sample(PER_STRATIFIED, 64);
        }
        trees.compare();
        for (const std::size_t count : {1023, 1024, 1025}) trees.update(count);
        trees.compare();
    }
}

// Updates by several blocks, whose differences are negative. A rebuild would not need them.
TEST(CudaTreeModel, large_updates_that_keep_the_scale) {
    BothTrees trees(5000, 1);
    for (const float priority : {1.0f, 0.75f, 0.875f, 0.7f}) {
        trees.set_all(priority);
        trees.compare();
    }
}

// 5000 leaves of priority 1 have a mass of 2^43 each. At 480 each mass would still be below 2^52, but the total would
// be 1.14 * 2^64, which looks like 0.14 * 2^64 if a carry is lost.
TEST(CudaTreeModel, a_batch_beyond_64_bits) {
    BothTrees trees(5000, 1);
    trees.set_all(1.0f);
    trees.compare();
    trees.set_all(480.0f);
    trees.compare();
}

// Targets have 64 bits throughout: the total of 40000 leaves is so large that a target in float32 would be off by a
// hundredth of a leaf.
TEST(CudaTreeModel, many_draws_from_many_leaves) {
    BothTrees trees(40000, 4);
    trees.set_all(1.0f);
    trees.sample(PER_INDEPENDENT, is_short ? 500 : 4000);
    trees.compare();
}

TEST(CudaTreeModel, large_batches) {
    BothTrees trees(3000, 3);
    trees.update_all();
    for (int scheme = PER_STRATIFIED; scheme <= PER_WITHOUT_REPLACEMENT; ++scheme) trees.sample(scheme, 1500);
    trees.sample(PER_INDEPENDENT, 9000);
    trees.compare();
}

}  // namespace
}  // namespace per

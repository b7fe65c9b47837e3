// The calls of a handle run in the order in which they were made, even if a stream reuses the handle of a destroyed
// one, or a thread the id of one that has ended, whose work is still pending.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <deque>
#include <thread>
#include <vector>

#include "simulator.h"
#include "steered_simulator.h"

namespace per::test {
namespace {

constexpr int64_t n = 8;
constexpr uint64_t n_seeds = 100;

class StreamsThatEnd : public SteeredSimulator {
 protected:
    void SetUp() override {
        simulator::options().destroying_waits = false;
        tree_ = create_tree(n, PER_CUDA);
        for (int64_t i = 0; i < n; ++i) indices_.push_back(i);
    }
    void TearDown() override {
        cudaDeviceSynchronize();
        per_tree_free(tree_);
        SteeredSimulator::TearDown();
    }

    void update(uint64_t round, cudaStream_t stream) {
        given_.emplace_back(n, static_cast<float>(round));
        expect_status(PER_OK, per_update(tree_, n, indices_.data(), given_.back().data(), stream));
    }
    void read(cudaStream_t stream) {
        read_.assign(n, -1.0f);
        expect_status(PER_OK, per_tree_get_priorities(tree_, n, indices_.data(), read_.data(), stream));
    }

    per_tree* tree_ = nullptr;
    std::vector<int64_t> indices_;
    std::deque<std::vector<float>> given_;  // priorities of each update, which its stream may read later
    std::vector<float> read_;
};

TEST_F(StreamsThatEnd, a_stream_with_the_handle_of_one_that_was_destroyed_waits_for_its_work) {
    for (uint64_t seed = 1; seed <= n_seeds; ++seed) {
        simulator::options().seed = seed;
        cudaStream_t first, second;
        ASSERT_EQ(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking), cudaSuccess);
        update(seed, first);
        ASSERT_EQ(cudaStreamDestroy(first), cudaSuccess);
        ASSERT_EQ(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), cudaSuccess);
        ASSERT_EQ(first, second);
        read(second);
        cudaStreamSynchronize(second);
        ASSERT_EQ(read_, given_.back()) << "seed " << seed;
        cudaStreamDestroy(second);
    }
}

TEST_F(StreamsThatEnd, a_thread_with_the_id_of_one_that_has_ended_waits_for_its_work) {
    uint64_t n_same = 0;
    for (uint64_t seed = 1; seed <= n_seeds; ++seed) {
        simulator::options().seed = seed;
        std::thread::id first, second;
        std::thread([&] {
            first = std::this_thread::get_id();
            update(seed, cudaStreamPerThread);
        }).join();
        std::thread([&] {
            second = std::this_thread::get_id();
            read(cudaStreamPerThread);
            cudaStreamSynchronize(cudaStreamPerThread);
        }).join();
        ASSERT_EQ(read_, given_.back()) << "seed " << seed;
        n_same += first == second;
    }
    EXPECT_GT(n_same, n_seeds / 2);  // otherwise nothing was shown
}

// Waits for events would add the device's time to each call of a training loop.
TEST_F(StreamsThatEnd, calls_on_one_stream_wait_for_nothing) {
    cudaStream_t stream;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    for (const cudaStream_t of : {stream, cudaStreamPerThread, cudaStream_t{nullptr}}) {
        update(1, of);
        simulator::reset_counters();
        for (uint64_t i = 2; i < 5; ++i) update(i, of);
        EXPECT_EQ(simulator::counters().event_waits, 0u);
    }
    read(stream);
    EXPECT_EQ(simulator::counters().event_waits, 1u);
    cudaDeviceSynchronize();
    EXPECT_EQ(read_, given_.back());
    cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace per::test

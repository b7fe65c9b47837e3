// A fixture for tests that change options of the simulated GPU and restores them afterwards, and checks for such tests.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "per.h"
#include "simulator.h"

namespace per::test {

class SteeredSimulator : public testing::Test {
 protected:
    void TearDown() override {
        simulator::options() = options_;
        simulator::stick(0);
        simulator::fail_call(0, 0);
    }

    simulator::Options options_ = simulator::options();
};

// A fixture of this kind with two streams.
class TwoStreams : public SteeredSimulator {
 protected:
    void SetUp() override {
        for (cudaStream_t& stream : streams_) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    }
    void TearDown() override {
        SteeredSimulator::TearDown();
        for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    }

    cudaStream_t streams_[2];
};

// Expects a status other than PER_OK, and a message that contains this text.
inline void expect_status(per_status expected, per_status status, const char* text = "") {
    EXPECT_EQ(status, expected) << per_last_error();
    if (status != PER_OK) {
        EXPECT_NE(std::string(per_last_error()).find(text), std::string::npos) << per_last_error();
    }
}

inline per_tree* create_tree(int64_t capacity, int32_t device, int32_t device_index = 0) {
    per_tree_options options;
    per_tree_options_init(&options, sizeof options);
    options.capacity = capacity;
    options.seed = 5;
    options.device = device;
    options.device_index = device_index;
    per_tree* tree = nullptr;
    expect_status(PER_OK, per_tree_create(&options, &tree));
    return tree;
}

inline void expect_current_device(int expected) {
    int device = -1;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(device, expected);
}

// Expects `is_right` to be true in a child of this process.
template <class Check>
void expect_in_child(const Check& is_right) {
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        _exit(is_right() ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
}

}  // namespace per::test

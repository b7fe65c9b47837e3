// For tests that steer the simulated GPU: it is as before afterwards. What they expect of statuses, and of calls that
// fail.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

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

// A status other than PER_OK has a message with this text in it.
inline void expect_status(per_status expected, per_status status, const char* text = "") {
    EXPECT_EQ(status, expected) << per_last_error();
    if (status != PER_OK) {
        EXPECT_NE(std::string(per_last_error()).find(text), std::string::npos) << per_last_error();
    }
}

// Whichever call of the runtime fails: there is a loader, or none and the buffer may have another.
inline void expect_no_loader_where_creation_fails(per_replay* replay, const per_loader_options& options) {
    int n_failed = 0;
    for (uint64_t n = 0; n < 60; ++n) {
        simulator::fail_call(n, n % 2 == 0 ? cudaErrorMemoryAllocation : cudaErrorInvalidValue);
        per_loader* loader = nullptr;
        const per_status status = per_loader_create(replay, &options, &loader);
        simulator::fail_call(0, 0);
        EXPECT_EQ(loader == nullptr, status != PER_OK);
        EXPECT_NE(status, PER_ERROR_BUSY);
        n_failed += status != PER_OK;
        per_loader_free(loader);
    }
    EXPECT_GT(n_failed, 10);
}

}  // namespace per::test

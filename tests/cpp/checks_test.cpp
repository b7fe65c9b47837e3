// Checks of arguments for CUDA. They depend only on the numbers, so this machine needs no such device.
#include "core/checks.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace per {
namespace {

// The message with which the count is refused, or "".
std::string refusal_of_count(int64_t count, int32_t device) {
    try {
        check_count_set(count, device);
    } catch (const Error& error) {
        EXPECT_EQ(error.status(), PER_ERROR_INVALID_ARGUMENT);
        return error.what();
    }
    return "";
}

TEST(Checks, one_call_sets_fewer_entries_on_cuda_than_32_bits_count) {
    EXPECT_EQ(refusal_of_count(4294967294, PER_CUDA), "");
    EXPECT_EQ(refusal_of_count(4294967295, PER_CUDA), "count is 4294967295: allowed on PER_CUDA are 0 .. 4294967294");
    EXPECT_EQ(refusal_of_count(int64_t{1} << 62, PER_CPU), "");
}

}  // namespace
}  // namespace per

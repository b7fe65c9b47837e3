// Checks of the status and message of calls of per.h.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "per.h"

#define EXPECT_OK(call) EXPECT_EQ(call, PER_OK) << per_last_error()
#define ASSERT_OK(call) ASSERT_EQ(call, PER_OK) << per_last_error()
// The call fails with this status, and its message contains the text.
#define EXPECT_FAILS(call, status, text) EXPECT_TRUE(::per::test::fails_with(call, status, text))

namespace per::test {

inline ::testing::AssertionResult is_error(per_status status, const std::string& message, per_status expected_status,
                                           const std::string& expected_text) {
    if (status == expected_status && message.find(expected_text) != std::string::npos)
        return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << per_status_name(status) << " \"" << message << "\"; expected is "
                                         << per_status_name(expected_status) << " \"" << expected_text << "\"";
}

// A struct of per.h with its default values: initialized(per_batch_init).
template <class Struct>
Struct initialized(per_status (*init)(Struct*, uint64_t)) {
    Struct value;
    EXPECT_OK(init(&value, sizeof value));
    return value;
}

inline ::testing::AssertionResult fails_with(per_status status, per_status expected_status, const std::string& text) {
    return is_error(status, per_last_error(), expected_status, text);
}

}  // namespace per::test

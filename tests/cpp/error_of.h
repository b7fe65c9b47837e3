// Checks of the errors that internal functions throw.
#pragma once

#include "base/error.h"
#include "expect.h"

// The statement throws an error with this status and a message that contains the text.
#define EXPECT_THROWS(statement, status, text) EXPECT_TRUE(::per::test::throws_with([&] { statement; }, status, text))

namespace per::test {

// The error that a call throws. Its status is PER_OK if the call throws none.
template <class Call>
Error error_of(const Call& call) {
    try {
        call();
    } catch (const Error& error) {
        return error;
    }
    return Error(PER_OK, "nothing");
}

template <class Call>
::testing::AssertionResult throws_with(const Call& call, per_status status, const std::string& text) {
    const Error error = error_of(call);
    return is_error(error.status(), error.what(), status, text);
}

}  // namespace per::test

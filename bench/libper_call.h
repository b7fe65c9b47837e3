#ifndef PER_BENCH_LIBPER_CALL_H
#define PER_BENCH_LIBPER_CALL_H

#include <per.h>

#include <stdexcept>
#include <string>

namespace bench {

struct LibperError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/* What this version of libper does not have. */
struct LibperLacks : LibperError {
    using LibperError::LibperError;
};

/* Throws what libper said of a call that failed. */
inline void expect_ok(per_status status) {
    if (status == PER_OK) return;
    const std::string message = std::string(per_status_name(status)) + ": " + per_last_error();
    if (status == PER_ERROR_UNSUPPORTED) throw LibperLacks(message);
    throw LibperError(message);
}

}  // namespace bench

#endif

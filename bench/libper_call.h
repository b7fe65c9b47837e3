#ifndef PER_BENCH_LIBPER_CALL_H
#define PER_BENCH_LIBPER_CALL_H

#include <per.h>

#include <stdexcept>
#include <string>

namespace bench {

struct LibperError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/* Throws libper's message if a call failed. */
inline void expect_ok(per_status status) {
    if (status != PER_OK) throw LibperError(std::string(per_status_name(status)) + ": " + per_last_error());
}

}  // namespace bench

#endif

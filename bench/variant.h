#ifndef PER_BENCH_VARIANT_H
#define PER_BENCH_VARIANT_H

#include <functional>
#include <stdexcept>
#include <string>

namespace bench {

/* One implementation of a case: a batch is one run(). */
struct Variant {
    std::string name;
    std::function<void()> prepare;  // prepares the input of the next run; not timed
    std::function<void()> run;      // timed
    std::function<void()> verify;   // prepares, runs, and compares with a naive model; throws WrongResult
};

struct WrongResult : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline void require(bool holds, const char* promise) {
    if (!holds) throw WrongResult(promise);
}

/* Makes the compiler treat `value` as used, so that its computation is not removed. */
template <class T>
inline void keep(const T& value) {
    asm volatile("" : : "g"(value) : "memory");
}

}  // namespace bench

#endif

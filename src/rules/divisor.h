// Division by a constant number.
#pragma once

#include <stdint.h>

#include "rules/host_device.h"
#include "rules/random.h"

namespace per {

// Divides 0 .. 2^63 - 1 by `value` > 0 with a multiplication, which takes a quarter of a division's time (Granlund and
// Montgomery 1994, "Division by invariant integers using multiplication", with N = 63: the reciprocal fits 64 bits).
class Divisor {
 public:
    PER_HOST_DEVICE explicit Divisor(int64_t value)
        : value_(value), shift_(value > 1 ? 64 - __builtin_clzll(static_cast<unsigned long long>(value - 1)) : 0) {
        const unsigned __int128 power = static_cast<unsigned __int128>(1) << (63 + shift_);
        reciprocal_ = static_cast<uint64_t>(power / static_cast<uint64_t>(value)) + 1;
    }

    PER_HOST_DEVICE int64_t value() const { return value_; }
    PER_HOST_DEVICE int64_t quotient(int64_t x) const {
        return static_cast<int64_t>(mulhi(static_cast<uint64_t>(x) << 1, reciprocal_) >> shift_);
    }
    PER_HOST_DEVICE int64_t remainder(int64_t x) const { return x - quotient(x) * value_; }

 private:
    int64_t value_;
    uint64_t reciprocal_;  // floor(2^(63 + shift) / value) + 1
    int32_t shift_;        // ceil(log2(value))
};

}  // namespace per

// System calls that signals may interrupt.
#pragma once

#include <cerrno>

namespace per {

// Repeats a system call until no signal interrupts it.
template <class Call>
auto uninterrupted(const Call& call) {
    auto result = call();
    while (result < 0 && errno == EINTR) result = call();
    return result;
}

}  // namespace per

// Wakes threads of other processes. Linux only.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace per {

// A counter in shared memory on which threads of several processes sleep. It contains no lock that a dying process
// could leave locked. Any process may overwrite it: the only effect is that a sleep ends too early or too late.
struct SharedBell {
    std::atomic<uint32_t> count;

    void ring() noexcept;
    // Sleeps until the bell rings, for at most that time; not at all if it has rung since its count was `seen`. May
    // wake without a reason.
    void sleep(uint32_t seen, std::chrono::nanoseconds most) noexcept;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(SharedBell) == sizeof(uint32_t));

}  // namespace per

#include "system/shared_bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace per {

void SharedBell::ring() noexcept {
    ++count;
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&count), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void SharedBell::sleep(uint32_t seen, std::chrono::nanoseconds most) noexcept {
    constexpr int64_t second = 1000000000;
    const int64_t time = std::clamp<int64_t>(most.count(), 0, 1000 * second);
    struct timespec timeout = {};
    timeout.tv_sec = static_cast<time_t>(time / second);
    timeout.tv_nsec = static_cast<long>(time % second);
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&count), FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

}  // namespace per

// Under ThreadSanitizer kernels take twenty times as long. Races show in short runs, too.
#pragma once

#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZED 1
#endif
#endif

namespace per::test {

#if defined(THREAD_SANITIZED)
inline constexpr bool is_short = true;
#else
inline constexpr bool is_short = false;
#endif

}  // namespace per::test

#include "cpu/memory/prefetch.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstring>
#endif

namespace per::cpu {
namespace {

bool is_amd_family_25() {
#if defined(__x86_64__)
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid(0, &eax, &ebx, &ecx, &edx)) return false;
    char maker[12];
    std::memcpy(maker, &ebx, 4);
    std::memcpy(maker + 4, &edx, 4);
    std::memcpy(maker + 8, &ecx, 4);
    if (std::memcmp(maker, "AuthenticAMD", sizeof maker) != 0 || !__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return false;
    return (eax >> 8 & 15) + (eax >> 20 & 255) == 25;  // the family, and what it is extended by where that is 15
#else
    return false;
#endif
}

}  // namespace

bool fetches_into_second_level = false;

void choose_fetched_level() {
    fetches_into_second_level = is_amd_family_25();
}

}  // namespace per::cpu

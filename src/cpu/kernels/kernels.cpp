#include "cpu/kernels/kernels.h"

#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "cpu/memory/prefetch.h"

namespace per::cpu {

extern const Kernels kernels_baseline;
#if defined(__x86_64__)
extern const Kernels kernels_v3;
extern const Kernels kernels_v4;
#endif

namespace {

bool always() {
    return true;
}

#if defined(__x86_64__)
// Checks exactly the features for which CMakeLists.txt compiles the kernels; tests/kernels compares the two.
// __builtin_cpu_supports() also checks that the system saves the registers of these features.
bool has_v3() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("fma") && __builtin_cpu_supports("popcnt");
}

bool has_v4() {
    return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

struct Variant {
    const Kernels* kernels;
    bool (*supported)();
};

// The widest first.
constexpr Variant variants[] = {
#if defined(__x86_64__)
    {&kernels_v4, has_v4},
    {&kernels_v3, has_v3},
#endif
    {&kernels_baseline, always},
};

const Variant* variant_named(const char* name) {
    for (const Variant& variant : variants)
        if (std::strcmp(variant.kernels->name, name) == 0) return &variant;
    return nullptr;
}

const Kernels& choose_kernels() {
    choose_fetch_policy();
    const char* const name = std::getenv("PER_ISA");
    if (name == nullptr || *name == '\0') {
        for (const Variant& variant : variants)
            if (variant.supported()) return *variant.kernels;
    }
    const Variant* const variant = variant_named(name);
    if (variant == nullptr) {
#if defined(__x86_64__)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "PER_ISA is \"%s\": allowed are baseline, v3 and v4", name);
#else
        throw Error(PER_ERROR_INVALID_ARGUMENT, "PER_ISA is \"%s\": allowed is baseline", name);
#endif
    }
    if (!variant->supported())
        throw Error(PER_ERROR_UNSUPPORTED, "PER_ISA is \"%s\": this machine does not have these instructions", name);
    return *variant->kernels;
}

}  // namespace

const Kernels& chosen_kernels() {
    static const Kernels& kernels = choose_kernels();
    return kernels;
}

const Kernels* kernels_named(const char* name) {
    const Variant* const variant = variant_named(name);
    return variant != nullptr && variant->supported() ? variant->kernels : nullptr;
}

}  // namespace per::cpu

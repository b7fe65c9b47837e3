#include "ptx.h"

#include <cinttypes>
#include <cstdio>

namespace ptx {

const simulator::GridFunctions* grid = nullptr;

namespace {

simulator::Translation& translation() {
    static simulator::Translation made = {};
    return made;
}

}  // namespace

void fail(const char* what, U64 address, unsigned n_bytes) {
    char text[160];
    std::snprintf(text, sizeof text, "%s: address %" PRIx64 ", %u bytes", what, address, n_bytes);
    grid->fail(text);
    __builtin_unreachable();
}

// Two kernels with one name would be confused, so the second one makes loading fail.
Registered::Registered(int architecture, const simulator::TranslatedKernel& kernel) {
    for (const simulator::TranslatedKernel& other : translation().kernels) {
        if (std::strcmp(other.name, kernel.name) != 0) continue;
        std::fprintf(stderr, "two kernels have the name %s\n", kernel.name);
        std::abort();
    }
    translation().architecture = architecture;
    translation().kernels.push_back(kernel);
}

}  // namespace ptx

extern "C" const simulator::Translation* per_translation(const simulator::GridFunctions* grid) {
    ptx::grid = grid;
    return &ptx::translation();
}

#include "ptx.h"

#include <cinttypes>
#include <cstdio>
#include <utility>
#include <vector>

namespace ptx {

const simulator::GridFunctions* grid = nullptr;

namespace {

simulator::Translation& translation() {
    static simulator::Translation made = {};
    return made;
}

struct BlocksOfFile {
    std::size_t n;
    bool* executed;
    const unsigned* n_of_blocks;
};

std::vector<BlocksOfFile>& files() {
    static std::vector<BlocksOfFile> made;
    return made;
}

uint64_t take_instructions() {
    uint64_t n = 0;
    for (const BlocksOfFile& file : files())
        for (std::size_t i = 0; i < file.n; ++i)
            if (std::exchange(file.executed[i], false)) n += file.n_of_blocks[i];
    return n;
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

Blocks::Blocks(std::size_t n, bool* executed, const unsigned* n_of_blocks) {
    files().push_back({n, executed, n_of_blocks});
    translation().take_instructions = take_instructions;
}

}  // namespace ptx

extern "C" const simulator::Translation* per_translation(const simulator::GridFunctions* grid) {
    ptx::grid = grid;
    return &ptx::translation();
}

// Prefetches cache lines.
#pragma once

namespace per::cpu {

// How lines are prefetched on this processor. prefetch.cpp has a policy for each kind of processor, and the
// measurements behind it. All are false until the first handle is created, which calls choose_fetch_policy(): no code
// runs when the library is loaded.
struct FetchPolicy {
    // Into the second-level cache, which can wait for more lines at once than the first.
    bool reads_into_second_level;
    bool writes_into_second_level;
    // In two stages: into the second level early, and from there into the first just before the use.
    bool in_stages;
    // Prefetch the rows of a batch while it is still being drawn.
    bool rows_while_drawing;
};
extern FetchPolicy fetch_policy;
void choose_fetch_policy();

// These functions take any address.
[[gnu::always_inline]] inline void prefetch_to_read(const void* address) {
    if (fetch_policy.reads_into_second_level)
        __builtin_prefetch(address, 0, 2);
    else
        __builtin_prefetch(address, 0, 3);
}
[[gnu::always_inline]] inline void prefetch_to_write(const void* address) {
    if (fetch_policy.writes_into_second_level)
        __builtin_prefetch(address, 1, 2);
    else
        __builtin_prefetch(address, 1, 3);
}
[[gnu::always_inline]] inline void prefetch_into_second_level(const void* address) {
    __builtin_prefetch(address, 0, 2);
}
[[gnu::always_inline]] inline void prefetch_into_first_level(const void* address) {
    __builtin_prefetch(address, 0, 3);
}

}  // namespace per::cpu

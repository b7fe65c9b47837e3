// Fetching lines of memory a little before they are used.
#pragma once

namespace per::cpu {

// Whether lines are fetched into the second level of the caches, which can wait for more of them at once than the first.
// That depends on the processor. On AMD's family 25 (Zen 3, Zen 4) it is better: there a draw from 1e7 leaves takes 0.8
// of the time. On family 26 (Zen 5) it is worse by far: where the TLB does not know the page, such a fetch takes several
// times as long as one into the first level, so that of cold caches a batch of 4096 rows takes twice the time, and
// batches of 32 and more took three times as long by fits and starts. Others fetch into the first level.
// False until choose_fetched_level() was called, as it is when the first handle is made: nothing runs when the library
// is loaded.
extern bool fetches_into_second_level;
void choose_fetched_level();

// Both take any address.
[[gnu::always_inline]] inline void prefetch_to_read(const void* address) {
    if (fetches_into_second_level)
        __builtin_prefetch(address, 0, 2);
    else
        __builtin_prefetch(address, 0, 3);
}
[[gnu::always_inline]] inline void prefetch_to_write(const void* address) {
    if (fetches_into_second_level)
        __builtin_prefetch(address, 1, 2);
    else
        __builtin_prefetch(address, 1, 3);
}

}  // namespace per::cpu

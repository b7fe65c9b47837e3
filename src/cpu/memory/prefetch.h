// Fetching lines of memory a little before they are used.
#pragma once

namespace per::cpu {

// Whether lines are fetched into the second level of the caches, which can wait for more of them at once than the first.
// That depends on the processor. On AMD's family 25 it is better: on Zen 4 a draw from 1e7 leaves takes 0.8 of the time,
// and Zen 3 has not been measured otherwise. On family 26 (Zen 5) it is worse by far: where the TLB does not know the
// page, such a fetch takes several times as long as one into the first level. A batch of 4096 rows then takes twice the
// time from cold caches, and for seconds at a time batches of 32 and more took three times as long. Others fetch into the
// first level.
// This is false until choose_fetched_level() has been called, as it is when the first handle is made: nothing runs when
// the library is loaded.
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

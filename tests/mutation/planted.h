// Included before every file of a build with mutants. PLANTED(n) is true if mutant n is active. Constant evaluation is
// never mutated.
#pragma once

namespace per_mutants {

extern unsigned char chosen[];  // by mutant: 1 for those listed in the environment's PER_MUTANT, separated by commas
extern unsigned char* reached;  // by mutant: 1 once its place was reached

[[gnu::always_inline]] constexpr inline bool planted(int number) {
    if (__builtin_is_constant_evaluated()) return false;
    __atomic_store_n(reached + number, 1, __ATOMIC_RELAXED);
    return chosen[number] != 0;
}

}  // namespace per_mutants

#define PLANTED(number) (::per_mutants::planted(number))

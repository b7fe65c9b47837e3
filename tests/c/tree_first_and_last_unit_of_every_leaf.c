/* Every leaf holds exactly the units of its mass: the first and the last belong to it, the adjacent ones to its
   neighbours. */
#include <math.h>

#include "tree_check.h"

/* Checks each leaf, or every `step`-th. */
static void check_units(int64_t capacity, int64_t step, uint64_t seed) {
    per_tree* tree = create_tree(capacity, 0);
    float* priorities = malloc((size_t)capacity * sizeof *priorities);
    uint64_t state = seed, before = 0;
    CHECK(priorities != NULL);
    for (int64_t i = 0; i < capacity; ++i) {
        /* One leaf in four has no mass, and one in four very little. */
        uint64_t kind = next_random(&state) % 4;
        priorities[i] = kind == 0 ? 0.0f : (float)((1 - next_uniform(&state)) * (kind == 1 ? 1e-20 : 1.0));
    }
    priorities[next_random(&state) % (uint64_t)capacity] = 0.75f;
    update_all(tree, capacity, priorities);
    int32_t scale = scale_of(tree);
    for (int64_t i = 0; i < capacity; ++i) {
        /* A float has 24 bits: the product is exact, and so is its ceiling below 2^52. */
        uint64_t mass = (uint64_t)ceil(ldexp(priorities[i], scale));
        if (mass == 0) continue;
        if (i % step == 0) {
            CHECK(find_mass(tree, before) == i);
            CHECK(find_mass(tree, before + mass - 1) == i);
        }
        before += mass;
    }
    CHECK(total_mass_of(tree) == before);
    int64_t outside = -7;
    CHECK_BAD_ENTRY(per_tree_find_mass(tree, 1, &before, &outside, NULL), "units[0]");
    CHECK(outside == after_bad_entry());
    free(priorities);
    per_tree_free(tree);
}

int main(void) {
    static const int64_t capacities[] = {1, 2, 15, 16, 17, 31, 32, 33, 127, 128, 129, 1000, 1024, 1025};
    /* On CUDA every seventh leaf of large trees: across the nodes, this covers all 32 children. */
    for (size_t i = 0; i < sizeof capacities / sizeof *capacities; ++i)
        check_units(capacities[i], on_cuda() && capacities[i] > 200 ? 7 : 1, 100 + i);
    return 0;
}

/*
 * 1e7 leaves with priorities as training produces them, (0, 1]^0.6: the first unit of each leaf's mass finds it. With
 * float32 sums 9 % of the upper half cannot be drawn.
 */
#include <math.h>

#include "tree_check.h"

enum { N = 10000000 };

int main(void) {
    per_tree* tree = create_tree(N, 0);
    float* priorities = malloc(N * sizeof *priorities);
    uint64_t* units = malloc(N * sizeof *units);
    int64_t* indices = malloc(N * sizeof *indices);
    uint64_t state = 4, before = 0;
    int64_t i;
    int32_t scale;
    CHECK(priorities != NULL && units != NULL && indices != NULL);
    for (i = 0; i < N; ++i) priorities[i] = (float)pow(1 - next_uniform(&state), 0.6);
    update_all(tree, N, priorities);
    scale = scale_of(tree);
    for (i = 0; i < N; ++i) {
        units[i] = before;
        before += (uint64_t)ceil(ldexp(priorities[i], scale));
    }
    CHECK(total_mass_of(tree) == before);
    CHECK_OK(per_tree_find_mass(tree, N, units, indices, NULL));
    for (i = 0; i < N; ++i) CHECK(indices[i] == i);
    for (i = 0; i < N; ++i) units[i] = (i + 1 < N ? units[i + 1] : before) - 1;
    CHECK_OK(per_tree_find_mass(tree, N, units, indices, NULL));
    for (i = 0; i < N; ++i) CHECK(indices[i] == i);
    per_tree_free(tree);
    free(priorities);
    free(units);
    free(indices);
    return 0;
}

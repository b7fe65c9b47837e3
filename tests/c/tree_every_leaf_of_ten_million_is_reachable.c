/*
 * 1e7 leaves with priorities as in training, (0, 1]^0.6: the first unit of each leaf's mass finds it. With float32
 * sums, 9 % of the upper half could not be drawn. CUDA has fewer leaves: 40000 without a sanitizer, whose tree has as
 * many levels as that of a million.
 */
#include <math.h>

#include "tree_check.h"

enum { N = 10000000 };

int main(void) {
    const int64_t n = on_cuda() ? rounds(400000) : N;
    per_tree* tree = create_tree(n, 0);
    float* priorities = malloc(N * sizeof *priorities);
    uint64_t* units = malloc(N * sizeof *units);
    int64_t* indices = malloc(N * sizeof *indices);
    uint64_t state = 4, before = 0;
    CHECK(priorities != NULL && units != NULL && indices != NULL);
    for (int64_t i = 0; i < n; ++i) priorities[i] = (float)pow(1 - next_uniform(&state), 0.6);
    update_all(tree, n, priorities);
    int32_t scale = scale_of(tree);
    for (int64_t i = 0; i < n; ++i) {
        units[i] = before;
        before += (uint64_t)ceil(ldexp(priorities[i], scale));
    }
    CHECK(total_mass_of(tree) == before);
    CHECK_OK(per_tree_find_mass(tree, n, units, indices, NULL));
    for (int64_t i = 0; i < n; ++i) CHECK(indices[i] == i);
    for (int64_t i = 0; i < n; ++i) units[i] = (i + 1 < n ? units[i + 1] : before) - 1;
    CHECK_OK(per_tree_find_mass(tree, n, units, indices, NULL));
    for (int64_t i = 0; i < n; ++i) CHECK(indices[i] == i);
    per_tree_free(tree);
    free(priorities);
    free(units);
    free(indices);
    return 0;
}

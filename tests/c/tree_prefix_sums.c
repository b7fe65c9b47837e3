/* per_tree_find() in units of priority: leaf i holds p_0 + .. + p_(i-1) <= s < p_0 + .. + p_i. */
#include <math.h>

#include "tree_check.h"

int main(void) {
    static const float priorities[4] = {1, 2, 0, 4};
    static const double inside[] = {0, 0.5, 0.9999999, 1, 2.5, 2.9999999, 3, 5, 6.9999999};
    static const int64_t expected[] = {0, 0, 0, 1, 1, 1, 3, 3, 3};
    static const double outside[] = {7, 7.5, -1e-9, -INFINITY, INFINITY, NAN};
    double two[2] = {1, 0};
    int64_t indices[9];
    size_t i;
    per_tree* tree = create_tree(4, 0);

    indices[0] = -7;
    CHECK_FAILS(per_tree_find(tree, 1, inside, indices, NULL), PER_ERROR_EMPTY, "0");
    CHECK(indices[0] == after_bad_entry());
    update_all(tree, 4, priorities);
    CHECK_OK(per_tree_find(tree, 9, inside, indices, NULL));
    for (i = 0; i < 9; ++i) CHECK(indices[i] == expected[i]);
    for (i = 0; i < sizeof outside / sizeof *outside; ++i) {
        two[1] = outside[i];
        indices[0] = indices[1] = -7;
        CHECK_BAD_ENTRY(per_tree_find(tree, 2, two, indices, NULL), "prefix_sums[1]");
        CHECK(indices[0] == (on_cuda() ? 1 : -7) && indices[1] == after_bad_entry());
    }

    /* The largest double below the total is inside, whatever the total. */
    for (i = 1; i < 100; ++i) {
        update_one(tree, 3, (float)(1e-3 * (double)(i * i)));
        two[0] = nextafter(total_of(tree), 0);
        CHECK_OK(per_tree_find(tree, 1, two, indices, NULL));
        CHECK(indices[0] == 3);
    }
    per_tree_free(tree);
    return 0;
}

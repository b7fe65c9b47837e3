/* w_i = (min_j P(j) / P(i))^beta over the batch, by hand. */
#include <math.h>

#include "tree_check.h"

int main(void) {
    static const float priorities[4] = {1, 2, 4, 8};
    int64_t indices[64];
    float drawn[64], weights[64];
    per_tree* tree = create_tree(4, 1);
    update_all(tree, 4, priorities);
    for (int beta = 0; beta < 4; ++beta) {
        /* With 60 strata of the total 15, every leaf gets at least four. */
        CHECK_OK(per_sample(tree, 60, PER_STRATIFIED, (float)beta, indices, drawn, weights, NULL));
        for (int i = 0; i < 60; ++i) {
            CHECK(indices[i] == (i < 4 ? 0 : i < 12 ? 1 : i < 28 ? 2 : 3));
            CHECK(drawn[i] == priorities[indices[i]]);
            /* Powers of two, so exact. */
            CHECK(weights[i] == ldexpf(1, -(int)indices[i] * beta));
        }
    }
    CHECK_OK(per_sample(tree, 60, PER_STRATIFIED, 0.5f, indices, NULL, weights, NULL));
    for (int i = 0; i < 60; ++i) CHECK(fabs(weights[i] - pow(2, -0.5 * (double)indices[i])) < 6e-8);

    /* The maximum is that of the batch: a batch of leaf 3 alone has weight 1. */
    update_one(tree, 0, 0);
    update_one(tree, 1, 0);
    update_one(tree, 2, 0);
    CHECK_OK(per_sample(tree, 5, PER_INDEPENDENT, 1, indices, drawn, weights, NULL));
    for (int i = 0; i < 5; ++i) CHECK(indices[i] == 3 && drawn[i] == 8 && weights[i] == 1);
    per_tree_free(tree);
    return 0;
}

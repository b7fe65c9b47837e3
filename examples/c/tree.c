#include <per.h>
#include <stdio.h>

#define CHECK(call) \
    if ((call) != PER_OK) return fprintf(stderr, "%s\n", per_last_error()), 1

int main(void) {
    per_tree_options options;
    per_tree* tree;
    int64_t indices[4] = {0, 1, 2, 3}, drawn[8];
    float priorities[4] = {0.5f, 0.0f, 2.0f, 1.5f}, weights[8];

    CHECK(per_tree_options_init(&options, sizeof options));
    options.capacity = 4;
    options.seed = 7;
    CHECK(per_tree_create(&options, &tree));
    CHECK(per_update(tree, 4, indices, priorities, NULL));
    CHECK(per_sample(tree, 8, PER_STRATIFIED, 0.4f, drawn, NULL, weights, NULL));
    for (int i = 0; i < 8; i++) {
        printf("index %d, weight %.3f\n", (int)drawn[i], weights[i]);
    }
    per_tree_free(tree);
    return 0;
}

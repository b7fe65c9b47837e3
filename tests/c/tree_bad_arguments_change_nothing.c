/*
 * Bad entries of arrays, and arguments just beyond what this tree allows, are refused by name, and handle and outputs
 * are unchanged. CUDA skips entries that only the device can check, reports their number, and applies the others.
 * tests/abi/bad_arguments.py covers arguments that are bad by themselves.
 */
#include <math.h>

#include "tree_check.h"

enum { N = 100, BATCH = 8 };

static per_tree* tree;
static uint64_t mass_before;
static int32_t scale_before;
static float priorities_before[N];

static void remember(void) {
    mass_before = total_mass_of(tree);
    scale_before = scale_of(tree);
    CHECK_OK(per_tree_get_priorities(tree, N, NULL, priorities_before, NULL));
}

static void check_unchanged(void) {
    float priorities[N];
    CHECK(total_mass_of(tree) == mass_before && scale_of(tree) == scale_before);
    CHECK_OK(per_tree_get_priorities(tree, N, NULL, priorities, NULL));
    CHECK(memcmp(priorities, priorities_before, sizeof priorities) == 0);
}

/* An update whose entry `at` is bad; `good_index` is the index that a valid entry has there. `name` is the entry's
   name. */
static void check_bad_entry(const int64_t* indices, const float* priorities, int at, int64_t good_index,
                            const char* name) {
    float now[N];
    CHECK_BAD_ENTRY(per_update(tree, BATCH, indices, priorities, NULL), name);
    if (!on_cuda()) return;
    CHECK_OK(per_tree_get_priorities(tree, N, NULL, now, NULL));
    CHECK(now[good_index] == priorities_before[good_index]);
    for (int i = 0; i < BATCH; ++i) {
        if (i == at) continue;
        CHECK(now[indices[i]] == priorities[i]);
        now[indices[i]] = priorities_before[indices[i]];
        update_one(tree, indices[i], priorities_before[indices[i]]);
    }
    CHECK(memcmp(now, priorities_before, sizeof now) == 0);
}

/* Priorities of 4.5 are below the largest, so setting them does not change the scale. */
static void check_update(void) {
    int64_t indices[BATCH] = {0, 1, 2, 3, 4, 5, 6, 9};
    float priorities[BATCH] = {4.5f, 4.5f, 4.5f, 4.5f, 4.5f, 4.5f, 4.5f, 4.5f};
    static const int64_t bad_indices[] = {-1, N, INT64_MAX, INT64_MIN};
    static const float bad_priorities[] = {-1, -1e-45f, INFINITY, -INFINITY, NAN};
    /* The bad entry is at any position of a batch of consecutive indices (`run`), or of one with a gap. */
    for (int run = 0; run < 2; ++run) {
        indices[7] = run ? 7 : 9;
        for (int at = 0; at < BATCH; ++at) {
            char name[32];
            for (int i = 0; i < 4; ++i) {
                int64_t good = indices[at];
                indices[at] = bad_indices[i];
                sprintf(name, "indices[%d]", at);
                check_bad_entry(indices, priorities, at, good, name);
                indices[at] = good;
            }
            for (int i = 0; i < 5; ++i) {
                priorities[at] = bad_priorities[i];
                sprintf(name, "priorities[%d]", at);
                check_bad_entry(indices, priorities, at, indices[at], name);
                priorities[at] = 4.5f;
            }
            check_unchanged();
        }
    }
    if (on_cuda())
        CHECK_REFUSED(per_update(tree, 4294967295, indices, priorities, NULL),
                      "count is 4294967295: allowed on PER_CUDA are 0 .. 4294967294");
    CHECK_OK(per_update(tree, 0, NULL, NULL, NULL));
    check_unchanged();
}

static void check_sample(void) {
    static const int64_t bad_sizes[] = {0, (1 << 24) + 1};
    int64_t indices[BATCH], first[BATCH], twin_indices[BATCH];
    per_tree* twin = create_tree(N, 77);
    update_all(twin, N, priorities_before);
    CHECK_OK(per_sample(tree, BATCH, PER_STRATIFIED, 1, first, NULL, NULL, NULL));
    CHECK_OK(per_sample(twin, BATCH, PER_STRATIFIED, 1, twin_indices, NULL, NULL, NULL));
    CHECK(memcmp(first, twin_indices, sizeof first) == 0);
    memcpy(indices, first, sizeof first);

    for (int i = 0; i < 2; ++i)
        CHECK_REFUSED(per_sample(tree, bad_sizes[i], PER_STRATIFIED, 1, indices, NULL, NULL, NULL), "batch_size");
    CHECK_REFUSED(per_sample(tree, 0, PER_STRATIFIED, 1, indices, NULL, NULL, NULL),
                  "batch_size is 0: allowed are 1 .. 16777216");
    CHECK_REFUSED(per_sample(tree, BATCH, -1, 1, indices, NULL, NULL, NULL), "scheme");
    CHECK_REFUSED(per_sample(tree, BATCH, 4, 1, indices, NULL, NULL, NULL), "scheme is 4: allowed are 0 .. 3");
    CHECK(memcmp(indices, first, sizeof first) == 0);
    check_unchanged();

    /* None of these counted as a draw: the next draw is unaffected. */
    CHECK_OK(per_sample(tree, BATCH, PER_STRATIFIED, 1, first, NULL, NULL, NULL));
    CHECK_OK(per_sample(twin, BATCH, PER_STRATIFIED, 1, twin_indices, NULL, NULL, NULL));
    CHECK(memcmp(first, twin_indices, sizeof first) == 0);
    per_tree_free(twin);
}

static void check_readers(void) {
    const int64_t indices[2] = {0, N};
    float priorities[2] = {-7, -7};
    per_tree_description description;
    unsigned char untouched[sizeof description];
    CHECK_BAD_ENTRY(per_tree_get_priorities(tree, 2, indices, priorities, NULL), "indices[1]");
    CHECK(priorities[0] == (on_cuda() ? priorities_before[0] : -7) && priorities[1] == (on_cuda() ? 0 : -7));
    CHECK_REFUSED(per_tree_get_priorities(tree, 2, NULL, priorities, NULL), "count");
    memset(&description, 0xAA, sizeof description);
    memset(untouched, 0xAA, sizeof untouched);
    CHECK_REFUSED(per_tree_describe(tree, &description, sizeof description - 8), "struct_size is 32");
    CHECK(memcmp(&description, untouched, sizeof description) == 0);
    CHECK_OK(per_tree_synchronize(tree, NULL));
    check_unchanged();
}

static void check_empty(void) {
    per_tree *empty = create_tree(N, 5), *twin = create_tree(N, 5);
    int64_t index = -7, twin_index = -7;
    uint64_t unit = 0;
    CHECK_FAILS(per_sample(empty, 1, PER_STRATIFIED, 1, &index, NULL, NULL, NULL), PER_ERROR_EMPTY, "0");
    CHECK_FAILS(per_tree_find_mass(empty, 1, &unit, &index, NULL), PER_ERROR_EMPTY, "0");
    CHECK(index == after_bad_entry());
    update_one(empty, 3, 1);
    update_one(empty, 50, 1);
    update_one(twin, 3, 1);
    update_one(twin, 50, 1);
    /* The failed call did not count as a draw. */
    CHECK_OK(per_sample(empty, 1, PER_INDEPENDENT, 1, &index, NULL, NULL, NULL));
    CHECK_OK(per_sample(twin, 1, PER_INDEPENDENT, 1, &twin_index, NULL, NULL, NULL));
    CHECK(index == twin_index);
    per_tree_free(empty);
    per_tree_free(twin);
}

int main(void) {
    float priorities[N];
    for (int i = 0; i < N; ++i) priorities[i] = (float)(i % 7);
    tree = create_tree(N, 77);
    CHECK(strcmp(per_last_error(), "") == 0);
    update_all(tree, N, priorities);
    remember();
    check_update();
    check_sample();
    check_readers();
    check_empty();
    per_tree_free(tree);
    per_tree_free(NULL);
    return 0;
}

/*
 * Makes one fault that the sanitizer of the build must report. All faults but "leak" and "undefined" are inside the
 * library.
 *
 *   seeded_fault overflow|leak|undefined|race|uninitialized
 */
#define _POSIX_C_SOURCE 200809L
#include <limits.h>
#include <pthread.h>

#include "../c/check.h"

enum { LEAVES = 1000 };

static per_tree* create(void) {
    per_tree_options options;
    per_tree* tree;
    CHECK_OK(per_tree_options_init(&options, sizeof options));
    options.capacity = LEAVES;
    CHECK_OK(per_tree_create(&options, &tree));
    return tree;
}

/* The library reads past the end of an array of priorities. */
static void overflow(void) {
    per_tree* tree = create();
    int64_t indices[3] = {0, 1, 2};
    float* priorities = calloc(2, sizeof *priorities);
    CHECK_OK(per_update(tree, 3, indices, priorities, NULL));
    free(priorities);
    per_tree_free(tree);
}

static void* volatile forgotten;

/* A leaked handle would not be reported: the library keeps pointers to all handles. */
static void leak(void) {
    forgotten = malloc(100);
    forgotten = NULL;
}

static volatile int largest = INT_MAX;

static void undefined(void) {
    largest = largest + 1;
}

static float shared[LEAVES];

static void* write_shared(void* unused) {
    int i;
    for (i = 0; i < LEAVES; ++i) shared[i] = 1;
    return unused;
}

/* The library reads priorities that another thread writes. */
static void race(void) {
    static int64_t indices[LEAVES];
    per_tree* tree = create();
    pthread_t writer;
    int i;
    for (i = 0; i < LEAVES; ++i) indices[i] = i;
    CHECK(pthread_create(&writer, NULL, write_shared, NULL) == 0);
    CHECK_OK(per_update(tree, LEAVES, indices, shared, NULL));
    CHECK(pthread_join(writer, NULL) == 0);
    per_tree_free(tree);
}

/* The library reads an uninitialized priority. */
static void uninitialized(void) {
    static void* volatile memory; /* hides the fault from the compiler */
    per_tree* tree = create();
    const int64_t index = 0;
    memory = malloc(sizeof(float));
    CHECK_OK(per_update(tree, 1, &index, memory, NULL));
    free(memory);
    per_tree_free(tree);
}

int main(int argc, char** argv) {
    static const struct {
        const char* name;
        void (*make)(void);
    } faults[] = {{"overflow", overflow},
                  {"leak", leak},
                  {"undefined", undefined},
                  {"race", race},
                  {"uninitialized", uninitialized}};
    size_t i;
    CHECK(argc == 2);
    for (i = 0; i < sizeof faults / sizeof *faults; ++i)
        if (strcmp(argv[1], faults[i].name) == 0) {
            faults[i].make();
            return 0;
        }
    return 2;
}

/* PER_ISA names the instruction set. An unknown name makes the creation of a tree fail. */
#define _POSIX_C_SOURCE 200809L
#include "tree_check.h"

int main(void) {
    per_tree_options options;
    per_tree* tree = (per_tree*)&options;
    per_status status;
    options = default_tree_options();
    options.capacity = 10;
    setenv("PER_ISA", "v9", 1);
    CHECK_REFUSED(per_tree_create(&options, &tree), "PER_ISA is \"v9\"");
    CHECK(tree == NULL);
    setenv("PER_ISA", "V3", 1);
    CHECK_REFUSED(per_tree_create(&options, &tree), "baseline");
#if defined(__x86_64__)
    /* The name is known; an error says so if the machine lacks the instructions. */
    setenv("PER_ISA", "v4", 1);
    status = per_tree_create(&options, &tree);
    if (status != PER_OK) CHECK(status == PER_ERROR_UNSUPPORTED && strstr(per_last_error(), "v4") != NULL);
    per_tree_free(tree);
#else
    (void)status;
#endif
    setenv("PER_ISA", "baseline", 1);
    CHECK_OK(per_tree_create(&options, &tree));
    per_tree_free(tree);
    return 0;
}

/* per_tree_options: what _init sets, and what per_tree_create() refuses. */
#include "tree_check.h"

static void check_refused(per_tree_options options, per_status status, const char* text) {
    per_tree* tree = (per_tree*)&options;
    CHECK_FAILS(per_tree_create(&options, &tree), status, text);
    CHECK(tree == NULL);
}

int main(void) {
    per_tree_options options, good;
    CHECK_OK(per_tree_options_init(&good, sizeof good));
    CHECK(good.struct_size == sizeof good && good.capacity == 0 && good.seed == 0);
    CHECK(good.device == PER_CPU && good.device_index == 0);
    check_refused(good, PER_ERROR_INVALID_ARGUMENT, "capacity");
    good.capacity = 10;
    good.device = test_device();

    options = good, options.capacity = -1;
    check_refused(options, PER_ERROR_INVALID_ARGUMENT, "capacity");
    options = good, options.capacity = (INT64_C(1) << 40) + 1;
    check_refused(options, PER_ERROR_INVALID_ARGUMENT, "capacity");
    options = good, options.device = 2;
    check_refused(options, PER_ERROR_INVALID_ARGUMENT, "device is 2: allowed are PER_CPU (0) and PER_CUDA (1)");
    options = good, options.device_index = -1;
    check_refused(options, PER_ERROR_INVALID_ARGUMENT,
                  on_cuda() ? "device_index is -1: must be >= 0" : "device_index is -1: must be 0 for PER_CPU");
    options = good, options.device_index = 1000;
    check_refused(options, on_cuda() ? PER_ERROR_NO_DEVICE : PER_ERROR_INVALID_ARGUMENT, "device_index is 1000");
    options.device = PER_CUDA; /* also with a library without CUDA */
    check_refused(options, PER_ERROR_NO_DEVICE, "CUDA");
    per_tree* tree = (per_tree*)&options;
    CHECK_REFUSED(per_tree_create(NULL, &tree), "options");
    CHECK(tree == NULL);

    CHECK(per_abi_version() == PER_ABI_VERSION);
    CHECK(strcmp(per_status_name(PER_OK), "PER_OK") == 0);
    CHECK(strcmp(per_status_name(PER_ERROR_CALLBACK), "PER_ERROR_CALLBACK") == 0);
    CHECK(strcmp(per_status_name(13), "unknown status") == 0 && strcmp(per_status_name(-1), "unknown status") == 0);
    return 0;
}

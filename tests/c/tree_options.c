/* per_tree_options: what _init sets, the accepted sizes, and what per_tree_create() refuses. */
#include "tree_check.h"

static void check_refused(per_tree_options options, per_status status, const char* text) {
    per_tree* tree = (per_tree*)&options;
    CHECK_FAILS(per_tree_create(&options, &tree), status, text);
    CHECK(tree == NULL);
}

static void sizes(void) {
    per_tree_options options;
    memset(&options, 0xAA, sizeof options);
    for (uint64_t size = 0; size < sizeof options; ++size)
        CHECK_REFUSED(per_tree_options_init(&options, size), "struct_size");
    CHECK_REFUSED(per_tree_options_init(&options, sizeof options + 1), "struct_size");
    CHECK_REFUSED(per_tree_options_init(&options, UINT64_MAX - 7), "struct_size");
    CHECK(((unsigned char*)&options)[0] == 0xAA);
    CHECK_REFUSED(per_tree_options_init(NULL, sizeof options), "options");
    /* A program built against a newer header: fields unknown to this library are set to zero. */
    uint64_t newer[sizeof options / sizeof(uint64_t) + 1];
    memset(newer, 0xAA, sizeof newer);
    CHECK_OK(per_tree_options_init((per_tree_options*)(void*)newer, sizeof newer));
    CHECK(newer[0] == sizeof newer && newer[sizeof options / sizeof(uint64_t)] == 0);
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
    per_tree* tree = (per_tree*)&options;
    CHECK_REFUSED(per_tree_create(NULL, &tree), "options");
    CHECK(tree == NULL);
    sizes();

    CHECK(per_abi_version() == PER_ABI_VERSION);
    CHECK(strcmp(per_status_name(PER_OK), "PER_OK") == 0);
    CHECK(strcmp(per_status_name(PER_ERROR_CALLBACK), "PER_ERROR_CALLBACK") == 0);
    CHECK(strcmp(per_status_name(13), "unknown status") == 0 && strcmp(per_status_name(-1), "unknown status") == 0);
    return 0;
}

/* Without CUDA or a device, a request for one is an error that gives the reason. */
#include "tree_check.h"

int main(void) {
    per_tree_options options;
    per_tree* tree = (per_tree*)&options;
    options = default_tree_options();
    options.capacity = 10;
    options.device = PER_CUDA;
    options.device_index = 1000;
    per_status status = per_tree_create(&options, &tree);
    CHECK(status == PER_ERROR_NO_DEVICE);
    CHECK(tree == NULL && strlen(per_last_error()) > 20);
    CHECK(strstr(per_last_error(), "CUDA") != NULL);
    return 0;
}

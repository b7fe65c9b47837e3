// The functions of per.h that are about the library itself.
#include "base/error.h"
#include "per.h"

using namespace per;

int32_t per_abi_version(void) {
    return PER_ABI_VERSION;
}

const char* per_version(void) {
    return PER_LIBRARY_VERSION;
}

const char* per_status_name(int32_t status) {
    return status_name(status);
}

const char* per_last_error(void) {
    return last_error();
}

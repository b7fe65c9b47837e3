#include "api/struct_size.h"

namespace per {

bool is_size_of_a_header(const uint64_t* sizes, std::size_t n_sizes, uint64_t size) {
    return std::find(sizes, sizes + n_sizes, size) != sizes + n_sizes;
}

}  // namespace per

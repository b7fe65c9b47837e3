// The functions of memory_linux.cpp for other systems, with calls of POSIX only.
#include <sys/mman.h>

#include <cerrno>

#include "system/memory.h"

namespace per {

bool use_huge_pages(std::byte*, std::size_t) {
    return false;
}

// mmap() with MAP_FIXED may remove the old mapping and then fail. So the part is mapped elsewhere first, which fails
// for most of the same reasons.
bool map_over(std::byte* address, std::size_t bytes, const FilePart& part, const FilePart& old_part) {
    std::byte* const beside = map_part(bytes, part);
    if (beside == nullptr) return false;
    munmap(beside, bytes);
    if (map_part(bytes, part, address, MAP_FIXED) != nullptr) return true;
    const int error = errno;
    map_part(bytes, old_part, address, MAP_FIXED);
    errno = error;
    return false;
}

}  // namespace per

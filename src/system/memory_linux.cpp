// Calls on memory that only Linux has. memory_posix.cpp has the same functions for other systems.
#include <sys/mman.h>

#include <cerrno>

#include "system/memory.h"

namespace per {

// Touching the first byte of a huge page makes its last byte resident, too.
bool use_huge_pages(std::byte* zeros, std::size_t bytes) {
    madvise(zeros, bytes, MADV_HUGEPAGE);  // if the kernel refuses, small pages do
    *static_cast<volatile std::byte*>(zeros) = std::byte{0};
    const std::size_t page = page_bytes();
    unsigned char is_resident = 0;
    return page < huge_page_bytes && mincore(zeros + huge_page_bytes - page, page, &is_resident) == 0 &&
           (is_resident & 1) != 0;
}

// mmap() with MAP_FIXED may remove the old mapping and then fail, for example because the file system refuses, and any
// read of the hole would fault. So the part is mapped elsewhere first, and mremap() moves that mapping over the old
// one.
bool map_over(std::byte* address, std::size_t bytes, const FilePart& part, const FilePart& old_part) {
    std::byte* const beside = map_part(bytes, part);
    if (beside == nullptr) return false;
    if (mremap(beside, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, address) != MAP_FAILED) return true;
    const int error = errno;
    munmap(beside, bytes);
    // Before Linux 5.2 mremap() removes the old mapping and then fails if the process has nearly as many mappings as it
    // may have. mmap() allows a few more.
    std::byte* const old = map_part(bytes, old_part, address, MAP_FIXED_NOREPLACE);
    if (old != nullptr && old != address) munmap(old, bytes);  // before Linux 4.17 the address is only a hint
    errno = error;
    return false;
}

}  // namespace per

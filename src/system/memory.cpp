#include "system/memory.h"

#include <sys/mman.h>
#include <unistd.h>

namespace per {

std::size_t page_bytes() {
    return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// The mapping is longer by the alignment; the parts before and after the aligned range are unmapped again.
std::byte* map_zeros(std::size_t bytes, std::size_t alignment) {
    void* const mapping = mmap(nullptr, bytes + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) return nullptr;
    std::byte* const start = static_cast<std::byte*>(mapping);
    const std::size_t beyond = reinterpret_cast<std::uintptr_t>(start) % alignment;
    const std::size_t before = beyond == 0 ? 0 : alignment - beyond;
    if (before != 0) munmap(start, before);
    munmap(start + before + bytes, alignment - before);
    return start + before;
}

std::byte* map_part(std::size_t bytes, const FilePart& part, void* address, int flags) {
    if (!part.file.is_open()) {
        void* const addresses =
            mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
        return addresses != MAP_FAILED ? static_cast<std::byte*>(addresses) : nullptr;
    }
    void* const mapping = mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, part.file.number(),
                               static_cast<off_t>(part.first));
    if (mapping == MAP_FAILED) return nullptr;
    posix_madvise(mapping, bytes, POSIX_MADV_RANDOM);
    return static_cast<std::byte*>(mapping);
}

void unmap(void* address, std::size_t bytes) {
    munmap(address, bytes);
}

}  // namespace per

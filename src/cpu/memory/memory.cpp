#include "cpu/memory/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace per::cpu {
namespace {

constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;
constexpr std::size_t least_mapped_bytes = huge_page_bytes / 4;

std::size_t page_bytes() {
    return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::size_t round_up(std::size_t bytes, std::size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

// Whole lines, and at least one.
std::size_t lines_of(std::size_t bytes) {
    return round_up(bytes == 0 ? 1 : bytes, line_bytes);
}

std::byte* allocate_units(std::size_t bytes, std::size_t unit) {
    const std::size_t size = round_up(bytes == 0 ? 1 : bytes, unit);
    void* const data = std::aligned_alloc(unit, size);
    if (data == nullptr) throw_out_of_memory(bytes);
    return static_cast<std::byte*>(std::memset(data, 0, size));
}

std::byte* allocate_from(const MemorySource& source, std::size_t size) {
    const char* const array = source.use == PER_MEMORY_ROWS ? "rows" : "priorities";
    const int64_t given_size = static_cast<int64_t>(size);
    void* const data = source.allocate(source.context, given_size, line_bytes, source.use);
    if (data == nullptr)
        throw Error(PER_ERROR_OUT_OF_MEMORY, "allocate returned NULL: %" PRId64 " bytes for %s were asked for",
                    given_size, array);
    if (reinterpret_cast<std::uintptr_t>(data) % line_bytes != 0) {
        source.deallocate(source.context, data, given_size, source.use);
        throw Error(PER_ERROR_CALLBACK, "allocate returned %p for %s: must be a multiple of %" PRId64, data, array,
                    line_bytes);
    }
    return static_cast<std::byte*>(std::memset(data, 0, size));
}

// A mapping of whole huge pages; what lies before and after them is unmapped again.
std::byte* map_huge_pages(std::size_t size) {
    void* const mapping =
        mmap(nullptr, size + huge_page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) throw_out_of_memory(size);
    std::byte* const start = static_cast<std::byte*>(mapping);
    const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(start);
    const std::size_t before = round_up(address, huge_page_bytes) - address;
    if (before != 0) munmap(start, before);
    if (before != huge_page_bytes) munmap(start + before + size, huge_page_bytes - before);
    madvise(start + before, size, MADV_HUGEPAGE);  // where the kernel refuses, small pages do
    return start + before;
}

// Touching the first byte of a huge page makes its last byte resident, too. `start` has not been touched before.
bool starts_on_huge_page(std::byte* start) {
    *static_cast<volatile std::byte*>(start) = std::byte{0};
    unsigned char is_resident = 0;
    return page_bytes() < huge_page_bytes &&
           mincore(start + huge_page_bytes - page_bytes(), page_bytes(), &is_resident) == 0 && (is_resident & 1) != 0;
}

}  // namespace

Memory::Memory(std::size_t bytes, const MemorySource& source) : bytes_(bytes), source_(source) {
    if (source_.allocate != nullptr) {
        if (bytes > INT64_MAX - line_bytes) throw_out_of_memory(bytes);
        data_ = allocate_from(source_, lines_of(bytes));
        return;
    }
    if (bytes < least_mapped_bytes) {
        data_ = allocate_units(bytes, source_.takes_pages ? page_bytes() : line_bytes);
        return;
    }
    if (bytes > SIZE_MAX - 2 * huge_page_bytes) throw_out_of_memory(bytes);
    const std::size_t size = round_up(bytes, huge_page_bytes);
    data_ = map_huge_pages(size);
    mapped_ = size;
    is_huge_ = starts_on_huge_page(data_);
}

Memory::~Memory() {
    if (source_.deallocate != nullptr && data_ != nullptr)
        source_.deallocate(source_.context, data_, static_cast<int64_t>(lines_of(bytes_)), source_.use);
    else if (mapped_ != 0)
        munmap(data_, mapped_);
    else
        std::free(data_);
}

std::size_t array_bytes(int64_t count, int64_t bytes) {
    int64_t product;
    if (__builtin_mul_overflow(count, bytes, &product))
        throw Error(PER_ERROR_OUT_OF_MEMORY, "out of memory: %" PRId64 " times %" PRId64 " bytes were asked for", count,
                    bytes);
    return static_cast<std::size_t>(product);
}

}  // namespace per::cpu

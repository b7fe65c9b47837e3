#include "cpu/memory/memory.h"

#include <cinttypes>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "system/memory.h"

namespace per::cpu {
namespace {

constexpr std::size_t least_mapped_bytes = huge_page_bytes / 4;

std::size_t round_up(std::size_t bytes, std::size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

// Bytes of whole lines, at least one.
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

}  // namespace

Memory::Memory(std::size_t bytes, const MemorySource& source) {
    MemoryOrigin origin = {bytes, 0, source, false};
    std::byte* data = nullptr;
    if (source.allocate != nullptr) {
        if (bytes > INT64_MAX - line_bytes) throw_out_of_memory(bytes);
        data = allocate_from(source, lines_of(bytes));
    } else if (bytes < least_mapped_bytes) {
        data = allocate_units(bytes, source.takes_pages ? page_bytes() : line_bytes);
    } else {
        if (bytes > SIZE_MAX - 2 * huge_page_bytes) throw_out_of_memory(bytes);
        origin.mapped = round_up(bytes, huge_page_bytes);
        data = map_zeros(origin.mapped, huge_page_bytes);
        if (data == nullptr) throw_out_of_memory(origin.mapped);
        origin.is_huge = use_huge_pages(data, origin.mapped);
    }
    data_ = {data, origin};
}

void MemoryOrigin::operator()(std::byte* data) const {
    if (source.deallocate != nullptr)
        source.deallocate(source.context, data, static_cast<int64_t>(lines_of(bytes)), source.use);
    else if (mapped != 0)
        unmap(data, mapped);
    else
        std::free(data);
}

std::size_t array_bytes(int64_t count, int64_t bytes) {
    int64_t product;
    if (__builtin_mul_overflow(count, bytes, &product))
        throw Error(PER_ERROR_OUT_OF_MEMORY, "out of memory: %" PRId64 " times %" PRId64 " bytes were asked for", count,
                    bytes);
    return static_cast<std::size_t>(product);
}

}  // namespace per::cpu

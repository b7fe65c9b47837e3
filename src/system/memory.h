// Memory and mapped files, from the operating system. A call that fails returns NULL or false, and errno has the
// reason.
#pragma once

#include <cstddef>
#include <cstdint>

#include "system/descriptor.h"

namespace per {

inline constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

std::size_t page_bytes();

// Maps zeros, at an address that is a multiple of `alignment`, a number of whole pages.
std::byte* map_zeros(std::size_t bytes, std::size_t alignment);
// Asks the system for huge pages for zeros that were just mapped, at an address aligned to huge pages. Returns true if
// the first byte is on a huge page; to find out, it writes to that byte.
bool use_huge_pages(std::byte* zeros, std::size_t bytes);

// A part of a file, to read and write. If the file is not open: addresses only, which cannot be accessed.
struct FilePart {
    const Descriptor& file;
    uint64_t first;
};
// Maps a part of a file. A page fault reads only the pages of the access, without read-ahead, since draws read rows at
// random places. `address` and `flags` go to mmap().
std::byte* map_part(std::size_t bytes, const FilePart& part, void* address = nullptr, int flags = 0);
// Maps a part of a file in place of another one. If that fails the old part is still mapped there.
bool map_over(std::byte* address, std::size_t bytes, const FilePart& part, const FilePart& old_part);
void unmap(void* address, std::size_t bytes);

}  // namespace per

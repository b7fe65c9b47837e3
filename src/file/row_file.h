// A file on the disk in which rows lie, mapped into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "file/disk_file.h"

namespace per {

// Zeros of so many bytes in a folder. The file has no name there, so nothing is left of it once the process has ended,
// however it ended, and those that were forked from it. It takes room on the disk piece by piece: what is to be written
// is reserved first, since a write to a mapped page that the disk has no room for is a signal (SIGBUS) and not an error.
class RowFile {
 public:
    // With all room reserved, or that of the first piece. Throws Error: IO, OUT_OF_MEMORY; UNSUPPORTED where the file
    // system cannot reserve room.
    RowFile(const char* folder, std::size_t bytes, bool is_preallocated);
    ~RowFile();
    RowFile(const RowFile&) = delete;
    RowFile& operator=(const RowFile&) = delete;

    std::byte* data() const { return data_; }

    // To be called before bytes of this range are written. Throws Error: IO, where the disk is full; nothing of what
    // the file holds has changed then.
    void reserve(std::size_t first, std::size_t n) {
        if (n_unreserved_ > 0 && n > 0) reserve_pieces(first, n);
    }

    // Has the system fetch a range that is read a little later. May reach beyond the end.
    void will_need(std::size_t first, std::size_t n) const noexcept;

 private:
    void reserve_pieces(std::size_t first, std::size_t n);
    void allocate(std::size_t first, std::size_t n);

    std::string shown_;
    Descriptor file_;
    std::size_t piece_bytes_;
    std::size_t mapped_bytes_;  // whole pieces
    std::vector<bool> is_reserved_;
    std::size_t n_unreserved_;
    std::byte* data_ = nullptr;
};

}  // namespace per

// Memory that several processes map. Linux only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "system/process_file.h"

namespace per {

// A mapped memfd. It has no name in any folder, so it is gone once no process has it. Its size is sealed: no process
// can make another one fault by truncating it.
class SharedMemory {
 public:
    // Maps n_bytes zeros, of which the first n_allocated are allocated; errors call the memory `noun`. Throws Error with
    // OUT_OF_MEMORY.
    SharedMemory(std::size_t n_bytes, std::size_t n_allocated, const char* noun);
    // Opens one by its path or, if that is NULL, by a descriptor, which stays the caller's. Throws Error: with IO if it
    // cannot be opened, with CORRUPT_FILE if it is not sealed memory.
    SharedMemory(const char* path, int descriptor, const char* noun);
    ~SharedMemory();
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;

    // Allocates bytes `first` .. `end` - 1, which must not be written before. Throws Error with OUT_OF_MEMORY.
    void allocate(std::size_t first, std::size_t end) const;

    std::byte* data() const { return data_; }
    std::size_t n_bytes() const { return n_bytes_; }
    int descriptor() const { return descriptor_; }
    // Other processes can open it by this path while this object lives.
    std::string path() const;
    // The same file, opened a second time for locks. Locks stay until their open file is closed. A forked child keeps
    // the mapping of its parent, and with it the open file that was mapped, so locks of that one would stay too long.
    const ProcessFile& locks() const { return *locks_; }

 private:
    void map(const char* noun);

    int descriptor_;
    std::size_t n_bytes_;
    std::byte* data_ = nullptr;
    std::unique_ptr<ProcessFile> locks_;
};

// Throws Error with OUT_OF_MEMORY if the system has no random number for a thing that errors call `noun`.
uint64_t random_number(const char* noun);

}  // namespace per

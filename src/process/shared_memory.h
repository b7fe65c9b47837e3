// Memory that several processes have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "threads/process_file.h"

namespace per {

// A memfd, mapped. It has no name in any folder, so nothing is left of it once no process has it. Its size is sealed:
// nobody can make another process fault by cutting it short.
class SharedMemory {
 public:
    // Of so many bytes, all 0 and all there. `noun` is what errors call it. Throws Error with OUT_OF_MEMORY.
    SharedMemory(std::size_t n_bytes, const char* noun);
    // Opens one by its path or, where that is NULL, a descriptor, which stays the caller's. Throws Error: with IO where
    // there is nothing to open, with CORRUPT_FILE where that is not sealed memory.
    SharedMemory(const char* path, int descriptor, const char* noun);
    ~SharedMemory();
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;

    std::byte* data() const { return data_; }
    std::size_t n_bytes() const { return n_bytes_; }
    int descriptor() const { return descriptor_; }
    // By which another process may open it, as long as this object lives.
    std::string path() const;
    // For locks. It is not mapped: a forked child has the mappings of its parent, and these hold a file and its locks.
    const ProcessFile& locks() const { return *locks_; }

 private:
    void map(const char* noun);

    int descriptor_;
    std::size_t n_bytes_;
    std::byte* data_ = nullptr;
    std::unique_ptr<ProcessFile> locks_;
};

}  // namespace per

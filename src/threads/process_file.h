// Files whose locks end with the process that took them.
#pragma once

#include <string>

#include "threads/descriptor.h"

namespace per {

// An open file that a forked child does not keep. So a lock on it (F_OFD_SETLK) is gone once this process has ended,
// however it ended, whatever children it leaves behind.
class ProcessFile {
 public:
    // For reading and writing. `noun` is what errors call it. Throws Error with IO, or OUT_OF_MEMORY where there is no
    // descriptor for it.
    ProcessFile(const std::string& path, const char* noun) : file_([&] { return open(path, noun); }) {}

    // A descriptor that forked children keep. Throws the same.
    static int open(const std::string& path, const char* noun);

    // -1 in a forked child.
    int descriptor() const { return file_.number(); }

    // Locks that byte of the file for this object, unless another one has it. Throws Error with OUT_OF_MEMORY.
    bool try_lock(int byte) const;
    void unlock(int byte) const noexcept;
    // Whether another object, of any process, has locked it.
    bool is_locked(int byte) const;

 private:
    Descriptor file_;
};

}  // namespace per

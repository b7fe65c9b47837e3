// Files whose locks end with the process that took them. Linux only.
#pragma once

#include <string>

#include "system/descriptor.h"

namespace per {

// An open file that a forked child does not keep. A lock on it (F_OFD_SETLK) therefore ends with this process, however
// the process ends and whatever children it leaves behind.
class ProcessFile {
 public:
    // Opens it for reading and writing; errors call it `noun`. Throws Error with IO, or with OUT_OF_MEMORY if the
    // system has no descriptor left.
    ProcessFile(const std::string& path, const char* noun) : file_([&] { return open(path, noun); }) {}

    // Returns a descriptor that forked children keep. Throws the same errors.
    static int open(const std::string& path, const char* noun);

    // -1 in a forked child.
    int descriptor() const { return file_.number(); }

    // Locks that byte of the file for this object. Returns false if another object has it. Throws Error with
    // OUT_OF_MEMORY.
    bool try_lock(int byte) const;
    void unlock(int byte) const noexcept;
    // True if another object, of any process, has locked it.
    bool is_locked(int byte) const;

 private:
    Descriptor file_;
};

}  // namespace per

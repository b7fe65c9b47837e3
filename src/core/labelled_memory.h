// What memory that a buffer's process shares with others begins with: a label, and the options of the buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/shared_memory.h"
#include "file/checkpoint_options.h"
#include "per.h"
#include "rows/fields.h"

namespace per {

// The first member of every header.
struct MemoryLabel {
    char magic[8];
    uint32_t version;
    uint32_t reserved;
    uint64_t number;         // random: only this memory has it
    uint64_t options_bytes;  // of the options, which follow the header
};

// What the memory is for.
struct MemoryKind {
    char magic[9];
    uint32_t version;
    const char* noun;  // what errors call it
    std::size_t header_bytes;
};

// Shared memory with a label. The process that opens it looks at the label and the options as it would at those of a
// file.
class LabelledMemory {
 public:
    // With those options. size_from(first byte) says how large it is.
    LabelledMemory(const MemoryKind& kind, const per_replay_options& options,
                   const std::function<std::size_t(std::size_t)>& size_from);
    // Opens one, by a path of path() or without the number behind its '#', or by a descriptor where that is NULL.
    // Throws Error for what per_writer_attach() says.
    LabelledMemory(const MemoryKind& kind, const char* path, int descriptor);

    std::byte* data() const { return memory_->data(); }
    std::size_t n_bytes() const { return memory_->n_bytes(); }
    // Where the header and the options end, on a line of the cache.
    std::size_t first_byte() const { return first_byte_; }
    const ProcessFile& locks() const { return memory_->locks(); }
    int descriptor() const { return memory_->descriptor(); }
    // With the number. Of memory that was created here.
    const std::string& path() const { return path_; }
    // Of memory that was opened.
    const Fields& fields() const { return *fields_; }
    const per_replay_options& options() const { return options_; }

    // Throws Error with CORRUPT_FILE.
    [[noreturn]] void refuse(const char* reason) const;

 private:
    void read_options(std::size_t n_bytes);

    MemoryKind kind_;
    std::unique_ptr<SharedMemory> memory_;
    std::size_t first_byte_ = 0;
    std::string path_;
    std::unique_ptr<CheckpointOptions> read_options_;
    std::unique_ptr<Fields> fields_;
    per_replay_options options_;
};

}  // namespace per

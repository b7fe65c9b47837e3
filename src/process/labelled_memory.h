// What memory that a buffer's process shares with others begins with: a label, and the options of the buffer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>

#include "file/checkpoint_options.h"
#include "per.h"
#include "process/shared_memory.h"
#include "rows/fields.h"

namespace per {

// A number in shared memory, which any process that has the memory may write to at any time. Nothing reads it by
// chance: a value that something follows from is checked by LabelledMemory::read(), which reads it once.
template <class Number>
class Untrusted {
 public:
    // The value, whatever it is: for flags and labels, of which each value means something, and for numbers that are
    // only shown or looked for.
    Number any() const noexcept { return number_; }

    void operator=(Number number) noexcept { number_ = number; }
    Number operator+=(Number number) noexcept { return number_ += number; }
    Number operator++() noexcept { return ++number_; }

 private:
    std::atomic<Number> number_;
    static_assert(std::atomic<Number>::is_always_lock_free);
};

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

    // The value of a number in the memory, which errors call `name`. Throws Error with CORRUPT_FILE unless it is one of
    // least .. most. A counter may wrap around between these two.
    template <class Number>
    Number read(const Untrusted<Number>& number, const char* name, std::type_identity_t<Number> least,
                std::type_identity_t<Number> most) const {
        using Unsigned = std::make_unsigned_t<Number>;
        const Number value = number.any();
        const auto from_least = [&](Number n) { return static_cast<Unsigned>(n) - static_cast<Unsigned>(least); };
        if (from_least(value) > from_least(most))
            throw_damaged(name,
                          std::to_string(value) + ", and not " + std::to_string(least) + " .. " + std::to_string(most));
        return value;
    }

    // Throws Error with CORRUPT_FILE.
    [[noreturn]] void refuse(const char* reason) const;

 private:
    void read_options(std::size_t n_bytes);
    [[noreturn]] void throw_damaged(const char* name, const std::string& found) const;

    MemoryKind kind_;
    std::unique_ptr<SharedMemory> memory_;
    std::size_t first_byte_ = 0;
    std::string path_;
    std::unique_ptr<CheckpointOptions> read_options_;
    std::unique_ptr<Fields> fields_;
    per_replay_options options_;
};

}  // namespace per

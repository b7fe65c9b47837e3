// Memory that the process of a buffer shares with others. It begins with a label and the options of the buffer.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>

#include "file/checkpoint_options.h"
#include "per.h"
#include "rows/fields.h"
#include "system/shared_bell.h"
#include "system/shared_memory.h"
#include "threads/deadline.h"

namespace per {

// Threads that sleep on a bell of another process check this often whether that process lives, as it may die before it
// rings. Tests of the bells set it so large that only a bell wakes a thread.
inline std::chrono::nanoseconds longest_sleep = std::chrono::milliseconds(100);

// A number in shared memory, which any process that has the memory may overwrite at any time. It has no implicit
// conversion: values that matter are read once, and checked, by LabelledMemory::read().
template <class Number>
class Untrusted {
 public:
    // The unchecked value: for flags and labels, of which every value is valid, and for numbers that are only shown or
    // compared.
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
    uint64_t number;         // random, and so different from that of any other memory
    uint64_t options_bytes;  // size of the options, which follow the header
};

// What shared memory is used for.
struct MemoryKind {
    char magic[9];
    uint32_t version;
    const char* noun;  // in errors
    std::size_t header_bytes;
    int creator_lock;  // the byte of the file that the process which created the memory has locked
};

// A part of the memory that is not allocated at creation: its pages are when they are first needed.
class LatePart {
 public:
    LatePart() = default;
    LatePart(std::size_t first, std::size_t n_bytes) : first_(first), end_(first + n_bytes), allocated_(first) {}

    std::size_t first() const { return first_; }
    std::size_t n_allocated() const { return allocated_ - first_; }
    // Allocates at least the first n_bytes, which must not be more than all. Throws Error with OUT_OF_MEMORY.
    void allocate(const SharedMemory& memory, std::size_t n_bytes);

 private:
    std::size_t first_ = 0;
    std::size_t end_ = 0;
    std::size_t allocated_ = 0;  // all before it is
};

// The sizes of shared memory.
struct MemorySize {
    std::size_t n_bytes;
    std::size_t n_allocated;  // at creation, from the first byte on
};

// The first cache line after `count` elements of `bytes` bytes each that begin at `first`. Throws Error with
// OUT_OF_MEMORY if the sum overflows.
std::size_t line_after(std::size_t first, std::size_t count, std::size_t bytes);

// Shared memory with a label, as one of its processes has it. A process that opens the memory checks the label and the
// options like those of a file.
class LabelledMemory {
 public:
    // Creates it with those options. size_from(first byte) returns its sizes. `fields` must outlive it. Throws Error.
    LabelledMemory(const MemoryKind& kind, const per_replay_options& options, const Fields& fields,
                   const std::function<MemorySize(std::size_t)>& size_from);
    // Opens it by a path(), with or without the number behind its '#', or by a descriptor if the path is NULL. Throws
    // the Errors of per_writer_attach().
    LabelledMemory(const MemoryKind& kind, const char* path, int descriptor);

    const SharedMemory& memory() const { return *memory_; }
    std::byte* data() const { return memory_->data(); }
    std::size_t n_bytes() const { return memory_->n_bytes(); }
    // The first cache line after the header and the options.
    std::size_t first_byte() const { return first_byte_; }
    const ProcessFile& locks() const { return memory_->locks(); }
    int descriptor() const { return memory_->descriptor(); }
    // The path with the number; only at the end that created the memory.
    const std::string& path() const { return path_; }
    const Fields& fields() const { return *fields_; }
    const per_replay_options& options() const { return options_; }

    // Returns the value of a number in the memory, which errors call `name`. Throws Error with CORRUPT_FILE unless it
    // is in least .. most. For a counter that wraps around, `least` may be larger than `most`.
    template <class Number>
    Number read(const Untrusted<Number>& number, const char* name, std::type_identity_t<Number> least,
                std::type_identity_t<Number> most) const {
        const Number value = number.any();
        check(name, value, least, most);
        return value;
    }
    // The same for a value that was read.
    template <class Number>
    void check(const char* name, Number value, std::type_identity_t<Number> least,
               std::type_identity_t<Number> most) const {
        using Unsigned = std::make_unsigned_t<Number>;
        const auto from_least = [&](Number n) { return static_cast<Unsigned>(n) - static_cast<Unsigned>(least); };
        if (from_least(value) > from_least(most))
            throw_damaged(name,
                          std::to_string(value) + ", and not " + std::to_string(least) + " .. " + std::to_string(most));
    }

    // Throws Error with CORRUPT_FILE.
    [[noreturn]] void refuse(const char* reason) const;

    // For the end that opened the memory: throw Error with INVALID_ARGUMENT if the other end is closed, or if its
    // process has ended.
    void check_open(const Untrusted<uint32_t>& is_closed) const;
    void check_alive() const {
        if (!is_creator_alive()) throw_ended();
    }
    // For the end that opened the memory: waits, with the guard unlocked, until is_over(). Returns false if the
    // deadline passes first. Throws what is_over() and check_alive() throw. await() returns the count of the bell, and
    // is called before is_over().
    template <class Await, class IsOver>
    bool wait(std::unique_lock<std::mutex>& guard, SharedBell& bell, const Deadline& deadline, Await await,
              IsOver is_over) const {
        for (;;) {
            const uint32_t seen = await();
            if (is_over()) return true;
            const std::chrono::nanoseconds left = deadline.left();
            guard.unlock();
            if (left.count() > 0) bell.sleep(seen, std::min(left, longest_sleep));
            const bool is_alive = is_creator_alive();  // before is_over(): it may do its work and then end
            guard.lock();
            if (is_over()) return true;
            if (!is_alive) throw_ended();
            if (left.count() <= 0) return false;
        }
    }

 private:
    bool is_creator_alive() const { return locks().is_locked(kind_.creator_lock); }
    [[noreturn]] void throw_ended() const;
    void read_options(std::size_t n_bytes);
    [[noreturn]] void throw_damaged(const char* name, const std::string& found) const;

    MemoryKind kind_;
    std::unique_ptr<SharedMemory> memory_;
    std::size_t first_byte_ = 0;
    std::string path_;
    std::unique_ptr<CheckpointOptions> read_options_;
    std::unique_ptr<Fields> read_fields_;
    const Fields* fields_;
    per_replay_options options_;
};

}  // namespace per

// What a checkpoint is, in a file or a stream: numbers and arrays one after the other, little-endian, with checksums in
// between.
//
//   magic (8 bytes), format version (uint32), 0 (uint32)
//   what the writer writes; each seal() is the XXH64 of all bytes before it
//
// It holds no lengths of its arrays. A reader works them out from numbers that it has read before, once a seal has
// confirmed them; so it never reads beyond the end.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "file/checksum.h"
#include "file/disk_file.h"

namespace per {

// Format 2 adds gather_threads, on_nan, suspected_resets, and the padding and default values of fields.
inline constexpr uint32_t checkpoint_version = 2;

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

// Writes a checkpoint, which is complete with commit().
class CheckpointWriter {
 public:
    // Takes the next bytes. What it throws passes through.
    using Write = std::function<void(const void* data, std::size_t size)>;

    explicit CheckpointWriter(Write write);
    // As ReplacementFile does: `path` gets the checkpoint with commit(), whole, or not at all.
    explicit CheckpointWriter(const char* path);
    CheckpointWriter(const CheckpointWriter&) = delete;
    CheckpointWriter& operator=(const CheckpointWriter&) = delete;

    void bytes(const void* data, std::size_t size);
    template <class Number>
    void number(Number value) {
        static_assert(std::is_arithmetic_v<Number>);
        bytes(&value, sizeof value);
    }
    // Writes the checksum of all bytes so far.
    void seal() { number(checksum_.value()); }
    void commit();

 private:
    void flush();

    std::optional<ReplacementFile> file_;
    Write write_;
    std::vector<char> buffer_;
    std::size_t n_buffered_ = 0;
    Checksum checksum_;
};

// Reads a checkpoint. Throws Error: that of InputFile where the file cannot be read, CORRUPT_FILE where it is not what
// a writer wrote, UNSUPPORTED for a newer format.
class CheckpointReader {
 public:
    // Reads the next bytes and returns how many: fewer than `size` where there are no more. What it throws passes
    // through.
    using Read = std::function<std::size_t(void* data, std::size_t size)>;

    explicit CheckpointReader(Read read);
    explicit CheckpointReader(const char* path);
    CheckpointReader(const CheckpointReader&) = delete;
    CheckpointReader& operator=(const CheckpointReader&) = delete;

    // The format of the file, at most checkpoint_version.
    uint32_t version() const { return version_; }

    // Says what is read from here on: the part that refuse() names, "" for the file as a whole.
    void begin(std::string_view part) { part_ = part; }

    void bytes(void* data, std::size_t size);
    template <class Number>
    Number number() {
        static_assert(std::is_arithmetic_v<Number>);
        Number value;
        bytes(&value, sizeof value);
        return value;
    }
    // A number that must lie within bounds.
    template <class Number>
    Number number(Number least, Number most) {
        const Number value = number<Number>();
        if (!(value >= least && value <= most)) refuse("a number in it is out of range");
        return value;
    }
    // Reads a seal, which must be the checksum of all bytes before it.
    void check_seal();
    // Checks that nothing follows in a file. What follows in a stream is not looked at.
    void finish();

    [[noreturn]] void refuse(const char* reason) const;

 private:
    void read_version();

    std::optional<InputFile> file_;
    Read read_;
    std::string shown_;  // what messages call it
    uint32_t version_ = 0;
    std::string part_;
    Checksum checksum_;
};

}  // namespace per

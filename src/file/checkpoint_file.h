// A checkpoint in a file or a stream: a sequence of sections, each with its name, its size and its checksum.
// docs/format.md describes every byte.
//
// A reader knows which section comes next and, from the sections before it, how large an array must be. So it never
// allocates by a number that no checksum has confirmed, and never reads beyond the end.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "file/checkpoint_folder.h"
#include "file/checksum.h"
#include "file/compression.h"
#include "file/disk_file.h"

namespace per {

// The format that this library writes, and the latest that it can read. A change that readers of this format would not
// expect takes the next number.
inline constexpr uint32_t checkpoint_version = 1;

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

// Bytes of a section that are compressed at a time.
inline constexpr std::size_t max_piece_bytes = std::size_t{1} << 20;

// Collects the content of a small section, whose size is written before it.
class SectionContent {
 public:
    void bytes(const void* data, std::size_t size) {
        bytes_.resize(bytes_.size() + size);
        std::memcpy(bytes_.data() + bytes_.size() - size, data, size);
    }
    template <class Number>
    void number(Number value) {
        static_assert(std::is_arithmetic_v<Number>);
        bytes(&value, sizeof value);
    }
    const std::vector<char>& bytes() const { return bytes_; }

 private:
    std::vector<char> bytes_;
};

// Writes a checkpoint, which is complete after commit().
class CheckpointWriter {
 public:
    // Receives the next bytes. Its exceptions are passed on.
    using Write = std::function<void(const void* data, std::size_t size)>;

    // `compression` is the level of zstd, or 0.
    explicit CheckpointWriter(Write write, int32_t compression = 0);
    // Atomic like ReplacementFile: `path` is replaced by commit(), or left unchanged.
    explicit CheckpointWriter(const char* path, int32_t compression = 0);
    // Writes to a folder, whose FolderWriter compresses. commit() puts the checkpoint there.
    explicit CheckpointWriter(FolderWriter& folder);
    CheckpointWriter(const CheckpointWriter&) = delete;
    CheckpointWriter& operator=(const CheckpointWriter&) = delete;

    // Write a section that may be compressed: begin(), its content of `size` bytes with bytes(), and end().
    void begin(std::string_view section, uint64_t size);
    void bytes(const void* data, std::size_t size);
    void end();
    // Call after begin(): offsets in the content, in ascending order, at which a folder should cut it. The bytes
    // between two of them are likely to be the same in the next checkpoint, whatever else changes.
    void cut_at(std::vector<uint64_t> places);
    bool takes_cuts() const { return folder_ != nullptr; }
    // True if rows stay in their file (see RowTable). A section whose elements lie there, at offset `place` in the
    // record of each slot, is written by leave_in_rows() instead of begin(), bytes() and end().
    bool leaves_rows() const { return folder_ != nullptr && folder_->leaves_rows(); }
    void leave_in_rows(std::string_view section, uint64_t size, uint64_t place, uint64_t record_bytes);
    // If takes_turns(), the contents of several sections can be written alternately. For each, begin() and put_off()
    // reserve its `size` bytes in the file. take_turn(t) writes the next bytes of the t-th, counted from 0; end_turns()
    // ends them all.
    bool takes_turns() const { return file_ && compression_ == nullptr; }
    void put_off(uint64_t size);
    void take_turn(std::size_t t, const void* data, std::size_t size);
    void end_turns();
    // Writes a whole section without compression.
    void write(std::string_view section, const SectionContent& content);

    void commit();

 private:
    void begin(std::string_view section, uint64_t size, uint32_t kind);
    void store_piece();
    // Writes bytes of the file, without compression.
    void store(const void* data, std::size_t size);
    template <class Number>
    void store_number(Number value) {
        store(&value, sizeof value);
    }
    void flush();

    std::optional<ReplacementFile> file_;
    FolderWriter* folder_ = nullptr;
    Write write_;
    std::vector<uint64_t> cuts_;
    std::size_t next_cut_ = 0;
    uint64_t n_of_section_ = 0;  // bytes
    struct Turn {
        uint64_t place;  // offset of its next bytes in the file
        Checksum checksum;
    };
    std::vector<Turn> turns_;
    uint64_t n_stored_ = 0;  // bytes of the file so far, including those put off
    std::vector<char> buffer_;
    std::size_t n_buffered_ = 0;
    std::unique_ptr<Compression> compression_;  // NULL without compression
    std::vector<char> piece_;                   // content that is not packed yet
    std::size_t n_in_piece_ = 0;
    std::vector<char> packed_;
    Checksum checksum_;           // of the section
    Checksum checksum_of_seals_;  // of the checksums of all sections
};

// Reads a checkpoint. Throws Error: that of InputFile if the file cannot be read, CORRUPT_FILE if no writer wrote it,
// UNSUPPORTED for a newer format.
class CheckpointReader {
 public:
    // Reads the next bytes and returns their number: fewer than `size` at the end only. Its exceptions are passed on.
    using Read = std::function<std::size_t(void* data, std::size_t size)>;

    explicit CheckpointReader(Read read);
    // Reads a single file or a checkpoint folder, for which it waits like FolderReader.
    explicit CheckpointReader(const char* path, int64_t timeout_ms = PER_DIRECTORY_TIMEOUT_MS);
    CheckpointReader(const CheckpointReader&) = delete;
    CheckpointReader& operator=(const CheckpointReader&) = delete;

    // Begins the next section, which must have that name.
    void begin(std::string_view section);
    // Begins an array, which must also have that size. Either all arrays are compressed or none. Throws UNSUPPORTED for
    // a compressed array if libper was built without zstd.
    void begin(std::string_view section, uint64_t size);
    // Begins an array that may have any size, and is not in the file of the rows.
    void begin_any_size(std::string_view section);
    void bytes(void* data, std::size_t size);
    // Refuses the section if it has fewer bytes left.
    void require(uint64_t size) const;
    // If takes_turns(), and after one array has been read, several arrays can be read alternately: call begin() and
    // put_off() for each, which skips its content. After take_up(t), bytes() and end() act on the t-th of them, counted
    // from 0. All must end, in order, before the next section begins.
    bool takes_turns() const { return file_ && compression_ == nullptr; }
    void put_off();
    void take_up(std::size_t t) { section_ = &put_off_[t]; }
    template <class Number>
    Number number() {
        static_assert(std::is_arithmetic_v<Number>);
        Number value;
        bytes(&value, sizeof value);
        return value;
    }
    // Reads a number that must be least .. most.
    template <class Number>
    Number number(Number least, Number most) {
        const Number value = number<Number>();
        if (!(value >= least && value <= most)) refuse("a number in it is out of range");
        return value;
    }
    // True if the elements of the section are in the file of the rows, at offset row_place() in the record of each
    // slot.
    bool is_in_rows() const { return is_in_rows_; }
    uint64_t row_place() const { return folder_->rows()->arrays[n_arrays_in_rows_ - 1]; }
    RowReader& row_reader();
    // The folder, if its checkpoint leaves rows in their file; else NULL.
    const FolderReader* folder_with_rows() const { return folder_ && folder_->rows() != nullptr ? &*folder_ : nullptr; }
    // Checks that the whole section was read, and its checksum.
    void end();
    // Checks that the checkpoint is complete. In a file no bytes may follow it; in a stream nothing behind it is read.
    void finish();

    [[noreturn]] void refuse(const char* reason) const;
    // Throws UNSUPPORTED for an option that this libper does not have.
    [[noreturn]] void refuse_option(const char* reason) const;

 private:
    void check_version();
    void begin(std::string_view section, bool is_array);
    void begin_compression();
    [[noreturn]] void refuse_compression();
    void load_piece(void* piece_out, std::size_t size);
    void unpack(char* data, std::size_t size);
    // Reads bytes of the file, without decompression.
    void load(void* data, std::size_t size);
    template <class Number>
    Number load_number() {
        Number value;
        load(&value, sizeof value);
        return value;
    }

    std::optional<InputFile> file_;
    std::optional<FolderReader> folder_;
    Read read_;
    struct Section {
        std::string name;
        uint64_t n_left = 0;  // unread bytes of its content
        Checksum checksum;
        std::optional<uint64_t> place;  // offset of its next byte in the file, if it was put off
    };

    std::string shown_;  // its name in messages
    Section latest_;     // the last section that has begun
    std::vector<Section> put_off_;
    Section* section_ = &latest_;
    bool has_begun_arrays_ = false;
    bool is_compressed_ = false;  // the latest section
    bool is_in_rows_ = false;     // the latest section
    std::size_t n_arrays_in_rows_ = 0;
    std::unique_ptr<RowReader> row_reader_;
    std::unique_ptr<Compression> compression_;  // NULL without compression
    std::vector<char> packed_;
    std::vector<char> piece_;          // the latest piece of the content
    std::size_t n_left_of_piece_ = 0;  // unread bytes at its end
    Checksum checksum_of_seals_;
};

}  // namespace per

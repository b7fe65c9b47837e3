// What a checkpoint is, in a file or a stream: sections one after the other, each with its name, its size and a checksum
// of its own. docs/format.md has every byte.
//
// A reader knows which section comes next and, from those before it, how large an array must be. So it takes no memory
// by a number that no checksum has confirmed, and never reads beyond the end.
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

// The number of the format that this library writes, which is also the latest that it can read. A change that readers of
// this format would not expect takes the next number.
inline constexpr uint32_t checkpoint_version = 1;

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

// How much of a section is compressed at a time.
inline constexpr std::size_t max_piece_bytes = std::size_t{1} << 20;

// The content of a small section, whose size is known once all of it is there.
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

// Writes a checkpoint, which is complete with commit().
class CheckpointWriter {
 public:
    // Takes the next bytes. What it throws passes through.
    using Write = std::function<void(const void* data, std::size_t size)>;

    // `compression` is the level of zstd, or 0.
    explicit CheckpointWriter(Write write, int32_t compression = 0);
    // As ReplacementFile does: `path` gets the checkpoint with commit(), whole, or not at all.
    explicit CheckpointWriter(const char* path, int32_t compression = 0);
    // The folder gets it with commit(). It compresses by itself.
    explicit CheckpointWriter(FolderWriter& folder);
    CheckpointWriter(const CheckpointWriter&) = delete;
    CheckpointWriter& operator=(const CheckpointWriter&) = delete;

    // A section that may be compressed: begin(), its content by bytes(), of `size` bytes in all, and end().
    void begin(std::string_view section, uint64_t size);
    void bytes(const void* data, std::size_t size);
    void end();
    // Says after begin() at which places of the content, in ascending order, a folder had best cut it: where what lies
    // between two will be the same in the next checkpoint, whatever else changes.
    void cut_at(std::vector<uint64_t> places);
    bool takes_cuts() const { return folder_ != nullptr; }
    // Whether rows stay in their file. A section whose elements lie there, at that place in the record of each slot, is
    // written by leave_in_rows() in place of begin(), bytes() and end().
    bool leaves_rows() const { return folder_ != nullptr && folder_->leaves_rows(); }
    void leave_in_rows(std::string_view section, uint64_t size, uint64_t place, uint64_t record_bytes);
    // Where it takes_turns(), several sections may be written together: begin(), and put_off() in place of bytes() and
    // end(), for one after the other; then, for the t-th of them, the next bytes of its content by take_turn(t); and
    // end_turns() once all have what they are to have.
    bool takes_turns() const { return file_ && compression_ == nullptr; }
    void put_off(uint64_t size);
    void take_turn(std::size_t t, const void* data, std::size_t size);
    void end_turns();
    // A whole section, which is not compressed.
    void write(std::string_view section, const SectionContent& content);

    void commit();

 private:
    void begin(std::string_view section, uint64_t size, uint32_t kind);
    void store_piece();
    // Writes bytes as they are to be in the file.
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
        uint64_t place;  // in the file, of its next bytes
        Checksum checksum;
    };
    std::vector<Turn> turns_;
    uint64_t n_stored_ = 0;  // bytes of the file so far, with those that are put off
    std::vector<char> buffer_;
    std::size_t n_buffered_ = 0;
    std::unique_ptr<Compression> compression_;  // where sections are compressed
    std::vector<char> piece_;                   // of the content, not packed yet
    std::size_t n_in_piece_ = 0;
    std::vector<char> packed_;
    Checksum checksum_;           // of the section
    Checksum checksum_of_seals_;  // of the checksums of all sections
};

// Reads a checkpoint. Throws Error: that of InputFile where the file cannot be read, CORRUPT_FILE where it is not what
// a writer wrote, UNSUPPORTED for a newer format.
class CheckpointReader {
 public:
    // Reads the next bytes and returns how many: fewer than `size` where there are no more. What it throws passes
    // through.
    using Read = std::function<std::size_t(void* data, std::size_t size)>;

    explicit CheckpointReader(Read read);
    // Reads either a single file or a checkpoint folder, for which it waits as FolderReader does.
    explicit CheckpointReader(const char* path, int64_t timeout_ms = PER_DIRECTORY_TIMEOUT_MS);
    CheckpointReader(const CheckpointReader&) = delete;
    CheckpointReader& operator=(const CheckpointReader&) = delete;

    // The next section, which must have that name.
    void begin(std::string_view section);
    // And that size. It may be compressed: the first one says whether all of them are. Throws UNSUPPORTED where libper
    // was built without zstd.
    void begin(std::string_view section, uint64_t size);
    void bytes(void* data, std::size_t size);
    // Where it takes_turns(), once one array is read, several may be read together: begin(), and put_off() in place of
    // bytes() and end(), for one after the other. From take_up(t) on bytes() and end() are those of the t-th of them.
    // They must all have ended, in order, before the section after them begins.
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
    // A number that must lie within bounds.
    template <class Number>
    Number number(Number least, Number most) {
        const Number value = number<Number>();
        if (!(value >= least && value <= most)) refuse("a number in it is out of range");
        return value;
    }
    // Whether the elements of the section are not in it, but in the file of the rows, and there at row_place() of the
    // record of each slot.
    bool is_in_rows() const { return is_in_rows_; }
    uint64_t row_place() const { return folder_->rows()->arrays[n_arrays_in_rows_ - 1]; }
    RowReader& row_reader();
    // The folder that it is read from, whose checkpoint leaves rows in their file; else NULL.
    const FolderReader* folder_with_rows() const { return folder_ && folder_->rows() != nullptr ? &*folder_ : nullptr; }
    // Checks that all of the section was read, and its checksum.
    void end();
    // Checks that the checkpoint is whole, and that nothing follows in a file. What follows in a stream is not looked
    // at.
    void finish();

    [[noreturn]] void refuse(const char* reason) const;
    // Throws UNSUPPORTED, for an option that this libper does not have.
    [[noreturn]] void refuse_option(const char* reason) const;

 private:
    void check_version();
    void begin(std::string_view section, bool is_array);
    void begin_compression();
    [[noreturn]] void refuse_compression();
    void load_piece(void* piece_out, std::size_t size);
    void unpack(char* data, std::size_t size);
    // Reads bytes as they are in the file.
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
        uint64_t n_left = 0;  // bytes of its content that were not read yet
        Checksum checksum;
        std::optional<uint64_t> place;  // in the file, of its next byte, if it was put off
    };

    std::string shown_;  // what messages call it
    Section latest_;     // of those that have begun
    std::vector<Section> put_off_;
    Section* section_ = &latest_;
    bool has_begun_arrays_ = false;
    bool is_compressed_ = false;  // the latest section, as is the next
    bool is_in_rows_ = false;
    std::size_t n_arrays_in_rows_ = 0;
    std::unique_ptr<RowReader> row_reader_;
    std::unique_ptr<Compression> compression_;  // where sections are compressed
    std::vector<char> packed_;
    std::vector<char> piece_;          // the latest of the content
    std::size_t n_left_of_piece_ = 0;  // its last bytes, which were not read yet
    Checksum checksum_of_seals_;
};

}  // namespace per

// A file on the disk in which rows lie, mapped into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "file/disk_file.h"

namespace per {

// Where the rows of a checkpoint are that stay in their file: what its manifest says.
struct RowTable {
    struct Piece {
        uint64_t place;   // in the file, counted in pieces
        uint64_t blocks;  // a bit for each that may hold rows
        uint64_t hash;    // XXH3 of 64 bits of those, one behind the other; 0: there are none

        bool operator==(const Piece&) const = default;
    };

    uint64_t number = 0;           // of the file
    uint64_t piece_bytes = 0;      // a power of two, as is the next
    uint64_t block_bytes = 0;      // at most 64 of them are a piece
    uint64_t record_bytes = 0;     // of a slot
    std::vector<uint64_t> arrays;  // for each array whose elements are there, their place in the record
    std::vector<Piece> pieces;     // which make up the records of all slots, one behind the other
};

// The name of a file of rows, and the number in such a name; no_row_file where it is none.
inline constexpr uint64_t no_row_file = UINT64_MAX;
std::string row_file_name(uint64_t number);
uint64_t row_file_number(const std::string& name);

// Rows in a mapped file of a folder. create() makes a file of zeros, and adopt() takes the file of a checkpoint with its
// rows: one of them must be called before a byte is read or written. A file that was created has no name in the folder,
// so nothing is left of it once the process and all forked from it have ended. Disk space is allocated block by
// block before it is written, since a write to a mapped page without space raises SIGBUS instead of an error.
//
// A checkpoint in that folder names the file, and the pieces of it that hold rows. What a checkpoint names is never
// written again: where such a piece is reserved, a copy of it takes its place, mapped to where the piece was. The old
// one is used again once a later checkpoint has taken the place of the one that names it. So a checkpoint has to bring
// to the disk only what came since the last one, and whatever ends the process or the power, all that is named is there.
//
// Each piece may be a mapping of its own, of which a process has some 65,000: there are 4096 pieces at most.
class RowFile {
 public:
    // Takes addresses, and nothing on the disk. Throws Error: IO, OUT_OF_MEMORY.
    RowFile(const char* folder, std::size_t bytes);
    ~RowFile();
    RowFile(const RowFile&) = delete;
    RowFile& operator=(const RowFile&) = delete;

    std::byte* data() const { return data_; }

    // With all room reserved, or that of the first block. Throws Error: IO, OUT_OF_MEMORY; UNSUPPORTED where the file
    // system cannot reserve room.
    void create(bool is_preallocated);

    // To be called before bytes of this range are written. Throws Error: IO, where the disk is full; nothing of what
    // the file holds has changed then.
    void reserve(std::size_t first, std::size_t n) {
        if (n == 0) return;
        for (std::size_t block = first / block_bytes_; block <= (first + n - 1) / block_bytes_; ++block)
            if (!has(pieces_[block / n_blocks_].ready, block)) make_ready(block);
    }
    // Reserves all room that is missing.
    void preallocate();
    // Whether each block of a range was ever reserved.
    bool holds(std::size_t first, std::size_t n) const;

    // Has the system fetch a range that is read a little later. May reach beyond the end.
    void will_need(std::size_t first, std::size_t n) const noexcept;

    // For a checkpoint in a folder, which is locked all the time. take_name() says whether the rows may stay in the
    // file: it is in that folder, and has a name there now. Then write_out() fills the table but its arrays: all that it
    // names is on the disk. From keep() on the checkpoint may be there, and what it names is not written any more. Once
    // it has taken the place of the last one for good, committed() frees what only that one had.
    bool take_name(const LockedFolder& folder);
    uint64_t number() const { return number_; }
    void write_out(RowTable& table_out);
    void keep() noexcept;
    void committed() noexcept;

    // Becomes the file of a checkpoint in its own folder, which is locked, with all rows that it has: they are mapped,
    // and not read. No room on the disk is needed. Returns false, and changes nothing, where it lies elsewhere or has other pieces. Throws Error: BUSY
    // where a buffer has the file, CORRUPT_FILE where it is not that of the table.
    bool adopt(const LockedFolder& folder, const RowTable& table);

 private:
    struct Piece {
        uint64_t place;
        uint64_t room;   // blocks that have room on the disk
        uint64_t held;   // that may hold rows
        uint64_t ready;  // that may be written now
        uint64_t hash;   // of when it was named
        bool is_named;   // by a checkpoint
    };
    struct Place {
        uint64_t number;
        uint64_t room;
    };

    [[noreturn]] void refuse(const char* action) const;  // for errno
    bool has(uint64_t blocks, std::size_t block) const { return blocks >> block % n_blocks_ & 1; }
    void make_ready(std::size_t block);
    void allocate(std::size_t first, std::size_t n);
    void allocate_blocks(uint64_t place, uint64_t blocks);
    void replace(std::size_t piece, uint64_t blocks);
    Place take_place();
    void copy(std::size_t piece, uint64_t place);
    template <class Visit>
    void for_each_part(std::size_t piece, const Visit& visit) const;
    void map(const Descriptor& file, std::size_t piece, uint64_t place) const;
    std::size_t start_of(std::size_t piece) const { return piece * piece_bytes_; }
    std::size_t bytes_of(std::size_t piece) const;
    uint64_t blocks_of(std::size_t piece) const;
    uint64_t hash_of_piece(std::size_t piece) const;
    bool is_in(const LockedFolder& folder) const;

    std::string path_;  // of the folder
    std::string shown_;
    bool is_preallocated_ = false;
    Descriptor folder_;
    Descriptor file_;
    bool can_have_name_ = true;
    uint64_t number_ = no_row_file;  // of its name
    bool was_kept_ = false;          // a checkpoint may name it
    uint32_t process_;               // that may remove its name
    std::size_t piece_bytes_;
    std::size_t block_bytes_;
    std::size_t n_blocks_;      // of a piece
    std::size_t mapped_bytes_;  // whole blocks
    std::byte* data_ = nullptr;
    std::vector<Piece> pieces_;
    uint64_t n_places_;           // of the file
    std::vector<Place> free_;     // that nothing needs
    std::vector<Place> retired_;  // that only the last checkpoint needs
};

// Reads the rows of a checkpoint in a folder, which is locked as long as this lives.
class RowReader {
 public:
    // Throws Error: IO, CORRUPT_FILE where the file is not that of the table.
    RowReader(const LockedFolder& folder, const RowTable& table);

    // Bytes of the records. Throws Error: IO, CORRUPT_FILE where they are not what the checkpoint wrote.
    void read(uint64_t first, void* data, std::size_t size);

 private:
    void load(uint64_t block);
    void check(uint64_t piece);
    void read_block(const RowTable::Piece& piece, uint64_t i);
    [[noreturn]] void refuse(const char* reason) const;

    const LockedFolder& folder_;
    const RowTable& table_;
    const uint64_t n_blocks_;  // of a piece
    Descriptor file_;
    uint64_t file_bytes_ = 0;
    std::vector<bool> is_checked_;  // by piece
    std::vector<std::byte> block_;
    uint64_t loaded_ = UINT64_MAX;  // the block
};

}  // namespace per

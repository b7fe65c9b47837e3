// Rows in a file on the disk that is mapped into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "file/disk_file.h"

namespace per {

// The part of a manifest about a row file. If the checkpoint is in the folder of that file, the rows stay in their
// file: the manifest names its pieces, and no row is copied.
struct RowTable {
    struct Piece {
        uint64_t place;   // in the file, counted in pieces
        uint64_t blocks;  // a bit for each block that may hold rows
        uint64_t hash;    // XXH3-64 of these blocks in order; 0 without any

        bool operator==(const Piece&) const = default;
    };

    uint64_t number = 0;           // of the file
    uint64_t piece_bytes = 0;      // a power of two
    uint64_t block_bytes = 0;      // a power of two; at most 64 blocks are a piece
    uint64_t record_bytes = 0;     // of a slot
    std::vector<uint64_t> arrays;  // for each array in the file, the offset of its element in a record
    std::vector<Piece> pieces;     // one after the other they hold the records of all slots
};

// The name of a file of rows, and the number in such a name; no_row_file for any other name.
inline constexpr uint64_t no_row_file = UINT64_MAX;
std::string row_file_name(uint64_t number);
uint64_t row_file_number(const std::string& name);

// Rows in a mapped file of a folder. Before any byte is read or written, call create(), which makes a file of zeros, or
// adopt(), which continues with the file of a checkpoint. A created file has no name in the folder, so it is gone once
// the process and its forked children have ended. Disk space is allocated block by block before it is written, since a
// write to a mapped page without space raises SIGBUS instead of an error.
//
// A checkpoint in that folder names the file and its pieces that hold rows. These are never written again: reserve()
// copies such a piece to another place in the file, and maps the copy instead. The old place is free once a later
// checkpoint has replaced the one that names it. So a checkpoint writes only rows that are new since the last one, and
// after a crash or a power failure all rows that it names are on the disk.
//
// Each piece may need a separate mapping, and a process can have some 65,000: there are at most 4096 pieces.
class RowFile {
 public:
    // Reserves addresses, but nothing on the disk. Throws Error: IO, OUT_OF_MEMORY.
    RowFile(const char* folder, std::size_t bytes);
    ~RowFile();
    RowFile(const RowFile&) = delete;
    RowFile& operator=(const RowFile&) = delete;

    std::byte* data() const { return data_; }

    // Creates the file, and reserves disk space for all of it or only for its first block. Throws Error: IO,
    // OUT_OF_MEMORY; UNSUPPORTED if the file system cannot reserve space.
    void create(bool is_preallocated);

    // Must be called before bytes of this range are written. Throws Error with IO if the disk is full; the rows are
    // then unchanged.
    void reserve(std::size_t first, std::size_t n) {
        if (n == 0) return;
        for (std::size_t block = first / block_bytes_; block <= (first + n - 1) / block_bytes_; ++block)
            if (!has(pieces_[block / n_blocks_].ready, block)) make_ready(block);
    }
    void preallocate();
    // True if all blocks of a range were reserved before.
    bool holds(std::size_t first, std::size_t n) const;

    // Prefetches a range, which may reach beyond the end.
    void will_need(std::size_t first, std::size_t n) const noexcept;

    // For a checkpoint in `folder`, which stays locked. take_name() returns false if the file is in another folder or
    // can get no name; otherwise it gives the file a name, and the rows may stay in it. Then write_out() writes all
    // rows to the disk and fills the table, except for its arrays. Call keep() before the checkpoint can exist: its
    // pieces are not written after that. Call committed() once it has replaced the previous checkpoint on the disk:
    // this frees the pieces that only the previous one used.
    bool take_name(const LockedFolder& folder);
    uint64_t number() const { return number_; }
    void write_out(RowTable& table_out);
    void keep() noexcept;
    void committed() noexcept;

    // Maps the row file of the checkpoint in `folder`, to continue with it. Reads no rows and allocates no disk space.
    // Returns false, without a change, if this object was constructed for another folder, or if the checkpoint divides
    // rows into pieces of another size or number. Throws Error: BUSY if a buffer uses the file, CORRUPT_FILE if the
    // file does not fit the table.
    bool adopt(const LockedFolder& folder, const RowTable& table);

 private:
    struct Piece {
        uint64_t place;
        uint64_t room;   // blocks with disk space
        uint64_t held;   // blocks that may hold rows
        uint64_t ready;  // blocks that may be written now
        uint64_t hash;   // at the last checkpoint
        bool is_named;   // by a checkpoint
    };
    struct Place {
        uint64_t number;
        uint64_t room;
    };

    [[noreturn]] void refuse(const char* action) const;  // with the reason in errno
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
    uint32_t process_;               // the only process that may remove the name
    std::size_t piece_bytes_;
    std::size_t block_bytes_;
    std::size_t n_blocks_;      // of a piece
    std::size_t mapped_bytes_;  // whole blocks
    std::byte* data_ = nullptr;
    std::vector<Piece> pieces_;
    uint64_t n_places_;  // of the file
    std::vector<Place> free_;
    std::vector<Place> retired_;  // places that only the last checkpoint needs
};

// Reads the rows of a checkpoint in a folder, which must stay locked while this object lives.
class RowReader {
 public:
    // Throws Error: IO, CORRUPT_FILE.
    RowReader(const LockedFolder& folder, const RowTable& table);

    // Reads bytes of the records. Throws Error: IO, CORRUPT_FILE if the checkpoint did not write these.
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
    uint64_t loaded_ = UINT64_MAX;  // number of the block in block_
};

}  // namespace per

// A checkpoint in a folder. The next one to the same folder writes only what differs from it.
//
// The bytes of a checkpoint are cut into chunks, which are known by their hash (XXH3, 128 bits) and lie in packs. The
// manifest names the chunks of the checkpoint in order, and where each of them lies. A checkpoint writes the chunks that
// are in no pack into a new one, then replaces the manifest, and then removes packs that it does not name. Where less
// than half of a pack is still in use, what is left of it is written once more, so that the folder takes at most some
// two times what a file would.
//
// A power failure at any time leaves this checkpoint or the one before it: a pack, and its name, are on the disk before
// a manifest names it, and that manifest is before a pack of the old one is removed. The folder is locked (flock) by
// whoever writes to it or reads from it.
//
//   manifest.per   magic (8 bytes), version, and whether rows stay in their file (uint32), numbers of packs and chunks
//                  (uint64), of each pack: number, size (uint64), of each chunk: low and high half of its hash, pack's
//                  place in the list, offset (uint64), size, size in the pack (uint32); the table of the rows' file if
//                  they stay there; XXH3-64 of all before
//   pack-N.per     chunks, one after the other; N is its number in 16 hexadecimal digits
//   rows-N.per     the rows of a buffer whose storage is the folder
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "file/checksum.h"
#include "file/compression.h"
#include "file/disk_file.h"
#include "file/row_file.h"

namespace per {

// What the manifest says.
struct ChunkPlace {
    Hash128 hash;
    uint64_t pack;  // its number
    uint64_t offset;
    uint32_t size;
    uint32_t stored;  // bytes in the pack: if they are fewer, compressed by zstd
};

struct Manifest {
    std::map<uint64_t, uint64_t> packs;  // bytes by number
    std::vector<ChunkPlace> chunks;
    std::optional<RowTable> rows;  // where they stay in their file
};

// Writes the next checkpoint into a folder that is locked for writing. Throws Error: IO, OUT_OF_MEMORY, CORRUPT_FILE where
// the manifest in it is damaged.
class FolderWriter {
 public:
    // `compression` is the level of zstd, or 0. `rows` is the file of the buffer's rows, if they are in one: where it is
    // in the folder, they stay in it.
    explicit FolderWriter(LockedFolder folder, int32_t compression = 0, RowFile* rows = nullptr);
    ~FolderWriter();
    FolderWriter(const FolderWriter&) = delete;
    FolderWriter& operator=(const FolderWriter&) = delete;

    void write(const void* data, std::size_t size);
    // Whether the rows stay in their file. The checkpoint then says of each array with elements there, in order, which
    // place they have in the record of a slot.
    bool leaves_rows() const { return rows_ != nullptr; }
    void leave_in_rows(uint64_t place, uint64_t record_bytes);
    // What comes next may stay the same where what came before it changes, or the other way round.
    void cut();
    // After an error before the end of this, the checkpoint of before is the one that is in the folder.
    void commit();

    // Of packs and the manifest, once it is committed.
    int64_t bytes_written() const { return bytes_written_; }

 private:
    void end_chunk();
    void open_pack();
    void write_manifest();
    std::vector<std::string> unnamed_files() const;

    LockedFolder folder_;
    RowFile* rows_ = nullptr;
    Manifest before_;
    std::unordered_map<Hash128, ChunkPlace, HashOfHash> known_;
    Manifest manifest_;
    std::vector<char> chunk_;
    std::unique_ptr<Compression> compression_;
    std::vector<char> packed_;
    std::optional<NewFile> pack_;
    uint64_t pack_number_;
    uint64_t pack_bytes_ = 0;
    int64_t bytes_written_ = 0;
};

// Reads the checkpoint of a folder.
class FolderReader {
 public:
    // Throws Error: IO, also where the folder holds no checkpoint; CORRUPT_FILE, UNSUPPORTED; BUSY if it is not to be
    // had in time.
    explicit FolderReader(const char* path, int64_t timeout_ms = PER_DIRECTORY_TIMEOUT_MS);

    const std::string& shown() const { return folder_.shown(); }
    const LockedFolder& folder() const { return folder_; }
    // NULL: the rows are in the checkpoint itself.
    const RowTable* rows() const { return manifest_.rows ? &*manifest_.rows : nullptr; }

    // Returns how many bytes were read: fewer than `size` at the end only.
    std::size_t read(void* data, std::size_t size);

 private:
    bool next_chunk();
    void unpack(const ChunkPlace& chunk, const std::string& pack);

    LockedFolder folder_;
    Manifest manifest_;
    std::size_t n_read_ = 0;  // chunks
    std::optional<uint64_t> pack_number_;
    Descriptor pack_;
    std::vector<char> chunk_;
    std::unique_ptr<Compression> compression_;  // once a chunk is compressed
    std::vector<char> packed_;
    std::size_t next_ = 0;  // of the chunk's bytes
};

}  // namespace per

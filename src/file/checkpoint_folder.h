// A checkpoint in a folder. The next one to the same folder writes only what differs from it.
//
// The bytes of a checkpoint are cut into chunks, which are identified by their hash (XXH3, 128 bits) and lie in packs.
// The manifest lists the chunks of the checkpoint in order, and where each of them lies. A checkpoint writes the chunks
// that are in no pack into a new one, then replaces the manifest, and then removes packs that the new manifest does not
// name. If less than half of a pack is still in use, its chunks in use are written again, so that the folder is at most
// about twice as large as a file would be.
//
// A power failure at any time leaves this checkpoint or the one before it: a pack and its name are on the disk before a
// manifest names it, and the manifest is on the disk before a pack of the old one is removed. Writers and readers lock
// the folder (flock).
//
//   manifest.per   magic (8 bytes); version, and 1 if rows stay in their file (uint32); numbers of packs and chunks
//                  (uint64); for each pack: number, size (uint64); for each chunk: low and high half of its hash, index
//                  of its pack in the list, offset (uint64), size, size in the pack (uint32); the table of the rows'
//                  file if they stay there; XXH3-64 of all bytes before
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

struct ChunkPlace {
    Hash128 hash;
    uint64_t pack;  // its number
    uint64_t offset;
    uint32_t size;
    uint32_t stored;  // bytes in the pack: if they are fewer, compressed by zstd
};

// The manifest of a checkpoint folder.
struct Manifest {
    std::map<uint64_t, uint64_t> packs;  // bytes by number
    std::vector<ChunkPlace> chunks;
    std::optional<RowTable> rows;  // if they stay in their file
};

// Writes the next checkpoint into a folder that is locked for writing. Throws Error: IO, OUT_OF_MEMORY, CORRUPT_FILE if
// the manifest in it is damaged.
class FolderWriter {
 public:
    // `compression` is the level of zstd, or 0. `rows` is the file of the buffer's rows, or NULL. If it is in the
    // folder, the rows stay in it.
    explicit FolderWriter(LockedFolder folder, int32_t compression = 0, RowFile* rows = nullptr);
    ~FolderWriter();
    FolderWriter(const FolderWriter&) = delete;
    FolderWriter& operator=(const FolderWriter&) = delete;

    void write(const void* data, std::size_t size);
    // True if the rows stay in their file. leave_in_rows() must then be called for each array with elements there, in
    // order, with their offset in the record of a slot.
    bool leaves_rows() const { return rows_ != nullptr; }
    void leave_in_rows(uint64_t place, uint64_t record_bytes);
    // Divides the bytes written so far from those that follow: either may change without the other.
    void cut();
    // After an error the folder has the former checkpoint, unless the message says otherwise.
    void commit();

    // Bytes of the pack and the manifest, after commit().
    int64_t bytes_written() const { return bytes_written_; }

 private:
    void end_chunk();
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
    // Throws Error: IO, also if the folder holds no checkpoint; CORRUPT_FILE; UNSUPPORTED; BUSY if its lock is not free
    // in time.
    explicit FolderReader(const char* path, int64_t timeout_ms = PER_DIRECTORY_TIMEOUT_MS);

    const LockedFolder& folder() const { return folder_; }
    // NULL if the rows are in the checkpoint itself.
    const RowTable* rows() const { return manifest_.rows ? &*manifest_.rows : nullptr; }

    // Returns how many bytes were read: fewer than `size` at the end only.
    std::size_t read(void* data, std::size_t size);

 private:
    bool next_chunk();
    void unpack(const ChunkPlace& chunk, const std::string& pack);

    LockedFolder folder_;
    Manifest manifest_;
    std::size_t n_read_ = 0;  // chunks read
    std::optional<uint64_t> pack_number_;
    Descriptor pack_;
    std::vector<char> chunk_;
    std::unique_ptr<Compression> compression_;  // NULL until a chunk is compressed
    std::vector<char> packed_;
    std::size_t next_ = 0;  // index of the chunk's next byte
};

}  // namespace per

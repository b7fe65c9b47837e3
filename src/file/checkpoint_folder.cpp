#include "file/checkpoint_folder.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"
#include "file/checkpoint_file.h"

namespace per {
namespace {

// A chunk ends at the first cut beyond the minimum, or at the maximum.
constexpr std::size_t min_chunk_bytes = std::size_t{1} << 14;
constexpr std::size_t max_chunk_bytes = std::size_t{1} << 20;

constexpr char manifest_name[] = "manifest.per";
constexpr unsigned char magic[8] = {0x89, 'P', 'E', 'R', 'd', '\n', 0x1a, '\n'};
constexpr uint32_t manifest_version = 1;  // the format that is written, and the latest that can be read
constexpr uint64_t max_piece_of_rows = uint64_t{1} << 35;
constexpr uint64_t max_block_of_rows = uint64_t{1} << 29;

std::string pack_name(uint64_t number) {
    return numbered_name("pack", number);
}

bool has_manifest(const LockedFolder& folder) {
    const std::vector<std::string> names = folder.names();
    return std::find(names.begin(), names.end(), manifest_name) != names.end();
}

// ---- the manifest

// Each of these functions calls visit(number) for the numbers of a struct, in the order of the file. In the file the
// pack of a chunk is given by its index in the list of packs.
template <class Chunk, class Visit>
void visit_chunk(Chunk& chunk, const Visit& visit) {
    visit(chunk.hash.low);
    visit(chunk.hash.high);
    visit(chunk.pack);
    visit(chunk.offset);
    visit(chunk.size);
    visit(chunk.stored);
}
template <class Rows, class Visit>
void visit_rows(Rows& rows, const Visit& visit) {
    visit(rows.number);
    visit(rows.piece_bytes);
    visit(rows.block_bytes);
    visit(rows.record_bytes);
}
template <class Piece, class Visit>
void visit_piece(Piece& piece, const Visit& visit) {
    visit(piece.place);
    visit(piece.blocks);
    visit(piece.hash);
}

class ManifestReader {
 public:
    explicit ManifestReader(const LockedFolder& folder)
        : folder_(folder), file_((folder.path() + "/" + manifest_name).c_str()) {}

    Manifest read() {
        unsigned char found[sizeof magic];
        bytes(found, sizeof found);
        if (std::memcmp(found, magic, sizeof magic) != 0) refuse("it is not a manifest of libper");
        const uint32_t version = number<uint32_t>();
        if (version > manifest_version)
            throw Error(PER_ERROR_UNSUPPORTED, "path %s has a manifest of format %u: this libper reads up to %u",
                        folder_.shown().c_str(), version, manifest_version);
        if (version == 0) refuse("its format is 0");
        const uint32_t has_rows = number<uint32_t>();
        if (has_rows > 1) refuse("a number in it is out of range");
        const uint64_t n_packs = number<uint64_t>();
        const uint64_t n_chunks = number<uint64_t>();
        Manifest manifest;
        const auto read_number = [this](auto& value) { bytes(&value, sizeof value); };
        // The checksum has not confirmed these numbers yet, so memory grows only with the bytes read.
        std::vector<uint64_t> numbers;
        for (uint64_t i = 0; i < n_packs; ++i) {
            numbers.push_back(number<uint64_t>());
            manifest.packs[numbers.back()] = number<uint64_t>();
        }
        for (uint64_t i = 0; i < n_chunks; ++i) {
            ChunkPlace chunk;
            visit_chunk(chunk, read_number);
            if (chunk.pack >= numbers.size() || chunk.size > max_chunk_bytes || chunk.stored > chunk.size ||
                chunk.stored == 0)
                refuse("a number in it is out of range");
            chunk.pack = numbers[chunk.pack];
            manifest.chunks.push_back(chunk);
        }
        if (has_rows == 1) manifest.rows = read_rows();
        const uint64_t expected = checksum_.value();
        if (number<uint64_t>() != expected) refuse("the checksum is wrong");
        return manifest;
    }

 private:
    RowTable read_rows() {
        RowTable table;
        const auto read_number = [this](auto& value) { bytes(&value, sizeof value); };
        visit_rows(table, read_number);
        const bool are_powers = std::has_single_bit(table.piece_bytes) && std::has_single_bit(table.block_bytes);
        if (!are_powers || table.piece_bytes > max_piece_of_rows || table.block_bytes > table.piece_bytes ||
            table.block_bytes > max_block_of_rows || table.piece_bytes / table.block_bytes > 64 ||
            table.record_bytes == 0)
            refuse("a number in it is out of range");
        const uint64_t n_arrays = number<uint64_t>();
        for (uint64_t i = 0; i < n_arrays; ++i) table.arrays.push_back(number<uint64_t>());
        const uint64_t n_pieces = number<uint64_t>();
        for (uint64_t i = 0; i < n_pieces; ++i) visit_piece(table.pieces.emplace_back(), read_number);
        return table;
    }
    void bytes(void* data, std::size_t size) {
        if (file_.read(data, size) != size) refuse("it ends early");
        checksum_.add(data, size);
    }
    template <class Number>
    Number number() {
        Number value;
        bytes(&value, sizeof value);
        return value;
    }
    [[noreturn]] void refuse(const char* reason) const { folder_.refuse(manifest_name, reason); }

    const LockedFolder& folder_;
    InputFile file_;
    Checksum checksum_;
};

// Bytes of each pack that the chunks of a manifest use. A chunk may be named more than once.
std::map<uint64_t, uint64_t> bytes_in_use(const Manifest& manifest) {
    std::map<uint64_t, std::map<uint64_t, uint32_t>> sizes;  // by pack and offset
    for (const ChunkPlace& chunk : manifest.chunks) sizes[chunk.pack][chunk.offset] = chunk.stored;
    std::map<uint64_t, uint64_t> used;
    for (const auto& [pack, by_offset] : sizes)
        for (const auto& [offset, size] : by_offset) used[pack] += size;
    return used;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------- writing

FolderWriter::FolderWriter(LockedFolder folder, int32_t compression, RowFile* rows)
    : folder_(std::move(folder)), pack_number_(0) {
    if (has_manifest(folder_)) before_ = ManifestReader(folder_).read();
    std::map<uint64_t, uint64_t> used = bytes_in_use(before_);
    // Chunks of packs that were removed or truncated are written again, so that this checkpoint is whole.
    std::set<uint64_t> kept;
    for (const auto& [number, size] : before_.packs)
        if (used[number] * 2 >= size && folder_.size_of(pack_name(number)) == static_cast<int64_t>(size))
            kept.insert(number);
    for (const ChunkPlace& chunk : before_.chunks)
        if (kept.contains(chunk.pack)) known_.emplace(chunk.hash, chunk);
    // A new pack gets a number above those of all packs in the folder, even of packs that were left behind.
    for (const std::string& name : folder_.names())
        if (const std::optional<uint64_t> number = number_in_name(name, "pack"))
            pack_number_ = std::max(pack_number_, *number + 1);
    chunk_.reserve(max_chunk_bytes);
    if (rows != nullptr && rows->take_name(folder_)) {
        rows_ = rows;
        manifest_.rows.emplace();
    }
    if (compression == 0) return;
    compression_ = std::make_unique<Compression>(max_chunk_bytes, compression);
    packed_.resize(compression_->max_packed());
}

FolderWriter::~FolderWriter() = default;

void FolderWriter::write(const void* data, std::size_t size) {
    const char* bytes = static_cast<const char*>(data);
    while (size > 0) {
        const std::size_t n = std::min(size, max_chunk_bytes - chunk_.size());
        chunk_.resize(chunk_.size() + n);
        std::memcpy(chunk_.data() + chunk_.size() - n, bytes, n);
        bytes += n;
        size -= n;
        if (chunk_.size() == max_chunk_bytes) end_chunk();
    }
}

void FolderWriter::leave_in_rows(uint64_t place, uint64_t record_bytes) {
    manifest_.rows->arrays.push_back(place);
    manifest_.rows->record_bytes = record_bytes;
}

void FolderWriter::cut() {
    if (chunk_.size() >= min_chunk_bytes) end_chunk();
}

void FolderWriter::end_chunk() {
    if (chunk_.empty()) return;
    const Hash128 hash = hash_of(chunk_.data(), chunk_.size());
    const uint32_t size = static_cast<uint32_t>(chunk_.size());
    auto found = known_.find(hash);
    if (found == known_.end() || found->second.size != size) {
        if (!pack_) pack_.emplace(folder_, pack_name(pack_number_));
        uint32_t stored = size;
        if (compression_ != nullptr)
            stored = static_cast<uint32_t>(
                std::min(chunk_.size(), compression_->pack(packed_.data(), chunk_.data(), chunk_.size())));
        pack_->write(stored < size ? packed_.data() : chunk_.data(), stored);
        found = known_.insert_or_assign(hash, ChunkPlace{hash, pack_number_, pack_bytes_, size, stored}).first;
        pack_bytes_ += stored;
    }
    manifest_.chunks.push_back(found->second);
    chunk_.clear();
}

void FolderWriter::commit() {
    end_chunk();
    if (rows_ != nullptr) rows_->write_out(*manifest_.rows);
    if (pack_) pack_->sync();
    if (pack_ || rows_ != nullptr) folder_.sync();  // makes their names durable
    for (const ChunkPlace& chunk : manifest_.chunks)
        manifest_.packs[chunk.pack] = chunk.pack == pack_number_ ? pack_bytes_ : before_.packs.at(chunk.pack);
    const std::vector<std::string> unnamed = unnamed_files();
    write_manifest();
    if (rows_ != nullptr) rows_->committed();
    bytes_written_ += static_cast<int64_t>(pack_bytes_);
    for (const std::string& name : unnamed) folder_.remove(name);
}

void FolderWriter::write_manifest() {
    SectionContent bytes;
    bytes.bytes(magic, sizeof magic);
    const auto write_number = [&](auto value) { bytes.number(value); };
    write_number(manifest_version);
    write_number(static_cast<uint32_t>(manifest_.rows.has_value()));
    write_number(uint64_t{manifest_.packs.size()});
    write_number(uint64_t{manifest_.chunks.size()});
    std::map<uint64_t, uint64_t> places;
    for (const auto& [number, size] : manifest_.packs) {
        places.emplace(number, places.size());
        write_number(number);
        write_number(size);
    }
    for (ChunkPlace chunk : manifest_.chunks) {
        chunk.pack = places.at(chunk.pack);
        visit_chunk(chunk, write_number);
    }
    if (manifest_.rows) {
        const RowTable& rows = *manifest_.rows;
        visit_rows(rows, write_number);
        write_number(uint64_t{rows.arrays.size()});
        for (const uint64_t place : rows.arrays) write_number(place);
        write_number(uint64_t{rows.pieces.size()});
        for (const RowTable::Piece& piece : rows.pieces) visit_piece(piece, write_number);
    }
    Checksum checksum;
    checksum.add(bytes.bytes().data(), bytes.bytes().size());
    bytes.number(checksum.value());
    ReplacementFile file((folder_.path() + "/" + manifest_name).c_str());
    file.write(bytes.bytes().data(), bytes.bytes().size());
    // commit() may rename the manifest and then fail to sync the folder. The manifest then names these files, so they
    // must stay.
    if (pack_) pack_->keep();
    if (rows_ != nullptr) rows_->keep();
    file.commit();
    bytes_written_ += static_cast<int64_t>(bytes.bytes().size());
}

std::vector<std::string> FolderWriter::unnamed_files() const {
    std::vector<std::string> unnamed;
    for (std::string& name : folder_.names()) {
        const std::optional<uint64_t> pack = number_in_name(name, "pack");
        const uint64_t rows = row_file_number(name);
        const bool is_named_pack = pack && manifest_.packs.contains(*pack);
        const bool is_named_row_file = manifest_.rows && rows == manifest_.rows->number;
        if ((pack && !is_named_pack) || (rows != no_row_file && !is_named_row_file)) unnamed.push_back(std::move(name));
    }
    return unnamed;
}

// ---------------------------------------------------------------------------------------------------------- reading

FolderReader::FolderReader(const char* path, int64_t timeout_ms)
    : folder_(path, LockedFolder::Use::reading, timeout_ms) {
    if (!has_manifest(folder_))
        throw Error(PER_ERROR_IO, "path %s cannot be read: the directory holds no checkpoint", folder_.shown().c_str());
    manifest_ = ManifestReader(folder_).read();
}

std::size_t FolderReader::read(void* data, std::size_t size) {
    char* const bytes = static_cast<char*>(data);
    std::size_t done = 0;
    while (done < size && (next_ < chunk_.size() || next_chunk())) {
        const std::size_t n = std::min(size - done, chunk_.size() - next_);
        std::memcpy(bytes + done, chunk_.data() + next_, n);
        next_ += n;
        done += n;
    }
    return done;
}

void FolderReader::unpack(const ChunkPlace& chunk, const std::string& pack) {
    if (!has_zstd())
        throw Error(PER_ERROR_UNSUPPORTED, "path %s is compressed by zstd: this libper was built without it",
                    folder_.shown().c_str());
    if (compression_ == nullptr) compression_ = std::make_unique<Compression>(max_chunk_bytes, 1);
    if (!compression_->unpack(chunk_.data(), chunk.size, packed_.data(), chunk.stored))
        folder_.refuse(pack, "it cannot be decompressed");
}

bool FolderReader::next_chunk() {
    if (n_read_ == manifest_.chunks.size()) return false;
    const ChunkPlace& chunk = manifest_.chunks[n_read_++];
    const std::string name = pack_name(chunk.pack);
    if (pack_number_ != chunk.pack) {
        pack_ = folder_.open(name);
        pack_number_ = chunk.pack;
    }
    chunk_.resize(chunk.size);
    next_ = 0;
    packed_.resize(chunk.stored);
    if (read_at(pack_, chunk.offset, packed_.data(), packed_.size(), folder_.shown()) != packed_.size())
        folder_.refuse(name, "it ends early");
    if (chunk.stored == chunk.size)
        chunk_.swap(packed_);
    else
        unpack(chunk, name);
    if (hash_of(chunk_.data(), chunk_.size()) != chunk.hash) folder_.refuse(name, "the hash is wrong");
    return true;
}

}  // namespace per

#include "file/row_file.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "file/checksum.h"
#include "system/memory.h"
#include "system/process_number.h"

namespace per {
namespace {

constexpr std::size_t kibibyte = 1024;
constexpr std::size_t mebibyte = 1024 * kibibyte;

constexpr std::size_t most_bytes = std::size_t{1} << 47;  // no process maps more
constexpr std::size_t least_piece_bytes = mebibyte;
constexpr std::size_t most_pieces = 4096;
constexpr std::size_t least_block_bytes = 64 * kibibyte;
constexpr std::size_t most_blocks = 64;  // bits of a number
// The system's default read-ahead size, to which it shortens longer requests.
constexpr std::size_t bytes_of_request = 128 * kibibyte;

std::size_t piece_bytes_of(std::size_t bytes) {
    return std::max(least_piece_bytes, std::bit_ceil((bytes + most_pieces - 1) / most_pieces));
}

// Blocks are small, since each lane fills separate ones. A piece has at most most_blocks of them, so large files have
// larger blocks.
std::size_t block_bytes_of(std::size_t piece_bytes) {
    return std::max(least_block_bytes, piece_bytes / most_blocks);
}

// Calls visit(first, n) for each run of bits that are set.
template <class Visit>
void for_each_run(uint64_t bits, const Visit& visit) {
    for (int first = 0; first < 64;) {
        const uint64_t rest = bits >> first;
        if (rest == 0) return;
        first += std::countr_zero(rest);
        const int n = std::countr_one(bits >> first);
        visit(static_cast<std::size_t>(first), static_cast<std::size_t>(n));
        first += n;
    }
}

uint64_t first_bits(std::size_t n) {
    return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
}

}  // namespace

std::string row_file_name(uint64_t number) {
    return numbered_name("rows", number);
}

uint64_t row_file_number(const std::string& name) {
    return number_in_name(name, "rows").value_or(no_row_file);
}

// ---------------------------------------------------------------------------------------------------------- writing

RowFile::RowFile(const char* folder, std::size_t bytes)
    : path_(folder), shown_("storage " + shown_path(path_)), process_(process_number()) {
    if (bytes > most_bytes) throw_out_of_memory(bytes);
    piece_bytes_ = piece_bytes_of(bytes);
    block_bytes_ = block_bytes_of(piece_bytes_);
    n_blocks_ = piece_bytes_ / block_bytes_;
    mapped_bytes_ = std::max<std::size_t>(1, (bytes + block_bytes_ - 1) / block_bytes_) * block_bytes_;
    n_places_ = (mapped_bytes_ + piece_bytes_ - 1) / piece_bytes_;
    for (uint64_t place = 0; place < n_places_; ++place) pieces_.push_back({place, 0, 0, 0, 0, false});
    if (!make_folder(folder) && errno != EEXIST) refuse("written");
    folder_ = open_folder_for_names(folder);
    if (!folder_.is_open()) refuse("written");
    data_ = map_part(mapped_bytes_, {file_, 0});
    if (data_ == nullptr) refuse("mapped");
}

void RowFile::create(bool is_preallocated) {
    is_preallocated_ = is_preallocated;
    file_ = create_unnamed_file(path_, can_have_name_);
    if (!file_.is_open() || !set_size(file_, mapped_bytes_)) refuse("written");
    if (is_preallocated) {
        allocate(0, mapped_bytes_);
        for (std::size_t i = 0; i < pieces_.size(); ++i) pieces_[i].room = blocks_of(i);
    } else {
        allocate(0, block_bytes_);  // fails if the file system cannot reserve space
        pieces_[0].room = 1;
    }
    for (std::size_t i = 0; i < pieces_.size(); ++i) map(file_, i, pieces_[i].place);
}

// A name that no checkpoint mentions must not outlive the buffer.
RowFile::~RowFile() {
    unmap(data_, mapped_bytes_);
    if (number_ != no_row_file && !was_kept_ && process_ == process_number() &&
        is_named(folder_, row_file_name(number_), file_))
        remove_file(folder_, row_file_name(number_));
}

void RowFile::refuse(const char* action) const {
    throw_system_error(errno, shown_, action);
}

std::size_t RowFile::bytes_of(std::size_t piece) const {
    return std::min(piece_bytes_, mapped_bytes_ - start_of(piece));
}

uint64_t RowFile::blocks_of(std::size_t piece) const {
    return first_bits(bytes_of(piece) / block_bytes_);
}

void RowFile::make_ready(std::size_t block) {
    const std::size_t i = block / n_blocks_;
    const uint64_t bit = uint64_t{1} << block % n_blocks_;
    Piece& piece = pieces_[i];
    if (piece.is_named) replace(i, bit);
    if (!(piece.room & bit)) allocate_blocks(piece.place, bit);
    piece.room |= bit;
    piece.held |= bit;
    piece.ready = piece.held;
}

void RowFile::preallocate() {
    is_preallocated_ = true;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
        allocate_blocks(pieces_[i].place, blocks_of(i) & ~pieces_[i].room);
        pieces_[i].room = blocks_of(i);
    }
}

bool RowFile::holds(std::size_t first, std::size_t n) const {
    for (std::size_t block = first / block_bytes_; n > 0 && block <= (first + n - 1) / block_bytes_; ++block)
        if (!has(pieces_[block / n_blocks_].held, block)) return false;
    return true;
}

void RowFile::allocate_blocks(uint64_t place, uint64_t blocks) {
    for_each_run(blocks, [&](std::size_t first, std::size_t n) {
        allocate(place * piece_bytes_ + first * block_bytes_, n * block_bytes_);
    });
}

void RowFile::allocate(std::size_t first, std::size_t n) {
    if (allocate_room(file_, first, n)) return;
    if (errno == EOPNOTSUPP)
        throw Error(PER_ERROR_UNSUPPORTED, "%s: its file system cannot reserve room: must be one with fallocate()",
                    shown_.c_str());
    refuse("written");
}

// Replaces a piece that a checkpoint names by a copy, which has disk space for `blocks`, too. A concurrent reader of
// the piece finds the same bytes before and after.
void RowFile::replace(std::size_t i, uint64_t blocks) {
    // Reserves memory first: committed(), which moves all retired places to free_, must not fail, and neither must the
    // handler below.
    for (std::vector<Place>* const places : {&free_, &retired_})
        if (places->capacity() <= n_places_) places->reserve(2 * (n_places_ + 1));
    Piece& piece = pieces_[i];
    Place place = take_place();
    try {
        if (exceeds_file_limit((place.number + 1) * piece_bytes_)) {
            errno = EFBIG;
            refuse("written");
        }
        const uint64_t needed = (is_preallocated_ ? blocks_of(i) : piece.held | blocks) & ~place.room;
        allocate_blocks(place.number, needed);
        place.room |= needed;
        copy(i, place.number);
        map(file_, i, place.number);
    } catch (...) {
        free_.push_back(place);
        throw;
    }
    retired_.push_back({piece.place, piece.room});
    piece.place = place.number;
    piece.room = place.room;
    piece.ready = piece.held;
    piece.is_named = false;
}

RowFile::Place RowFile::take_place() {
    if (free_.empty()) {
        if (!set_size(file_, (n_places_ + 1) * piece_bytes_)) refuse("written");
        return {n_places_++, 0};
    }
    const Place place = free_.back();
    free_.pop_back();
    return place;
}

void RowFile::copy(std::size_t i, uint64_t place) {
    for_each_part(i, [&](std::size_t at, std::size_t size) {
        const ssize_t written = write_some_at(file_, place * piece_bytes_ + at, data_ + start_of(i) + at, size);
        if (written < 0) refuse("written");
        return static_cast<std::size_t>(written);
    });
}

// Calls visit(first, n) for the parts of a piece that hold rows, and lets the system read ahead. `first` is an offset
// in the piece. visit() returns the number of bytes that it has processed: the next part begins after these.
template <class Visit>
void RowFile::for_each_part(std::size_t i, const Visit& visit) const {
    for_each_run(pieces_[i].held, [&](std::size_t first, std::size_t n) {
        const std::size_t end = (first + n) * block_bytes_;
        for (std::size_t at = first * block_bytes_; at < end;) {
            will_need(start_of(i) + at, std::min(end - at, 2 * mebibyte));
            at += visit(at, std::min(end - at, mebibyte));
        }
    });
}

void RowFile::map(const Descriptor& file, std::size_t i, uint64_t place) const {
    const FilePart part = {file, place * piece_bytes_};
    const FilePart former = {file_, pieces_[i].place * piece_bytes_};
    if (!map_over(data_ + start_of(i), bytes_of(i), part, former)) refuse("mapped");
}

// Goes piece by piece, since a piece that was replaced lies elsewhere in the file.
void RowFile::will_need(std::size_t first, std::size_t n) const noexcept {
    for (const std::size_t end = std::min(first + n, mapped_bytes_); first < end;) {
        const std::size_t in_piece = first % piece_bytes_;
        const std::size_t size = std::min({end - first, bytes_of_request, piece_bytes_ - in_piece});
        begin_reading(file_, pieces_[first / piece_bytes_].place * piece_bytes_ + in_piece, size);
        first += size;
    }
}

// ------------------------------------------------------------------------------------------------------ checkpoints

bool RowFile::is_in(const LockedFolder& folder) const {
    const std::optional<FileStatus> other = status_of(folder.descriptor());
    const std::optional<FileStatus> own = status_of(folder_);
    return other && own && other->is_same_file(*own);
}

// A file whose name was removed cannot get another one.
bool RowFile::take_name(const LockedFolder& folder) {
    if (!can_have_name_ || !is_in(folder)) return false;
    if (number_ != no_row_file) return can_have_name_ = is_named(folder_, row_file_name(number_), file_);
    uint64_t number = 0;
    for (const std::string& name : folder.names())
        if (const uint64_t other = row_file_number(name); other != no_row_file) number = std::max(number, other + 1);
    if (number == no_row_file) return false;
    // The lock tells processes that would adopt the file that it is in use. On a file system without locks the caller
    // must take care of that.
    lock_file(file_, Lock::exclusive);
    if (!give_name(file_, folder.descriptor(), row_file_name(number))) return false;
    number_ = number;
    return true;
}

uint64_t RowFile::hash_of_piece(std::size_t i) const {
    Checksum checksum;
    for_each_part(i, [&](std::size_t at, std::size_t size) {
        checksum.add(data_ + start_of(i) + at, size);
        return size;
    });
    return checksum.value();
}

void RowFile::write_out(RowTable& table_out) {
    table_out.number = number_;
    table_out.piece_bytes = piece_bytes_;
    table_out.block_bytes = block_bytes_;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
        Piece& piece = pieces_[i];
        if (!piece.is_named && piece.held != 0) piece.hash = hash_of_piece(i);
        table_out.pieces.push_back({piece.place, piece.held, piece.hash});
    }
    if (sync_data(file_)) return;
    // The system forgets which bytes it could not write, so the next call might succeed without them.
    can_have_name_ = false;
    refuse("written");
}

void RowFile::keep() noexcept {
    was_kept_ = true;
    for (Piece& piece : pieces_) {
        piece.is_named = piece.held != 0;
        piece.ready = 0;
    }
}

void RowFile::committed() noexcept {
    free_.insert(free_.end(), retired_.begin(), retired_.end());
    retired_.clear();
}

bool RowFile::adopt(const LockedFolder& folder, const RowTable& table) {
    if (!is_in(folder) || table.piece_bytes != piece_bytes_ || table.block_bytes != block_bytes_) return false;
    if (table.pieces.size() != pieces_.size()) return false;
    const std::string name = row_file_name(table.number);
    Descriptor file = open_file(folder.descriptor(), name, Access::read_and_write);
    const std::optional<FileStatus> status = file.is_open() ? status_of(file) : std::nullopt;
    if (!status) refuse("adopted");
    if (status->kind != FileStatus::Kind::regular) folder.refuse(name, "it is not a regular file");
    if (lock_file(file, Lock::exclusive) == LockResult::held_by_another)
        throw Error(PER_ERROR_BUSY, "%s: a buffer has its rows already (%s), which must be freed first", shown_.c_str(),
                    name.c_str());
    const uint64_t size = status->size;
    const uint64_t n_places = (size + piece_bytes_ - 1) / piece_bytes_;
    std::set<uint64_t> used;
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
        const RowTable::Piece& piece = table.pieces[i];
        if (piece.place >= n_places || piece.place * piece_bytes_ + bytes_of(i) > size)
            folder.refuse(name, "it ends early");
        if (!used.insert(piece.place).second || (piece.blocks & ~blocks_of(i)) != 0)
            folder.refuse(name, "its table cannot be");
        // A program that copied the file may have left holes for zeros, so no block counts as reserved.
        pieces.push_back({piece.place, 0, piece.blocks, 0, piece.hash, piece.blocks != 0});
    }
    // Lists at most as many unused places as there are pieces, however long the file is.
    std::vector<Place> unused;
    for (uint64_t place = 0; place < size / piece_bytes_ && unused.size() < pieces.size(); ++place)
        if (!used.contains(place)) unused.push_back({place, 0});
    for (std::size_t i = 0; i < pieces.size(); ++i) map(file, i, pieces[i].place);
    file_ = std::move(file);
    number_ = table.number;
    was_kept_ = true;
    can_have_name_ = true;
    pieces_ = std::move(pieces);
    n_places_ = n_places;
    free_ = std::move(unused);
    retired_.clear();
    return true;
}

// ---------------------------------------------------------------------------------------------------------- reading

RowReader::RowReader(const LockedFolder& folder, const RowTable& table)
    : folder_(folder),
      table_(table),
      n_blocks_(table.piece_bytes / table.block_bytes),
      file_(folder.open(row_file_name(table.number))),
      is_checked_(table.pieces.size()) {
    const std::optional<FileStatus> status = status_of(file_);
    if (!status) throw_system_error(errno, "storage " + folder.shown(), "read");
    file_bytes_ = status->size;
}

void RowReader::read(uint64_t first, void* data, std::size_t size) {
    std::byte* out = static_cast<std::byte*>(data);
    while (size > 0) {
        const uint64_t block = first / table_.block_bytes;
        if (block != loaded_) load(block);
        const std::size_t at = static_cast<std::size_t>(first % table_.block_bytes);
        const std::size_t n = std::min(size, block_.size() - at);
        std::memcpy(out, block_.data() + at, n);
        out += n;
        first += n;
        size -= n;
    }
}

void RowReader::load(uint64_t block) {
    const uint64_t piece = block / n_blocks_;
    if (piece >= table_.pieces.size() || !(table_.pieces[piece].blocks >> block % n_blocks_ & 1))
        refuse("rows are missing");
    if (!is_checked_[piece]) check(piece);
    read_block(table_.pieces[piece], block % n_blocks_);
    loaded_ = block;
}

void RowReader::check(uint64_t piece) {
    Checksum checksum;
    for (uint64_t i = 0; i < n_blocks_; ++i) {
        if (!(table_.pieces[piece].blocks >> i & 1)) continue;
        read_block(table_.pieces[piece], i);
        checksum.add(block_.data(), block_.size());
    }
    if (checksum.value() != table_.pieces[piece].hash) refuse("the hash is wrong");
    is_checked_[piece] = true;
}

// Memory is allocated only for blocks that the file has, whatever the table says.
void RowReader::read_block(const RowTable::Piece& piece, uint64_t i) {
    loaded_ = UINT64_MAX;
    if (piece.place > file_bytes_ / table_.piece_bytes) refuse("it ends early");
    const uint64_t first = (piece.place * n_blocks_ + i) * table_.block_bytes;
    if (first > file_bytes_ || table_.block_bytes > file_bytes_ - first) refuse("it ends early");
    block_.resize(static_cast<std::size_t>(table_.block_bytes));
    if (read_at(file_, first, block_.data(), block_.size(), folder_.shown()) != block_.size()) refuse("it ends early");
}

void RowReader::refuse(const char* reason) const {
    folder_.refuse(row_file_name(table_.number), reason);
}

}  // namespace per

#include "file/row_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"
#include "file/checksum.h"

namespace per {
namespace {

constexpr std::size_t kibibyte = 1024;
constexpr std::size_t mebibyte = 1024 * kibibyte;

constexpr std::size_t most_bytes = std::size_t{1} << 47;  // no process maps more
constexpr std::size_t least_piece_bytes = mebibyte;
constexpr std::size_t most_pieces = 4096;
constexpr std::size_t least_block_bytes = 64 * kibibyte;
constexpr std::size_t most_blocks = 64;  // bits of a number
// A call of fallocate() that a signal interrupts begins anew: of a long one signals might never see the end.
constexpr std::size_t bytes_of_reservation = 64 * mebibyte;
// The system shortens requests to what it reads ahead on the disk, which is so much unless somebody has set it.
constexpr std::size_t bytes_of_request = 128 * kibibyte;
constexpr mode_t of_owner = 0600;

[[noreturn]] void refuse(int error, const std::string& shown, const char* action) {
    throw Error(error == ENOMEM ? PER_ERROR_OUT_OF_MEMORY : PER_ERROR_IO, "storage %s cannot be %s: %s", shown.c_str(),
                action, std::strerror(error));
}

// A file that is in no folder. File systems that do not have such make one whose name is removed at once, and which
// cannot have one again.
Descriptor unnamed_file(const std::string& folder, const std::string& shown, bool& can_have_name_out) {
    Descriptor file([&] { return open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, of_owner); });
    can_have_name_out = file.is_open();
    if (file.is_open()) return file;
    if (errno != EOPNOTSUPP && errno != EISDIR) refuse(errno, shown, "written");
    for (unsigned number = 0; !file.is_open(); ++number) {
        const std::string path = folder + "/rows-" + std::to_string(getpid()) + "-" + std::to_string(number) + ".tmp";
        file = Descriptor([&] { return open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, of_owner); });
        if (file.is_open())
            unlink(path.c_str());
        else if (errno != EEXIST)
            refuse(errno, shown, "written");
    }
    return file;
}

void check_limit(std::size_t end, const std::string& shown) {
    if (exceeds_file_limit(end)) refuse(EFBIG, shown, "written");
}

// Makes the file so long, by zeros that take no room.
void lengthen(const Descriptor& file, std::size_t bytes, const std::string& shown) {
    check_limit(bytes, shown);
    if (ftruncate(file.number(), static_cast<off_t>(bytes)) != 0) refuse(errno, shown, "written");
}

std::size_t piece_bytes_of(std::size_t bytes) {
    return std::max(least_piece_bytes, std::bit_ceil((bytes + most_pieces - 1) / most_pieces));
}

// Each lane has blocks of its own that it fills: they are small, and in large files not too many.
std::size_t block_bytes_of(std::size_t piece_bytes) {
    return std::max(least_block_bytes, piece_bytes / most_blocks);
}

// Calls visit(first, n) for the bits that follow each other.
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

// Whether a name in a folder is that of an open file.
bool is_named(const Descriptor& folder, uint64_t number, const Descriptor& file) {
    struct stat of_file;
    struct stat of_name;
    return fstat(file.number(), &of_file) == 0 &&
           fstatat(folder.number(), row_file_name(number).c_str(), &of_name, AT_SYMLINK_NOFOLLOW) == 0 &&
           of_name.st_dev == of_file.st_dev && of_name.st_ino == of_file.st_ino;
}

[[noreturn]] void refuse_file(const LockedFolder& folder, uint64_t number, const char* reason) {
    throw Error(PER_ERROR_CORRUPT_FILE, "path %s is damaged in %s: %s", folder.shown().c_str(),
                row_file_name(number).c_str(), reason);
}

// Without MADV_RANDOM a page that is missing is read with 128 KiB around it, which nobody wants of rows drawn at random.
void* map_at(void* address, int flags, std::size_t bytes, const Descriptor& file, std::size_t first) {
    void* const mapping =
        mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, file.number(), static_cast<off_t>(first));
    if (mapping != MAP_FAILED) madvise(mapping, bytes, MADV_RANDOM);
    return mapping;
}

// Keeps addresses for a mapping that is made later.
void* addresses_at(void* address, int flags, std::size_t bytes) {
    return mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

uint64_t size_of(const Descriptor& file, const std::string& shown) {
    struct stat found;
    if (fstat(file.number(), &found) != 0) refuse(errno, shown, "read");
    return static_cast<uint64_t>(found.st_size);
}

}  // namespace

std::string row_file_name(uint64_t number) {
    char name[32];
    std::snprintf(name, sizeof name, "rows-%016" PRIx64 ".per", number);
    return name;
}

uint64_t row_file_number(const std::string& name) {
    uint64_t number = no_row_file;
    if (std::sscanf(name.c_str(), "rows-%16" SCNx64 ".per", &number) != 1) return no_row_file;
    return name == row_file_name(number) ? number : no_row_file;
}

// ---------------------------------------------------------------------------------------------------------- writing

RowFile::RowFile(const char* folder, std::size_t bytes) : path_(folder), shown_(shown_path(path_)), process_(getpid()) {
    if (bytes > most_bytes) throw_out_of_memory(bytes);
    piece_bytes_ = piece_bytes_of(bytes);
    block_bytes_ = block_bytes_of(piece_bytes_);
    n_blocks_ = piece_bytes_ / block_bytes_;
    mapped_bytes_ = std::max<std::size_t>(1, (bytes + block_bytes_ - 1) / block_bytes_) * block_bytes_;
    n_places_ = (mapped_bytes_ + piece_bytes_ - 1) / piece_bytes_;
    for (uint64_t place = 0; place < n_places_; ++place) pieces_.push_back({place, 0, 0, 0, 0, false});
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) refuse(errno, shown_, "written");
    folder_ = Descriptor([&] { return open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC); });
    if (!folder_.is_open()) refuse(errno, shown_, "written");
    void* const addresses = addresses_at(nullptr, 0, mapped_bytes_);
    if (addresses == MAP_FAILED) refuse(errno, shown_, "mapped");
    data_ = static_cast<std::byte*>(addresses);
}

void RowFile::create(bool is_preallocated) {
    is_preallocated_ = is_preallocated;
    file_ = unnamed_file(path_, shown_, can_have_name_);
    lengthen(file_, mapped_bytes_, shown_);
    if (is_preallocated) {
        allocate(0, mapped_bytes_);
        for (std::size_t i = 0; i < pieces_.size(); ++i) pieces_[i].room = blocks_of(i);
    } else {
        allocate(0, block_bytes_);  // shows whether the file system can
        pieces_[0].room = 1;
    }
    for (std::size_t i = 0; i < pieces_.size(); ++i) map(file_, i, pieces_[i].place);
}

// A name that no checkpoint says is not to outlive the buffer.
RowFile::~RowFile() {
    munmap(data_, mapped_bytes_);
    if (number_ != no_row_file && !was_kept_ && process_ == getpid() && is_named(folder_, number_, file_))
        unlinkat(folder_.number(), row_file_name(number_).c_str(), 0);
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

// posix_fallocate() would write to file systems that cannot reserve room, of which some forget it all the same.
void RowFile::allocate(std::size_t first, std::size_t n) {
    const std::size_t end = first + n;
    while (first < end) {
        const std::size_t size = std::min(end - first, bytes_of_reservation);
        if (fallocate(file_.number(), 0, static_cast<off_t>(first), static_cast<off_t>(size)) == 0)
            first += size;
        else if (errno == EOPNOTSUPP)
            throw Error(PER_ERROR_UNSUPPORTED,
                        "storage %s: its file system cannot reserve room: must be one with fallocate()",
                        shown_.c_str());
        else if (errno != EINTR)
            refuse(errno, shown_, "written");
    }
}

// Puts a copy in the place of a piece that a checkpoint names, with room for further blocks. Whoever reads the piece
// meanwhile finds the same bytes before and after.
void RowFile::replace(std::size_t i, uint64_t blocks) {
    // committed() moves all that is retired to what is free, and must not fail; nor must what follows an error here.
    for (std::vector<Place>* const places : {&free_, &retired_})
        if (places->capacity() <= n_places_) places->reserve(2 * (n_places_ + 1));
    Piece& piece = pieces_[i];
    Place place = take_place();
    try {
        check_limit((place.number + 1) * piece_bytes_, shown_);
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
        lengthen(file_, (n_places_ + 1) * piece_bytes_, shown_);
        return {n_places_++, 0};
    }
    const Place place = free_.back();
    free_.pop_back();
    return place;
}

void RowFile::copy(std::size_t i, uint64_t place) {
    for_each_part(i, [&](std::size_t at, std::size_t size) {
        const ssize_t written =
            pwrite(file_.number(), data_ + start_of(i) + at, size, static_cast<off_t>(place * piece_bytes_ + at));
        if (written < 0 && errno != EINTR) refuse(errno, shown_, "written");
        return static_cast<std::size_t>(std::max<ssize_t>(0, written));
    });
}

// Calls visit(first, n) for what a piece holds, counted from its beginning, and goes on after as many bytes as that says.
// The disk is asked for them, and for those after them.
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

// mmap() with MAP_FIXED may remove the old mapping and then fail, for example because the file system refuses. Any read of
// the hole would be a fault. So the piece is mapped elsewhere first, and mremap() moves that mapping over the old one.
void RowFile::map(const Descriptor& file, std::size_t i, uint64_t place) const {
    std::byte* const at = data_ + start_of(i);
    void* const beside = map_at(nullptr, 0, bytes_of(i), file, place * piece_bytes_);
    if (beside == MAP_FAILED) refuse(errno, shown_, "mapped");
    if (mremap(beside, bytes_of(i), bytes_of(i), MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED) return;
    const int error = errno;
    munmap(beside, bytes_of(i));
    // Before Linux 5.2 mremap() removes the old mapping and then fails if the process has nearly as many mappings as it
    // may have. mmap() allows a few more.
    void* const old = file_.is_open()
                          ? map_at(at, MAP_FIXED_NOREPLACE, bytes_of(i), file_, pieces_[i].place * piece_bytes_)
                          : addresses_at(at, MAP_FIXED_NOREPLACE, bytes_of(i));
    if (old != MAP_FAILED && old != at) munmap(old, bytes_of(i));  // before Linux 4.17 `at` is only a hint
    refuse(error, shown_, "mapped");
}

// Pieces that were replaced do not lie where they did.
void RowFile::will_need(std::size_t first, std::size_t n) const noexcept {
    for (const std::size_t end = std::min(first + n, mapped_bytes_); first < end;) {
        const std::size_t in_piece = first % piece_bytes_;
        const std::size_t size = std::min({end - first, bytes_of_request, piece_bytes_ - in_piece});
        posix_fadvise(file_.number(), static_cast<off_t>(pieces_[first / piece_bytes_].place * piece_bytes_ + in_piece),
                      static_cast<off_t>(size), POSIX_FADV_WILLNEED);
        first += size;
    }
}

// ------------------------------------------------------------------------------------------------------ checkpoints

bool RowFile::is_in(const LockedFolder& folder) const {
    struct stat other;
    struct stat own;
    return fstat(folder.number(), &other) == 0 && fstat(folder_.number(), &own) == 0 && other.st_dev == own.st_dev &&
           other.st_ino == own.st_ino;
}

// A file whose name somebody has removed cannot get another one.
bool RowFile::take_name(const LockedFolder& folder) {
    if (!can_have_name_ || !is_in(folder)) return false;
    if (number_ != no_row_file) return can_have_name_ = is_named(folder_, number_, file_);
    uint64_t number = 0;
    for (const std::string& name : folder.names())
        if (const uint64_t other = row_file_number(name); other != no_row_file) number = std::max(number, other + 1);
    if (number == no_row_file) return false;
    // Says to those who would adopt the file that it is in use. A file system without locks leaves that to the caller.
    flock(file_.number(), LOCK_EX | LOCK_NB);
    const std::string open_file = "/proc/self/fd/" + std::to_string(file_.number());
    if (linkat(AT_FDCWD, open_file.c_str(), folder.number(), row_file_name(number).c_str(), AT_SYMLINK_FOLLOW) != 0)
        return false;
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
    int result = 0;
    do result = fdatasync(file_.number());
    while (result != 0 && errno == EINTR);
    if (result == 0) return;
    // The system forgets what it could not write, and the next call might say that all is there.
    can_have_name_ = false;
    refuse(errno, shown_, "written");
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
    Descriptor file(
        [&] { return openat(folder.number(), name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); });
    if (!file.is_open()) refuse(errno, shown_, "adopted");
    struct stat found;
    if (fstat(file.number(), &found) != 0) refuse(errno, shown_, "adopted");
    if (!S_ISREG(found.st_mode)) refuse_file(folder, table.number, "it is no regular file");
    if (flock(file.number(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        throw Error(PER_ERROR_BUSY, "storage %s: a buffer has its rows already (%s), which must be freed first",
                    shown_.c_str(), name.c_str());
    const uint64_t size = static_cast<uint64_t>(found.st_size);
    const uint64_t n_places = (size + piece_bytes_ - 1) / piece_bytes_;
    std::set<uint64_t> used;
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
        const RowTable::Piece& piece = table.pieces[i];
        if (piece.place >= n_places || piece.place * piece_bytes_ + bytes_of(i) > size)
            refuse_file(folder, table.number, "it ends early");
        if (!used.insert(piece.place).second || (piece.blocks & ~blocks_of(i)) != 0)
            refuse_file(folder, table.number, "its table cannot be");
        // Who copied the file may have left out the room of zeros.
        pieces.push_back({piece.place, 0, piece.blocks, 0, piece.hash, piece.blocks != 0});
    }
    // However long somebody has made the file, there are no more copies than pieces.
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
      file_bytes_(size_of(file_, folder.shown())),
      is_checked_(table.pieces.size()) {}

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

// Memory is taken for what is there, whatever the table says.
void RowReader::read_block(const RowTable::Piece& piece, uint64_t i) {
    loaded_ = UINT64_MAX;
    if (piece.place > file_bytes_ / table_.piece_bytes) refuse("it ends early");
    const uint64_t first = (piece.place * n_blocks_ + i) * table_.block_bytes;
    if (first > file_bytes_ || table_.block_bytes > file_bytes_ - first) refuse("it ends early");
    block_.resize(static_cast<std::size_t>(table_.block_bytes));
    if (read_at(file_, first, block_.data(), block_.size(), folder_.shown()) != block_.size()) refuse("it ends early");
}

void RowReader::refuse(const char* reason) const {
    refuse_file(folder_, table_.number, reason);
}

}  // namespace per

#include "file/row_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "rows/error.h"

namespace per {
namespace {

constexpr std::size_t kibibyte = 1024;
constexpr std::size_t mebibyte = 1024 * kibibyte;

constexpr std::size_t most_bytes = std::size_t{1} << 47;  // no process maps more
constexpr std::size_t least_piece_bytes = 64 * kibibyte;
constexpr std::size_t most_piece_bytes = mebibyte;
constexpr std::size_t most_small_pieces = 65536;
// A call of fallocate() that a signal interrupts begins anew: of a long one signals might never see the end.
constexpr std::size_t bytes_of_reservation = 64 * mebibyte;
// The system shortens requests to what it reads ahead on the disk, which is so much unless somebody has set it.
constexpr std::size_t bytes_of_request = 128 * kibibyte;
constexpr mode_t of_owner = 0600;

[[noreturn]] void refuse(int error, const std::string& shown, const char* action) {
    throw Error(error == ENOMEM ? PER_ERROR_OUT_OF_MEMORY : PER_ERROR_IO, "storage %s cannot be %s: %s", shown.c_str(),
                action, std::strerror(error));
}

// A file that is in no folder. File systems that do not have such make one whose name is removed at once.
Descriptor unnamed_file(const char* folder, const std::string& shown) {
    Descriptor file(open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, of_owner));
    if (file.is_open()) return file;
    if (errno != EOPNOTSUPP && errno != EISDIR) refuse(errno, shown, "written");
    for (unsigned number = 0; !file.is_open(); ++number) {
        const std::string path =
            std::string(folder) + "/rows-" + std::to_string(getpid()) + "-" + std::to_string(number) + ".tmp";
        file = Descriptor(open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, of_owner));
        if (file.is_open())
            unlink(path.c_str());
        else if (errno != EEXIST)
            refuse(errno, shown, "written");
    }
    return file;
}

// Makes the file so long, by zeros that take no room. Beyond the limit of the process that would be a signal.
void lengthen(const Descriptor& file, std::size_t bytes, const std::string& shown) {
    rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) refuse(EFBIG, shown, "written");
    if (ftruncate(file.number(), static_cast<off_t>(bytes)) != 0) refuse(errno, shown, "written");
}

// Each lane has a piece of its own that it fills: pieces are small, and in large files not too many.
std::size_t piece_bytes_of(std::size_t bytes) {
    return std::clamp(std::bit_ceil(bytes / most_small_pieces), least_piece_bytes, most_piece_bytes);
}

}  // namespace

RowFile::RowFile(const char* folder, std::size_t bytes, bool is_preallocated) : shown_(shown_path(folder)) {
    if (bytes > most_bytes) throw_out_of_memory(bytes);
    piece_bytes_ = piece_bytes_of(bytes);
    n_unreserved_ = std::max<std::size_t>(1, (bytes + piece_bytes_ - 1) / piece_bytes_);
    mapped_bytes_ = n_unreserved_ * piece_bytes_;
    file_ = unnamed_file(folder, shown_);
    lengthen(file_, mapped_bytes_, shown_);
    is_reserved_.resize(n_unreserved_);
    if (is_preallocated) {
        allocate(0, mapped_bytes_);
        n_unreserved_ = 0;
    } else {
        reserve(0, 1);  // shows whether the file system can
    }
    void* const mapping = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.number(), 0);
    if (mapping == MAP_FAILED) refuse(errno, shown_, "mapped");
    data_ = static_cast<std::byte*>(mapping);
    // Without this a page that is missing is read with 128 KiB around it, which nobody wants of rows drawn at random.
    madvise(data_, mapped_bytes_, MADV_RANDOM);
}

RowFile::~RowFile() {
    munmap(data_, mapped_bytes_);
}

void RowFile::reserve_pieces(std::size_t first, std::size_t n) {
    for (std::size_t piece = first / piece_bytes_; piece <= (first + n - 1) / piece_bytes_; ++piece) {
        if (is_reserved_[piece]) continue;
        allocate(piece * piece_bytes_, piece_bytes_);
        is_reserved_[piece] = true;
        --n_unreserved_;
    }
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

void RowFile::will_need(std::size_t first, std::size_t n) const noexcept {
    for (const std::size_t end = first + n; first < end; first += bytes_of_request)
        posix_fadvise(file_.number(), static_cast<off_t>(first),
                      static_cast<off_t>(std::min(end - first, bytes_of_request)), POSIX_FADV_WILLNEED);
}

}  // namespace per

#include "system/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include "base/error.h"
#include "system/interrupted.h"

namespace per {
namespace {

template <class Open>
Descriptor opened(const Open& open) {
    return Descriptor([&] { return uninterrupted(open); });
}

// Calls a function that fills a struct stat.
template <class Look>
std::optional<FileStatus> status_by(const Look& look) {
    struct stat found;
    if (uninterrupted([&] { return look(&found); }) != 0) return std::nullopt;
    using Kind = FileStatus::Kind;
    const Kind kind = S_ISREG(found.st_mode)    ? Kind::regular
                      : S_ISDIR(found.st_mode)  ? Kind::folder
                      : S_ISFIFO(found.st_mode) ? Kind::fifo
                      : S_ISSOCK(found.st_mode) ? Kind::socket
                                                : Kind::device;
    return FileStatus{kind,
                      static_cast<uint64_t>(found.st_size),
                      found.st_mode & mode_t{07777},
                      found.st_uid,
                      found.st_gid,
                      found.st_dev,
                      found.st_ino};
}

// The entries of a folder.
class Listing {
 public:
    explicit Listing(const Descriptor& folder)
        : descriptor_(open_folder(folder, ".")),
          entries_(descriptor_.is_open() ? fdopendir(descriptor_.number()) : nullptr) {}
    ~Listing() {
        if (entries_ != nullptr) descriptor_.close_by([this] { closedir(entries_); });
    }
    Listing(const Listing&) = delete;
    Listing& operator=(const Listing&) = delete;

    DIR* entries() const { return entries_; }

 private:
    Descriptor descriptor_;
    DIR* entries_;
};

}  // namespace

void throw_system_error(int error, const std::string& subject, const char* action) {
    throw Error(error == ENOMEM ? PER_ERROR_OUT_OF_MEMORY : PER_ERROR_IO, "%s cannot be %s: %s", subject.c_str(),
                action, std::strerror(error));
}

std::optional<FileStatus> status_of(const char* path) {
    return status_by([&](struct stat* found) { return stat(path, found); });
}

std::optional<FileStatus> status_of(const Descriptor& file) {
    return status_by([&](struct stat* found) { return fstat(file.number(), found); });
}

std::optional<FileStatus> status_of(const Descriptor& folder, const std::string& name) {
    return status_by(
        [&](struct stat* found) { return fstatat(folder.number(), name.c_str(), found, AT_SYMLINK_NOFOLLOW); });
}

bool is_named(const Descriptor& folder, const std::string& name, const Descriptor& file) {
    const std::optional<FileStatus> of_name = status_of(folder, name);
    const std::optional<FileStatus> of_file = status_of(file);
    return of_name && of_file && of_name->is_same_file(*of_file);
}

// ---------------------------------------------------------------------------------------------------------- opening

// Without O_NONBLOCK the opening of a FIFO would wait for a writer.
Descriptor open_file(const char* path) {
    return opened([&] { return open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); });
}

Descriptor open_file(const Descriptor& folder, const std::string& name, Access access) {
    const int flags = (access == Access::read ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    return opened([&] { return openat(folder.number(), name.c_str(), flags); });
}

Descriptor create_file(const Descriptor& folder, const std::string& name, mode_t mode) {
    return opened([&] { return openat(folder.number(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode); });
}

Descriptor create_removed_file(const std::string& folder) {
    for (unsigned number = 0;; ++number) {
        const std::string path = folder + "/rows-" + std::to_string(getpid()) + "-" + std::to_string(number) + ".tmp";
        Descriptor file(
            [&] { return open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, mode_t{S_IRUSR | S_IWUSR}); });
        if (file.is_open()) unlink(path.c_str());
        if (file.is_open() || errno != EEXIST) return file;
    }
}

bool make_folder(const char* path) {
    return mkdir(path, 0777) == 0;
}

Descriptor open_folder(const char* path) {
    return opened([&] { return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
}

Descriptor open_folder(const Descriptor& folder, const char* name) {
    return opened([&] { return openat(folder.number(), name, O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
}

std::optional<std::vector<std::string>> names_in(const Descriptor& folder) {
    const Listing listing(folder);
    if (listing.entries() == nullptr) return std::nullopt;
    std::vector<std::string> names;
    while (const dirent* const entry = readdir(listing.entries())) names.emplace_back(entry->d_name);
    return names;
}

std::size_t longest_name(const Descriptor& folder) {
    const long limit = fpathconf(folder.number(), _PC_NAME_MAX);
    return limit > 0 ? static_cast<std::size_t>(limit) : NAME_MAX;
}

std::optional<std::string> target_of_link(const char* path) {
    char target[PATH_MAX];
    const ssize_t size = readlink(path, target, sizeof target);
    if (size < 0) return std::nullopt;
    if (static_cast<std::size_t>(size) < sizeof target) return std::string(target, static_cast<std::size_t>(size));
    errno = ENAMETOOLONG;
    return std::nullopt;
}

bool remove_file(const Descriptor& folder, const std::string& name) {
    return unlinkat(folder.number(), name.c_str(), 0) == 0;
}

bool rename_file(const Descriptor& folder, const std::string& from, const std::string& to) {
    return renameat(folder.number(), from.c_str(), folder.number(), to.c_str()) == 0;
}

// If the group cannot be kept, the file's new group gets only the rights that all other users have.
bool copy_owner_and_mode(const Descriptor& file, const FileStatus& other) {
    const std::optional<FileStatus> present = status_of(file);
    if (!present) return false;
    mode_t mode = other.mode;
    if (present->group != other.group && fchown(file.number(), static_cast<uid_t>(-1), other.group) != 0)
        mode = (mode & ~mode_t{S_IRWXG}) | (mode & S_IRWXO) << 3;
    // A process that may not give the file to another user keeps it, without the set-user-ID bit.
    if (present->user != other.user && fchown(file.number(), other.user, static_cast<gid_t>(-1)) != 0)
        mode &= ~mode_t{S_ISUID};
    fchmod(file.number(), mode);  // some file systems have no modes
    return true;
}

// ------------------------------------------------------------------------------------------------------------ locks

LockResult lock_file(const Descriptor& file, Lock lock) {
    const int operation = (lock == Lock::shared ? LOCK_SH : LOCK_EX) | LOCK_NB;
    if (uninterrupted([&] { return flock(file.number(), operation); }) == 0) return LockResult::taken;
    return errno == EWOULDBLOCK ? LockResult::held_by_another : LockResult::refused;
}

void unlock_file(const Descriptor& file) {
    flock(file.number(), LOCK_UN);
}

// ------------------------------------------------------------------------------------------------ reading and writing

bool exceeds_file_limit(uint64_t end) {
    rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && end > limit.rlim_cur;
}

bool seek(const Descriptor& file, uint64_t place) {
    return lseek(file.number(), static_cast<off_t>(place), SEEK_SET) >= 0;
}

ssize_t read_some(const Descriptor& file, void* data, std::size_t size) {
    return uninterrupted([&] { return read(file.number(), data, size); });
}

ssize_t read_fully_at(const Descriptor& file, uint64_t place, void* data, std::size_t size) {
    std::size_t done = 0;
    while (done < size) {
        const ssize_t n = uninterrupted([&] {
            return pread(file.number(), static_cast<char*>(data) + done, size - done, static_cast<off_t>(place + done));
        });
        if (n < 0) return -1;
        if (n == 0) break;
        done += static_cast<std::size_t>(n);
    }
    return static_cast<ssize_t>(done);
}

bool write_all(const Descriptor& file, const void* data, std::size_t size) {
    const off_t first = lseek(file.number(), 0, SEEK_CUR);
    if (first < 0) return false;
    if (exceeds_file_limit(static_cast<uint64_t>(first) + size)) {
        errno = EFBIG;
        return false;
    }
    const char* bytes = static_cast<const char*>(data);
    while (size > 0) {
        const ssize_t n = uninterrupted([&] { return write(file.number(), bytes, size); });
        if (n < 0) return false;
        bytes += n;
        size -= static_cast<std::size_t>(n);
    }
    return true;
}

ssize_t write_some_at(const Descriptor& file, uint64_t place, const void* data, std::size_t size) {
    return uninterrupted([&] { return pwrite(file.number(), data, size, static_cast<off_t>(place)); });
}

bool set_size(const Descriptor& file, uint64_t size) {
    if (!exceeds_file_limit(size)) return ftruncate(file.number(), static_cast<off_t>(size)) == 0;
    errno = EFBIG;
    return false;
}

void begin_reading(const Descriptor& file, uint64_t first, std::size_t n) noexcept {
    posix_fadvise(file.number(), static_cast<off_t>(first), static_cast<off_t>(n), POSIX_FADV_WILLNEED);
}

bool sync(const Descriptor& file) {
    return uninterrupted([&] { return fsync(file.number()); }) == 0;
}

bool sync_data(const Descriptor& file) {
    return uninterrupted([&] { return fdatasync(file.number()); }) == 0;
}

}  // namespace per

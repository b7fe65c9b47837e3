#include "file/disk_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "file/checksum.h"
#include "threads/deadline.h"

namespace per {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 16;
constexpr std::size_t bytes_to_begin = std::size_t{1} << 23;
constexpr std::size_t max_shown = 200;
constexpr int max_links = 40;  // as many as the kernel follows

constexpr std::string_view temporary_mark = ".libper-";
constexpr std::string_view temporary_end = ".tmp";
constexpr std::size_t max_digits = 10;

[[noreturn]] void refuse(int error, const std::string& shown, const char* action) {
    throw Error(error == ENOMEM ? PER_ERROR_OUT_OF_MEMORY : PER_ERROR_IO, "path %s cannot be %s: %s", shown.c_str(),
                action, std::strerror(error));
}

// Calls a function of the system until no signal interrupts it.
template <class Call>
auto uninterrupted(const Call& call) {
    auto result = call();
    while (result < 0 && errno == EINTR) result = call();
    return result;
}

template <class Open>
Descriptor opened(const Open& open) {
    return Descriptor([&] { return uninterrupted(open); });
}

// The names in a folder, one after the other.
class Listing {
 public:
    explicit Listing(const Descriptor& folder)
        : descriptor_(opened([&] { return openat(folder.number(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); })),
          entries_(descriptor_.is_open() ? fdopendir(descriptor_.number()) : nullptr) {}
    ~Listing() {
        if (is_open()) descriptor_.close_by([this] { closedir(entries_); });
    }
    Listing(const Listing&) = delete;
    Listing& operator=(const Listing&) = delete;

    // If not, errno says why.
    bool is_open() const { return entries_ != nullptr; }
    // NULL: there are no more.
    const char* next_name() const {
        const dirent* const entry = readdir(entries_);
        return entry != nullptr ? entry->d_name : nullptr;
    }

 private:
    Descriptor descriptor_;
    DIR* entries_;
};

// Takes a lock (flock), unless another has it. A file system without locks refuses it, which is no error.
bool is_locked_by_another(const Descriptor& file, int operation) {
    return uninterrupted([&] { return flock(file.number(), operation | LOCK_NB); }) != 0 && errno == EWOULDBLOCK;
}

// Takes a lock (flock) that others may hold for ever. It is tried again and again: a call that waits for it would end by
// a signal only, which may reach any thread.
bool is_locked_in_time(const Descriptor& file, int operation, int64_t timeout_ms) {
    using std::chrono::nanoseconds;
    constexpr nanoseconds longest_nap = std::chrono::milliseconds(10);
    const Deadline deadline(timeout_ms);
    for (nanoseconds nap = std::chrono::milliseconds(1);; nap = std::min(2 * nap, longest_nap)) {
        if (!is_locked_by_another(file, operation)) return true;
        if (deadline.has_passed()) return false;
        std::this_thread::sleep_for(std::min(nap, deadline.left()));
    }
}

void require_regular(mode_t mode, const std::string& shown, const char* action) {
    if (S_ISREG(mode)) return;
    const char* const kind = S_ISDIR(mode)    ? "a directory"
                             : S_ISFIFO(mode) ? "a FIFO"
                             : S_ISSOCK(mode) ? "a socket"
                                              : "a device";
    throw Error(PER_ERROR_IO, "path %s cannot be %s: it is %s, no regular file", shown.c_str(), action, kind);
}

// Where a path leads through symbolic links, also if nothing is there.
std::string followed(std::string path, const std::string& shown) {
    for (int i = 0; i < max_links; ++i) {
        char target[PATH_MAX];
        const ssize_t size = readlink(path.c_str(), target, sizeof target);
        if (size < 0) return path;  // no link; any other fault shows when the folder is opened
        if (static_cast<std::size_t>(size) == sizeof target) refuse(ENAMETOOLONG, shown, "written");
        const std::string folder = target[0] == '/' ? "" : path.substr(0, path.rfind('/') + 1);
        path = folder + std::string(target, static_cast<std::size_t>(size));
    }
    refuse(ELOOP, shown, "written");
}

void write_all(int file, const void* data, std::size_t size, const std::string& shown) {
    const off_t first = lseek(file, 0, SEEK_CUR);
    if (first < 0) refuse(errno, shown, "written");
    if (exceeds_file_limit(static_cast<uint64_t>(first) + size)) refuse(EFBIG, shown, "written");
    const char* bytes = static_cast<const char*>(data);
    while (size > 0) {
        const ssize_t n = uninterrupted([&] { return ::write(file, bytes, size); });
        if (n < 0) refuse(errno, shown, "written");
        bytes += n;
        size -= static_cast<std::size_t>(n);
    }
}

// New names are to outlive a power failure. A folder that may not be read, and a file system that does not sync folders
// (EINVAL), are left to the system.
void sync_folder(const Descriptor& folder, const std::string& shown) {
    if (!folder.is_open() || uninterrupted([&] { return fsync(folder.number()); }) == 0 || errno == EINVAL) return;
    throw Error(PER_ERROR_IO, "path %s is written, but its folder cannot be synced: %s", shown.c_str(),
                std::strerror(errno));
}

bool is_same_file(const struct stat& a, const struct stat& b) {
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Whether a name in a folder still is that of an open file.
bool is_named(int folder, const char* name, int file) {
    struct stat of_name;
    struct stat of_file;
    return fstatat(folder, name, &of_name, AT_SYMLINK_NOFOLLOW) == 0 && fstat(file, &of_file) == 0 &&
           is_same_file(of_name, of_file);
}

}  // namespace

std::string shown_path(const std::string& path) {
    std::string shown = path;
    if (path.size() > max_shown) {
        const std::size_t first_end = whole_characters(path, max_shown / 2);
        std::size_t rest = path.size() - max_shown / 2;
        while (rest < path.size() && !begins_character(path[rest])) ++rest;
        shown = path.substr(0, first_end) + "..." + path.substr(rest);
    }
    for (char& c : shown)
        if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
    return shown;
}

bool is_folder(const char* path) {
    struct stat found;
    return uninterrupted([&] { return stat(path, &found); }) == 0 && S_ISDIR(found.st_mode);
}

bool exceeds_file_limit(uint64_t end) {
    rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && end > limit.rlim_cur;
}

// Where the system has no such call, the sync waits for all. What the disk reports here the sync may not report again.
void WriteBehind::wrote(const Descriptor& file, std::size_t size, const std::string& shown) {
    n_bytes_ += size;
    if (n_bytes_ < bytes_to_begin) return;
    n_bytes_ = 0;
    const int begun = uninterrupted([&] { return sync_file_range(file.number(), 0, 0, SYNC_FILE_RANGE_WRITE); });
    if (begun != 0 && (errno == EIO || errno == ENOSPC || errno == EDQUOT)) refuse(errno, shown, "written");
}

// ---------------------------------------------------------------------------------------------------------- folders

LockedFolder::LockedFolder(const char* path, Use use, int64_t timeout_ms) : path_(path), shown_(shown_path(path_)) {
    const char* const action = use == Use::writing ? "written" : "read";
    const bool is_made = use == Use::writing && mkdir(path, 0777) == 0;
    if (use == Use::writing && !is_made && errno != EEXIST) refuse(errno, shown_, action);
    folder_ = opened([&] { return ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (!folder_.is_open()) refuse(errno, shown_, action);
    if (is_made)
        sync_folder(opened([&] { return openat(folder_.number(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC); }), shown_);
    if (!is_locked_in_time(folder_, use == Use::writing ? LOCK_EX : LOCK_SH, timeout_ms))
        throw Error(PER_ERROR_BUSY,
                    "path %s cannot be %s yet: another thread or process reads or writes it, and holds its lock",
                    shown_.c_str(), action);
}

// A child that was forked a moment ago has not closed its copy yet, with which the lock would stay.
LockedFolder::~LockedFolder() {
    if (folder_.is_open()) flock(folder_.number(), LOCK_UN);
}

std::vector<std::string> LockedFolder::names() const {
    const Listing listing(folder_);
    if (!listing.is_open()) refuse(errno, shown_, "read");
    std::vector<std::string> names;
    while (const char* const name = listing.next_name()) names.emplace_back(name);
    return names;
}

int64_t LockedFolder::size_of(const std::string& name) const {
    struct stat found;
    if (fstatat(folder_.number(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(found.st_mode)) return -1;
    return found.st_size;
}

Descriptor LockedFolder::open(const std::string& name) const {
    Descriptor file = opened([&] {
        return openat(folder_.number(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    });
    struct stat found;
    if (!file.is_open() || fstat(file.number(), &found) != 0) refuse(errno, shown_, "read");
    require_regular(found.st_mode, shown_, "read");
    return file;
}

void LockedFolder::remove(const std::string& name) const {
    unlinkat(folder_.number(), name.c_str(), 0);
}

void LockedFolder::sync() const {
    sync_folder(folder_, shown_);
}

NewFile::NewFile(const LockedFolder& folder, std::string name) : folder_(folder), name_(std::move(name)) {
    file_ = opened(
        [&] { return openat(folder_.number(), name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode_t{0666}); });
    if (!file_.is_open()) refuse(errno, folder_.shown(), "written");
}

NewFile::~NewFile() {
    if (file_.is_open() && !is_kept_) folder_.remove(name_);
}

void NewFile::write(const void* data, std::size_t size) {
    write_all(file_.number(), data, size, folder_.shown());
    behind_.wrote(file_, size, folder_.shown());
}

void NewFile::sync() {
    if (uninterrupted([&] { return fsync(file_.number()); }) != 0) refuse(errno, folder_.shown(), "written");
}

std::size_t read_at(const Descriptor& file, uint64_t offset, void* data, std::size_t size, const std::string& shown) {
    std::size_t done = 0;
    while (done < size) {
        const ssize_t n = uninterrupted([&] {
            return pread(file.number(), static_cast<char*>(data) + done, size - done,
                         static_cast<off_t>(offset + done));
        });
        if (n < 0) refuse(errno, shown, "read");
        if (n == 0) break;
        done += static_cast<std::size_t>(n);
    }
    return done;
}

// ---------------------------------------------------------------------------------------------------------- reading

// A path that names no regular file is not opened at all: opening a device may do something.
InputFile::InputFile(const char* path) : shown_(shown_path(path)), buffer_(buffer_bytes) {
    struct stat found;
    if (uninterrupted([&] { return stat(path, &found); }) != 0) refuse(errno, shown_, "read");
    require_regular(found.st_mode, shown_, "read");
    // The path may name another file by now. Without O_NONBLOCK the opening of a FIFO would wait for a writer.
    file_ = opened([&] { return open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); });
    if (!file_.is_open()) refuse(errno, shown_, "read");
    if (fstat(file_.number(), &found) != 0) refuse(errno, shown_, "read");
    require_regular(found.st_mode, shown_, "read");
}

std::size_t InputFile::read(void* data, std::size_t size) {
    char* const bytes = static_cast<char*>(data);
    std::size_t done = 0;
    while (done < size) {
        if (next_ == end_ && size - done >= buffer_.size()) {
            const std::size_t n = read_some(bytes + done, size - done);
            if (n == 0) break;
            done += n;
            continue;
        }
        if (next_ == end_) {
            next_ = 0;
            end_ = read_some(buffer_.data(), buffer_.size());
            if (end_ == 0) break;
        }
        const std::size_t n = std::min(size - done, end_ - next_);
        std::memcpy(bytes + done, buffer_.data() + next_, n);
        next_ += n;
        done += n;
    }
    return done;
}

std::size_t InputFile::read_some(void* data, std::size_t size) {
    const ssize_t n = uninterrupted([&] { return ::read(file_.number(), data, size); });
    if (n < 0) refuse(errno, shown_, "read");
    n_fetched_ += static_cast<uint64_t>(n);
    return static_cast<std::size_t>(n);
}

bool InputFile::skip(uint64_t size) {
    struct stat found;
    if (fstat(file_.number(), &found) != 0) refuse(errno, shown_, "read");
    const uint64_t from = place();
    const uint64_t end = static_cast<uint64_t>(found.st_size);
    if (from > end || size > end - from) return false;
    next_ = end_ = 0;
    n_fetched_ = from + size;
    if (lseek(file_.number(), static_cast<off_t>(n_fetched_), SEEK_SET) < 0) refuse(errno, shown_, "read");
    return true;
}

std::size_t InputFile::read_at(uint64_t place, void* data, std::size_t size) const {
    return per::read_at(file_, place, data, size, shown_);
}

// ---------------------------------------------------------------------------------------------------------- writing

ReplacementFile::ReplacementFile(const char* path) : shown_(shown_path(path)) {
    struct stat found;
    if (uninterrupted([&] { return stat(path, &found); }) == 0) {
        require_regular(found.st_mode, shown_, "written");
        replaces_ = true;
        mode_ = found.st_mode & 07777;
        user_ = found.st_uid;
        group_ = found.st_gid;
    } else if (errno != ENOENT) {
        refuse(errno, shown_, "written");
    }
    const std::string target = followed(path, shown_);
    const std::size_t name = target.rfind('/') + 1;  // 0 where there is no slash
    name_ = target.substr(name);
    if (name_.empty()) refuse(target.empty() ? ENOENT : EISDIR, shown_, "written");
    open_folder(name == 0 ? "." : target.substr(0, name));
    stem_ = temporary_stem();
    remove_leftovers();
    open_temporary();
}

ReplacementFile::~ReplacementFile() {
    if (!temporary_.empty()) unlinkat(folder_.number(), temporary_.c_str(), 0);
}

// Files can also be made in a folder that may be written to but not read.
void ReplacementFile::open_folder(const std::string& folder) {
    const auto open_with = [&](int flags) {
        return opened([&] { return open(folder.c_str(), flags | O_DIRECTORY | O_CLOEXEC); });
    };
    folder_ = open_with(O_RDONLY);
    is_folder_readable_ = folder_.is_open();
    if (!folder_.is_open() && errno == EACCES) folder_ = open_with(O_PATH);
    if (!folder_.is_open()) refuse(errno, shown_, "written");
}

// The stem is the name itself, or its beginning and its checksum where it would be too long for the file system.
std::string ReplacementFile::temporary_stem() const {
    const long limit = fpathconf(folder_.number(), _PC_NAME_MAX);
    const std::size_t max_name = limit > 0 ? static_cast<std::size_t>(limit) : NAME_MAX;
    const std::size_t added = temporary_mark.size() + max_digits + temporary_end.size();
    if (name_.size() + added <= max_name) return name_;
    Checksum checksum;
    checksum.add(name_.data(), name_.size());
    char text[18];
    std::snprintf(text, sizeof text, "~%016llx", static_cast<unsigned long long>(checksum.value()));
    const std::size_t room = max_name - std::min(max_name, added + std::strlen(text));
    return name_.substr(0, whole_characters(name_, room)) + text;
}

std::string ReplacementFile::temporary_name(const std::string& number) const {
    std::string name = stem_;
    return name.append(temporary_mark).append(number).append(temporary_end);
}

bool ReplacementFile::is_temporary(const std::string& name) const {
    const std::string shortest = temporary_name("");
    if (name.size() <= shortest.size() || name.size() > shortest.size() + max_digits) return false;
    const std::size_t first = stem_.size() + temporary_mark.size();
    const std::string number = name.substr(first, name.size() - shortest.size());
    if (number.size() > 1 && number[0] == '0') return false;
    return std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
           name == temporary_name(number);
}

// A leftover that cannot be looked at or removed stays.
void ReplacementFile::remove_leftovers() const {
    const Listing listing(folder_);
    if (!listing.is_open()) return;
    while (const char* const name = listing.next_name())
        if (is_temporary(name)) remove_if_left_behind(name);
}

void ReplacementFile::remove_if_left_behind(const char* name) const {
    struct stat found;
    if (fstatat(folder_.number(), name, &found, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(found.st_mode)) return;
    const auto open_to = [&](int access) {
        return opened([&] { return openat(folder_.number(), name, access | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); });
    };
    Descriptor file = open_to(O_RDWR);  // NFS locks only what may be written
    if (!file.is_open()) file = open_to(O_RDONLY);
    if (!file.is_open() || flock(file.number(), LOCK_EX | LOCK_NB) != 0) return;
    // Between opening and locking, the file may have been committed, or removed and its name given to another. From
    // here on it keeps its name: whoever else would rename or remove it must hold the lock.
    if (is_named(folder_.number(), name, file.number())) unlinkat(folder_.number(), name, 0);
}

void ReplacementFile::open_temporary() {
    for (unsigned number = 0;; ++number) {
        const std::string name = temporary_name(std::to_string(number));
        const mode_t mode = replaces_ ? S_IRUSR | S_IWUSR : 0666;  // nobody reads more while it is written
        Descriptor file = opened(
            [&] { return openat(folder_.number(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode); });
        if (!file.is_open() && errno == EEXIST) continue;
        if (!file.is_open()) refuse(errno, shown_, "written");
        // A file system without locks refuses this one. It refuses those of other savers, too, so that they remove
        // nothing. Where another saver looks whether the file was left behind, it removes it; anybody else may hold the
        // lock for ever.
        if (is_locked_by_another(file, LOCK_EX)) continue;
        if (!is_named(folder_.number(), name.c_str(), file.number())) continue;  // removed before it was locked
        temporary_ = name;
        file_ = std::move(file);
        return;
    }
}

void ReplacementFile::write(const void* data, std::size_t size) {
    write_all(file_.number(), data, size, shown_);
    behind_.wrote(file_, size, shown_);
}

void ReplacementFile::go_to(uint64_t place) {
    if (lseek(file_.number(), static_cast<off_t>(place), SEEK_SET) < 0) refuse(errno, shown_, "written");
}

// Where the group cannot be kept, the file's new group gets the rights of all others.
void ReplacementFile::keep_owner_and_mode() const {
    if (!replaces_) return;
    struct stat present;
    if (fstat(file_.number(), &present) != 0) refuse(errno, shown_, "written");
    mode_t mode = mode_;
    if (present.st_gid != group_ && fchown(file_.number(), static_cast<uid_t>(-1), group_) != 0)
        mode = (mode & ~mode_t{S_IRWXG}) | (mode & S_IRWXO) << 3;
    // A saver that may not give the file away keeps it.
    if (present.st_uid != user_ && fchown(file_.number(), user_, static_cast<gid_t>(-1)) != 0) mode &= ~mode_t{S_ISUID};
    fchmod(file_.number(), mode);  // some file systems have no modes
}

void ReplacementFile::commit() {
    keep_owner_and_mode();
    if (uninterrupted([&] { return fsync(file_.number()); }) != 0) refuse(errno, shown_, "written");
    if (renameat(folder_.number(), temporary_.c_str(), folder_.number(), name_.c_str()) != 0)
        refuse(errno, shown_, "written");
    temporary_.clear();
    if (is_folder_readable_) sync_folder(folder_, shown_);
}

}  // namespace per

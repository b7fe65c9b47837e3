#include "file/disk_file.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cinttypes>
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
    throw_system_error(error, "path " + shown, action);
}

// Takes a lock that others may hold forever. It polls: a system call that waits for the lock could be ended only by a
// signal, and a signal may reach any thread.
bool is_locked_in_time(const Descriptor& file, Lock lock, int64_t timeout_ms) {
    using std::chrono::nanoseconds;
    constexpr nanoseconds longest_nap = std::chrono::milliseconds(10);
    const Deadline deadline(timeout_ms);
    for (nanoseconds nap = std::chrono::milliseconds(1);; nap = std::min(2 * nap, longest_nap)) {
        if (lock_file(file, lock) != LockResult::held_by_another) return true;
        if (deadline.has_passed()) return false;
        std::this_thread::sleep_for(std::min(nap, deadline.left()));
    }
}

// Throws Error if there is no status, or if the file is not a regular one.
void require_regular(const std::optional<FileStatus>& status, const std::string& shown, const char* action) {
    using Kind = FileStatus::Kind;
    if (!status) refuse(errno, shown, action);
    if (status->kind == Kind::regular) return;
    const char* const kind = status->kind == Kind::folder   ? "a directory"
                             : status->kind == Kind::fifo   ? "a FIFO"
                             : status->kind == Kind::socket ? "a socket"
                                                            : "a device";
    throw Error(PER_ERROR_IO, "path %s cannot be %s: it is %s, not a regular file", shown.c_str(), action, kind);
}

// Follows symbolic links to the last one's target, which need not exist.
std::string followed(std::string path, const std::string& shown) {
    for (int i = 0; i < max_links; ++i) {
        const std::optional<std::string> target = target_of_link(path.c_str());
        if (!target && errno == ENAMETOOLONG) refuse(errno, shown, "written");
        if (!target) return path;  // no link; any other fault shows when the folder is opened
        const std::string folder = (*target)[0] == '/' ? "" : path.substr(0, path.rfind('/') + 1);
        path = folder + *target;
    }
    refuse(ELOOP, shown, "written");
}

// Makes new names outlive a power failure. Does nothing for a folder that may not be read, or if the file system does
// not sync folders (EINVAL).
void sync_folder(const Descriptor& folder, const std::string& shown) {
    if (!folder.is_open() || sync(folder) || errno == EINVAL) return;
    throw Error(PER_ERROR_IO, "path %s is written, but its folder cannot be synced: %s", shown.c_str(),
                std::strerror(errno));
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
    const std::optional<FileStatus> status = status_of(path);
    return status && status->kind == FileStatus::Kind::folder;
}

std::string numbered_name(const char* kind, uint64_t number) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016" PRIx64, number);
    return std::string(kind) + "-" + digits + ".per";
}

std::optional<uint64_t> number_in_name(const std::string& name, const char* kind) {
    uint64_t number = 0;
    const std::size_t first = std::min(name.size(), std::strlen(kind) + 1);
    if (std::sscanf(name.c_str() + first, "%16" SCNx64, &number) != 1) return std::nullopt;
    return name == numbered_name(kind, number) ? std::optional(number) : std::nullopt;
}

void OutputFile::write(const void* data, std::size_t size, const std::string& shown) {
    if (!write_all(file_, data, size)) refuse(errno, shown, "written");
    n_bytes_ += size;
    if (n_bytes_ < bytes_to_begin) return;
    n_bytes_ = 0;
    // An error reported here may not be reported again by the sync.
    if (!begin_sync(file_)) refuse(errno, shown, "written");
}

void OutputFile::sync(const std::string& shown) {
    if (!per::sync(file_)) refuse(errno, shown, "written");
}

// ---------------------------------------------------------------------------------------------------------- folders

LockedFolder::LockedFolder(const char* path, Use use, int64_t timeout_ms) : path_(path), shown_(shown_path(path_)) {
    const char* const action = use == Use::writing ? "written" : "read";
    const bool is_made = use == Use::writing && make_folder(path);
    if (use == Use::writing && !is_made && errno != EEXIST) per::refuse(errno, shown_, action);
    folder_ = open_folder(path);
    if (!folder_.is_open()) per::refuse(errno, shown_, action);
    if (is_made) sync_folder(open_folder(folder_, ".."), shown_);
    if (!is_locked_in_time(folder_, use == Use::writing ? Lock::exclusive : Lock::shared, timeout_ms))
        throw Error(PER_ERROR_BUSY,
                    "path %s cannot be %s yet: another thread or process reads or writes it, and holds its lock",
                    shown_.c_str(), action);
}

// Unlocks the folder, since closing it may not: a child that has just been forked may not have closed its copy of the
// descriptor yet, and that copy would keep the lock.
LockedFolder::~LockedFolder() {
    if (folder_.is_open()) unlock_file(folder_);
}

std::vector<std::string> LockedFolder::names() const {
    std::optional<std::vector<std::string>> names = names_in(folder_);
    if (!names) per::refuse(errno, shown_, "read");
    return *std::move(names);
}

int64_t LockedFolder::size_of(const std::string& name) const {
    const std::optional<FileStatus> status = status_of(folder_, name);
    return status && status->kind == FileStatus::Kind::regular ? static_cast<int64_t>(status->size) : -1;
}

Descriptor LockedFolder::open(const std::string& name) const {
    Descriptor file = open_file(folder_, name, Access::read);
    if (!file.is_open()) per::refuse(errno, shown_, "read");
    require_regular(status_of(file), shown_, "read");
    return file;
}

void LockedFolder::remove(const std::string& name) const {
    remove_file(folder_, name);
}

void LockedFolder::sync() const {
    sync_folder(folder_, shown_);
}

void LockedFolder::refuse(const std::string& name, const char* reason) const {
    throw Error(PER_ERROR_CORRUPT_FILE, "path %s is damaged in %s: %s", shown_.c_str(), name.c_str(), reason);
}

NewFile::NewFile(const LockedFolder& folder, std::string name)
    : folder_(folder), name_(std::move(name)), file_(create_file(folder.descriptor(), name_, mode_t{0666})) {
    if (!file_.descriptor().is_open()) refuse(errno, folder_.shown(), "written");
}

NewFile::~NewFile() {
    if (file_.descriptor().is_open() && !is_kept_) folder_.remove(name_);  // a forked child removes nothing
}

// ---------------------------------------------------------------------------------------------------------- reading

std::size_t read_at(const Descriptor& file, uint64_t offset, void* data, std::size_t size, const std::string& shown) {
    const ssize_t n = read_fully_at(file, offset, data, size);
    if (n < 0) refuse(errno, shown, "read");
    return static_cast<std::size_t>(n);
}

// A path that names no regular file is not opened at all, since opening a device may have an effect. The path may name
// another file a moment later, so the open file is checked, too.
InputFile::InputFile(const char* path) : shown_(shown_path(path)), buffer_(buffer_bytes) {
    require_regular(status_of(path), shown_, "read");
    file_ = open_file(path);
    if (!file_.is_open()) refuse(errno, shown_, "read");
    require_regular(status_of(file_), shown_, "read");
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
    const ssize_t n = per::read_some(file_, data, size);
    if (n < 0) refuse(errno, shown_, "read");
    n_fetched_ += static_cast<uint64_t>(n);
    return static_cast<std::size_t>(n);
}

bool InputFile::skip(uint64_t size) {
    const std::optional<FileStatus> status = status_of(file_);
    if (!status) refuse(errno, shown_, "read");
    const uint64_t from = place();
    if (from > status->size || size > status->size - from) return false;
    next_ = end_ = 0;
    n_fetched_ = from + size;
    if (!seek(file_, n_fetched_)) refuse(errno, shown_, "read");
    return true;
}

std::size_t InputFile::read_at(uint64_t place, void* data, std::size_t size) const {
    return per::read_at(file_, place, data, size, shown_);
}

// ---------------------------------------------------------------------------------------------------------- writing

ReplacementFile::ReplacementFile(const char* path) : shown_(shown_path(path)), replaced_(status_of(path)) {
    if (replaced_ || errno != ENOENT) require_regular(replaced_, shown_, "written");
    const std::string target = followed(path, shown_);
    const std::size_t name = target.rfind('/') + 1;  // 0 without a slash
    name_ = target.substr(name);
    if (name_.empty()) refuse(target.empty() ? ENOENT : EISDIR, shown_, "written");
    open_folder(name == 0 ? "." : target.substr(0, name));
    stem_ = temporary_stem();
    remove_leftovers();
    open_temporary();
}

ReplacementFile::~ReplacementFile() {
    if (!temporary_.empty()) remove_file(folder_, temporary_);
}

// Files can also be made in a folder that may be written to but not read.
void ReplacementFile::open_folder(const std::string& folder) {
    folder_ = per::open_folder(folder.c_str());
    is_folder_readable_ = folder_.is_open();
    if (!folder_.is_open() && errno == EACCES) folder_ = open_folder_for_names(folder.c_str());
    if (!folder_.is_open()) refuse(errno, shown_, "written");
}

// The stem is the name itself or, if that would be too long for the file system, its beginning and its checksum.
std::string ReplacementFile::temporary_stem() const {
    const std::size_t max_name = longest_name(folder_);
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

// A leftover that cannot be examined or removed stays.
void ReplacementFile::remove_leftovers() const {
    for (const std::string& name : names_in(folder_).value_or(std::vector<std::string>()))
        if (is_temporary(name)) remove_if_left_behind(name);
}

void ReplacementFile::remove_if_left_behind(const std::string& name) const {
    const std::optional<FileStatus> status = status_of(folder_, name);
    if (!status || status->kind != FileStatus::Kind::regular) return;
    Descriptor file = open_file(folder_, name, Access::read_and_write);  // NFS locks only files open for writing
    if (!file.is_open()) file = open_file(folder_, name, Access::read);
    if (!file.is_open() || lock_file(file, Lock::exclusive) != LockResult::taken) return;
    // Before the file was locked here, its saver may have renamed it to the final name, or it may have been removed and
    // its name taken by another file. Its name cannot change any more: a process must hold the lock to rename or remove
    // it.
    if (is_named(folder_, name, file)) remove_file(folder_, name);
}

void ReplacementFile::open_temporary() {
    for (unsigned number = 0;; ++number) {
        const std::string name = temporary_name(std::to_string(number));
        Descriptor file =
            create_file(folder_, name, replaced_ ? 0600 : 0666);  // no other user reads a half-written file
        if (!file.is_open() && errno == EEXIST) continue;
        if (!file.is_open()) refuse(errno, shown_, "written");
        // If another process has locked the file, the next number is tried: a saver that takes the file for a leftover
        // will remove it, and any other process may hold the lock forever. A file system without locks refuses this
        // lock. It refuses those of other savers, too, so that they remove nothing.
        if (lock_file(file, Lock::exclusive) == LockResult::held_by_another) continue;
        if (!is_named(folder_, name, file)) continue;  // removed before it was locked
        temporary_ = name;
        file_ = OutputFile(std::move(file));
        return;
    }
}

void ReplacementFile::go_to(uint64_t place) {
    if (!seek(file_.descriptor(), place)) refuse(errno, shown_, "written");
}

void ReplacementFile::commit() {
    if (replaced_ && !copy_owner_and_mode(file_.descriptor(), *replaced_)) refuse(errno, shown_, "written");
    file_.sync(shown_);
    if (!rename_file(folder_, temporary_, name_)) refuse(errno, shown_, "written");
    temporary_.clear();
    if (is_folder_readable_) sync_folder(folder_, shown_);
}

}  // namespace per

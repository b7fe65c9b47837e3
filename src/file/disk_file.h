// Files on the disk that are read in order or replaced as a whole. If a call of the system fails, functions throw Error
// with OUT_OF_MEMORY or IO.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "per.h"
#include "system/file.h"

namespace per {

// A path as messages show it: without control characters, which could end the line. The middle of a long path is left
// out, so that the reason after it fits.
std::string shown_path(const std::string& path);

bool is_folder(const char* path);

// The name of a numbered file of a kind, such as "pack-000000000000002a.per", and the number in such a name.
std::string numbered_name(const char* kind, uint64_t number);
std::optional<uint64_t> number_in_name(const std::string& name, const char* kind);

// A folder that stays locked (flock) while this object lives: by one writer, or by any number of readers. On a file
// system without locks the caller must keep others away.
class LockedFolder {
 public:
    enum class Use { reading, writing };

    // For writing the folder is created if it is missing; its parent must exist. Waits for the lock: anybody who may
    // read the folder can hold it, so the caller must hold no other lock. Throws Error with BUSY if the lock is not
    // free within timeout_ms; -1 waits without a limit.
    LockedFolder(const char* path, Use use, int64_t timeout_ms = PER_DIRECTORY_TIMEOUT_MS);
    LockedFolder(LockedFolder&&) = default;
    LockedFolder& operator=(LockedFolder&&) = delete;
    ~LockedFolder();

    const std::string& path() const { return path_; }
    const std::string& shown() const { return shown_; }
    const Descriptor& descriptor() const { return folder_; }

    std::vector<std::string> names() const;
    // The size of a regular file; -1 if there is no file of this name.
    int64_t size_of(const std::string& name) const;
    // Opens a regular file for reading.
    Descriptor open(const std::string& name) const;
    // Removes a file, if possible.
    void remove(const std::string& name) const;
    // Makes new names outlive a power failure.
    void sync() const;
    // Throws CORRUPT_FILE.
    [[noreturn]] void refuse(const std::string& name, const char* reason) const;

 private:
    std::string path_;
    std::string shown_;
    Descriptor folder_;
};

// Reads `size` bytes at `offset`, or fewer at the end of the file. Returns their number.
std::size_t read_at(const Descriptor& file, uint64_t offset, void* data, std::size_t size, const std::string& shown);

// A file that is written in order and synced at its end. The disk starts to write while the file grows, so that the
// sync waits for less: a save of a million rows of 100 bytes takes as long as writing their bytes alone, and without
// this 1.35 times as long.
class OutputFile {
 public:
    OutputFile() = default;
    explicit OutputFile(Descriptor file) : file_(std::move(file)) {}

    const Descriptor& descriptor() const { return file_; }
    void write(const void* data, std::size_t size, const std::string& shown);
    void sync(const std::string& shown);

 private:
    Descriptor file_;
    std::size_t n_bytes_ = 0;  // since the disk was last told to start writing
};

// Writes a file that does not exist yet. It is removed again unless keep() is called.
class NewFile {
 public:
    NewFile(const LockedFolder& folder, std::string name);
    ~NewFile();
    NewFile(const NewFile&) = delete;
    NewFile& operator=(const NewFile&) = delete;

    void write(const void* data, std::size_t size) { file_.write(data, size, folder_.shown()); }
    void sync() { file_.sync(folder_.shown()); }
    void keep() { is_kept_ = true; }

 private:
    const LockedFolder& folder_;
    std::string name_;
    OutputFile file_;
    bool is_kept_ = false;
};

// Reads a regular file. Any other is refused, since opening or reading it might never end.
class InputFile {
 public:
    explicit InputFile(const char* path);

    // Returns how many bytes were read: fewer than `size` at the end of the file only.
    std::size_t read(void* data, std::size_t size);
    // Offset of the next byte.
    uint64_t place() const { return n_fetched_ - (end_ - next_); }
    // Skips the next bytes. Returns false, and skips none, if the file has fewer.
    bool skip(uint64_t size);
    // Reads from an offset on, without changing what read() returns next.
    std::size_t read_at(uint64_t place, void* data, std::size_t size) const;

 private:
    std::size_t read_some(void* data, std::size_t size);

    std::string shown_;
    Descriptor file_;
    uint64_t n_fetched_ = 0;  // offset of the bytes that the system gives next
    std::vector<char> buffer_;
    std::size_t next_ = 0;  // unread bytes of the buffer: from next_ up to end_
    std::size_t end_ = 0;
};

// Writes a temporary file beside `path`. commit() puts it in the place of `path`: whole, or not at all. A symbolic link
// stays, and the file that it leads to is replaced. The new file gets the mode and the owner of the one it replaces.
//
// The temporary file is locked (flock) while it is written, and the lock ends with its process. So a temporary file of
// the same path that nobody has locked was left behind, and is removed.
class ReplacementFile {
 public:
    explicit ReplacementFile(const char* path);
    ~ReplacementFile();
    ReplacementFile(const ReplacementFile&) = delete;
    ReplacementFile& operator=(const ReplacementFile&) = delete;

    void write(const void* data, std::size_t size) { file_.write(data, size, shown_); }
    // Sets the offset at which the next bytes are written.
    void go_to(uint64_t place);
    // After an error the former file is still at `path`, unless the message says otherwise.
    void commit();

 private:
    void open_folder(const std::string& folder);
    std::string temporary_stem() const;
    std::string temporary_name(const std::string& number) const;
    bool is_temporary(const std::string& name) const;
    void remove_leftovers() const;
    void remove_if_left_behind(const std::string& name) const;
    void open_temporary();

    std::string shown_;
    std::optional<FileStatus> replaced_;
    std::string name_;  // of the file, in its folder
    Descriptor folder_;
    bool is_folder_readable_ = true;
    std::string stem_;       // of the names of all temporary files of the path
    std::string temporary_;  // name of this one; empty after commit()
    OutputFile file_;
};

}  // namespace per

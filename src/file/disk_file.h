// Files on the disk, read in order or replaced as a whole. A call that the system refuses throws Error: OUT_OF_MEMORY
// where that is the reason, else IO.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "per.h"
#include "system/descriptor.h"

namespace per {

// A path as messages show it: without control characters, which could end the line. The middle of a long path is left
// out, so that the reason after it fits.
std::string shown_path(const std::string& path);

bool is_folder(const char* path);

// True if the process may not write a file up to this byte (RLIMIT_FSIZE). A write beyond the limit raises a signal that
// ends the process, so it must be refused before.
bool exceeds_file_limit(uint64_t end);

// Has the disk begin with a file that is still being written, so that the sync at its end waits for less: a save of a
// million rows of 100 bytes then takes as long as their bytes alone, and without this 1.35 times as long.
class WriteBehind {
 public:
    // Throws Error where the disk says that it cannot take the bytes.
    void wrote(const Descriptor& file, std::size_t size, const std::string& shown);

 private:
    std::size_t n_bytes_ = 0;  // since the disk was told last
};

// A folder that is locked (flock) as long as this lives: for one who writes, or for all who read. A file system without
// locks leaves that to the caller.
class LockedFolder {
 public:
    enum class Use { reading, writing };

    // For writing the folder is made if it is not there; the one above it must be. Waits for the lock: anybody who may
    // read the folder can hold it, so nothing else may be locked meanwhile. Throws Error with BUSY if it is not free in
    // time. timeout_ms: -1 is for as long as it takes.
    LockedFolder(const char* path, Use use, int64_t timeout_ms = PER_DIRECTORY_TIMEOUT_MS);
    LockedFolder(LockedFolder&&) = default;
    LockedFolder& operator=(LockedFolder&&) = delete;
    ~LockedFolder();

    const std::string& path() const { return path_; }
    const std::string& shown() const { return shown_; }
    int number() const { return folder_.number(); }

    std::vector<std::string> names() const;
    // Bytes of a regular file of it; -1 where there is none of this name.
    int64_t size_of(const std::string& name) const;
    // A regular file of it, to read.
    Descriptor open(const std::string& name) const;
    // What cannot be removed stays.
    void remove(const std::string& name) const;
    // New names are to outlive a power failure.
    void sync() const;

 private:
    std::string path_;
    std::string shown_;
    Descriptor folder_;
};

// Reads up to `size` bytes of a file from a place on: fewer at its end only.
std::size_t read_at(const Descriptor& file, uint64_t offset, void* data, std::size_t size, const std::string& shown);

// Writes a file that is not there yet. It is removed again unless keep() is called.
class NewFile {
 public:
    NewFile(const LockedFolder& folder, std::string name);
    ~NewFile();
    NewFile(const NewFile&) = delete;
    NewFile& operator=(const NewFile&) = delete;

    void write(const void* data, std::size_t size);
    // Its bytes are to outlive a power failure.
    void sync();
    void keep() { is_kept_ = true; }

 private:
    const LockedFolder& folder_;
    std::string name_;
    Descriptor file_;
    WriteBehind behind_;
    bool is_kept_ = false;
};

// Reads a regular file. Any other is refused, as its opening or reading might never end.
class InputFile {
 public:
    explicit InputFile(const char* path);

    const std::string& shown() const { return shown_; }

    // Returns how many bytes were read: fewer than `size` at the end of the file only.
    std::size_t read(void* data, std::size_t size);
    // Where the next byte lies, counted in bytes from the beginning.
    uint64_t place() const { return n_fetched_ - (end_ - next_); }
    // Leaves out the next bytes. Returns false, and stays, where the file has fewer.
    bool skip(uint64_t size);
    // As read(), but from a place on. What read() gives next stays the same.
    std::size_t read_at(uint64_t place, void* data, std::size_t size) const;

 private:
    std::size_t read_some(void* data, std::size_t size);

    std::string shown_;
    Descriptor file_;
    uint64_t n_fetched_ = 0;  // bytes of the file before those that the system gives next
    std::vector<char> buffer_;
    std::size_t next_ = 0;  // where the unread bytes of the buffer begin
    std::size_t end_ = 0;   // and where they end
};

// Writes a temporary file beside `path`. commit() puts it in the place of `path`: whole, or not at all. A symbolic link
// stays, and the file that it leads to is replaced. A file that is replaced passes on its mode and owner.
//
// The temporary is locked (flock) as long as it is written, and the lock ends with its process. A temporary of the same
// path that nobody has locked was left behind, and is removed.
class ReplacementFile {
 public:
    explicit ReplacementFile(const char* path);
    ~ReplacementFile();
    ReplacementFile(const ReplacementFile&) = delete;
    ReplacementFile& operator=(const ReplacementFile&) = delete;

    const std::string& shown() const { return shown_; }

    void write(const void* data, std::size_t size);
    // The next bytes are written from there on, counted in bytes from the beginning.
    void go_to(uint64_t place);
    // After an error here what was at `path` is still there, unless the message says otherwise.
    void commit();

 private:
    void open_folder(const std::string& folder);
    std::string temporary_stem() const;
    std::string temporary_name(const std::string& number) const;
    bool is_temporary(const std::string& name) const;
    void remove_leftovers() const;
    void remove_if_left_behind(const char* name) const;
    void open_temporary();
    void keep_owner_and_mode() const;

    std::string shown_;
    std::string name_;  // of the file, in its folder
    Descriptor folder_;
    bool is_folder_readable_ = true;
    bool replaces_ = false;
    mode_t mode_ = 0;  // of the file that is replaced, as are the next two
    uid_t user_ = 0;
    gid_t group_ = 0;
    std::string stem_;       // of the names of all temporaries of the path
    std::string temporary_;  // the name of this one; empty once it was committed
    Descriptor file_;
    WriteBehind behind_;
};

}  // namespace per

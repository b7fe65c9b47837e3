// Files and folders of the operating system. Calls that a signal interrupts are repeated. A call that fails returns
// false, -1, nothing or a Descriptor that is not open, and errno has the reason.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "system/descriptor.h"

namespace per {

// Throws "SUBJECT cannot be ACTION: " and the reason: OUT_OF_MEMORY for ENOMEM, else IO.
[[noreturn]] void throw_system_error(int error, const std::string& subject, const char* action);

struct FileStatus {
    enum class Kind { regular, folder, fifo, socket, device };

    Kind kind;
    uint64_t size;
    mode_t mode;  // without the kind
    uid_t user;
    gid_t group;
    dev_t device;
    ino_t number;  // on the device

    bool is_same_file(const FileStatus& other) const { return device == other.device && number == other.number; }
};

std::optional<FileStatus> status_of(const char* path);  // follows links
std::optional<FileStatus> status_of(const Descriptor& file);
std::optional<FileStatus> status_of(const Descriptor& folder, const std::string& name);  // of a link itself
// True if a name in a folder is that of an open file.
bool is_named(const Descriptor& folder, const std::string& name, const Descriptor& file);

// ---------------------------------------------------------------------------------------------------------- opening

enum class Access { read, read_and_write };

// A FIFO or a terminal is opened at once, without effects on this process.
Descriptor open_file(const char* path);                                                  // for reading
Descriptor open_file(const Descriptor& folder, const std::string& name, Access access);  // does not follow a link
// Opens a new file for writing.
Descriptor create_file(const Descriptor& folder, const std::string& name, mode_t mode);
// Opens a new file for reading and writing that has no name. Other users may not open it. If can_have_name_out is set,
// give_name() can give it one.
Descriptor create_unnamed_file(const std::string& folder, bool& can_have_name_out);
// Like create_unnamed_file(), but creates a file and removes its name, so that it can never get one again.
Descriptor create_removed_file(const std::string& folder);
bool give_name(const Descriptor& file, const Descriptor& folder, const std::string& name);

bool make_folder(const char* path);
Descriptor open_folder(const char* path);
Descriptor open_folder(const Descriptor& folder, const char* name);
// Opens a folder for calls that take one. On Linux this needs no right to read the folder.
Descriptor open_folder_for_names(const char* path);
std::optional<std::vector<std::string>> names_in(const Descriptor& folder);
std::size_t longest_name(const Descriptor& folder);
std::optional<std::string> target_of_link(const char* path);
bool remove_file(const Descriptor& folder, const std::string& name);
bool rename_file(const Descriptor& folder, const std::string& from, const std::string& to);

// Gives a file the owner, group and mode of another one, as far as the process may.
bool copy_owner_and_mode(const Descriptor& file, const FileStatus& other);

// ------------------------------------------------------------------------------------------------------------ locks

enum class Lock { shared, exclusive };
enum class LockResult { taken, held_by_another, refused };

// Takes a lock (flock) without waiting. It ends with the process, or once all copies of the descriptor are closed. A
// file system without locks refuses it.
LockResult lock_file(const Descriptor& file, Lock lock);
void unlock_file(const Descriptor& file);

// ------------------------------------------------------------------------------------------------ reading and writing

// True if the process may not write a file up to this byte (RLIMIT_FSIZE). A write beyond the limit raises a signal
// that ends the process. write_all() and set_size() fail with EFBIG instead.
bool exceeds_file_limit(uint64_t end);

bool seek(const Descriptor& file, uint64_t place);
ssize_t read_some(const Descriptor& file, void* data, std::size_t size);
// Reads fewer bytes than `size` at the end of the file only.
ssize_t read_fully_at(const Descriptor& file, uint64_t place, void* data, std::size_t size);
bool write_all(const Descriptor& file, const void* data, std::size_t size);
ssize_t write_some_at(const Descriptor& file, uint64_t place, const void* data, std::size_t size);

// New bytes are zeros that take no room on the disk.
bool set_size(const Descriptor& file, uint64_t size);
// Reserves room on the disk. Fails with EOPNOTSUPP if the file system cannot do that.
bool allocate_room(const Descriptor& file, uint64_t first, uint64_t n);
// Starts to read bytes that are needed a little later.
void begin_reading(const Descriptor& file, uint64_t first, std::size_t n) noexcept;

// Starts writing the data that a later sync() would wait for. Returns false if the disk reports an error.
bool begin_sync(const Descriptor& file);
// After this, the written data survives a power failure; for a folder, the names in it do.
bool sync(const Descriptor& file);
// Like sync(), but only for the data of a file, not for its times.
bool sync_data(const Descriptor& file);

}  // namespace per

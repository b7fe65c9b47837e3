// Calls on files that only Linux has. file_posix.cpp has the same functions for other systems.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "system/file.h"
#include "system/interrupted.h"

namespace per {

Descriptor open_folder_for_names(const char* path) {
    return Descriptor([&] { return uninterrupted([&] { return open(path, O_PATH | O_DIRECTORY | O_CLOEXEC); }); });
}

// Some file systems have no files without a name.
Descriptor create_unnamed_file(const std::string& folder, bool& can_have_name_out) {
    Descriptor file([&] { return open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, mode_t{S_IRUSR | S_IWUSR}); });
    can_have_name_out = file.is_open();
    if (file.is_open() || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
    return create_removed_file(folder);
}

bool give_name(const Descriptor& file, const Descriptor& folder, const std::string& name) {
    const std::string open_file = "/proc/self/fd/" + std::to_string(file.number());
    return linkat(AT_FDCWD, open_file.c_str(), folder.number(), name.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

// posix_fallocate() would write zeros to file systems that cannot reserve room, and some of those keep no room for
// zeros. A call that a signal interrupts starts over, so a long call might never end: each reserves 64 MiB at most.
bool allocate_room(const Descriptor& file, uint64_t first, uint64_t n) {
    constexpr uint64_t most = uint64_t{64} << 20;
    for (const uint64_t end = first + n; first < end; first += most) {
        const off_t size = static_cast<off_t>(std::min(end - first, most));
        if (uninterrupted([&] { return fallocate(file.number(), 0, static_cast<off_t>(first), size); }) != 0)
            return false;
    }
    return true;
}

// A file system without this call leaves all bytes to the sync.
bool begin_sync(const Descriptor& file) {
    const int result = uninterrupted([&] { return sync_file_range(file.number(), 0, 0, SYNC_FILE_RANGE_WRITE); });
    return result == 0 || (errno != EIO && errno != ENOSPC && errno != EDQUOT);
}

}  // namespace per

// The functions of file_linux.cpp for other systems, with calls of POSIX only. They make no file in a folder without
// the right to read the folder, and an unnamed file never gets a name.
#include <fcntl.h>

#include <cerrno>

#include "system/file.h"

namespace per {

Descriptor open_folder_for_names(const char* path) {
    return open_folder(path);
}

Descriptor create_unnamed_file(const std::string& folder, bool& can_have_name_out) {
    can_have_name_out = false;
    return create_removed_file(folder);
}

bool give_name(const Descriptor&, const Descriptor&, const std::string&) {
    errno = ENOTSUP;
    return false;
}

bool allocate_room(const Descriptor& file, uint64_t first, uint64_t n) {
    do errno = posix_fallocate(file.number(), static_cast<off_t>(first), static_cast<off_t>(n));
    while (errno == EINTR);
    return errno == 0;
}

bool begin_sync(const Descriptor&) {
    return true;
}

}  // namespace per

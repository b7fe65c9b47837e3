#include "system/process_file.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace per {
namespace {

struct flock lock_of(int byte, short type = F_WRLCK) {
    struct flock lock = {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = byte;
    lock.l_len = 1;
    return lock;
}

}  // namespace

int ProcessFile::open(const std::string& path, const char* noun) {
    // O_NONBLOCK: opening a FIFO must not block.
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (descriptor >= 0) return descriptor;
    const bool lacks_memory = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
    throw Error(lacks_memory ? PER_ERROR_OUT_OF_MEMORY : PER_ERROR_IO, "%s is no %s that can be opened: %s",
                path.c_str(), noun, std::strerror(errno));
}

bool ProcessFile::try_lock(int byte) const {
    struct flock lock = lock_of(byte);
    if (fcntl(descriptor(), F_OFD_SETLK, &lock) == 0) return true;
    if (errno == EAGAIN || errno == EACCES) return false;
    throw Error(PER_ERROR_OUT_OF_MEMORY, "no lock on a file: error %d of the system", errno);
}

void ProcessFile::unlock(int byte) const noexcept {
    struct flock lock = lock_of(byte, F_UNLCK);
    fcntl(descriptor(), F_OFD_SETLK, &lock);
}

bool ProcessFile::is_locked(int byte) const {
    struct flock lock = lock_of(byte);
    return fcntl(descriptor(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace per

#include "threads/process_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "rows/error.h"

namespace per {
namespace {

// All files, for the handler of fork().
pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER;
ProcessFile* registry = nullptr;
pthread_once_t fork_handlers_once = PTHREAD_ONCE_INIT;
int fork_handlers_error = 0;

struct Locked {
    Locked() { pthread_mutex_lock(&registry_mutex); }
    ~Locked() { pthread_mutex_unlock(&registry_mutex); }
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;
};

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
    // What is no memory must not keep the call waiting, as a FIFO would.
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (descriptor >= 0) return descriptor;
    const bool lacks_memory = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
    throw Error(lacks_memory ? PER_ERROR_OUT_OF_MEMORY : PER_ERROR_IO, "%s is no %s that can be opened: %s",
                path.c_str(), noun, std::strerror(errno));
}

// No child is forked between opening and entering it in the list.
ProcessFile::ProcessFile(const std::string& path, const char* noun) {
    pthread_once(&fork_handlers_once, [] {
        fork_handlers_error = pthread_atfork([] { pthread_mutex_lock(&registry_mutex); },
                                             [] { pthread_mutex_unlock(&registry_mutex); }, &ProcessFile::close_all);
    });
    if (fork_handlers_error != 0) throw std::bad_alloc();  // the only error that pthread_atfork has
    const Locked registry_lock;
    descriptor_ = open(path, noun);
    previous_ = nullptr;
    next_ = registry;
    if (registry != nullptr) registry->previous_ = this;
    registry = this;
}

ProcessFile::~ProcessFile() {
    const Locked registry_lock;
    (previous_ == nullptr ? registry : previous_->next_) = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
    if (descriptor_ >= 0) close(descriptor_);
}

// Runs in the child.
void ProcessFile::close_all() noexcept {
    for (ProcessFile* file = registry; file != nullptr; file = file->next_) {
        if (file->descriptor_ >= 0) close(file->descriptor_);
        file->descriptor_ = -1;
    }
    pthread_mutex_init(&registry_mutex, nullptr);
}

bool ProcessFile::try_lock(int byte) const {
    struct flock lock = lock_of(byte);
    if (fcntl(descriptor_, F_OFD_SETLK, &lock) == 0) return true;
    if (errno == EAGAIN || errno == EACCES) return false;
    throw Error(PER_ERROR_OUT_OF_MEMORY, "no lock on a file: error %d of the system", errno);
}

void ProcessFile::unlock(int byte) const noexcept {
    struct flock lock = lock_of(byte, F_UNLCK);
    fcntl(descriptor_, F_OFD_SETLK, &lock);
}

bool ProcessFile::is_locked(int byte) const {
    struct flock lock = lock_of(byte);
    return fcntl(descriptor_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace per

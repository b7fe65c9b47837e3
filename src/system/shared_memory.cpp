#include "system/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "per.h"
#include "system/file.h"
#include "system/interrupted.h"

namespace per {
namespace {

constexpr int size_seals = F_SEAL_SHRINK | F_SEAL_GROW;

[[noreturn]] void throw_no_memory(const char* call, std::size_t n_bytes, int error) {
    throw Error(PER_ERROR_OUT_OF_MEMORY, "out of memory: %zu bytes of shared memory were asked for (%s: %s)", n_bytes,
                call, std::strerror(error));
}

int create_file(const char* noun) {
    const int descriptor = memfd_create(("per-" + std::string(noun)).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (descriptor < 0)
        throw Error(PER_ERROR_OUT_OF_MEMORY, "no shared memory for a %s (memfd_create: %s)", noun,
                    std::strerror(errno));
    return descriptor;
}

std::string path_of(int descriptor) {
    return "/proc/self/fd/" + std::to_string(descriptor);
}

// Closes the descriptor if a constructor throws, as no destructor runs then.
struct Opened {
    int descriptor;
    bool is_kept = false;
    ~Opened() {
        if (!is_kept) close(descriptor);
    }
};

}  // namespace

SharedMemory::SharedMemory(std::size_t n_bytes, std::size_t n_allocated, const char* noun)
    : descriptor_(create_file(noun)), n_bytes_(n_bytes) {
    Opened opened{descriptor_};
    const auto size = static_cast<off_t>(n_bytes);
    if (exceeds_file_limit(n_bytes)) throw_no_memory("ftruncate", n_bytes, EFBIG);
    if (size < 0 || ftruncate(descriptor_, size) != 0) throw_no_memory("ftruncate", n_bytes, errno);
    allocate(0, n_allocated);
    if (fcntl(descriptor_, F_ADD_SEALS, size_seals | F_SEAL_SEAL) != 0) throw_no_memory("fcntl", n_bytes, errno);
    map(noun);
    opened.is_kept = true;
}

SharedMemory::SharedMemory(const char* path, int descriptor, const char* noun)
    : descriptor_(ProcessFile::open(path != nullptr ? std::string(path) : path_of(descriptor), noun)), n_bytes_(0) {
    Opened opened{descriptor_};
    const int seals = fcntl(descriptor_, F_GET_SEALS);
    struct stat status = {};
    if (fstat(descriptor_, &status) != 0)
        throw Error(PER_ERROR_IO, "the size of a %s's memory cannot be read: %s", noun, std::strerror(errno));
    if (seals < 0 || (seals & size_seals) != size_seals || status.st_size <= 0)
        throw Error(PER_ERROR_CORRUPT_FILE, "%s is no %s", path != nullptr ? path : "the descriptor", noun);
    n_bytes_ = static_cast<std::size_t>(status.st_size);
    map(noun);
    opened.is_kept = true;
}

SharedMemory::~SharedMemory() {
    munmap(data_, n_bytes_);
    close(descriptor_);
}

void SharedMemory::map(const char* noun) {
    // A second open file, for the locks; see locks(). Its locks exclude those of any other open file, even of this
    // process.
    locks_ = std::make_unique<ProcessFile>(path_of(descriptor_), noun);
    void* const mapped = mmap(nullptr, n_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (mapped == MAP_FAILED) throw_no_memory("mmap", n_bytes_, errno);
    data_ = static_cast<std::byte*>(mapped);
}

// Without fallocate(), a page that cannot be allocated when it is written would raise a signal. On older systems signals
// interrupt fallocate().
void SharedMemory::allocate(std::size_t first, std::size_t end) const {
    const auto from = static_cast<off_t>(first), n = static_cast<off_t>(end - first);
    if (uninterrupted([&] { return fallocate(descriptor_, 0, from, n); }) != 0)
        throw_no_memory("fallocate", end - first, errno);
}

std::string SharedMemory::path() const {
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(descriptor_);
}

uint64_t random_number(const char* noun) {
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        throw Error(PER_ERROR_OUT_OF_MEMORY, "no random number for a %s", noun);
    return number;
}

}  // namespace per

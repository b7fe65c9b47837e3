#include "file/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "rows/error.h"

namespace per {
namespace {

// As PNG does it: no text file begins so, and a transfer that changes line ends or drops the eighth bit shows.
constexpr unsigned char magic[8] = {0x89, 'P', 'E', 'R', '\r', '\n', 0x1a, '\n'};

[[noreturn]] void refuse_io(const char* action, const std::string& path) {
    const int error = errno;
    throw Error(PER_ERROR_IO, "path %s cannot be %s: %s", path.c_str(), action, std::strerror(error));
}

// A name beside `path` that no other call has.
std::string temporary_name(const std::string& path) {
    static std::atomic<unsigned> n_names = 0;
    return path + "." + std::to_string(getpid()) + "." + std::to_string(n_names.fetch_add(1)) + ".tmp";
}

// So that the new name outlives a power failure. Directories that cannot be synced are left to the system.
void sync_directory_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    const int descriptor = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return;
    fsync(descriptor);
    close(descriptor);
}

}  // namespace

CheckpointWriter::CheckpointWriter(const char* path) : path_(path), temporary_path_(temporary_name(path_)) {
    const int descriptor = open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0) refuse_io("written", path_);
    file_.reset(fdopen(descriptor, "wb"));
    if (file_ == nullptr) {
        close(descriptor);
        unlink(temporary_path_.c_str());
        throw Error(PER_ERROR_OUT_OF_MEMORY, "out of memory");
    }
    try {
        bytes(magic, sizeof magic);
        number(checkpoint_version);
        number(uint32_t{0});
    } catch (...) {
        unlink(temporary_path_.c_str());
        throw;
    }
}

CheckpointWriter::~CheckpointWriter() {
    if (file_ != nullptr) unlink(temporary_path_.c_str());
}

void CheckpointWriter::bytes(const void* data, std::size_t size) {
    if (std::fwrite(data, 1, size, file_.get()) != size) refuse_io("written", path_);
    checksum_.add(data, size);
}

void CheckpointWriter::commit() {
    if (std::fflush(file_.get()) != 0 || fsync(fileno(file_.get())) != 0) refuse_io("written", path_);
    if (std::rename(temporary_path_.c_str(), path_.c_str()) != 0) refuse_io("written", path_);
    file_.reset();
    sync_directory_of(path_);
}

CheckpointReader::CheckpointReader(const char* path) : path_(path), file_(std::fopen(path, "rbe")) {
    if (file_ == nullptr) refuse_io("read", path_);
    unsigned char found[sizeof magic] = {};
    const std::size_t size = std::fread(found, 1, sizeof found, file_.get());
    if (std::ferror(file_.get())) refuse_io("read", path_);
    if (size != sizeof found || std::memcmp(found, magic, sizeof magic) != 0) refuse("it is no file of libper");
    checksum_.add(found, sizeof found);
    version_ = number<uint32_t>();
    if (version_ > checkpoint_version)
        throw Error(PER_ERROR_UNSUPPORTED, "path %s has format %u: this libper reads up to %u", path, version_,
                    checkpoint_version);
    if (version_ == 0) refuse("its format is 0");
    number<uint32_t>(0, 0);
}

void CheckpointReader::bytes(void* data, std::size_t size) {
    if (std::fread(data, 1, size, file_.get()) != size) {
        if (std::ferror(file_.get())) refuse_io("read", path_);
        refuse("it ends early");
    }
    checksum_.add(data, size);
}

void CheckpointReader::check_seal() {
    const uint64_t expected = checksum_.value();
    if (number<uint64_t>() != expected) refuse("a checksum is wrong");
}

void CheckpointReader::finish() {
    if (std::fgetc(file_.get()) != EOF) refuse("it goes on after its end");
}

void CheckpointReader::refuse(const char* reason) const {
    throw Error(PER_ERROR_CORRUPT_FILE, "path %s is damaged: %s", path_.c_str(), reason);
}

}  // namespace per

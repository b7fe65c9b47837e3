#include "file/checkpoint_file.h"

#include <cstring>

#include "rows/error.h"

namespace per {
namespace {

// As in PNG: no text file begins so, and a transfer that changes line ends or drops the eighth bit is noticed.
constexpr unsigned char magic[8] = {0x89, 'P', 'E', 'R', '\r', '\n', 0x1a, '\n'};

}  // namespace

CheckpointWriter::CheckpointWriter(const char* path) : file_(path) {
    bytes(magic, sizeof magic);
    number(checkpoint_version);
    number(uint32_t{0});
}

void CheckpointWriter::bytes(const void* data, std::size_t size) {
    file_.write(data, size);
    checksum_.add(data, size);
}

CheckpointReader::CheckpointReader(const char* path) : file_(path) {
    unsigned char found[sizeof magic] = {};
    if (file_.read(found, sizeof found) != sizeof found || std::memcmp(found, magic, sizeof magic) != 0)
        refuse("it is no file of libper");
    checksum_.add(found, sizeof found);
    version_ = number<uint32_t>();
    if (version_ > checkpoint_version)
        throw Error(PER_ERROR_UNSUPPORTED, "path %s has format %u: this libper reads up to %u", file_.shown().c_str(),
                    version_, checkpoint_version);
    if (version_ == 0) refuse("its format is 0");
    number<uint32_t>(0, 0);
}

void CheckpointReader::bytes(void* data, std::size_t size) {
    if (file_.read(data, size) != size) refuse("it ends early");
    checksum_.add(data, size);
}

void CheckpointReader::check_seal() {
    const uint64_t expected = checksum_.value();
    if (number<uint64_t>() != expected) refuse("a checksum is wrong");
}

void CheckpointReader::finish() {
    char more;
    if (file_.read(&more, 1) != 0) refuse("it goes on after its end");
}

void CheckpointReader::refuse(const char* reason) const {
    throw Error(PER_ERROR_CORRUPT_FILE, "path %s is damaged: %s", file_.shown().c_str(), reason);
}

}  // namespace per

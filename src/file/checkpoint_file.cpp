#include "file/checkpoint_file.h"

#include <cstring>
#include <utility>

#include "rows/error.h"

namespace per {
namespace {

// As in PNG: no text file begins so, and a transfer that changes line ends or drops the eighth bit is noticed.
constexpr unsigned char magic[8] = {0x89, 'P', 'E', 'R', '\r', '\n', 0x1a, '\n'};

constexpr std::size_t buffer_bytes = std::size_t{1} << 16;

}  // namespace

CheckpointWriter::CheckpointWriter(Write write) : write_(std::move(write)), buffer_(buffer_bytes) {
    bytes(magic, sizeof magic);
    number(checkpoint_version);
    number(uint32_t{0});
}

CheckpointWriter::CheckpointWriter(const char* path)
    : CheckpointWriter([this](const void* data, std::size_t size) { file_->write(data, size); }) {
    file_.emplace(path);
}

void CheckpointWriter::bytes(const void* data, std::size_t size) {
    checksum_.add(data, size);
    if (size > buffer_.size() - n_buffered_) flush();
    if (size >= buffer_.size()) return write_(data, size);
    std::memcpy(buffer_.data() + n_buffered_, data, size);
    n_buffered_ += size;
}

void CheckpointWriter::flush() {
    write_(buffer_.data(), n_buffered_);
    n_buffered_ = 0;
}

void CheckpointWriter::commit() {
    flush();
    if (file_) file_->commit();
}

CheckpointReader::CheckpointReader(Read read) : read_(std::move(read)), shown_("the stream") {
    read_version();
}

CheckpointReader::CheckpointReader(const char* path)
    : file_(path),
      read_([this](void* data, std::size_t size) { return file_->read(data, size); }),
      shown_("path " + file_->shown()) {
    read_version();
}

void CheckpointReader::read_version() {
    unsigned char found[sizeof magic] = {};
    if (read_(found, sizeof found) != sizeof found || std::memcmp(found, magic, sizeof magic) != 0)
        refuse("it is not a file of libper");
    checksum_.add(found, sizeof found);
    version_ = number<uint32_t>();
    if (version_ > checkpoint_version)
        throw Error(PER_ERROR_UNSUPPORTED, "%s has format %u: this libper reads up to %u", shown_.c_str(), version_,
                    checkpoint_version);
    if (version_ == 0) refuse("its format is 0");
    number<uint32_t>(0, 0);
}

void CheckpointReader::bytes(void* data, std::size_t size) {
    if (read_(data, size) != size) refuse("it ends early");
    checksum_.add(data, size);
}

void CheckpointReader::check_seal() {
    const uint64_t expected = checksum_.value();
    if (number<uint64_t>() != expected) refuse("the checksum is wrong");
}

void CheckpointReader::finish() {
    begin("");
    char more;
    if (file_ && file_->read(&more, 1) != 0) refuse("it goes on after its end");
}

void CheckpointReader::refuse(const char* reason) const {
    throw Error(PER_ERROR_CORRUPT_FILE, "%s is damaged%s%s: %s", shown_.c_str(), part_.empty() ? "" : " in ",
                part_.c_str(), reason);
}

}  // namespace per

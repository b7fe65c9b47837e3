#include "process/labelled_memory.h"

#include <sys/random.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "backend/replay_options.h"
#include "base/error.h"
#include "core/checks.h"
#include "cpu/memory/memory.h"
#include "file/checkpoint_file.h"

namespace per {
namespace {

constexpr uint64_t max_options_bytes = uint64_t{1} << 30;

std::vector<char> bytes_of(const per_replay_options& options) {
    std::vector<char> bytes;
    CheckpointWriter writer([&](const void* data, std::size_t size) {
        bytes.resize(bytes.size() + size);
        std::memcpy(bytes.data() + bytes.size() - size, data, size);
    });
    write_options(writer, options);
    writer.commit();
    return bytes;
}

std::size_t line_after(std::size_t n_bytes) {
    return (n_bytes + cpu::line_bytes - 1) / cpu::line_bytes * cpu::line_bytes;
}

uint64_t random_number(const char* noun) {
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        throw Error(PER_ERROR_OUT_OF_MEMORY, "no random number for a %s", noun);
    return number;
}

}  // namespace

LabelledMemory::LabelledMemory(const MemoryKind& kind, const per_replay_options& options,
                               const std::function<std::size_t(std::size_t)>& size_from)
    : kind_(kind), options_(options) {
    const std::vector<char> bytes = bytes_of(options);
    first_byte_ = line_after(kind.header_bytes + bytes.size());
    memory_ = std::make_unique<SharedMemory>(size_from(first_byte_), kind.noun);
    MemoryLabel label = {};
    std::memcpy(label.magic, kind.magic, sizeof label.magic);
    label.version = kind.version;
    label.number = random_number(kind.noun);
    label.options_bytes = bytes.size();
    std::memcpy(data(), &label, sizeof label);
    std::memcpy(data() + kind.header_bytes, bytes.data(), bytes.size());
    char number[24];
    std::snprintf(number, sizeof number, "#%016" PRIx64, label.number);
    path_ = memory_->path() + number;
}

LabelledMemory::LabelledMemory(const MemoryKind& kind, const char* path, int descriptor) : kind_(kind), options_() {
    const char* const mark = path != nullptr ? std::strchr(path, '#') : nullptr;
    const std::string file = path == nullptr ? "" : mark == nullptr ? path : std::string(path, mark);
    memory_ = std::make_unique<SharedMemory>(path == nullptr ? nullptr : file.c_str(), descriptor, kind.noun);
    // All versions begin with the label, and have headers of their own behind it.
    MemoryLabel label;
    if (n_bytes() < sizeof label) refuse("it is too short");
    std::memcpy(&label, data(), sizeof label);
    if (std::memcmp(label.magic, kind.magic, sizeof label.magic) != 0) refuse("it begins with other bytes");
    if (label.version != kind.version)
        throw Error(PER_ERROR_UNSUPPORTED, "the %s has format %" PRIu32 ": this version has %" PRIu32, kind.noun,
                    label.version, kind.version);
    if (n_bytes() < kind.header_bytes) refuse("it is too short");
    if (mark != nullptr && std::strtoull(mark + 1, nullptr, 16) != label.number)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "path is that of a %s that was closed: there is another one now",
                    kind.noun);
    if (label.options_bytes > max_options_bytes || label.options_bytes > n_bytes() - kind.header_bytes)
        refuse("its options are too long");
    first_byte_ = line_after(kind.header_bytes + label.options_bytes);
    read_options(label.options_bytes);
}

void LabelledMemory::read_options(std::size_t n_left) {
    const std::byte* bytes = data() + kind_.header_bytes;
    CheckpointReader reader([&](void* out, std::size_t size) {
        const std::size_t n = std::min(size, n_left);
        std::memcpy(out, bytes, n);
        bytes += n;
        n_left -= n;
        return n;
    });
    read_options_ = std::make_unique<CheckpointOptions>(reader);
    reader.finish();
    options_ = read_options_->options(default_load_options);
    try {
        check_replay_options(options_);
        fields_ = std::make_unique<Fields>(options_);
        options_ = resolve_replay_options(options_, *fields_);
    } catch (const Error& error) {
        if (error.status() == PER_ERROR_INVALID_ARGUMENT) refuse(error.what());
        throw;
    }
}

void LabelledMemory::refuse(const char* reason) const {
    throw Error(PER_ERROR_CORRUPT_FILE, "the shared memory is no %s: %s", kind_.noun, reason);
}

void LabelledMemory::throw_damaged(const char* name, const std::string& found) const {
    throw Error(PER_ERROR_CORRUPT_FILE, "the %s's memory is damaged: %s is %s", kind_.noun, name, found.c_str());
}

}  // namespace per

#include "process/labelled_memory.h"

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
#include "system/memory.h"

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

}  // namespace

std::size_t line_after(std::size_t first, std::size_t count, std::size_t bytes) {
    constexpr std::size_t line = cpu::line_bytes;
    std::size_t end;
    if (__builtin_mul_overflow(count, bytes, &end) || __builtin_add_overflow(first, end, &end) ||
        end > INT64_MAX - line)
        throw_out_of_memory(SIZE_MAX);
    return (end + line - 1) / line * line;
}

void LatePart::allocate(const SharedMemory& memory, std::size_t n_bytes) {
    const std::size_t end = first_ + n_bytes;
    if (end <= allocated_) return;
    const std::size_t page = page_bytes();
    const std::size_t rounded = std::min((end + page - 1) / page * page, end_);
    memory.allocate(allocated_, rounded);
    allocated_ = rounded;
}

LabelledMemory::LabelledMemory(const MemoryKind& kind, const per_replay_options& options, const Fields& fields,
                               const std::function<MemorySize(std::size_t)>& size_from)
    : kind_(kind), fields_(&fields), options_(options) {
    const std::vector<char> bytes = bytes_of(options);
    first_byte_ = line_after(kind.header_bytes, bytes.size(), 1);
    const MemorySize size = size_from(first_byte_);
    memory_ = std::make_unique<SharedMemory>(size.n_bytes, size.n_allocated, kind.noun);
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
    if (!locks().try_lock(kind.creator_lock))
        throw Error(PER_ERROR_INTERNAL, "the lock of a %s cannot be taken", kind.noun);
}

LabelledMemory::LabelledMemory(const MemoryKind& kind, const char* path, int descriptor)
    : kind_(kind), fields_(nullptr), options_() {
    const char* const mark = path != nullptr ? std::strchr(path, '#') : nullptr;
    const std::string file = path == nullptr ? "" : mark == nullptr ? path : std::string(path, mark);
    memory_ = std::make_unique<SharedMemory>(path == nullptr ? nullptr : file.c_str(), descriptor, kind.noun);
    // All versions begin with the label; the rest of the header differs.
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
    first_byte_ = line_after(kind.header_bytes, label.options_bytes, 1);
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
        read_fields_ = std::make_unique<Fields>(options_);
        fields_ = read_fields_.get();
        options_ = resolve_replay_options(options_, *fields_);
    } catch (const Error& error) {
        if (error.status() == PER_ERROR_INVALID_ARGUMENT) refuse(error.what());
        throw;
    }
}

void LabelledMemory::refuse(const char* reason) const {
    throw Error(PER_ERROR_CORRUPT_FILE, "the shared memory is no %s: %s", kind_.noun, reason);
}

void LabelledMemory::check_open(const Untrusted<uint32_t>& is_closed) const {
    if (is_closed.any() != 0) throw Error(PER_ERROR_INVALID_ARGUMENT, "the %s was closed", kind_.noun);
}

void LabelledMemory::throw_ended() const {
    throw Error(PER_ERROR_INVALID_ARGUMENT, "the %s's process has ended", kind_.noun);
}

void LabelledMemory::throw_damaged(const char* name, const std::string& found) const {
    throw Error(PER_ERROR_CORRUPT_FILE, "the %s's memory is damaged: %s is %s", kind_.noun, name, found.c_str());
}

}  // namespace per

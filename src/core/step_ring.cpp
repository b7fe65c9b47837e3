#include "core/step_ring.h"

#include <sys/random.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/checks.h"
#include "cpu/memory/memory.h"
#include "file/checkpoint_file.h"
#include "rows/arguments.h"
#include "rows/dtype.h"
#include "rows/error.h"
#include "rules/limits.h"

namespace per {
namespace {

constexpr char ring_magic[8] = {'P', 'E', 'R', ' ', 'R', 'I', 'N', 'G'};
constexpr uint32_t ring_version = 1;
constexpr int64_t default_bytes = int64_t{4} << 20;
constexpr int64_t min_default_slots = 16;
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

// The header and the options end on a line of the cache.
std::size_t first_byte(std::size_t options_bytes) {
    return (sizeof(RingHeader) + options_bytes + cpu::line_bytes - 1) / cpu::line_bytes * cpu::line_bytes;
}

int64_t resolve_slots(int64_t slots, const Fields& fields, int64_t n_envs) {
    if (slots != 0) return slots;
    const RingArrays one(fields, 1, n_envs, 0);
    return std::max(default_bytes / static_cast<int64_t>(one.n_bytes()), min_default_slots);
}

uint64_t random_number() {
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        throw Error(PER_ERROR_OUT_OF_MEMORY, "no random number for a channel");
    return number;
}

[[noreturn]] void refuse_ring(const char* reason) {
    throw Error(PER_ERROR_CORRUPT_FILE, "the shared memory is no channel: %s", reason);
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------ arrays

RingArrays::RingArrays(const Fields& declared, int64_t n_slots, int64_t n_envs, std::size_t first_byte)
    : n_bytes_(first_byte) {
    int64_t n = 0;
    if (__builtin_mul_overflow(n_slots, n_envs, &n)) throw_out_of_memory(SIZE_MAX);
    kinds = place(n_slots, sizeof(uint32_t));
    mask = place(n, 1);
    next_mask = place(n, 1);
    terminated = place(n, 1);
    truncated = place(n, 1);
    reward = place(n, sizeof(float));
    priorities = place(n, sizeof(float));
    for (const Field& field : declared) {
        fields.push_back(place(n, field.bytes));
        next_fields.push_back(field.is_observation() ? place(n, field.bytes) : 0);
    }
}

std::size_t RingArrays::place(int64_t count, int64_t bytes) {
    const std::size_t first = n_bytes_;
    const std::size_t size = cpu::array_bytes(count, bytes);
    std::size_t end;
    if (__builtin_add_overflow(first, size, &end) || end > INT64_MAX - cpu::line_bytes) throw_out_of_memory(SIZE_MAX);
    n_bytes_ = (end + cpu::line_bytes - 1) / cpu::line_bytes * cpu::line_bytes;
    return first;
}

// -------------------------------------------------------------------------------------------------------------- ends

StepRing::StepRing(const per_replay_options& options, const Fields& fields, int64_t slots, int32_t when_full)
    : fields_(&fields), options_(options), n_slots_(resolve_slots(slots, fields, options.n_envs)) {
    const std::vector<char> bytes = bytes_of(options);
    arrays_ = std::make_unique<RingArrays>(fields, n_slots_, options.n_envs, first_byte(bytes.size()));
    memory_ = std::make_unique<SharedMemory>(arrays_->n_bytes());
    RingHeader& made = *new (memory_->data()) RingHeader{};
    std::memcpy(made.magic, ring_magic, sizeof ring_magic);
    made.version = ring_version;
    made.when_full = when_full;
    made.number = random_number();
    made.n_slots = static_cast<uint64_t>(n_slots_);
    made.options_bytes = bytes.size();
    made.room_at = never;
    made.wake_at = never;
    std::memcpy(memory_->data() + sizeof(RingHeader), bytes.data(), bytes.size());
    if (!locks().try_lock(channel_lock)) throw Error(PER_ERROR_INTERNAL, "the lock of a channel cannot be taken");
    char number[24];
    std::snprintf(number, sizeof number, "#%016" PRIx64, made.number);
    path_ = memory_->path() + number;
}

StepRing::StepRing(const char* path, int descriptor) : fields_(nullptr), options_(), n_slots_(0) {
    const char* const mark = path != nullptr ? std::strchr(path, '#') : nullptr;
    path_ = path == nullptr ? std::string() : mark == nullptr ? std::string(path) : std::string(path, mark);
    memory_ = std::make_unique<SharedMemory>(path == nullptr ? nullptr : path_.c_str(), descriptor);
    if (memory_->n_bytes() < sizeof(RingHeader)) refuse_ring("it is too short");
    const RingHeader& found = header();
    if (std::memcmp(found.magic, ring_magic, sizeof ring_magic) != 0) refuse_ring("it begins with other bytes");
    if (found.version != ring_version)
        throw Error(PER_ERROR_UNSUPPORTED, "the channel has format %" PRIu32 ": this version has %" PRIu32,
                    found.version, ring_version);
    if (mark != nullptr && std::strtoull(mark + 1, nullptr, 16) != found.number)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "path is that of a channel that was closed: there is another one now");
    const std::size_t options_bytes = found.options_bytes;
    if (options_bytes > max_options_bytes || options_bytes > memory_->n_bytes() - sizeof(RingHeader))
        refuse_ring("its options are too long");
    const std::byte* bytes = memory_->data() + sizeof(RingHeader);
    std::size_t n_left = options_bytes;
    CheckpointReader reader([&](void* data, std::size_t size) {
        const std::size_t n = std::min(size, n_left);
        std::memcpy(data, bytes, n);
        bytes += n;
        n_left -= n;
        return n;
    });
    read_options_ = std::make_unique<CheckpointOptions>(reader);
    reader.finish();
    options_ = read_options_->options(PER_CPU, 0);
    try {
        check_replay_options(options_);
        read_fields_ = std::make_unique<Fields>(options_);
        options_ = resolve_replay_options(options_, *read_fields_);
    } catch (const Error& error) {
        if (error.status() == PER_ERROR_INVALID_ARGUMENT) refuse_ring(error.what());
        throw;
    }
    fields_ = read_fields_.get();
    const uint64_t n_slots = found.n_slots;
    if (n_slots < min_ring_slots || n_slots > max_ring_slots) refuse_ring("it has another number of slots");
    n_slots_ = static_cast<int64_t>(n_slots);
    arrays_ = std::make_unique<RingArrays>(*fields_, n_slots_, n_envs(), first_byte(options_bytes));
    if (arrays_->n_bytes() != memory_->n_bytes()) refuse_ring("it has another size");
}

}  // namespace per

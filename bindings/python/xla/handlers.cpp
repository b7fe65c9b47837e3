// The custom calls of per.jax, through which programs compiled by XLA use a replay buffer without Python.
//
// A program names its buffer by a number that is compiled in: on CUDA the host knows no value of the program when it
// queues a call. The program threads a ticket, an array of int32, through its calls, so that XLA keeps them in order.
// On the CPU the ticket is also checked: it identifies the init() that it came from, and the number of changes to the
// buffer since. A stale ticket is refused before anything changes.
//
// This is a plain shared library without dependencies on Python or libper. per.jax passes it the functions of the
// libper that the package loaded.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "per.h"
// The headers of jaxlib cause warnings.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#include "xla/ffi/api/ffi.h"
#pragma GCC diagnostic pop

namespace ffi = xla::ffi;

// Placeholder for the stream on the CPU.
struct HostStream;
template <>
struct xla::ffi::CtxDecoding<HostStream> {
    using Type = void*;
    static std::optional<Type> Decode(const XLA_FFI_Api*, XLA_FFI_ExecutionContext*, DiagnosticEngine&) {
        return nullptr;
    }
};

namespace per::xla_calls {
namespace {

#define PER_XLA_FUNCTIONS(USE)   \
    USE(per_last_error)          \
    USE(per_replay_options_init) \
    USE(per_replay_describe)     \
    USE(per_replay_create)       \
    USE(per_replay_free)         \
    USE(per_replay_clear)        \
    USE(per_steps_init)          \
    USE(per_replay_add)          \
    USE(per_batch_init)          \
    USE(per_sample_options_init) \
    USE(per_replay_sample)       \
    USE(per_priorities_init)     \
    USE(per_replay_update_priorities)

struct Library {
#define PER_XLA_MEMBER(name) decltype(&::name) name;
    PER_XLA_FUNCTIONS(PER_XLA_MEMBER)
};
Library library;

struct FreeReplay {
    void operator()(per_replay* replay) const { library.per_replay_free(replay); }
};

struct Buffer {
    std::mutex mutex;
    std::unique_ptr<per_replay, FreeReplay> replay;
    per_replay_options options;  // as described by the library; its fields are those of `replay`
    // The contents of the current ticket. Generations are counted over all buffers; 0 is not a generation.
    uint32_t generation = 0;
    uint32_t version = 0;
    bool is_fresh = true;  // nothing was added or drawn since it was created
    int32_t device = -1;   // the XLA device of its programs; -1: none has run
    std::vector<per_array> arrays;
    std::vector<void*> fields;
    std::vector<void*> next_fields;
};

// The state of all buffers. It is never destroyed: XLA's threads may be in a call while the process ends.
struct Table {
    std::mutex mutex;
    int64_t latest_number = 0;
    uint32_t latest_generation = 0;
    std::unordered_map<int64_t, std::shared_ptr<Buffer>> buffers;
};
Table& table() {
    static Table* const the_table = new Table;
    return *the_table;
}

enum class Platform { cpu, cuda };

// The entries of a ticket. The last two are used by the program only.
enum TicketEntry { ticket_generation, ticket_version, ticket_index, ticket_is_full, ticket_size };

ffi::Error refusal(const std::string& message) {
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, "libper: " + message);
}

ffi::Error as_error(per_status status) {
    if (status == PER_OK) return ffi::Error::Success();
    ffi::ErrorCode code = ffi::ErrorCode::kInternal;
    if (status == PER_ERROR_INVALID_ARGUMENT) code = ffi::ErrorCode::kInvalidArgument;
    if (status == PER_ERROR_EMPTY) code = ffi::ErrorCode::kFailedPrecondition;
    if (status == PER_ERROR_OUT_OF_MEMORY) code = ffi::ErrorCode::kResourceExhausted;
    return ffi::Error(code, std::string("libper: ") + library.per_last_error());
}

// A buffer, locked during a call.
struct Locked {
    std::shared_ptr<Buffer> buffer;
    std::unique_lock<std::mutex> lock;
};

ffi::Error lock_buffer(Platform platform, int32_t device, int64_t number, Locked* locked_out) {
    {
        const std::lock_guard lock(table().mutex);
        const auto found = table().buffers.find(number);
        if (found == table().buffers.end()) {
            return refusal(
                "the buffer of this program is gone: it lives as long as the object that the function of per.jax gave, "
                "and ends with it or with an init() for steps of other shapes");
        }
        locked_out->buffer = found->second;
    }
    Buffer& buffer = *locked_out->buffer;
    locked_out->lock = std::unique_lock(buffer.mutex);
    const bool is_on_cuda = buffer.options.device == PER_CUDA;
    if (is_on_cuda != (platform == Platform::cuda)) {
        return refusal(is_on_cuda ? "the buffer is on a GPU, and this program runs on the CPU: give device='cpu'"
                                  : "the buffer is on the CPU, and this program runs on a GPU: give device='gpu'");
    }
    const int32_t expected = is_on_cuda ? buffer.options.device_index : buffer.device;
    if (expected >= 0 && device != expected) {
        return refusal("the buffer is on device " + std::to_string(expected) + ", and this program runs on device " +
                       std::to_string(device) + ": programs of several devices (pmap, sharding) cannot share a buffer");
    }
    return ffi::Error::Success();
}

ffi::Error check_ticket(const Buffer& buffer, const uint32_t* ticket) {
    if (ticket[ticket_generation] != buffer.generation) {
        return refusal("this state is not from the latest init() of this buffer, which has one state at a time");
    }
    if (ticket[ticket_version] != buffer.version) {
        return refusal("this state is of the past: it has seen " + std::to_string(ticket[ticket_version]) +
                       " calls of add() and set_priorities(), and its buffer " + std::to_string(buffer.version) +
                       ". A state is used up by these: use the one that they return");
    }
    return ffi::Error::Success();
}

// Begins a call with the current ticket.
template <Platform platform>
ffi::Error begin(int32_t device, int64_t number, const ffi::AnyBuffer& ticket, Locked* locked_out) {
    ffi::Error error = lock_buffer(platform, device, number, locked_out);
    if (error.failure() || platform == Platform::cuda) return error;
    return check_ticket(*locked_out->buffer, static_cast<const uint32_t*>(ticket.untyped_data()));
}

template <typename Struct, typename Init>
Struct with_defaults(Init init) {
    Struct value;
    init(&value, sizeof value);
    return value;
}

per_status renew(Buffer* buffer) {
    per_replay* replay = nullptr;
    const per_status status = library.per_replay_create(&buffer->options, &replay);
    if (status != PER_OK) return status;
    buffer->replay.reset(replay);
    return library.per_replay_describe(replay, &buffer->options);
}

// Resets the buffer to its initial state. On CUDA, where the program's graphs keep addresses, it is only cleared.
template <Platform platform>
ffi::Error init(void* stream, int32_t device, int64_t number, ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer> ticket_out) {
    Locked locked;
    if (ffi::Error error = lock_buffer(platform, device, number, &locked); error.failure()) return error;
    Buffer& buffer = *locked.buffer;
    if (platform == Platform::cuda) return as_error(library.per_replay_clear(buffer.replay.get(), stream));
    if (!buffer.is_fresh) {
        if (const per_status status = renew(&buffer); status != PER_OK) return as_error(status);
    }
    {
        const std::lock_guard lock(table().mutex);
        buffer.generation = ++table().latest_generation;
    }
    buffer.version = 0;
    buffer.is_fresh = true;
    buffer.device = device;
    uint32_t* const ticket = static_cast<uint32_t*>(ticket_out->untyped_data());
    std::fill_n(ticket, int{ticket_size}, 0u);
    ticket[ticket_generation] = buffer.generation;
    return ffi::Error::Success();
}

// Operands: the ticket; zeros [K, n], used as rewards and flags; each field [K, n, shape].
template <Platform platform>
ffi::Error add(void* stream, int32_t device, int64_t number, ffi::AnyBuffer ticket, ffi::AnyBuffer zeros,
               ffi::RemainingArgs leaves, ffi::Result<ffi::AnyBuffer>) {
    Locked locked;
    if (ffi::Error error = begin<platform>(device, number, ticket, &locked); error.failure()) return error;
    Buffer& buffer = *locked.buffer;
    per_steps steps = with_defaults<per_steps>(library.per_steps_init);
    steps.length = zeros.dimensions()[0];
    steps.reward = {zeros.untyped_data(), nullptr, 0, PER_FLOAT32, nullptr};
    steps.terminated = steps.truncated = {zeros.untyped_data(), nullptr, 0, PER_BOOL, nullptr};
    for (size_t i = 0; i < buffer.arrays.size(); ++i) {
        buffer.arrays[i].data = leaves.get<ffi::AnyBuffer>(i)->untyped_data();
    }
    steps.fields = buffer.arrays.data();
    const per_status status = library.per_replay_add(buffer.replay.get(), &steps, nullptr, stream);
    if (status != PER_OK) return as_error(status);
    buffer.is_fresh = false;
    ++buffer.version;
    return ffi::Error::Success();
}

// Operands: the ticket; the key of the draw, two 64-bit numbers.
// Results: the ticket; ids, probabilities and weights [B]; each field, and each next field except for sequences.
template <Platform platform>
ffi::Error sample(void* stream, int32_t device, int64_t number, ffi::AnyBuffer ticket, ffi::AnyBuffer key,
                  ffi::Result<ffi::AnyBuffer>, ffi::Result<ffi::AnyBuffer> ids,
                  ffi::Result<ffi::AnyBuffer> probabilities, ffi::Result<ffi::AnyBuffer> weights,
                  ffi::RemainingRets leaves) {
    Locked locked;
    if (ffi::Error error = begin<platform>(device, number, ticket, &locked); error.failure()) return error;
    Buffer& buffer = *locked.buffer;
    per_batch batch = with_defaults<per_batch>(library.per_batch_init);
    batch.ids = static_cast<int64_t*>(ids->untyped_data());
    batch.probabilities = static_cast<float*>(probabilities->untyped_data());
    batch.weights = static_cast<float*>(weights->untyped_data());
    const size_t n_fields = buffer.fields.size();
    for (size_t i = 0; i < leaves.size(); ++i) {
        std::vector<void*>& target = i < n_fields ? buffer.fields : buffer.next_fields;
        target[i % n_fields] = (*leaves.get<ffi::AnyBuffer>(i))->untyped_data();
    }
    batch.fields = buffer.fields.data();
    if (leaves.size() > n_fields) batch.next_fields = buffer.next_fields.data();
    per_sample_options options = with_defaults<per_sample_options>(library.per_sample_options_init);
    options.key = static_cast<const uint64_t*>(key.untyped_data());
    buffer.is_fresh = false;
    return as_error(library.per_replay_sample(buffer.replay.get(), &options, weights->dimensions()[0], &batch, stream));
}

template <Platform platform>
ffi::Error set_priorities(void* stream, int32_t device, int64_t number, ffi::AnyBuffer ticket, ffi::AnyBuffer ids,
                          ffi::AnyBuffer priorities, ffi::Result<ffi::AnyBuffer>) {
    Locked locked;
    if (ffi::Error error = begin<platform>(device, number, ticket, &locked); error.failure()) return error;
    Buffer& buffer = *locked.buffer;
    per_priorities given = with_defaults<per_priorities>(library.per_priorities_init);
    given.count = static_cast<int64_t>(priorities.element_count());
    given.ids = static_cast<const int64_t*>(ids.untyped_data());
    given.priorities = static_cast<const float*>(priorities.untyped_data());
    const per_status status = library.per_replay_update_priorities(buffer.replay.get(), &given, stream);
    if (status != PER_OK) return as_error(status);
    ++buffer.version;
    return ffi::Error::Success();
}

// The arguments of the handlers, in order: first the stream, the XLA device of the program, and the buffer's number.
template <typename Stream>
auto bind() {
    return ffi::Ffi::Bind().Ctx<Stream>().template Ctx<ffi::DeviceOrdinal>().template Attr<int64_t>("buffer");
}
template <typename Stream>
auto bind_init() {
    return bind<Stream>().template Arg<ffi::AnyBuffer>().template Ret<ffi::AnyBuffer>();
}
template <typename Stream>
auto bind_add() {
    return bind<Stream>()
        .template Arg<ffi::AnyBuffer>()
        .template Arg<ffi::AnyBuffer>()
        .RemainingArgs()
        .template Ret<ffi::AnyBuffer>();
}
template <typename Stream>
auto bind_sample() {
    return bind<Stream>()
        .template Arg<ffi::AnyBuffer>()
        .template Arg<ffi::AnyBuffer>()
        .template Ret<ffi::AnyBuffer>()
        .template Ret<ffi::AnyBuffer>()
        .template Ret<ffi::AnyBuffer>()
        .template Ret<ffi::AnyBuffer>()
        .RemainingRets();
}
template <typename Stream>
auto bind_set_priorities() {
    return bind<Stream>()
        .template Arg<ffi::AnyBuffer>()
        .template Arg<ffi::AnyBuffer>()
        .template Arg<ffi::AnyBuffer>()
        .template Ret<ffi::AnyBuffer>();
}

// An array for each field, without data. The library owns the fields: they are field_size bytes apart.
std::vector<per_array> arrays_of(const per_replay_options& described) {
    std::vector<per_array> arrays;
    const char* const fields = reinterpret_cast<const char*>(described.fields);
    for (int64_t i = 0; i < described.n_fields; ++i) {
        per_field field = {};
        const size_t size = std::min(static_cast<size_t>(described.field_size), sizeof field);
        std::memcpy(&field, fields + i * described.field_size, size);
        arrays.push_back({nullptr, nullptr, 0, field.dtype, nullptr});
    }
    return arrays;
}

}  // namespace

#pragma GCC visibility push(default)

// Looks up the functions of libper by name.
extern "C" void per_xla_load(void* (*find)(const char* name)) {
#define PER_XLA_FIND(name) library.name = reinterpret_cast<decltype(&::name)>(find(#name));
    PER_XLA_FUNCTIONS(PER_XLA_FIND)
}

// Takes over the buffer of an owner, which becomes NULL, and stores the number by which programs name it; on an error
// both stay unchanged. A buffer from a checkpoint gets a generation, so that a ticket for it exists; any other buffer,
// which is still unused, gets its generation from init().
extern "C" per_status per_xla_open(per_replay** owner, uint32_t* generation_out, int64_t* number_out) {
    const auto buffer = std::make_shared<Buffer>();
    buffer->options = with_defaults<per_replay_options>(library.per_replay_options_init);
    if (const per_status status = library.per_replay_describe(*owner, &buffer->options); status != PER_OK) {
        return status;
    }
    buffer->replay.reset(std::exchange(*owner, nullptr));
    const size_t n_fields = static_cast<size_t>(buffer->options.n_fields);
    buffer->arrays = arrays_of(buffer->options);
    buffer->fields.resize(n_fields);
    buffer->next_fields.resize(n_fields);
    const std::lock_guard lock(table().mutex);
    if (generation_out != nullptr) {
        buffer->generation = *generation_out = ++table().latest_generation;
        buffer->is_fresh = false;
    }
    *number_out = ++table().latest_number;
    table().buffers[*number_out] = buffer;
    return PER_OK;
}

// The buffer of a ticket, to be read while no program uses it; it stays in the table. NULL if the ticket is stale,
// which cannot be checked on CUDA.
extern "C" per_replay* per_xla_find(int64_t number, const uint32_t* ticket) {
    const std::lock_guard lock(table().mutex);
    const auto found = table().buffers.find(number);
    if (found == table().buffers.end()) return nullptr;
    Buffer& buffer = *found->second;
    const std::lock_guard buffer_lock(buffer.mutex);
    const bool is_present = buffer.options.device == PER_CUDA || check_ticket(buffer, ticket).success();
    return is_present ? buffer.replay.get() : nullptr;
}

// Frees a buffer after its last call has ended. Unknown numbers are ignored.
extern "C" void per_xla_close(int64_t number) {
    std::shared_ptr<Buffer> last;
    const std::lock_guard lock(table().mutex);
    const auto found = table().buffers.find(number);
    if (found == table().buffers.end()) return;
    last = std::move(found->second);
    table().buffers.erase(found);
}

// XLA may capture the calls on CUDA in its command buffers, which are CUDA graphs.
#define PER_XLA_HANDLERS(name)                                                                           \
    XLA_FFI_DEFINE_HANDLER_SYMBOL(per_xla_##name##_cpu, name<Platform::cpu>, bind_##name<HostStream>()); \
    XLA_FFI_DEFINE_HANDLER_SYMBOL(per_xla_##name##_cuda, name<Platform::cuda>,                           \
                                  bind_##name<ffi::PlatformStream<void*>>(), {ffi::Traits::kCmdBufferCompatible})

PER_XLA_HANDLERS(init);
PER_XLA_HANDLERS(add);
PER_XLA_HANDLERS(sample);
PER_XLA_HANDLERS(set_priorities);

#pragma GCC visibility pop

}  // namespace per::xla_calls

// Streams, events, graphs and memory of the simulated GPU. Work waits in its stream until a wait of the host or another
// stream forces it on, or the seed allows it. Not instrumented by ThreadSanitizer, which is informed of the order that
// streams and events create: accesses of two streams to the same memory without such an order are reported as a race.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "simulator.h"
#include "translation.h"

#if defined(SIMULATOR_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace simulator {

struct Stream;

// A point of a stream, which is reached when `n` pieces of its work are done.
struct Point {
    Stream* stream;
    uint64_t n;
};

// Allocated on the heap, as threads of the kernel read it: the host may reuse its stack before it waits for them.
struct Work {
    dim3 grid_size, block_size;
    std::function<void()> kernel;  // empty: only waits
    bool is_together;              // all blocks are resident
    std::vector<Point> after;
    std::unique_ptr<char> clock;  // orders it after the host's work before the enqueue
};

struct Capture;

struct Stream {
    const uint64_t id = ++n_made;  // never reused
    int device = 0;                // ignored for the legacy stream, which every device has
    bool blocking = true;          // waits for the legacy stream, and it for this one
    bool is_destroyed = false;
    uint64_t n_enqueued = 0;
    uint64_t n_done = 0;
    std::deque<std::unique_ptr<Work>> work;  // the work that is not done: from number n_done on
    Capture* capture = nullptr;
    std::size_t last_node = no_node;  // the last node of this stream in the capture
    char clock = 0;

    static constexpr std::size_t no_node = ~std::size_t{0};
    static inline uint64_t n_made = 0;
};

// The handle of a stream. It may be reused after the stream was destroyed.
struct StreamHandle {
    Stream* stream;
};

// The primary context of a device.
struct Context {
    int device;
};

struct Node {
    dim3 grid_size, block_size;
    std::function<void()> kernel;
    bool is_together;
    std::vector<std::size_t> after;
};

struct Graph {
    std::vector<Node> nodes;
};

struct Capture {
    unsigned long long id;
    Stream* origin;
    Graph graph;
    std::thread::id thread;  // that began it
    cudaStreamCaptureMode mode;
    bool invalid = false;
    bool has_ended = false;
};

struct Event {
    int device = 0;
    bool lets_sleep = false;  // a thread that waits for it sleeps
    Point point = {nullptr, 0};
    Capture* capture = nullptr;  // recorded in it
    std::size_t node = Stream::no_node;
};

namespace {

uint64_t from_environment(const char* name, uint64_t otherwise) {
    const char* const number = std::getenv(name);
    return number == nullptr ? otherwise : std::strtoull(number, nullptr, 10);
}

Options options_of_environment() {
    const int architecture = translated_architecture() == 0 ? 90 : translated_architecture();
    return {.seed = from_environment("PER_SIMULATOR_SEED", 1),
            .all_blocks_resident = false,
            .n_devices = static_cast<int>(from_environment("PER_SIMULATOR_DEVICES", 1)),
            .driver_version = CUDART_VERSION,
            .compute_capability = architecture,
            .n_multiprocessors = 3,
            .float64_ratio = 2,
            .green_multiprocessors = 0,
            .has_host_memory = false,
            .reads_pageable = false,
            .reaches_registered = true,
            .memory_bytes = from_environment("PER_SIMULATOR_MEMORY", uint64_t{1} << 34),
            .destroying_waits = true};
}

struct Allocation {
    std::size_t bytes;
    cudaMemoryType type;
    int device;
};

struct Freed {
    unsigned char* memory;
    std::size_t bytes;
};

// Without a sanitizer, freed memory is kept for a while and filled with garbage, so that later uses are noticed.
#if defined(__SANITIZE_ADDRESS__) || defined(SIMULATOR_TSAN)
constexpr bool sees_freed_memory = true;
#else
constexpr bool sees_freed_memory = false;
#endif
constexpr unsigned char freed_byte = 0xCB;
constexpr uint64_t most_freed_bytes = uint64_t{1} << 24;

struct Machine {
    std::recursive_mutex mutex;
    Options options = options_of_environment();
    Counters counters = {};
    uint64_t random = 1;
    uint64_t n_grids = 0;
    std::vector<Stream*> streams = {&legacy};
    Stream legacy;
    std::vector<std::unique_ptr<Stream>> destroyed;  // events may still name them
    std::deque<StreamHandle> handles;
    std::vector<cudaStream_t> free_handles;  // those of destroyed streams
    std::set<int> contexts;                  // devices that have one
    std::map<int, Context> primary;
    std::vector<std::unique_ptr<Capture>> captures;
    unsigned long long n_captures = 0;
    int n_capturing = 0;
    std::map<uintptr_t, Allocation> allocations;  // by address
    uint64_t device_bytes = 0;                    // bytes of those on devices
    std::map<uintptr_t, uintptr_t> registered;    // ranges of host pages: first byte and end
    std::deque<Freed> freed;
    uint64_t freed_bytes = 0;
    uint64_t n_events = 0;
    cudaError_t sticky = cudaSuccess;
    cudaError_t planned = cudaSuccess;
    uint64_t calls_until_planned = 0;
    std::optional<std::thread::id> planned_thread;  // the thread whose calls count; none: all threads
    const char* failed_call = nullptr;              // name of the call that returned the planned error

    uint64_t next_random() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        return random + options.seed;
    }
};

// Never destroyed: handles may be freed at exit.
Machine& machine() {
    static Machine* const the_machine = new Machine;
    return *the_machine;
}

thread_local int chosen_device = 0;
thread_local std::vector<int> pushed_devices;  // devices of the contexts that were pushed
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
thread_local Counters thread_counters = {};

int current_device() {
    return pushed_devices.empty() ? chosen_device : pushed_devices.back();
}

void count(uint64_t Counters::*counter) {
    ++(machine().counters.*counter);
    ++(thread_counters.*counter);
}

// The per-thread default stream, made when it is first used. Never destroyed: events may refer to it.
Stream& stream_of_thread() {
    static thread_local Stream* stream = nullptr;
    if (stream == nullptr) {
        stream = new Stream;
        stream->device = current_device();
        machine().streams.push_back(stream);
    }
    return *stream;
}

Stream& stream_of(cudaStream_t stream) {
    if (stream == cudaStreamPerThread) return stream_of_thread();
    return stream == nullptr || stream == cudaStreamLegacy ? machine().legacy : *stream->stream;
}

// The error with which a call fails before it has an effect.
cudaError_t begin_call(const char* name = __builtin_FUNCTION()) {
    Machine& m = machine();
    // Within a major version of CUDA an older driver suffices.
    if (m.options.driver_version / 1000 < CUDART_VERSION / 1000) return cudaErrorInsufficientDriver;
    if (m.options.n_devices == 0) return cudaErrorNoDevice;
    if (m.sticky != cudaSuccess) return m.sticky;
    if (m.planned == cudaSuccess || m.planned_thread.value_or(std::this_thread::get_id()) != std::this_thread::get_id())
        return cudaSuccess;
    if (m.calls_until_planned-- != 0) return cudaSuccess;
    m.failed_call = name;
    return std::exchange(m.planned, cudaSuccess);
}

#define BEGIN_CALL()                                                    \
    const std::lock_guard<std::recursive_mutex> guard(machine().mutex); \
    if (const cudaError_t begun = begin_call(); begun != cudaSuccess) return begun

#define BEGIN_DRIVER_CALL()                                             \
    const std::lock_guard<std::recursive_mutex> guard(machine().mutex); \
    if (const cudaError_t begun = begin_call(); begun != cudaSuccess) return static_cast<CUresult>(begun)

// Begins a call that needs a context: the current device gets one if it has none.
#define BEGIN_CALL_IN_CONTEXT() \
    BEGIN_CALL();               \
    machine().contexts.insert(current_device())

unsigned multiprocessors_of_context() {
    const Options& options = machine().options;
    return static_cast<unsigned>(options.green_multiprocessors != 0 ? options.green_multiprocessors
                                                                    : options.n_multiprocessors);
}

void release_clock([[maybe_unused]] void* clock) {
#if defined(SIMULATOR_TSAN)
    __tsan_release(clock);
#endif
}

void acquire_clock([[maybe_unused]] void* clock) {
#if defined(SIMULATOR_TSAN)
    __tsan_acquire(clock);
#endif
}

bool is_reached(const Point& point) {
    return point.stream->n_done >= point.n;
}

bool can_run(const Stream& stream) {
    if (stream.work.empty()) return false;
    const std::vector<Point>& after = stream.work.front()->after;
    return std::all_of(after.begin(), after.end(), is_reached);
}

// Called for a destroyed stream once its work is done.
void forget(Stream& stream) {
    std::erase(machine().streams, &stream);
    machine().destroyed.emplace_back(&stream);
}

// Removes and returns the first work of the stream.
std::unique_ptr<Work> take_work(Stream& stream) {
    std::unique_ptr<Work> work = std::move(stream.work.front());
    stream.work.pop_front();
    // TSan: the stream comes after the streams that this work waited for.
    for ([[maybe_unused]] const Point& point : work->after) {
        if (point.stream == &stream) continue;
        const GridOptions join = {0, false, &stream.clock, &point.stream->clock};
        run_grid(
            1, 1, [] {}, join);
    }
    return work;
}

void run_work(Stream& stream, std::unique_ptr<Work> work) {
    Machine& m = machine();
    if (work->kernel) {
        const GridOptions options = {m.options.seed * 1000003 + m.n_grids++,
                                     m.options.all_blocks_resident || work->is_together, &stream.clock,
                                     work->clock.get()};
        run_grid(work->grid_size, work->block_size, work->kernel, options);
    }
    ++stream.n_done;
    run_after(&stream.clock, [owned = work.release()] { delete owned; });
}

void run_next(Stream& stream) {
    run_work(stream, take_work(stream));
    if (stream.is_destroyed && stream.work.empty()) forget(stream);
}

bool run_any() {
    Machine& m = machine();
    std::vector<Stream*> able;
    for (Stream* const stream : m.streams)
        if (can_run(*stream)) able.push_back(stream);
    if (able.empty()) return false;
    run_next(*able[m.next_random() % able.size()]);
    return true;
}

// Another stream may precede the one awaited in the queue, so any of them may continue.
void run_until(const Point& point) {
    while (!is_reached(point))
        if (!run_any()) fail("streams wait for each other");
    acquire_clock(&point.stream->clock);
}

void run_everything() {
    while (run_any()) {
    }
    for (Stream* const stream : machine().streams) acquire_clock(&stream->clock);
}

Point end_of(Stream& stream) {
    return {&stream, stream.n_enqueued};
}

cudaError_t capture_node(Stream& stream, Node node) {
    Capture& capture = *stream.capture;
    if (capture.invalid) return cudaErrorStreamCaptureInvalidated;
    if (stream.last_node != Stream::no_node) node.after.push_back(stream.last_node);
    capture.graph.nodes.push_back(std::move(node));
    stream.last_node = capture.graph.nodes.size() - 1;
    return cudaSuccess;
}

cudaError_t enqueue(cudaStream_t name, dim3 grid_size, dim3 block_size, std::function<void()> kernel,
                    std::vector<Point> after = {}, bool is_together = false) {
    Machine& m = machine();
    Stream& stream = stream_of(name);
    if (stream.capture != nullptr)
        return capture_node(stream, {grid_size, block_size, std::move(kernel), is_together, {}});
    if (&stream == &m.legacy && m.n_capturing != 0) return cudaErrorStreamCaptureImplicit;
    if (&stream == &m.legacy) {
        for (Stream* const other : m.streams)
            if (other->blocking && other != &stream) after.push_back(end_of(*other));
    } else if (stream.blocking) {
        after.push_back(end_of(m.legacy));
    }
    stream.work.push_back(std::make_unique<Work>(
        Work{grid_size, block_size, std::move(kernel), is_together, std::move(after), std::make_unique<char>()}));
    release_clock(stream.work.back()->clock.get());
    ++stream.n_enqueued;
    if (m.options.seed == 0)
        run_until(end_of(stream));
    else
        while (m.next_random() % 3 == 0 && run_any()) {
        }
    return cudaSuccess;
}

// For calls that invalidate captures: those of this thread unless a mode is relaxed, and those of other threads if both
// modes are global.
cudaError_t require_no_capture() {
    cudaError_t error = cudaSuccess;
    for (const auto& capture : machine().captures) {
        if (capture->has_ended) continue;
        const bool is_own = capture->thread == std::this_thread::get_id();
        const bool is_spoilt =
            is_own ? capture_mode != cudaStreamCaptureModeRelaxed && capture->mode != cudaStreamCaptureModeRelaxed
                   : capture_mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
        if (!is_spoilt) continue;
        capture->invalid = true;
        error = cudaErrorStreamCaptureUnsupported;
    }
    return error;
}

cudaError_t allocate(void** memory, std::size_t bytes, cudaMemoryType type) {
    if (const cudaError_t error = require_no_capture(); error != cudaSuccess) return error;
    Machine& m = machine();
    const bool is_of_device = type == cudaMemoryTypeDevice;
    if (is_of_device && bytes > m.options.memory_bytes - std::min(m.device_bytes, m.options.memory_bytes))
        return cudaErrorMemoryAllocation;
    count(&Counters::allocations);
    // Addresses of CUDA's allocations are multiples of 256; the size is exact, for ASan.
    if (posix_memalign(memory, 256, bytes) != 0) return cudaErrorMemoryAllocation;
    std::memset(*memory, 0xCB, bytes);
    m.allocations[reinterpret_cast<uintptr_t>(*memory)] = {bytes, type, current_device()};
    if (is_of_device) m.device_bytes += bytes;
    return cudaSuccess;
}

void free_memory(void* memory) {
    Machine& m = machine();
    const auto allocation = m.allocations.find(reinterpret_cast<uintptr_t>(memory));
    if (allocation == m.allocations.end()) fail("what is freed was not allocated");
    if (allocation->second.type == cudaMemoryTypeDevice) m.device_bytes -= allocation->second.bytes;
    const std::size_t bytes = allocation->second.bytes;
    m.allocations.erase(allocation);
    if (sees_freed_memory) {
        std::free(memory);
        return;
    }
    std::memset(memory, freed_byte, bytes);
    m.freed.push_back({static_cast<unsigned char*>(memory), bytes});
    m.freed_bytes += bytes;
    while (m.freed_bytes > most_freed_bytes) {
        const Freed oldest = m.freed.front();
        if (std::any_of(oldest.memory, oldest.memory + oldest.bytes, [](int byte) { return byte != freed_byte; }))
            fail("memory was written after it was freed");
        m.freed.pop_front();
        m.freed_bytes -= oldest.bytes;
        std::free(oldest.memory);
    }
}

// Frees its argument even if the call fails, as a fault destroys the memory with its context.
cudaError_t deallocate(void* memory) {
    const std::lock_guard<std::recursive_mutex> guard(machine().mutex);
    if (const cudaError_t error = begin_call(); error != cudaSuccess) {
        for (Stream* const stream : machine().streams) acquire_clock(&stream->clock);
        if (memory != nullptr) free_memory(memory);
        return error;
    }
    if (memory == nullptr) return cudaSuccess;
    machine().contexts.insert(current_device());
    if (const cudaError_t error = require_no_capture(); error != cudaSuccess) return error;
    count(&Counters::allocations);
    run_everything();
    free_memory(memory);
    return cudaSuccess;
}

}  // namespace

Options& options() {
    return machine().options;
}

Counters counters() {
    const std::lock_guard<std::recursive_mutex> guard(machine().mutex);
    return machine().counters;
}

Counters counters_of_thread() {
    return thread_counters;
}

void reset_counters() {
    const std::lock_guard<std::recursive_mutex> guard(machine().mutex);
    machine().counters = {};
    thread_counters = {};
}

Held held() {
    Machine& m = machine();
    const std::lock_guard<std::recursive_mutex> guard(m.mutex);
    uint64_t bytes = 0;
    for (const auto& [address, allocation] : m.allocations) bytes += allocation.bytes;
    return {bytes, m.streams.size(), m.n_events};
}

void stick(int error) {
    Machine& m = machine();
    const std::lock_guard<std::recursive_mutex> guard(m.mutex);
    m.sticky = static_cast<cudaError_t>(error);
    if (m.sticky == cudaSuccess) return;
    for (Stream* const stream : m.streams) {
        for (; !stream->work.empty(); stream->work.pop_front(), ++stream->n_done)
            run_after(&stream->clock, [owned = stream->work.front().release()] { delete owned; });
    }
}

bool has_context(int device) {
    const std::lock_guard<std::recursive_mutex> guard(machine().mutex);
    return machine().contexts.contains(device);
}

void forget_contexts() {
    const std::lock_guard<std::recursive_mutex> guard(machine().mutex);
    machine().contexts.clear();
}

bool fail_call(uint64_t n, int error) {
    const std::lock_guard<std::recursive_mutex> guard(machine().mutex);
    const bool was_planned = machine().planned != cudaSuccess;
    machine().calls_until_planned = n;
    machine().planned = static_cast<cudaError_t>(error);
    machine().planned_thread.reset();
    return was_planned;
}

extern "C" [[gnu::visibility("default")]] void simulator_fail_call(uint64_t n, int error) {
    const std::lock_guard<std::recursive_mutex> guard(machine().mutex);
    fail_call(n, error);
    machine().planned_thread = std::this_thread::get_id();
    machine().failed_call = nullptr;
}

extern "C" [[gnu::visibility("default")]] const char* simulator_failed_call() {
    return machine().failed_call;
}

cudaError_t enqueue_grid(const cudaLaunchConfig_t& config, std::function<void()> call) {
    BEGIN_CALL_IN_CONTEXT();
    const dim3 grid = config.grid, block = config.block;
    const uint64_t n_threads = uint64_t{block.x} * block.y * block.z;
    if (uint64_t{grid.x} * grid.y * grid.z == 0 || n_threads == 0 || n_threads > 1024 || grid.y > 65535 ||
        grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    bool is_together = false;
    for (unsigned i = 0; i < config.numAttrs; ++i)
        if (config.attrs[i].id == cudaLaunchAttributeCooperative) is_together = config.attrs[i].val.cooperative != 0;
    // The number of blocks that fit depends on the kernel; at least one fits each multiprocessor.
    if (is_together && grid.x * grid.y * grid.z > multiprocessors_of_context())
        return cudaErrorCooperativeLaunchTooLarge;
    count(&Counters::launches);
    const Stream& stream = stream_of(config.stream);
    if (&stream != &machine().legacy && stream.device != current_device()) return cudaErrorInvalidResourceHandle;
    return enqueue(config.stream, grid, block, std::move(call), {}, is_together);
}

cudaError_t attributes_of_kernel(cudaFuncAttributes* attributes) {
    BEGIN_CALL_IN_CONTEXT();
    // CUDA loads the kernel in this call, and may allocate and wait.
    if (const cudaError_t error = require_no_capture(); error != cudaSuccess) return error;
    attributes->maxThreadsPerBlock = 1024;
    return cudaSuccess;
}

}  // namespace simulator

using namespace simulator;

const char* cudaGetErrorName(cudaError_t error) {
#define NAME_OF(error) \
    case error:        \
        return #error
    switch (error) {
        NAME_OF(cudaSuccess);
        NAME_OF(cudaErrorInvalidValue);
        NAME_OF(cudaErrorInvalidMemcpyDirection);
        NAME_OF(cudaErrorMemoryAllocation);
        NAME_OF(cudaErrorInvalidConfiguration);
        NAME_OF(cudaErrorInsufficientDriver);
        NAME_OF(cudaErrorNoDevice);
        NAME_OF(cudaErrorInvalidDevice);
        NAME_OF(cudaErrorInvalidResourceHandle);
        NAME_OF(cudaErrorIllegalAddress);
        NAME_OF(cudaErrorHostMemoryAlreadyRegistered);
        NAME_OF(cudaErrorHostMemoryNotRegistered);
        NAME_OF(cudaErrorCooperativeLaunchTooLarge);
        NAME_OF(cudaErrorStreamCaptureUnsupported);
        NAME_OF(cudaErrorStreamCaptureInvalidated);
        NAME_OF(cudaErrorStreamCaptureUnjoined);
        NAME_OF(cudaErrorStreamCaptureIsolation);
        NAME_OF(cudaErrorStreamCaptureImplicit);
        NAME_OF(cudaErrorCapturedEvent);
    }
#undef NAME_OF
    return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t) {
    return "simulated";
}

// ---- devices

cudaError_t cudaDriverGetVersion(int* version) {
    *version = machine().options.driver_version;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
    BEGIN_CALL();  // on an error the count is left alone, as the real call does
    *count = machine().options.n_devices;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
    BEGIN_CALL();
    *device = current_device();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    BEGIN_CALL();
    if (device < 0 || device >= machine().options.n_devices) return cudaErrorInvalidDevice;
    (pushed_devices.empty() ? chosen_device : pushed_devices.back()) = device;
    machine().contexts.insert(device);
    return cudaSuccess;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    BEGIN_DRIVER_CALL();
    machine().contexts.insert(device);
    *context = &machine().primary.try_emplace(device, Context{device}).first->second;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
    BEGIN_DRIVER_CALL();
    pushed_devices.push_back(context->device);
    return CUDA_SUCCESS;
}

// Works even after a fault of the device.
CUresult cuCtxPopCurrent(CUcontext* context) {
    const std::lock_guard<std::recursive_mutex> guard(machine().mutex);
    if (pushed_devices.empty()) fail("no context was made current that could be taken back");
    *context = &machine().primary.at(pushed_devices.back());
    pushed_devices.pop_back();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
    BEGIN_DRIVER_CALL();
    const int device = current_device();
    const bool has_one = machine().contexts.contains(device);
    *context = has_one ? &machine().primary.try_emplace(device, Context{device}).first->second : nullptr;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevResource(CUcontext, CUdevResource* resource, CUdevResourceType type) {
    BEGIN_DRIVER_CALL();
    *resource = {type, {multiprocessors_of_context()}};
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
    BEGIN_CALL();
    const std::map<std::string, void*> functions = {
        {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(&cuDevicePrimaryCtxRetain)},
        {"cuCtxPushCurrent", reinterpret_cast<void*>(&cuCtxPushCurrent)},
        {"cuCtxPopCurrent", reinterpret_cast<void*>(&cuCtxPopCurrent)},
        {"cuCtxGetCurrent", reinterpret_cast<void*>(&cuCtxGetCurrent)},
        {"cuCtxGetDevResource", reinterpret_cast<void*>(&cuCtxGetDevResource)}};
    const auto place = functions.find(symbol);
    *found = place == functions.end() ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
    *function = place == functions.end() ? nullptr : place->second;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    BEGIN_CALL();
    const Options& options = machine().options;
    *value = attribute == cudaDevAttrL2CacheSize                         ? 1 << 20
             : attribute == cudaDevAttrMultiProcessorCount               ? options.n_multiprocessors
             : attribute == cudaDevAttrSingleToDoublePrecisionPerfRatio  ? options.float64_ratio
             : attribute == cudaDevAttrPageableMemoryAccess              ? options.reads_pageable
             : attribute == cudaDevAttrCanUseHostPointerForRegisteredMem ? options.reaches_registered
             : attribute == cudaDevAttrComputeCapabilityMajor            ? options.compute_capability / 10
                                                                         : options.compute_capability % 10;
    return cudaSuccess;
}

// ---- memory

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
    BEGIN_CALL_IN_CONTEXT();
    return allocate(memory, bytes, cudaMemoryTypeDevice);
}

cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
    BEGIN_CALL_IN_CONTEXT();
    return allocate(memory, bytes, cudaMemoryTypeHost);
}

namespace {

void require_type(void* memory, cudaMemoryType type) {
    const std::lock_guard<std::recursive_mutex> guard(machine().mutex);
    const auto found = machine().allocations.find(reinterpret_cast<uintptr_t>(memory));
    if (found != machine().allocations.end() && found->second.type != type)
        fail("memory freed as that of another kind");
}

}  // namespace

cudaError_t cudaFree(void* memory) {
    require_type(memory, cudaMemoryTypeDevice);
    return deallocate(memory);
}

cudaError_t cudaFreeHost(void* memory) {
    require_type(memory, cudaMemoryTypeHost);
    return deallocate(memory);
}

// Whole pages become accessible to the device.
cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned flags) {
    BEGIN_CALL_IN_CONTEXT();
    if (const cudaError_t error = require_no_capture(); error != cudaSuccess) return error;
    if (memory == nullptr || bytes == 0 || flags != cudaHostRegisterMapped) return cudaErrorInvalidValue;
    Machine& m = machine();
    constexpr uintptr_t page_bytes = 4096;
    const auto address = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t first = address / page_bytes * page_bytes;
    const uintptr_t end = (address + bytes + page_bytes - 1) / page_bytes * page_bytes;
    const auto after = m.registered.lower_bound(end);
    if (after != m.registered.begin() && std::prev(after)->second > first) return cudaErrorHostMemoryAlreadyRegistered;
    count(&Counters::allocations);
    m.registered[first] = end;
    m.allocations[address] = {bytes, cudaMemoryTypeHost, current_device()};
    return cudaSuccess;
}

// Unregisters even if the call fails, like cudaFree(). Does not wait, as CUDA does not promise that it does.
cudaError_t cudaHostUnregister(void* memory) {
    const std::lock_guard<std::recursive_mutex> guard(machine().mutex);
    Machine& m = machine();
    const auto address = reinterpret_cast<uintptr_t>(memory);
    auto pages = m.registered.upper_bound(address);
    if (pages == m.registered.begin() || (--pages)->second <= address || m.allocations.count(address) == 0)
        return cudaErrorHostMemoryNotRegistered;
    m.registered.erase(pages);
    m.allocations.erase(address);
    count(&Counters::allocations);
    if (const cudaError_t error = begin_call(); error != cudaSuccess) return error;
    m.contexts.insert(current_device());
    return require_no_capture();
}

namespace {

// NULL for an unknown address.
const Allocation* allocation_of(const void* memory) {
    const Machine& m = machine();
    const auto address = reinterpret_cast<uintptr_t>(memory);
    const auto after = m.allocations.upper_bound(address);
    if (after == m.allocations.begin()) return nullptr;
    const auto& [first, allocation] = *std::prev(after);
    return address - first < allocation.bytes ? &allocation : nullptr;
}

}  // namespace

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
    BEGIN_CALL_IN_CONTEXT();
    const Allocation* const allocation = allocation_of(memory);
    const bool is_of_host = allocation == nullptr && machine().options.has_host_memory;
    attributes->type = is_of_host              ? cudaMemoryTypeUnregistered
                       : allocation == nullptr ? cudaMemoryTypeDevice
                                               : allocation->type;
    attributes->device = allocation == nullptr ? current_device() : allocation->device;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    BEGIN_CALL_IN_CONTEXT();
    const Allocation* const target = allocation_of(to);
    const Allocation* const source = allocation_of(from);
    const bool is_to_host = kind == cudaMemcpyDeviceToHost;
    const bool is_from_host = kind == cudaMemcpyHostToDevice;
    const auto contradicts = [&](const Allocation* allocation, bool is_host) {
        return kind != cudaMemcpyDefault && allocation != nullptr &&
               (allocation->type == cudaMemoryTypeHost) != is_host;
    };
    // CUDA leaves the result of such a copy undefined.
    if (contradicts(target, is_to_host) || contradicts(source, is_from_host)) return cudaErrorInvalidMemcpyDirection;
    // A copy of pageable memory uses a buffer of the driver, which may wait or allocate.
    const bool is_pageable = (is_to_host && target == nullptr) || (is_from_host && source == nullptr);
    if (is_pageable && stream_of(stream).capture == nullptr)
        if (const cudaError_t error = require_no_capture(); error != cudaSuccess) return error;
    const cudaError_t error = enqueue(stream, 1, 1, [=] { std::memcpy(to, from, bytes); });
    // A copy to pageable memory is complete when the call returns, as CUDA documents.
    if (error == cudaSuccess && is_to_host && target == nullptr && stream_of(stream).capture == nullptr)
        run_until(end_of(stream_of(stream)));
    return error;
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
    BEGIN_CALL_IN_CONTEXT();
    return enqueue(stream, 1, 1, [=] { std::memset(memory, value, bytes); });
}

// ---- streams

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    BEGIN_CALL_IN_CONTEXT();
    Machine& m = machine();
    Stream* const made = new Stream;
    made->device = current_device();
    made->blocking = (flags & cudaStreamNonBlocking) == 0;
    m.streams.push_back(made);
    if (m.free_handles.empty()) m.free_handles.push_back(&m.handles.emplace_back());
    *stream = m.free_handles.back();
    m.free_handles.pop_back();
    (*stream)->stream = made;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    BEGIN_CALL_IN_CONTEXT();
    Stream& destroyed = stream_of(stream);
    if (destroyed.capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    if (machine().options.destroying_waits) run_until(end_of(destroyed));
    destroyed.is_destroyed = true;
    if (destroyed.work.empty()) forget(destroyed);
    machine().free_handles.push_back(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
    BEGIN_CALL_IN_CONTEXT();
    if (stream_of(stream).capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    *id = stream_of(stream).id;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    BEGIN_CALL_IN_CONTEXT();
    if (stream_of(stream).capture != nullptr) {
        stream_of(stream).capture->invalid = true;
        return cudaErrorStreamCaptureUnsupported;
    }
    if (&stream_of(stream) == &machine().legacy && machine().n_capturing != 0) return cudaErrorStreamCaptureImplicit;
    // CUDA does not document which calls count as unsafe: here all waits do.
    if (const cudaError_t error = require_no_capture(); error != cudaSuccess) return error;
    count(&Counters::host_waits);
    count(&Counters::spins);
    run_until(end_of(stream_of(stream)));
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
    BEGIN_CALL_IN_CONTEXT();
    if (const cudaError_t error = require_no_capture(); error != cudaSuccess) return error;
    count(&Counters::host_waits);
    count(&Counters::spins);
    run_everything();
    return cudaSuccess;
}

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    BEGIN_CALL_IN_CONTEXT();
    *event = new Event;
    ++machine().n_events;
    event[0]->device = current_device();
    event[0]->lets_sleep = (flags & cudaEventBlockingSync) != 0;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    const std::lock_guard<std::recursive_mutex> guard(machine().mutex);
    delete event;
    --machine().n_events;
    machine().contexts.insert(current_device());
    return begin_call();
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t name) {
    BEGIN_CALL_IN_CONTEXT();
    Stream& stream = stream_of(name);
    if (event->device != (&stream == &machine().legacy ? current_device() : stream.device))
        return cudaErrorInvalidResourceHandle;
    if (stream.capture == nullptr && &stream == &machine().legacy && machine().n_capturing != 0)
        return cudaErrorStreamCaptureImplicit;
    if (event->lets_sleep) count(&Counters::interrupts);
    event->capture = stream.capture;
    event->node = stream.last_node;
    event->point = end_of(stream);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    BEGIN_CALL_IN_CONTEXT();
    if (event->capture != nullptr) return cudaErrorCapturedEvent;
    if (const cudaError_t error = require_no_capture(); error != cudaSuccess) return error;
    count(&Counters::host_waits);
    if (!event->lets_sleep) count(&Counters::spins);
    if (event->point.stream != nullptr) run_until(event->point);
    return cudaSuccess;
}

// Simulated work takes no time.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
    BEGIN_CALL_IN_CONTEXT();
    *milliseconds = 0.0f;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t name, cudaEvent_t event, unsigned) {
    BEGIN_CALL_IN_CONTEXT();
    Stream& stream = stream_of(name);
    count(&Counters::event_waits);
    if (event->point.stream == nullptr && event->capture == nullptr) return cudaSuccess;
    if (stream.capture == nullptr && event->capture == nullptr) return enqueue(name, 1, 1, {}, {event->point});
    if (event->capture == nullptr) {
        stream.capture->invalid = true;
        return cudaErrorStreamCaptureIsolation;
    }
    if (stream.capture == nullptr) {
        // The stream joins the capture.
        if (event->capture->origin->capture != event->capture) return cudaErrorCapturedEvent;
        stream.capture = event->capture;
        stream.last_node = event->node;
        return cudaSuccess;
    }
    if (event->node == Stream::no_node) return cudaSuccess;
    Node join = {1, 1, {}, {}, {event->node}};
    return capture_node(stream, std::move(join));
}

// ---- graphs

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id) {
    BEGIN_CALL_IN_CONTEXT();
    if (&stream_of(stream) == &machine().legacy && machine().n_capturing != 0) return cudaErrorStreamCaptureImplicit;
    const Capture* const capture = stream_of(stream).capture;
    *status = capture == nullptr ? cudaStreamCaptureStatusNone
              : capture->invalid ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
    if (*status == cudaStreamCaptureStatusActive) *id = capture->id;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    BEGIN_CALL_IN_CONTEXT();
    std::swap(*mode, capture_mode);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t name, cudaStreamCaptureMode mode) {
    BEGIN_CALL_IN_CONTEXT();
    Stream* const stream = &stream_of(name);
    if (stream == &machine().legacy || stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    Machine& m = machine();
    m.captures.push_back(std::make_unique<Capture>());
    stream->capture = m.captures.back().get();
    stream->capture->id = ++m.n_captures;
    stream->capture->origin = stream;
    stream->capture->thread = std::this_thread::get_id();
    stream->capture->mode = mode;
    stream->last_node = Stream::no_node;
    ++m.n_capturing;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t name, cudaGraph_t* graph) {
    BEGIN_CALL_IN_CONTEXT();
    Stream* const stream = &stream_of(name);
    *graph = nullptr;
    Capture* const capture = stream->capture;
    if (capture == nullptr || capture->origin != stream) return cudaErrorInvalidValue;
    std::size_t n_streams = 0;
    for (Stream* const other : machine().streams) {
        if (other->capture != capture) continue;
        other->capture = nullptr;
        ++n_streams;
    }
    --machine().n_capturing;
    capture->has_ended = true;
    if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
    // Work of a stream that joined must be waited for by the stream that began.
    if (n_streams > 1) {
        std::vector<bool> has_successor(capture->graph.nodes.size());
        for (const Node& node : capture->graph.nodes)
            for (const std::size_t before : node.after) has_successor[before] = true;
        if (std::count(has_successor.begin(), has_successor.end(), false) > 1) return cudaErrorStreamCaptureUnjoined;
    }
    *graph = new Graph(std::move(capture->graph));
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    BEGIN_CALL_IN_CONTEXT();
    *executable = new Graph(*graph);
    return cudaSuccess;
}

// One stream for each node, ordered as in the graph.
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    BEGIN_CALL_IN_CONTEXT();
    const std::vector<Node>& nodes = executable->nodes;
    count(&Counters::launches);
    if (const cudaError_t error = enqueue(stream, 1, 1, {}); error != cudaSuccess) return error;
    const Point start = end_of(stream_of(stream));
    std::vector<cudaStream_t> own(nodes.size());
    std::vector<Point> ends = {start};
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        cudaStreamCreateWithFlags(&own[i], cudaStreamNonBlocking);
        std::vector<Point> after = {start};
        for (const std::size_t before : nodes[i].after) after.push_back(end_of(stream_of(own[before])));
        enqueue(own[i], nodes[i].grid_size, nodes[i].block_size, nodes[i].kernel, std::move(after),
                nodes[i].is_together);
        ends.push_back(end_of(stream_of(own[i])));
    }
    const cudaError_t error = enqueue(stream, 1, 1, {}, std::move(ends));
    // The streams are kept until the machine ends: later work waits for their ends, and finished work stays finished.
    return error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    BEGIN_CALL_IN_CONTEXT();
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    BEGIN_CALL_IN_CONTEXT();
    run_everything();
    delete executable;
    return cudaSuccess;
}

// Replay buffers of the size of training on a CUDA device against the same on the CPU, bit for bit: kernels of many
// blocks, while copies on another stream compete for the memory that they read and write. There is a buffer for each of
// three kinds, all with PER_MAX_NOW and times_sampled: proportional priorities with PER_BUFFER_MAX, ranks, and
// sequences. Exits with 77 where there is no device, with 0 if everything is the same; else it prints what differs and
// exits with 1.
//
//     large_replay_on_device [ROUNDS [CAPACITY LANES BATCH]]
#include <cuda_runtime.h>
#include <per.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "../c/struct_calls.h"
#include "require.h"

namespace {

constexpr int64_t frame = 16;  // bytes of an observation
constexpr int64_t stack = 2;
constexpr int64_t n_step = 3;
constexpr int64_t burn_in = 2;
constexpr int64_t learned_length = 6;  // of a sequence after its burn-in
constexpr int64_t most_steps = 4;      // of an add between two batches

struct Size {
    int64_t capacity;
    int64_t n_lanes;
    int64_t batch;
};

struct Kind {
    const char* name;
    int32_t prioritization;
    int32_t scheme;
    int32_t normalize_weights;
    bool has_sequences;

    // Steps of an entry of a batch, and its observations.
    int64_t n_steps() const { return has_sequences ? burn_in + learned_length : 1; }
    int64_t n_observations() const { return has_sequences ? n_steps() + n_step : 1; }
};

constexpr Kind kinds[] = {
    {"proportional", PER_PROPORTIONAL, PER_STRATIFIED, PER_BUFFER_MAX, false},
    {"ranks", PER_RANK, PER_INDEPENDENT, PER_BATCH_MAX, false},
    {"sequences", PER_PROPORTIONAL, PER_SYSTEMATIC, PER_BUFFER_MAX, true},
};

// Arrays one after the other, at the same offsets on the host and on the device, so that one copy moves all of them and
// one comparison compares them.
class Arrays {
 public:
    explicit Arrays(std::size_t n_bytes) : host(n_bytes) {
        void* memory = nullptr;
        REQUIRE(cudaMalloc(&memory, n_bytes) == cudaSuccess);
        device = static_cast<unsigned char*>(memory);
    }
    ~Arrays() { static_cast<void>(cudaFree(device)); }
    Arrays(const Arrays&) = delete;
    Arrays& operator=(const Arrays&) = delete;

    void to_device(cudaStream_t stream) {
        REQUIRE(cudaMemcpyAsync(device, host.data(), host.size(), cudaMemcpyHostToDevice, stream) == cudaSuccess);
        REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    }

    // Expects the device's arrays to be those of the host.
    void expect_same(const char* what, cudaStream_t stream) const {
        std::vector<unsigned char> found(host.size());
        REQUIRE(cudaMemcpyAsync(found.data(), device, found.size(), cudaMemcpyDeviceToHost, stream) == cudaSuccess);
        REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
        if (std::memcmp(found.data(), host.data(), found.size()) == 0) return;
        std::size_t at = 0;
        while (found[at] == host[at]) ++at;
        std::fprintf(stderr, "%s: byte %zu of %zu differs from the CPU's\n", what, at, found.size());
        std::exit(1);
    }

    std::vector<unsigned char> host;
    unsigned char* device = nullptr;
};

// Takes pieces of the memory at `base`, or only counts their bytes.
struct Pieces {
    template <class T>
    T* take(int64_t n) {
        T* const taken = base == nullptr ? nullptr : reinterpret_cast<T*>(base + n_bytes);
        n_bytes += (static_cast<std::size_t>(n) * sizeof(T) + 15) / 16 * 16;
        return taken;
    }

    unsigned char* base = nullptr;
    std::size_t n_bytes = 0;
};

struct StepArrays {
    StepArrays(Pieces& pieces, int64_t n)
        : observation(pieces.take<uint8_t>(n * frame)),
          next(pieces.take<uint8_t>(n * frame)),
          reward(pieces.take<float>(n)),
          priority(pieces.take<float>(n)),
          terminated(pieces.take<uint8_t>(n)),
          truncated(pieces.take<uint8_t>(n)),
          ids(pieces.take<int64_t>(n)) {}

    uint8_t *observation, *next;
    float *reward, *priority;
    uint8_t *terminated, *truncated;
    int64_t* ids;
};

struct BatchArrays {
    BatchArrays(Pieces& pieces, const Kind& kind, int64_t n)
        : td_errors(pieces.take<float>(n * kind.n_steps())),
          observation(pieces.take<uint8_t>(n * kind.n_observations() * stack * frame)),
          next(pieces.take<uint8_t>(kind.has_sequences ? 0 : n * stack * frame)),
          reward(pieces.take<float>(n * kind.n_steps())),
          discount(pieces.take<float>(n * kind.n_steps())),
          n_steps(pieces.take<int32_t>(n * kind.n_steps())),
          terminated(pieces.take<uint8_t>(n * kind.n_steps())),
          truncated(pieces.take<uint8_t>(n * kind.n_steps())),
          mask(pieces.take<uint8_t>(n * kind.n_steps())),
          weights(pieces.take<float>(n)),
          priorities(pieces.take<float>(n)),
          probabilities(pieces.take<float>(n)),
          ids(pieces.take<int64_t>(n)),
          times_sampled(pieces.take<int32_t>(n)) {}

    float* td_errors;
    uint8_t *observation, *next;
    float *reward, *discount;
    int32_t* n_steps;
    uint8_t *terminated, *truncated, *mask;
    float *weights, *priorities, *probabilities;
    int64_t* ids;
    int32_t* times_sampled;
};

per_replay* create(int32_t device, const Kind& kind, const Size& size) {
    const int64_t shape[] = {frame};
    per_field observation;
    std::memset(&observation, 0, sizeof observation);
    observation.name = "observation";
    observation.shape = shape;
    observation.ndim = 1;
    observation.dtype = PER_UINT8;
    per_replay_options options;
    per_replay* replay = nullptr;
    REQUIRE(per_replay_options_init(&options, sizeof options) == PER_OK);
    options.capacity = size.capacity;
    options.n_envs = size.n_lanes;
    options.fields = &observation;
    options.n_fields = 1;
    options.field_size = sizeof(per_field);
    options.n_step = n_step;
    options.frame_stack = stack;
    options.sequence_length = kind.has_sequences ? learned_length : 0;
    options.burn_in = kind.has_sequences ? burn_in : 0;
    options.sequence_stride = kind.has_sequences ? learned_length / 2 : 0;
    options.beta_steps = 50;
    options.prioritization = kind.prioritization;
    options.scheme = kind.scheme;
    options.normalize_weights = kind.normalize_weights;
    options.max_priority = PER_MAX_NOW;
    options.keep_times_sampled = 1;
    options.seed = 5;
    options.device = device;
    const per_status status = per_replay_create(&options, &replay);
    if (status == PER_ERROR_NO_DEVICE) {
        std::printf("skipped: %s\n", per_last_error());
        std::exit(77);
    }
    REQUIRE(status == PER_OK);
    return replay;
}

per_array array_of(const void* data, int32_t dtype) {
    per_array array;
    std::memset(&array, 0, sizeof array);
    array.data = data;
    array.dtype = dtype;
    return array;
}

// Copies on a stream that nothing waits for: they keep the memory busy, and push out what the caches hold.
class Hammer {
 public:
    explicit Hammer(std::size_t n_bytes) : memory_(2 * n_bytes), n_bytes_(n_bytes) {
        REQUIRE(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess);
    }
    ~Hammer() { static_cast<void>(cudaStreamDestroy(stream_)); }
    Hammer(const Hammer&) = delete;
    Hammer& operator=(const Hammer&) = delete;

    void begin(int n_copies) {
        unsigned char* from = memory_.device;
        unsigned char* to = memory_.device + n_bytes_;
        for (int i = 0; i < n_copies; ++i) {
            REQUIRE(cudaMemcpyAsync(to, from, n_bytes_, cudaMemcpyDeviceToDevice, stream_) == cudaSuccess);
            std::swap(from, to);
        }
    }
    void end() { REQUIRE(cudaStreamSynchronize(stream_) == cudaSuccess); }

 private:
    Arrays memory_;
    std::size_t n_bytes_;
    cudaStream_t stream_;
};

// Both buffers of a kind, and the arrays of their calls.
class Pair {
 public:
    Pair(const Kind& kind, const Size& size)
        : kind_(kind),
          size_(size),
          cpu_(create(PER_CPU, kind, size)),
          cuda_(create(PER_CUDA, kind, size)),
          numbers_(3),
          serials_(static_cast<std::size_t>(size.n_lanes)),
          steps_(bytes_of_steps(size)),
          batch_(bytes_of_batch(kind, size)) {
        for (cudaStream_t& stream : streams_)
            REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    }
    ~Pair() {
        per_replay_free(cpu_);
        per_replay_free(cuda_);
        for (const cudaStream_t stream : streams_) static_cast<void>(cudaStreamDestroy(stream));
    }
    Pair(const Pair&) = delete;
    Pair& operator=(const Pair&) = delete;

    // Steps with ends and gaps. Some have priorities; the others get the largest that is live.
    void add_steps(int64_t length) {
        const bool with_priorities = numbers_() % 3 == 0;
        const StepArrays given = steps_at(steps_.host.data());
        for (int64_t i = 0; i < length * size_.n_lanes; ++i) {
            const uint64_t random = numbers_();
            uint8_t& serial = serials_[static_cast<std::size_t>(i % size_.n_lanes)];
            if (random % 20 == 0) ++serial;
            std::memset(given.observation + i * frame, serial, frame);
            std::memset(given.next + i * frame, ++serial, frame);
            given.reward[i] = static_cast<float>(random >> 8 & 63) - 32;
            given.priority[i] = static_cast<float>((random >> 16 & 0xFFFF) % 1000) * 0.3f;
            given.terminated[i] = (random >> 32 & 0xFF) < 12;
            given.truncated[i] = (random >> 40 & 0xFF) < 12;
        }
        steps_.to_device(streams_[0]);
        add(cuda_, length, with_priorities, steps_at(steps_.device), streams_[0]);
        add(cpu_, length, with_priorities, given, nullptr);
        REQUIRE(per_replay_synchronize(cuda_, streams_[0]) == PER_OK);
        steps_.expect_same("ids of added steps", streams_[0]);
    }

    // A batch on one stream and its update on another, which only the library makes wait.
    void learn() {
        std::fill(batch_.host.begin(), batch_.host.end(), 0);
        const BatchArrays expected = batch_at(batch_.host.data());
        for (int64_t i = 0; i < size_.batch * kind_.n_steps(); ++i)
            expected.td_errors[i] = static_cast<float>(numbers_() % 4000) * 0.01f - 20;
        batch_.to_device(streams_[1]);
        sample(cuda_, batch_at(batch_.device), streams_[1]);
        update(cuda_, batch_at(batch_.device), streams_[0]);
        sample(cpu_, expected, nullptr);
        update(cpu_, expected, nullptr);
        REQUIRE(per_replay_synchronize(cuda_, streams_[1]) == PER_OK);
        batch_.expect_same("a batch", streams_[1]);
        expect_same_statistics();
    }

 private:
    static std::size_t bytes_of_steps(const Size& size) {
        Pieces pieces;
        StepArrays(pieces, most_steps * size.n_lanes);
        return pieces.n_bytes;
    }
    static std::size_t bytes_of_batch(const Kind& kind, const Size& size) {
        Pieces pieces;
        BatchArrays(pieces, kind, size.batch);
        return pieces.n_bytes;
    }
    StepArrays steps_at(unsigned char* base) const {
        Pieces pieces = {base};
        return StepArrays(pieces, most_steps * size_.n_lanes);
    }
    BatchArrays batch_at(unsigned char* base) const {
        Pieces pieces = {base};
        return BatchArrays(pieces, kind_, size_.batch);
    }

    static void add(per_replay* replay, int64_t length, bool with_priorities, const StepArrays& given,
                    cudaStream_t stream) {
        const per_array fields[1] = {array_of(given.observation, PER_UINT8)};
        const per_array next_fields[1] = {array_of(given.next, PER_UINT8)};
        per_steps steps;
        REQUIRE(per_steps_init(&steps, sizeof steps) == PER_OK);
        steps.length = length;
        steps.fields = fields;
        steps.next_fields = next_fields;
        steps.reward = array_of(given.reward, PER_FLOAT32);
        steps.terminated = array_of(given.terminated, PER_BOOL);
        steps.truncated = array_of(given.truncated, PER_BOOL);
        if (with_priorities) steps.priorities = array_of(given.priority, PER_FLOAT32);
        REQUIRE(per_replay_add(replay, &steps, given.ids, stream) == PER_OK);
    }

    void sample(per_replay* replay, const BatchArrays& out, cudaStream_t stream) const {
        void* const fields[1] = {out.observation};
        void* const next_fields[1] = {out.next};
        per_batch batch;
        REQUIRE(per_batch_init(&batch, sizeof batch) == PER_OK);
        batch.fields = fields;
        if (!kind_.has_sequences) batch.next_fields = next_fields;
        batch.reward = out.reward;
        batch.discount = out.discount;
        batch.n_steps = out.n_steps;
        batch.terminated = out.terminated;
        batch.truncated = out.truncated;
        if (kind_.has_sequences) batch.mask = out.mask;
        batch.weights = out.weights;
        batch.priorities = out.priorities;
        batch.probabilities = out.probabilities;
        batch.ids = out.ids;
        batch.times_sampled = out.times_sampled;
        REQUIRE(per_replay_sample(replay, nullptr, size_.batch, &batch, stream) == PER_OK);
    }

    void update(per_replay* replay, const BatchArrays& batch, cudaStream_t stream) const {
        REQUIRE(write_td_errors(replay, size_.batch, batch.ids, 1, batch.td_errors, stream) == PER_OK);
    }

    void expect_same_statistics() const {
        per_replay_statistics of[2];
        REQUIRE(per_replay_get_statistics(cpu_, &of[0], sizeof of[0]) == PER_OK);
        REQUIRE(per_replay_get_statistics(cuda_, &of[1], sizeof of[1]) == PER_OK);
        of[1].memory_bytes = of[0].memory_bytes;
        of[1].huge_page_bytes = of[0].huge_page_bytes;
        REQUIRE(std::memcmp(&of[0], &of[1], sizeof of[0]) == 0);
    }

    const Kind kind_;
    const Size size_;
    per_replay* cpu_;
    per_replay* cuda_;
    std::mt19937_64 numbers_;
    std::vector<uint8_t> serials_;  // of the last observation of each lane
    cudaStream_t streams_[2];
    Arrays steps_;
    Arrays batch_;
};

}  // namespace

int main(int n_arguments, char** arguments) {
    const auto argument = [&](int i, int64_t otherwise) {
        return n_arguments > i ? static_cast<int64_t>(std::atoll(arguments[i])) : otherwise;
    };
    const int64_t rounds = argument(1, 20);
    const Size size = {argument(2, 1000000), argument(3, 4096), argument(4, 8192)};
    constexpr int n_copies = 32;
    for (const Kind& kind : kinds) {
        Pair buffers(kind, size);
        Hammer hammer(static_cast<std::size_t>(size.capacity) * 64);
        // Full, and a little more: the oldest rows are overwritten.
        for (int64_t row = 0; row * size.n_lanes < size.capacity; row += most_steps) buffers.add_steps(most_steps);
        for (int64_t round = 0; round < rounds; ++round) {
            hammer.begin(n_copies);
            buffers.add_steps(1 + round % most_steps);
            buffers.learn();
            hammer.end();
        }
        std::printf("%s: the same bits\n", kind.name);
    }
    std::printf("passed\n");
    return 0;
}

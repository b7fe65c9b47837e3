// A replay buffer on a CUDA device and the same buffer on the CPU, through per.h and device memory, as users have it:
// the same calls must have bit-identical results.
#pragma once

#include <cuda_runtime.h>
#include <per.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "../c/struct_calls.h"
#include "require.h"

constexpr int64_t n_step = 3;
constexpr int64_t burn_in = 2;
constexpr int64_t learned_length = 6;  // of a sequence after its burn-in

struct Size {
    int64_t capacity;
    int64_t n_lanes;
    int64_t batch;
    int64_t most_steps;  // of an add
    int64_t frame;       // bytes of an observation
    int64_t stack;
};

struct Kind {
    const char* name;
    int32_t prioritization;
    int32_t scheme;
    int32_t normalize_weights;
    bool has_sequences;
    bool has_extras;  // PER_MAX_NOW and times_sampled

    // Steps of an entry of a batch, and its observations.
    int64_t n_steps() const { return has_sequences ? burn_in + learned_length : 1; }
    int64_t n_observations() const { return has_sequences ? n_steps() + n_step : 1; }
};

// Concatenated arrays, at the same offsets on the host and on the device, so that one copy moves and one comparison
// compares all of them.
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

    // Expects the device's arrays to equal those of the host.
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

// Allocates pieces of the memory at `base`, or only counts their bytes.
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
    StepArrays(Pieces& pieces, const Size& size) : StepArrays(pieces, size.most_steps * size.n_lanes, size.frame) {}
    StepArrays(Pieces& pieces, int64_t n, int64_t frame)
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
    BatchArrays(Pieces& pieces, const Kind& kind, const Size& size)
        : BatchArrays(pieces, kind, size.batch, size.stack * size.frame) {}
    BatchArrays(Pieces& pieces, const Kind& kind, int64_t n, int64_t stacked_bytes)
        : td_errors(pieces.take<float>(n * kind.n_steps())),
          observation(pieces.take<uint8_t>(n * kind.n_observations() * stacked_bytes)),
          next(pieces.take<uint8_t>(kind.has_sequences ? 0 : n * stacked_bytes)),
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

inline per_replay* create(int32_t device, const Kind& kind, const Size& size) {
    const int64_t shape[] = {size.frame};
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
    options.frame_stack = size.stack;
    options.sequence_length = kind.has_sequences ? learned_length : 0;
    options.burn_in = kind.has_sequences ? burn_in : 0;
    options.sequence_stride = kind.has_sequences ? learned_length / 2 : 0;
    options.beta_steps = 50;
    options.prioritization = kind.prioritization;
    options.scheme = kind.scheme;
    options.normalize_weights = kind.normalize_weights;
    if (kind.has_extras) options.max_priority = PER_MAX_NOW;
    options.keep_times_sampled = kind.has_extras;
    options.seed = 5;
    options.device = device;
    require_created(per_replay_create(&options, &replay));
    return replay;
}

// Both buffers of one kind, and the arrays of their calls.
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
            std::memset(given.observation + i * size_.frame, serial, size_.frame);
            std::memset(given.next + i * size_.frame, ++serial, size_.frame);
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

    // A batch on one stream and its update on another, ordered only by the library.
    void learn() {
        give_errors();
        sample(cuda_, batch_at(batch_.device), streams_[1]);
        update(cuda_, batch_at(batch_.device), streams_[0]);
        expect_learned();
    }

    // A batch and its update in a graph: each launch equals the next step on the CPU.
    void replay_graph(int rounds) {
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        REQUIRE(cudaStreamBeginCapture(streams_[1], cudaStreamCaptureModeGlobal) == cudaSuccess);
        sample(cuda_, batch_at(batch_.device), streams_[1]);
        update(cuda_, batch_at(batch_.device), streams_[1]);
        REQUIRE(cudaStreamEndCapture(streams_[1], &graph) == cudaSuccess);
        REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
        std::vector<int64_t> before;
        for (int round = 0; round < rounds; ++round) {
            give_errors();
            REQUIRE(cudaGraphLaunch(executable, streams_[1]) == cudaSuccess);
            expect_learned();
            const int64_t* const drawn = batch_at(batch_.host.data()).ids;
            const std::vector<int64_t> ids(drawn, drawn + size_.batch);
            REQUIRE(ids != before);
            before = ids;
        }
        REQUIRE(cudaGraphExecDestroy(executable) == cudaSuccess);
        REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
    }

 private:
    static std::size_t bytes_of_steps(const Size& size) {
        Pieces pieces;
        StepArrays(pieces, size);
        return pieces.n_bytes;
    }
    static std::size_t bytes_of_batch(const Kind& kind, const Size& size) {
        Pieces pieces;
        BatchArrays(pieces, kind, size);
        return pieces.n_bytes;
    }
    StepArrays steps_at(unsigned char* base) const {
        Pieces pieces = {base};
        return StepArrays(pieces, size_);
    }
    BatchArrays batch_at(unsigned char* base) const {
        Pieces pieces = {base};
        return BatchArrays(pieces, kind_, size_);
    }

    void give_errors() {
        std::fill(batch_.host.begin(), batch_.host.end(), 0);
        const BatchArrays given = batch_at(batch_.host.data());
        for (int64_t i = 0; i < size_.batch * kind_.n_steps(); ++i)
            given.td_errors[i] = static_cast<float>(numbers_() % 4000) * 0.01f - 20;
        batch_.to_device(streams_[1]);
    }

    void expect_learned() {
        const BatchArrays expected = batch_at(batch_.host.data());
        sample(cpu_, expected, nullptr);
        update(cpu_, expected, nullptr);
        REQUIRE(per_replay_synchronize(cuda_, streams_[1]) == PER_OK);
        batch_.expect_same("a batch", streams_[1]);
        expect_same_statistics();
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
        if (kind_.has_extras) batch.times_sampled = out.times_sampled;
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

// A replay buffer on a CUDA device against the same on the CPU, through per.h and memory of the device, as users have
// it: the same bits from the same calls, on two streams with only the library between them, and from a graph of a whole
// training step. Exits with 77 where there is no device, with 0 if everything is the same; else it prints what differs
// and exits with 1.
//
//     replay_on_device [ROUNDS]
#include <cuda_runtime.h>
#include <per.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "../c/struct_calls.h"
#include "require.h"

namespace {

constexpr int64_t n_envs = 6;
constexpr int64_t frame = 40;  // bytes of an observation
constexpr int64_t stack = 3;
constexpr int64_t batch_size = 96;
constexpr int64_t most_steps = 8;  // of a call

// Arrays of one call, on the host or on the device.
struct Steps {
    uint8_t observation[most_steps * n_envs * frame], next[most_steps * n_envs * frame];
    float reward[most_steps * n_envs], priority[most_steps * n_envs];
    uint8_t terminated[most_steps * n_envs], truncated[most_steps * n_envs];
    int64_t ids[most_steps * n_envs];
};

// Compared byte by byte: no padding between the arrays.
struct Batch {
    int64_t ids[batch_size];
    float reward[batch_size], discount[batch_size], weights[batch_size], priorities[batch_size];
    float probabilities[batch_size], td_errors[batch_size];
    int32_t n_steps[batch_size];
    uint8_t terminated[batch_size], truncated[batch_size];
    uint8_t observation[batch_size * stack * frame], next[batch_size * stack * frame];
};

template <class Struct>
Struct* allocate() {
    void* memory = nullptr;
    REQUIRE(cudaMalloc(&memory, sizeof(Struct)) == cudaSuccess);
    return static_cast<Struct*>(memory);
}

void copy(void* to, const void* from, std::size_t n_bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    REQUIRE(cudaMemcpyAsync(to, from, n_bytes, kind, stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
}

per_array array_of(const void* data, int32_t dtype) {
    per_array array;
    std::memset(&array, 0, sizeof array);
    array.data = data;
    array.dtype = dtype;
    return array;
}

per_replay* create(int32_t device, int32_t scheme) {
    static const int64_t shape[] = {frame};
    per_field observation;
    std::memset(&observation, 0, sizeof observation);
    observation.name = "observation";
    observation.shape = shape;
    observation.ndim = 1;
    observation.dtype = PER_UINT8;
    per_replay_options options;
    per_replay* replay = nullptr;
    REQUIRE(per_replay_options_init(&options, sizeof options) == PER_OK);
    options.capacity = 100 * n_envs;
    options.n_envs = n_envs;
    options.fields = &observation;
    options.n_fields = 1;
    options.field_size = sizeof(per_field);
    options.n_step = 3;
    options.frame_stack = stack;
    options.beta_steps = 50;
    options.scheme = scheme;
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

void add(per_replay* replay, int64_t length, Steps& given, bool with_priorities, cudaStream_t stream) {
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

void sample(per_replay* replay, Batch& out, cudaStream_t stream) {
    void* const fields[1] = {out.observation};
    void* const next_fields[1] = {out.next};
    per_batch batch;
    REQUIRE(per_batch_init(&batch, sizeof batch) == PER_OK);
    batch.fields = fields;
    batch.next_fields = next_fields;
    batch.reward = out.reward;
    batch.discount = out.discount;
    batch.n_steps = out.n_steps;
    batch.terminated = out.terminated;
    batch.truncated = out.truncated;
    batch.weights = out.weights;
    batch.ids = out.ids;
    batch.priorities = out.priorities;
    batch.probabilities = out.probabilities;
    REQUIRE(per_replay_sample(replay, nullptr, batch_size, &batch, stream) == PER_OK);
}

void update(per_replay* replay, const Batch& batch, cudaStream_t stream) {
    REQUIRE(write_td_errors(replay, batch_size, batch.ids, 1, batch.td_errors, stream) == PER_OK);
}

// Both buffers, and what lies between calls on the device.
class Pair {
 public:
    explicit Pair(int32_t scheme) : cpu_(create(PER_CPU, scheme)), cuda_(create(PER_CUDA, scheme)), numbers_(3) {
        for (cudaStream_t& stream : streams_)
            REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    }
    ~Pair() {
        per_replay_free(cpu_);
        per_replay_free(cuda_);
        for (const cudaStream_t stream : streams_) static_cast<void>(cudaStreamDestroy(stream));
        static_cast<void>(cudaFree(steps_));
        static_cast<void>(cudaFree(batch_));
    }
    Pair(const Pair&) = delete;
    Pair& operator=(const Pair&) = delete;

    // Steps with ends and gaps: an observation that the step before did not announce.
    void add_steps(int64_t length) {
        Steps given = {};
        for (int64_t i = 0; i < length * n_envs; ++i) {
            uint8_t& serial = serials_[i % n_envs];
            if (numbers_() % 20 == 0) ++serial;
            std::memset(given.observation + i * frame, serial, frame);
            std::memset(given.next + i * frame, ++serial, frame);
            given.reward[i] = static_cast<float>(numbers_() % 64) - 32;
            given.priority[i] = static_cast<float>(numbers_() % 1000) * 0.3f;
            given.terminated[i] = numbers_() % 15 == 0;
            given.truncated[i] = numbers_() % 15 == 0;
        }
        const bool with_priorities = numbers_() % 3 == 0;
        copy(steps_, &given, sizeof given, cudaMemcpyHostToDevice, streams_[0]);
        add(cuda_, length, *steps_, with_priorities, streams_[0]);
        add(cpu_, length, given, with_priorities, nullptr);
        Steps added;
        REQUIRE(per_replay_synchronize(cuda_, streams_[0]) == PER_OK);
        copy(&added, steps_, sizeof added, cudaMemcpyDeviceToHost, streams_[0]);
        REQUIRE(std::memcmp(added.ids, given.ids, static_cast<std::size_t>(length * n_envs) * sizeof(int64_t)) == 0);
    }

    // A batch on one stream and its update on the other, which only the library makes wait.
    void learn() {
        new_errors();
        sample(cuda_, *batch_, streams_[1]);
        update(cuda_, *batch_, streams_[0]);
        expect_learned();
    }

    // A whole training step in a graph: each launch is what the CPU does next.
    void replay_graph(int rounds) {
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        REQUIRE(cudaStreamBeginCapture(streams_[1], cudaStreamCaptureModeGlobal) == cudaSuccess);
        sample(cuda_, *batch_, streams_[1]);
        update(cuda_, *batch_, streams_[1]);
        REQUIRE(cudaStreamEndCapture(streams_[1], &graph) == cudaSuccess);
        REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
        std::vector<int64_t> before;
        for (int round = 0; round < rounds; ++round) {
            new_errors();
            REQUIRE(cudaGraphLaunch(executable, streams_[1]) == cudaSuccess);
            expect_learned();
            const std::vector<int64_t> ids(expected_.ids, expected_.ids + batch_size);
            REQUIRE(ids != before);
            before = ids;
        }
        REQUIRE(cudaGraphExecDestroy(executable) == cudaSuccess);
        REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
    }

 private:
    void new_errors() {
        expected_ = Batch{};
        for (float& error : expected_.td_errors) error = static_cast<float>(numbers_() % 4000) * 0.01f - 20;
        copy(batch_, &expected_, sizeof expected_, cudaMemcpyHostToDevice, streams_[1]);
    }

    void expect_learned() {
        sample(cpu_, expected_, nullptr);
        update(cpu_, expected_, nullptr);
        REQUIRE(per_replay_synchronize(cuda_, streams_[1]) == PER_OK);
        Batch drawn;
        copy(&drawn, batch_, sizeof drawn, cudaMemcpyDeviceToHost, streams_[1]);
        REQUIRE(std::memcmp(&drawn, &expected_, sizeof drawn) == 0);
        expect_same_statistics();
    }

    void expect_same_statistics() {
        per_replay_statistics of[2];
        REQUIRE(per_replay_get_statistics(cpu_, &of[0], sizeof of[0]) == PER_OK);
        REQUIRE(per_replay_get_statistics(cuda_, &of[1], sizeof of[1]) == PER_OK);
        of[1].memory_bytes = of[0].memory_bytes;
        of[1].huge_page_bytes = of[0].huge_page_bytes;
        REQUIRE(std::memcmp(&of[0], &of[1], sizeof of[0]) == 0);
    }

    per_replay* cpu_;
    per_replay* cuda_;
    std::mt19937_64 numbers_;
    uint8_t serials_[n_envs] = {};
    cudaStream_t streams_[2];
    Steps* steps_ = allocate<Steps>();
    Batch* batch_ = allocate<Batch>();
    Batch expected_;
};

}  // namespace

int main(int n_arguments, char** arguments) {
    const int rounds = n_arguments > 1 ? std::atoi(arguments[1]) : 100;
    for (int32_t scheme = PER_STRATIFIED; scheme <= PER_INDEPENDENT; ++scheme) {
        Pair buffers(scheme);
        for (int round = 0; round < 4; ++round) buffers.add_steps(most_steps);
        for (int round = 0; round < rounds; ++round) {
            buffers.add_steps(1 + round % most_steps);
            buffers.learn();
        }
        buffers.replay_graph(3);
        std::printf("scheme %d: the same bits\n", static_cast<int>(scheme));
    }
    std::printf("passed\n");
    return 0;
}

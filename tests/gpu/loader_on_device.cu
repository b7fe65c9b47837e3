// Loaders that hand out batches in the memory of a CUDA device, compared with a loader on the CPU, through per.h, as
// users have it: for a buffer in host memory, for one from whose rows the device gathers while others are overwritten,
// and for one on the device. The same calls must have bit-identical results. The consumer has two streams, runs ahead
// of the device, overwrites each batch, and keeps the device busy before it releases one. Exits with 77 if there is no
// device, and with 0 if everything is equal; otherwise prints the differences and exits with 1.
//
//     loader_on_device [BATCHES [BATCH_SIZE]]
#include <cuda_runtime.h>
#include <per.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "../c/struct_calls.h"
#include "on_device.h"
#include "require.h"

namespace {

constexpr int64_t n_rows = 20000;
constexpr int64_t few_numbers = 64;    // of an observation
constexpr int64_t many_numbers = 260;  // of an observation that the device can gather
constexpr int64_t n_added = 100;       // steps after each batch that the device gathers
constexpr std::size_t n_ahead = 24;    // number of batches by which the consumer runs ahead of its comparisons
constexpr std::size_t busy_bytes = std::size_t{1} << 22;

// Steps whose observations, actions and rewards are derived from their numbers; the number of the first is given.
void add_steps(per_replay* replay, int64_t n_numbers, int64_t first, int64_t count) {
    const auto n = static_cast<std::size_t>(count);
    std::vector<float> observations(n * static_cast<std::size_t>(n_numbers)), rewards(n);
    std::vector<int64_t> actions(n);
    std::vector<uint8_t> terminated(n), truncated(n), unknown(n);
    for (std::size_t i = 0; i < observations.size(); ++i)
        observations[i] = static_cast<float>((static_cast<std::size_t>(first * n_numbers) + i) % 1000003);
    for (std::size_t i = 0; i < n; ++i) {
        actions[i] = first + static_cast<int64_t>(i);
        rewards[i] = static_cast<float>(actions[i] % 17);
        terminated[i] = actions[i] % 101 == 100;
    }
    const per_array given[2] = {array_of(observations.data(), PER_FLOAT32), array_of(actions.data(), PER_INT64)};
    per_steps steps;
    REQUIRE(per_steps_init(&steps, sizeof steps) == PER_OK);
    steps.length = count;
    steps.fields = given;
    steps.reward = array_of(rewards.data(), PER_FLOAT32);
    steps.terminated = array_of(terminated.data(), PER_BOOL);
    steps.truncated = array_of(truncated.data(), PER_BOOL);
    steps.next_mask = array_of(unknown.data(), PER_BOOL);
    REQUIRE(per_replay_add(replay, &steps, nullptr, nullptr) == PER_OK);
    REQUIRE(per_replay_synchronize(replay, nullptr) == PER_OK);
}

per_replay* filled(int32_t device, int64_t n_numbers) {
    const int64_t shape[] = {n_numbers};
    per_field fields[2] = {};
    fields[0].name = "observation";
    fields[0].shape = shape;
    fields[0].ndim = 1;
    fields[0].dtype = PER_FLOAT32;
    fields[1].name = "action";
    fields[1].dtype = PER_INT64;
    per_replay_options options;
    REQUIRE(per_replay_options_init(&options, sizeof options) == PER_OK);
    options.capacity = n_rows;
    options.fields = fields;
    options.n_fields = 2;
    options.field_size = sizeof(per_field);
    options.seed = 3;
    options.n_step = 3;
    options.device = device;
    per_replay* replay = nullptr;
    require_created(per_replay_create(&options, &replay));
    add_steps(replay, n_numbers, 0, n_rows);
    return replay;
}

per_loader* loader_of(per_replay* replay, int32_t device, int64_t batch_size, bool gathers = false) {
    per_loader_options options;
    REQUIRE(per_loader_options_init(&options, sizeof options) == PER_OK);
    options.batch_size = batch_size;
    options.device = device;
    options.gather_on_device = gathers;
    per_loader* loader = nullptr;
    require_created(per_loader_create(replay, &options, &loader));
    return loader;
}

struct Array {
    void* first;
    std::size_t bytes;
};

std::vector<Array> arrays_of(const per_batch& batch, int64_t batch_size, int64_t n_numbers) {
    const std::size_t n = static_cast<std::size_t>(batch_size);
    const std::size_t frame_bytes = static_cast<std::size_t>(n_numbers) * 4;
    return {{batch.fields[0], n * frame_bytes},
            {batch.next_fields[0], n * frame_bytes},
            {batch.fields[1], n * 8},
            {batch.reward, n * 4},
            {batch.discount, n * 4},
            {batch.n_steps, n * 4},
            {batch.terminated, n},
            {batch.truncated, n},
            {batch.weights, n * 4},
            {batch.ids, n * 8},
            {batch.priorities, n * 4},
            {batch.probabilities, n * 4},
            {batch.gamma_m, n * 4}};
}

class Comparison {
 public:
    Comparison(int32_t device, int64_t batch_size, bool gathers = false)
        : device_(device),
          batch_size_(batch_size),
          gathers_(gathers),
          n_numbers_(gathers ? many_numbers : few_numbers),
          replay_(filled(device, n_numbers_)),
          twin_(filled(PER_CPU, n_numbers_)),
          loader_(loader_of(replay_, PER_CUDA, batch_size, gathers)),
          plain_(loader_of(twin_, PER_CPU, batch_size)),
          ids_(static_cast<std::size_t>(batch_size) * n_ahead),
          priorities_(static_cast<std::size_t>(batch_size) * n_ahead) {
        for (cudaStream_t& stream : streams_)
            REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    }
    ~Comparison() {
        per_loader_free(loader_);
        per_loader_free(plain_);
        per_replay_free(replay_);
        per_replay_free(twin_);
        for (void* memory : pinned_) static_cast<void>(cudaFreeHost(memory));
        for (const cudaStream_t stream : streams_) static_cast<void>(cudaStreamDestroy(stream));
    }
    Comparison(const Comparison&) = delete;
    Comparison& operator=(const Comparison&) = delete;

    void run(std::size_t n_batches) {
        for (std::size_t i = 0; i < n_batches; ++i) {
            take(i);
            if ((i + 1) % n_ahead == 0 || i + 1 == n_batches) compare();
        }
    }

 private:
    // Takes a batch of each loader. The device reads and overwrites its batch, after work that delays it.
    void take(std::size_t i) {
        per_batch batch;
        int64_t slot = -1;
        REQUIRE(per_batch_init(&batch, sizeof batch) == PER_OK);
        REQUIRE(per_loader_next(plain_, -1, &batch, &slot, nullptr) == PER_OK);
        for (const Array& array : arrays_of(batch, batch_size_, n_numbers_)) {
            const char* const first = static_cast<const char*>(array.first);
            expected_.emplace_back(first, first + array.bytes);
        }
        const std::vector<int64_t> ids(batch.ids, batch.ids + batch_size_);
        std::vector<float> priorities;
        for (const int64_t id : ids) priorities.push_back(static_cast<float>((id * 31 + static_cast<int64_t>(i)) % 97));
        REQUIRE(per_loader_release(plain_, slot, nullptr) == PER_OK);
        REQUIRE(write_priorities(twin_, batch_size_, ids.data(), priorities.data(), nullptr) == PER_OK);

        const cudaStream_t stream = streams_[i % 2];
        REQUIRE(per_loader_next(loader_, -1, &batch, &slot, stream) == PER_OK);
        unsigned char* const busy = busy_.data() + i % 2 * busy_bytes;
        REQUIRE(cudaMemsetAsync(busy, static_cast<int>(i), busy_bytes, stream) == cudaSuccess);
        for (const Array& array : arrays_of(batch, batch_size_, n_numbers_)) {
            if (pinned_.size() == n_read_) {
                void* memory = nullptr;
                REQUIRE(cudaMallocHost(&memory, array.bytes) == cudaSuccess);
                pinned_.push_back(memory);
            }
            void* const to = pinned_[n_read_++];
            REQUIRE(cudaMemcpyAsync(to, array.first, array.bytes, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
            REQUIRE(cudaMemsetAsync(array.first, 0xEE, array.bytes, stream) == cudaSuccess);
        }
        REQUIRE(per_loader_release(loader_, slot, stream) == PER_OK);
        set_priorities(i, ids, priorities, stream);
        if (!gathers_) return;
        const int64_t first = n_rows + static_cast<int64_t>(i) * n_added;
        for (per_replay* const replay : {replay_, twin_}) add_steps(replay, n_numbers_, first, n_added);
    }

    // Uses arrays on the buffer's device. Device arrays, and their sources, are kept until the next comparison.
    void set_priorities(std::size_t i, std::vector<int64_t> ids, std::vector<float> priorities, cudaStream_t stream) {
        if (device_ == PER_CPU) {
            REQUIRE(write_priorities(replay_, batch_size_, ids.data(), priorities.data(), nullptr) == PER_OK);
            return;
        }
        const std::size_t n = ids.size();
        int64_t* const to_ids = ids_.data() + i % n_ahead * n;
        float* const to_priorities = priorities_.data() + i % n_ahead * n;
        given_ids_.push_back(std::move(ids));
        given_priorities_.push_back(std::move(priorities));
        const auto copy = [&](void* to, const void* from, std::size_t bytes) {
            REQUIRE(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream) == cudaSuccess);
        };
        copy(to_ids, given_ids_.back().data(), n * sizeof(int64_t));
        copy(to_priorities, given_priorities_.back().data(), n * sizeof(float));
        REQUIRE(write_priorities(replay_, batch_size_, to_ids, to_priorities, stream) == PER_OK);
    }

    void compare() {
        for (const cudaStream_t stream : streams_) REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
        for (std::size_t k = 0; k < expected_.size(); ++k)
            REQUIRE(std::memcmp(pinned_[k], expected_[k].data(), expected_[k].size()) == 0);
        expected_.clear();
        given_ids_.clear();
        given_priorities_.clear();
        n_read_ = 0;
    }

    int32_t device_;
    int64_t batch_size_;
    bool gathers_;
    int64_t n_numbers_;
    per_replay *replay_, *twin_;
    per_loader *loader_, *plain_;
    cudaStream_t streams_[2];
    OnDevice<unsigned char> busy_{2 * busy_bytes};  // a part for each stream
    OnDevice<int64_t> ids_;                         // [n_ahead, batch_size]
    OnDevice<float> priorities_;                    // [n_ahead, batch_size]
    std::vector<std::vector<int64_t>> given_ids_;
    std::vector<std::vector<float>> given_priorities_;
    // One for each batch and array since the last comparison, as large as the first array read there.
    std::vector<std::vector<char>> expected_;
    std::vector<void*> pinned_;
    std::size_t n_read_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
    const std::size_t n_batches = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2000;
    const int64_t batch_size = argc > 2 ? std::strtoll(argv[2], nullptr, 10) : 512;
    for (const int32_t device : {PER_CPU, PER_CUDA}) {
        Comparison comparison(device, batch_size);
        comparison.run(n_batches);
        std::printf("%zu batches of %lld from a buffer on %s are those of the CPU\n", n_batches,
                    static_cast<long long>(batch_size), device == PER_CPU ? "the CPU" : "the device");
    }
    Comparison comparison(PER_CPU, batch_size, true);
    comparison.run(n_batches);
    std::printf("%zu batches of %lld that the device gathered are those of the CPU\n", n_batches,
                static_cast<long long>(batch_size));
    return 0;
}

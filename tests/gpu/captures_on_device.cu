// Checks that need the real driver: handles can be created, used and freed while the same thread or another one
// captures a stream, and work on the default streams of two threads is ordered. Exits with 77 if there is no device,
// with 1 if a check fails.
//
//     captures_on_device [ROUNDS [BUSY_MEGABYTES]]
#include <cuda_runtime.h>
#include <per.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "on_device.h"
#include "require.h"

namespace {

constexpr int64_t capacity = 1000;

per_tree* create_tree() {
    per_tree_options options;
    per_tree* tree = nullptr;
    REQUIRE(per_tree_options_init(&options, sizeof options) == PER_OK);
    options.capacity = capacity;
    options.device = PER_CUDA;
    require_created(per_tree_create(&options, &tree));
    return tree;
}

// A buffer is filled from host memory, more often than its staging ring has buffers, queried, and freed.
void lead_a_whole_life(cudaStream_t stream) {
    per_field field = {};
    field.name = "observation";
    field.dtype = PER_FLOAT32;
    per_replay_options options;
    per_replay* replay = nullptr;
    REQUIRE(per_replay_options_init(&options, sizeof options) == PER_OK);
    options.capacity = capacity;
    options.fields = &field;
    options.n_fields = 1;
    options.field_size = sizeof(per_field);
    options.device = PER_CUDA;
    REQUIRE(per_replay_create(&options, &replay) == PER_OK);
    const float number = 0.5f;
    const uint8_t no = 0;
    const per_array given[1] = {array_of(&number, PER_FLOAT32)};
    per_steps steps;
    REQUIRE(per_steps_init(&steps, sizeof steps) == PER_OK);
    steps.length = 1;
    steps.fields = given;
    steps.reward = given[0];
    steps.terminated = array_of(&no, PER_BOOL);
    steps.truncated = array_of(&no, PER_BOOL);
    for (int i = 0; i < 20; ++i) REQUIRE(per_replay_add(replay, &steps, nullptr, stream) == PER_OK);
    int64_t live = 0;
    REQUIRE(per_replay_synchronize(replay, stream) == PER_OK);
    REQUIRE(per_replay_get_live_ids(replay, 0, nullptr, &live) == PER_OK);
    REQUIRE(live == 19);  // the observation after the last step is unknown
    per_replay_free(replay);
}

void expect_capture_not_spoilt(bool in_own_thread, cudaStreamCaptureMode mode) {
    cudaStream_t captured, other;
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaStreamBeginCapture(captured, mode) == cudaSuccess);
    if (in_own_thread)
        lead_a_whole_life(other);
    else
        std::thread(lead_a_whole_life, other).join();
    REQUIRE(cudaStreamEndCapture(captured, &graph) == cudaSuccess);
    REQUIRE(graph != nullptr);
    REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
    REQUIRE(cudaStreamDestroy(captured) == cudaSuccess);
    REQUIRE(cudaStreamDestroy(other) == cudaSuccess);
}

// In each round another thread queues an update, behind other work, on its own default stream. Reads on this thread's
// default stream must wait for that update.
void expect_threads_in_order(int rounds, std::size_t busy_bytes) {
    per_tree* const tree = create_tree();
    OnDevice<int64_t> indices(capacity);
    OnDevice<float> priorities(capacity), read(capacity);
    OnDevice<unsigned char> busy(busy_bytes);
    std::vector<int64_t> all(capacity);
    for (int64_t i = 0; i < capacity; ++i) all[static_cast<std::size_t>(i)] = i;
    const cudaStream_t own = cudaStreamPerThread;
    indices.write(all, own);
    for (int round = 1; round <= rounds; ++round) {
        const std::vector<float> given(capacity, static_cast<float>(round));
        priorities.write(given, own);
        std::thread other([&] {
            REQUIRE(cudaMemsetAsync(busy.data(), round, busy_bytes, own) == cudaSuccess);
            REQUIRE(per_update(tree, capacity, indices.data(), priorities.data(), own) == PER_OK);
        });
        other.join();
        REQUIRE(per_tree_get_priorities(tree, capacity, nullptr, read.data(), own) == PER_OK);
        REQUIRE(read.read(capacity, own) == given);
    }
    per_tree_free(tree);
}

}  // namespace

int main(int n_arguments, char** arguments) {
    const int rounds = n_arguments > 1 ? std::atoi(arguments[1]) : 50;
    const std::size_t megabytes = n_arguments > 2 ? std::strtoull(arguments[2], nullptr, 10) : 512;
    expect_threads_in_order(rounds, megabytes << 20);
    std::printf("default streams of two threads: in order\n");
    expect_capture_not_spoilt(false, cudaStreamCaptureModeGlobal);
    std::printf("a capture of another thread: not spoilt\n");
    expect_capture_not_spoilt(true, cudaStreamCaptureModeGlobal);
    expect_capture_not_spoilt(true, cudaStreamCaptureModeThreadLocal);
    expect_capture_not_spoilt(true, cudaStreamCaptureModeRelaxed);
    std::printf("a capture of the same thread: not spoilt\npassed\n");
    return 0;
}

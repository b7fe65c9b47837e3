// Handles on one of several devices: no other device gets a context for them, and arrays on another device are refused
// by name.
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "../c/checkpoints.h"
#include "loader_calls.h"
#include "replay_twins.h"
#include "simulator.h"
#include "steered_simulator.h"

namespace per::test {
namespace {

constexpr int64_t n = 4;
constexpr int32_t own_device = 1;

ReplayHandle create_buffer(int32_t device = PER_CUDA) {
    per_replay_options options = twin_options();
    options.device_index = own_device;
    return create_replay(options, device);
}

void use_tree(cudaStream_t stream) {
    per_tree* const tree = create_tree(n, PER_CUDA, own_device);
    const std::vector<int64_t> indices = {0, 1, 2, 3};
    const std::vector<float> priorities = {1, 2, 3, 4};
    std::vector<int64_t> drawn(n);
    per_tree_description description = {};
    expect_status(PER_OK, per_update(tree, n, indices.data(), priorities.data(), stream));
    expect_status(PER_OK, per_sample(tree, n, PER_STRATIFIED, 0.5f, drawn.data(), nullptr, nullptr, stream));
    expect_status(PER_OK, per_tree_describe(tree, &description, sizeof description));
    expect_status(PER_OK, per_tree_synchronize(tree, stream));
    EXPECT_EQ(description.total, 10.0);
    per_tree_free(tree);
}

void use_batches(per_replay* replay, cudaStream_t stream) {
    TwinBatch drawn(n);
    const per_batch batch = drawn.batch();
    const per_hindsight_options hindsight = hindsight_without_rewards();
    expect_status(PER_OK, per_replay_sample(replay, nullptr, n, &batch, stream));
    expect_status(PER_OK, sample_with_hindsight(replay, nullptr, &hindsight, n, &batch, stream));
    per_epochs* epochs = nullptr;
    int64_t count = 0;
    expect_status(PER_OK, per_epochs_create(replay, 1, n, 0, stream, &epochs));
    expect_status(PER_OK, per_epochs_next(epochs, &batch, &count, stream));
    per_epochs_free(epochs);
    expect_status(PER_OK, per_replay_synchronize(replay, stream));
}

void use_loader(per_replay* replay, cudaStream_t stream) {
    per_loader_options options = loader_options_of(n, PER_CUDA, 3);
    options.device_index = own_device;
    const LoaderHandle loader = create_loader(replay, options);
    const Taken taken = take(loader, stream);
    expect_status(PER_OK, taken.status);
    expect_status(PER_OK, per_loader_release(loader.get(), taken.slot, stream));
}

void use_replay(int32_t device, cudaStream_t stream) {
    ReplayHandle replay = create_buffer(device);
    TwinWalk walk(1, true);
    std::vector<TwinSteps> steps;
    for (int i = 0; i < 10; ++i) steps.push_back(walk.next());
    for (TwinSteps& step : steps) expect_status(PER_OK, step.add(replay.get(), device == PER_CPU ? nullptr : stream));
    use_loader(replay.get(), stream);
    if (device == PER_CPU) return;
    static_cast<void>(per_replay_synchronize(replay.get(), stream));
    use_batches(replay.get(), stream);
    EXPECT_FALSE(live_ids_of(replay.get()).empty());
    EXPECT_GT(statistics_of(replay.get()).live, 0);
    const std::string path = testing::TempDir() + "/devices." + std::to_string(getpid());
    expect_status(PER_OK, per_replay_save(replay.get(), path.c_str(), nullptr));
    replay.reset();
    per_replay* loaded = nullptr;
    expect_status(PER_OK, load_on(path.c_str(), PER_CUDA, own_device, &loaded));
    per_replay_free(loaded);
    std::remove(path.c_str());
}

class CudaDevices : public SteeredSimulator {
 protected:
    void SetUp() override { simulator::options().n_devices = 3; }
};

// A thread that has used no device has device 0 as its current one, which gets a context only when it is used.
TEST_F(CudaDevices, only_that_of_a_handle_gets_a_context) {
    cudaStream_t stream;
    cudaSetDevice(own_device);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaSetDevice(0);
    for (const auto use : {+[](cudaStream_t of) { use_tree(of); }, +[](cudaStream_t of) { use_replay(PER_CUDA, of); },
                           +[](cudaStream_t of) { use_replay(PER_CPU, of); }}) {
        simulator::forget_contexts();
        std::thread([use, stream] {
            use(stream);
            expect_current_device(0);
        }).join();
        EXPECT_FALSE(simulator::has_context(0));
        EXPECT_TRUE(simulator::has_context(own_device));
        EXPECT_FALSE(simulator::has_context(2));
    }
    cudaStreamDestroy(stream);
}

TEST_F(CudaDevices, handles_that_another_thread_frees_make_no_context_there) {
    per_tree* const tree = create_tree(n, PER_CUDA, own_device);
    ReplayHandle replay = create_buffer();
    simulator::forget_contexts();
    std::thread([&] {
        per_tree_free(tree);
        replay.reset();
    }).join();
    EXPECT_FALSE(simulator::has_context(0));
}

// ---- arrays of another device

// Memory of a device.
class Array {
 public:
    explicit Array(int device) {
        cudaSetDevice(device);
        EXPECT_EQ(cudaMalloc(&memory_, 4096), cudaSuccess);
        std::memset(memory_, 0, 4096);
        cudaSetDevice(0);
    }
    ~Array() { cudaFree(memory_); }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    template <class Element>
    Element* as() const {
        return static_cast<Element*>(memory_);
    }

 private:
    void* memory_ = nullptr;
};

void expect_refused(per_status status, const std::string& argument) {
    EXPECT_EQ(status, PER_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(per_last_error()).find(argument + " is 0x"), 0u) << per_last_error();
    EXPECT_NE(std::string(per_last_error()).find("in the memory of CUDA device 2: must be memory of device 1"),
              std::string::npos)
        << per_last_error();
}

TEST_F(CudaDevices, arrays_of_another_one_are_refused_by_name) {
    per_tree* const tree = create_tree(n, PER_CUDA, own_device);
    const ReplayHandle replay = create_buffer();
    const Array here(own_device), elsewhere(2);
    simulator::reset_counters();
    expect_refused(per_update(tree, n, elsewhere.as<int64_t>(), here.as<float>(), nullptr), "indices");
    expect_refused(per_sample(tree, n, PER_STRATIFIED, 0.5f, elsewhere.as<int64_t>(), nullptr, nullptr, nullptr),
                   "indices_out");
    per_batch batch;
    per_batch_init(&batch, sizeof batch);
    batch.ids = elsewhere.as<int64_t>();
    expect_refused(per_replay_sample(replay.get(), nullptr, n, &batch, nullptr), "ids");
    expect_refused(write_priorities(replay.get(), n, elsewhere.as<int64_t>(), here.as<float>(), nullptr), "ids");
    EXPECT_EQ(simulator::counters().launches, 0u);
    per_tree_free(tree);
}

// Every array is checked, and not only one, as host arrays are copied.
TEST_F(CudaDevices, every_array_of_an_add_is_refused_by_name) {
    const ReplayHandle replay = create_buffer();
    const Array here(own_device), elsewhere(2);
    const std::vector<std::string> names = {"observation", "action",     "next_observation", "next_goal",
                                            "reward",      "terminated", "truncated",        "mask",
                                            "next_mask",   "priorities"};
    for (const std::string& name : names) {
        const auto array = [&](const char* of, int32_t dtype) {
            return per_array{(name == of ? elsewhere : here).as<void>(), nullptr, 0, dtype, nullptr};
        };
        const per_array value = array("value", PER_FLOAT32);
        const per_array goal = array("goal", PER_FLOAT32);
        const per_array fields[n_fields] = {
            array("observation", PER_FLOAT32), array("action", PER_INT64), value, value, value, goal};
        const per_array next_fields[n_fields] = {array("next_observation", PER_FLOAT32), {}, {}, {}, {},
                                                 array("next_goal", PER_FLOAT32)};
        per_steps steps;
        per_steps_init(&steps, sizeof steps);
        steps.fields = fields;
        steps.next_fields = next_fields;
        steps.reward = array("reward", PER_FLOAT32);
        steps.terminated = array("terminated", PER_BOOL);
        steps.truncated = array("truncated", PER_BOOL);
        steps.mask = array("mask", PER_BOOL);
        steps.next_mask = array("next_mask", PER_BOOL);
        steps.priorities = array("priorities", PER_FLOAT32);
        expect_refused(per_replay_add(replay.get(), &steps, nullptr, nullptr), name);
    }
    EXPECT_EQ(statistics_of(replay.get()).added, 0);
}

}  // namespace
}  // namespace per::test

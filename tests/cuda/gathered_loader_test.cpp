// Loaders whose device copies the frames of large fields from the rows of a buffer in host memory: their batches
// compared with those of a loader on the CPU, waits, errors of the runtime, forks, devices.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "../c/struct_calls.h"
#include "../cpp/replay_handle.h"
#include "backend/batch.h"
#include "backend/create.h"
#include "backend/frame_gather.h"
#include "graph.h"
#include "loader_calls.h"
#include "per.h"
#include "simulator.h"

namespace per::test {
namespace {

constexpr int64_t batch_size = 8;
constexpr int64_t n_envs = 2;

// Large observations of whole pieces and of odd bytes, a small one, and large and small fields that are not
// observations. If sequences are drawn, the state is that of a recurrent network.
enum FieldNumber { frame, odd, goal, plan, action, state, n_fields };
constexpr int64_t elements[n_fields] = {1040, 1027, 3, 300, 1, 512};
constexpr int32_t dtypes[n_fields] = {PER_UINT8, PER_UINT8, PER_FLOAT32, PER_FLOAT32, PER_INT64, PER_INT16};
constexpr std::size_t sizes[n_fields] = {1, 1, 4, 4, 8, 2};

bool is_observation(int field) {
    return field <= goal;
}

per_replay_options options_of(int64_t rows) {
    per_replay_options options;
    per_replay_options_init(&options, sizeof options);
    options.capacity = rows * n_envs;
    options.n_envs = n_envs;
    return options;
}

ReplayHandle create_replay(per_replay_options options, int32_t padding = PER_PADDING_REPEAT) {
    const char* const names[n_fields] = {"frame", "odd", "goal", "plan", "action", "state"};
    per_field fields[n_fields] = {};
    for (int i = 0; i < n_fields; ++i) {
        fields[i].name = names[i];
        fields[i].shape = &elements[i];
        fields[i].ndim = 1;
        fields[i].dtype = dtypes[i];
        fields[i].role = is_observation(i) ? PER_ROLE_OBSERVATION : PER_ROLE_PLAIN;
    }
    if (options.sequence_length > 0) fields[state].role = PER_ROLE_RECURRENT_STATE;
    fields[frame].padding = padding;
    fields[odd].stack = 1;
    options.fields = fields;
    options.n_fields = n_fields;
    options.field_size = sizeof(per_field);
    per_replay* replay = nullptr;
    EXPECT_EQ(per_replay_create(&options, &replay), PER_OK) << per_last_error();
    return ReplayHandle(replay);
}

per_loader_options loader_options(bool gathers, int64_t slots) {
    per_loader_options options = loader_options_of(batch_size, gathers ? PER_CUDA : PER_CPU, slots);
    options.gather_on_device = gathers;
    return options;
}

LoaderHandle loader_of(const ReplayHandle& replay, bool gathers, int64_t slots = 3) {
    return create_loader(replay.get(), loader_options(gathers, slots));
}

// The values of an observation, or of a step, with this number.
void append_values(std::vector<unsigned char>& bytes, int field, uint32_t number) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(elements[field]) * sizes[field]; ++i)
        bytes.push_back(
            static_cast<unsigned char>(number * 37 + i * (number % 5 + 1) + static_cast<std::size_t>(field)));
}

// The arguments of a call of per_replay_add().
struct Steps {
    int64_t length = 1;
    std::vector<int64_t> env_ids;
    std::vector<unsigned char> fields[n_fields];
    std::vector<unsigned char> next_fields[n_fields];
    std::vector<float> reward;
    std::vector<uint8_t> terminated, truncated, next_mask;

    per_status add(const ReplayHandle& replay) const {
        per_array arrays[n_fields] = {}, next_arrays[n_fields] = {};
        for (int i = 0; i < n_fields; ++i) {
            arrays[i] = {fields[i].data(), nullptr, 0, dtypes[i], nullptr};
            if (is_observation(i)) next_arrays[i] = {next_fields[i].data(), nullptr, 0, dtypes[i], nullptr};
        }
        const auto array = [](const auto& values, int32_t dtype) {
            return per_array{values.data(), nullptr, 0, dtype, nullptr};
        };
        per_steps steps;
        per_steps_init(&steps, sizeof steps);
        steps.length = length;
        steps.n_envs = static_cast<int64_t>(env_ids.size());
        steps.env_ids = env_ids.data();
        steps.fields = arrays;
        steps.next_fields = next_arrays;
        steps.reward = array(reward, PER_FLOAT32);
        steps.terminated = array(terminated, PER_BOOL);
        steps.truncated = array(truncated, PER_BOOL);
        if (!next_mask.empty()) steps.next_mask = array(next_mask, PER_BOOL);
        return per_replay_add(replay.get(), &steps, nullptr, nullptr);
    }
};

class Walk {
 public:
    explicit Walk(uint64_t seed, bool always_next = false)
        : random_(static_cast<unsigned>(seed + 1)), always_next_(always_next) {}

    uint64_t below(uint64_t n) { return random_() / 7 % n; }

    Steps next(int64_t longest = 3) {
        Steps steps;
        steps.length = below(3) == 0 ? 1 + static_cast<int64_t>(below(static_cast<uint64_t>(longest))) : 1;
        if (below(4) != 0)
            steps.env_ids = {1, 0};
        else
            steps.env_ids = {static_cast<int64_t>(below(n_envs))};
        for (int64_t k = 0; k < steps.length; ++k)
            for (const int64_t env : steps.env_ids) append_step(steps, observation_[env]);
        return steps;
    }

 private:
    void append_step(Steps& steps, uint32_t& observation) {
        for (int i = 0; i < n_fields; ++i) append_values(steps.fields[i], i, is_observation(i) ? observation : n_++);
        const uint64_t end = below(9);
        steps.terminated.push_back(end == 0);
        steps.truncated.push_back(end == 1);
        steps.next_mask.push_back(always_next_ || below(3) != 0);
        steps.reward.push_back(static_cast<float>(below(20)));
        observation = ++n_;
        for (int i = 0; i < n_fields; ++i)
            if (is_observation(i)) append_values(steps.next_fields[i], i, observation);
        if (end < 2 || below(20) == 0) observation = ++n_;
    }

    std::minstd_rand random_;
    const bool always_next_;
    uint32_t n_ = 0;
    uint32_t observation_[n_envs] = {1000000, 2000000};
};

void fill(const ReplayHandle& replay, Walk& walk, int n_calls) {
    for (int i = 0; i < n_calls; ++i) ASSERT_EQ(walk.next().add(replay), PER_OK) << per_last_error();
}

ReplayHandle filled(int64_t rows = 100, int n_calls = 60) {
    ReplayHandle replay = create_replay(options_of(rows));
    Walk walk(1);
    fill(replay, walk, n_calls);
    return replay;
}

// All arrays of a batch.
std::vector<BatchArray> arrays_of(const per_batch& batch, const per_replay_options& options) {
    const int64_t steps = options.sequence_length > 0 ? options.burn_in + options.sequence_length : 0;
    std::vector<BatchArray> arrays = arrays_besides_fields(batch, batch_size, steps);
    for (int i = 0; i < n_fields; ++i) {
        const int64_t length = steps == 0 || i == state ? 1 : is_observation(i) ? steps + options.n_step : steps;
        const int64_t stack = is_observation(i) && i != odd ? std::max<int64_t>(options.frame_stack, 1) : 1;
        const auto bytes = static_cast<std::size_t>(batch_size * length * stack * elements[i]) * sizes[i];
        arrays.push_back({batch.fields[i], bytes});
        if (is_observation(i) && steps == 0) arrays.push_back({batch.next_fields[i], bytes});
    }
    return arrays;
}

class GatheredLoader : public TwoStreams {
 protected:
    // The same calls on a buffer whose loader gathers on the device and on a twin whose loader is on the CPU. The lanes
    // are short, so later adds often overwrite drawn rows. The host waits only at the end.
    void expect_those_of_the_cpu(uint64_t seed) {
        simulator::options().seed = seed;
        Walk walk(seed, seed % 4 == 1);
        per_replay_options options = options_of(14 + static_cast<int64_t>(walk.below(20)));
        options.seed = seed;
        options.n_step = 1 + static_cast<int64_t>(walk.below(3));
        options.frame_stack = 1 + static_cast<int64_t>(walk.below(4));
        options.sequence_length = seed % 3 == 2 ? 3 : 0;
        options.burn_in = options.sequence_length > 0 && seed % 2 == 0 ? 2 : 0;
        options.store_next_observation = seed % 4 == 1;
        options.gather_threads = 1 + static_cast<int32_t>(seed % 2);
        const int32_t padding = walk.below(2) == 0 ? PER_PADDING_ZERO : PER_PADDING_REPEAT;
        const ReplayHandle replay = create_replay(options, padding), twin = create_replay(options, padding);
        for (int i = 0; i < 20; ++i) add_to_both(walk, replay, twin);
        const int64_t slots = 1 + static_cast<int64_t>(seed % 3);
        const LoaderHandle loader = loader_of(replay, true, slots), plain = loader_of(twin, false, slots);
        std::vector<Bytes> read(12), expected(12);
        for (std::size_t i = 0; i < read.size(); ++i) {
            const cudaStream_t stream = streams_[i % 3 == 0];
            const Taken a = take_batch(plain, nullptr), b = take_batch(loader, stream);
            expected[i] = bytes_of(arrays_of(a.batch, options));
            read[i] = queue_read(arrays_of(b.batch, options), stream);
            cudaMemsetAsync(b.batch.ids, 0xEE, batch_size * sizeof(int64_t), stream);
            cudaMemsetAsync(b.batch.fields[frame], 0xEE, 1000, stream);
            for (uint64_t n = walk.below(3); n > 0; --n) add_to_both(walk, replay, twin);
            if (walk.below(3) == 0) set_in_both(walk, a.batch.ids, replay, twin);
            expect_status(PER_OK, per_loader_release(plain.get(), a.slot, nullptr));
            expect_status(PER_OK, per_loader_release(loader.get(), b.slot, stream));
        }
        for (cudaStream_t stream : streams_) cudaStreamSynchronize(stream);
        for (std::size_t i = 0; i < read.size(); ++i) ASSERT_TRUE(read[i] == expected[i]) << "batch " << i;
    }

    // Waits for the batch of the device.
    bool is_same(const per_batch& of_device, const per_batch& of_cpu, const per_replay_options& options) const {
        const Bytes read = queue_read(arrays_of(of_device, options), streams_[0]);
        cudaStreamSynchronize(streams_[0]);
        return read == bytes_of(arrays_of(of_cpu, options));
    }

    static void add_to_both(Walk& walk, const ReplayHandle& replay, const ReplayHandle& twin) {
        const Steps steps = walk.next();
        ASSERT_EQ(steps.add(replay), PER_OK) << per_last_error();
        ASSERT_EQ(steps.add(twin), PER_OK) << per_last_error();
    }

    static void set_in_both(Walk& walk, const int64_t* ids, const ReplayHandle& replay, const ReplayHandle& twin) {
        std::vector<unsigned char> plans;
        for (int64_t i = 0; i < batch_size; ++i) append_values(plans, plan, static_cast<uint32_t>(walk.below(1000)));
        per_array fields[n_fields] = {};
        fields[plan] = {plans.data(), nullptr, 0, PER_FLOAT32, nullptr};
        ASSERT_EQ(per_replay_set(replay.get(), batch_size, ids, fields, nullptr), PER_OK) << per_last_error();
        ASSERT_EQ(per_replay_set(twin.get(), batch_size, ids, fields, nullptr), PER_OK) << per_last_error();
    }
};

TEST_F(GatheredLoader, batches_are_those_of_a_loader_on_the_cpu_under_any_schedule) {
    for (uint64_t seed = 0; seed < 24; ++seed) {
        expect_those_of_the_cpu(seed);
        ASSERT_FALSE(HasFailure()) << "seed " << seed;
    }
}

// ---- copies by the device or the CPU

// Uses the slots without a loader, so that their pinned memory can be read: no frame is copied to it.
TEST_F(GatheredLoader, the_cpu_copies_no_large_frame) {
    per_replay_options options = options_of(10);
    constexpr int64_t shape = 1040;
    per_field declared[2] = {};
    declared[0].name = "observation";
    declared[0].shape = &shape;
    declared[0].ndim = 1;
    declared[0].dtype = PER_UINT8;
    declared[1].name = "action";
    declared[1].dtype = PER_INT64;
    options.fields = declared;
    options.n_fields = 2;
    options.field_size = sizeof(per_field);
    const Fields fields(options);
    constexpr int64_t stride = 1088;
    std::vector<std::byte> rows(20 * stride);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::byte>(i / stride * 7 + i % stride);
    const std::byte* const place = rows.data() + 3 * stride;
    const FrameArrays arrays = {{{rows.data(), rows.size()}, {}}, {{}, {}}};
    const auto slots = cuda::create_gathered_slots(0, fields, {batch_size, 0, 1}, 2, arrays);
    slots->gather()->begin();
    EXPECT_EQ(slots->gather()->number(), 1u);
    for (std::size_t round = 0; round < 6; ++round) {
        const OpenSlot open = slots->open(round % 2);
        ASSERT_EQ(open.gather, slots->gather());
        EXPECT_EQ(open.gather->places(1, false), nullptr);
        std::memset(open.batch.fields[0], 0x55, batch_size * shape);
        std::memset(open.batch.next_fields[0], 0x55, batch_size * shape);
        for (int64_t i = 0; i < batch_size; ++i) {
            open.gather->places(0, false)[i] = i % 3 == 0 ? nullptr : place + i * stride;
            open.gather->places(0, true)[i] = place + (i / 2 + 1) * stride;
            static_cast<int64_t*>(open.batch.fields[1])[i] = i + static_cast<int64_t>(round);
        }
        simulator::reset_counters();
        if (round == 4) simulator::fail_call(2, cudaErrorInvalidValue);
        open.gather->queue();
        simulator::fail_call(0, 0);
        EXPECT_EQ(simulator::counters().launches, round == 4 ? 0u : 1u);
        slots->send(round % 2);
        EXPECT_EQ(simulator::counters().host_waits, round == 4 ? 1u : 0u);
        const auto* const host = static_cast<const std::byte*>(open.batch.fields[0]);
        // If the work could not be enqueued, the CPU copies the frames.
        EXPECT_EQ(host[1040], round == 4 ? place[stride] : std::byte{0x55});
        const per_batch& batch = slots->hand_out(round % 2, streams_[0]);
        std::vector<std::byte> seen(batch_size * shape), next(batch_size * shape);
        std::vector<int64_t> actions(batch_size);
        cudaMemcpyAsync(seen.data(), batch.fields[0], seen.size(), cudaMemcpyDeviceToDevice, streams_[0]);
        cudaMemcpyAsync(next.data(), batch.next_fields[0], next.size(), cudaMemcpyDeviceToDevice, streams_[0]);
        cudaMemcpyAsync(actions.data(), batch.fields[1], batch_size * 8, cudaMemcpyDeviceToDevice, streams_[0]);
        slots->release(round % 2, streams_[0]);
        cudaStreamSynchronize(streams_[0]);
        const std::vector<std::byte> zeros(shape);
        for (int64_t i = 0; i < batch_size; ++i) {
            const std::byte* const expected = i % 3 == 0 ? zeros.data() : place + i * stride;
            ASSERT_EQ(std::memcmp(seen.data() + i * shape, expected, shape), 0) << i;
            ASSERT_EQ(std::memcmp(next.data() + i * shape, place + (i / 2 + 1) * stride, shape), 0) << i;
            ASSERT_EQ(actions[static_cast<std::size_t>(i)], i + static_cast<int64_t>(round));
        }
    }
    slots->gather()->end();
}

TEST_F(GatheredLoader, arrays_of_large_fields_are_pinned_as_long_as_the_loader_runs) {
    per_replay_options options = options_of(100);
    options.store_next_observation = 1;
    const ReplayHandle replay = create_replay(options);
    const uint64_t bytes_before = simulator::held().bytes;
    per_loader_options copies = loader_options(true, 2);
    copies.gather_on_device = 0;
    const LoaderHandle copying = create_loader(replay.get(), copies);
    const uint64_t bytes_of_slots = simulator::held().bytes - bytes_before;
    expect_status(PER_OK, per_loader_stop(copying.get()));
    const LoaderHandle loader = loader_of(replay, true, 2);
    // Whole cache lines for each of 200 rows, and room for two stacks of each observation and for the plan and the
    // state.
    const uint64_t pinned = 200 * (2 * 1088 + 2 * 1088 + 1216 + 1024);
    const uint64_t places = 2 * 3 * 256 * ((6 * batch_size * 8 + 255) / 256);
    EXPECT_EQ(simulator::held().bytes - bytes_before, 2 * bytes_of_slots + pinned + places);
    expect_status(PER_OK, per_loader_stop(loader.get()));
    EXPECT_EQ(simulator::held().bytes - bytes_before, 2 * bytes_of_slots + places);
    // A stopped loader does not keep the next one from pinning the rows.
    const LoaderHandle another = loader_of(replay, true, 2);
    EXPECT_GT(simulator::held().bytes - bytes_before, 3 * bytes_of_slots + pinned);
}

// ---- waits

TEST_F(GatheredLoader, the_consumer_waits_for_nothing_and_nothing_is_allocated) {
    const ReplayHandle replay = filled();
    constexpr int slots = 3;
    const LoaderHandle loader = loader_of(replay, true, slots);
    simulator::reset_counters();
    for (int i = 0; i < 20; ++i) {
        const Taken taken = take_batch(loader, streams_[0]);
        const float priority = 2;
        expect_status(PER_OK,
                      write_priorities(replay.get(), 1, std::vector<int64_t>{40 + i}.data(), &priority, nullptr));
        expect_status(PER_OK, per_loader_release(loader.get(), taken.slot, streams_[0]));
    }
    expect_free_running_consumer();
}

// The test never releases its slot, so that batches drawn ahead keep waiting for one.
TEST_F(GatheredLoader, add_waits_for_frames_that_it_overwrites_and_for_no_others) {
    ReplayHandle replay = create_replay(options_of(40));
    Walk walk(3, true);
    fill(replay, walk, 8);  // the lanes are far from full
    LoaderHandle loader = loader_of(replay, true);
    ASSERT_EQ(take(loader, streams_[0]).status, PER_OK);
    simulator::reset_counters();
    // A batch may contain the newest observation. The next step brings the same one, which is not written again.
    fill(replay, walk, 5);
    EXPECT_EQ(simulator::counters_of_thread().host_waits, 0u);
    for (int i = 0; i < 30; ++i) fill(replay, walk, 2);
    EXPECT_GE(simulator::counters_of_thread().host_waits, 1u);
    EXPECT_LE(simulator::counters_of_thread().host_waits, 4u);  // at most once for each batch
    EXPECT_EQ(simulator::counters_of_thread().spins, 0u);
}

TEST_F(GatheredLoader, set_waits_for_frames_that_it_overwrites) {
    const ReplayHandle replay = filled();
    const LoaderHandle loader = loader_of(replay, true, 1);
    const Taken taken = take_batch(loader, streams_[0]);
    std::vector<int64_t> ids(batch_size);
    cudaMemcpyAsync(ids.data(), taken.batch.ids, batch_size * 8, cudaMemcpyDeviceToDevice, streams_[0]);
    cudaStreamSynchronize(streams_[0]);
    simulator::reset_counters();
    const int64_t number = 3;
    per_array fields[n_fields] = {};
    fields[action] = {&number, nullptr, 0, PER_INT64, nullptr};
    expect_status(PER_OK, per_replay_set(replay.get(), 1, ids.data(), fields, nullptr));
    EXPECT_EQ(simulator::counters_of_thread().host_waits, 0u);  // the field is small
    std::vector<unsigned char> values;
    append_values(values, plan, 3);
    fields[plan] = {values.data(), nullptr, 0, PER_FLOAT32, nullptr};
    expect_status(PER_OK, per_replay_set(replay.get(), 1, ids.data(), fields, nullptr));
    EXPECT_EQ(simulator::counters_of_thread().host_waits, 1u);
}

// An actor adds all the time. All bytes of a frame follow from its number, so that torn frames are detected.
TEST_F(GatheredLoader, adds_of_another_thread_tear_no_frame) {
    ReplayHandle replay = create_replay(options_of(20));
    Walk walk(5, true);
    fill(replay, walk, 30);
    const LoaderHandle loader = loader_of(replay, true);
    std::atomic<bool> ends = false;
    std::thread actor([&] {
        while (!ends) fill(replay, walk, 1);
    });
    for (int i = 0; i < 30; ++i) {
        const Taken taken = take_batch(loader, streams_[0]);
        std::vector<unsigned char> frames(batch_size * 1040);
        cudaMemcpyAsync(frames.data(), taken.batch.fields[frame], frames.size(), cudaMemcpyDeviceToDevice, streams_[0]);
        expect_status(PER_OK, per_loader_release(loader.get(), taken.slot, streams_[0]));
        cudaStreamSynchronize(streams_[0]);
        for (int64_t k = 0; k < batch_size; ++k) {
            const unsigned char* const first = frames.data() + k * 1040;
            for (int64_t j = 2; j < 1040; ++j)
                ASSERT_EQ(first[j], static_cast<unsigned char>(first[0] + (first[1] - first[0]) * j)) << j;
        }
    }
    ends = true;
    actor.join();
}

// The waiting call and the drawing thread, while the program captures.
TEST_F(GatheredLoader, a_capture_elsewhere_is_not_spoilt) {
    const ReplayHandle replay = filled(20);
    while_captured(streams_[1], [&] {
        const LoaderHandle loader = loader_of(replay, true, 1);
        Walk walk(8);
        for (int i = 0; i < 10; ++i) {
            const Taken taken = take(loader, streams_[0]);
            EXPECT_EQ(taken.status, PER_OK) << per_last_error();
            fill(replay, walk, 4);
            EXPECT_EQ(per_loader_release(loader.get(), taken.slot, streams_[0]), PER_OK) << per_last_error();
        }
        EXPECT_EQ(per_loader_stop(loader.get()), PER_OK) << per_last_error();
    });
}

// Batches that are out do not change, even if their gathers are still pending when rows change.
TEST_F(GatheredLoader, a_loader_that_was_stopped_reads_rows_no_more) {
    for (simulator::options().seed = 1; simulator::options().seed < 12; ++simulator::options().seed) {
        per_replay_options options = options_of(12);
        ReplayHandle replay = create_replay(options), twin = create_replay(options);
        Walk walk(4);
        for (int i = 0; i < 20; ++i) add_to_both(walk, replay, twin);
        const LoaderHandle loader = loader_of(replay, true), plain = loader_of(twin, false);
        std::vector<Bytes> read(3), expected(3);
        std::vector<Taken> out;
        for (Bytes& bytes : expected) {
            bytes = bytes_of(arrays_of(take(plain, nullptr).batch, options));
            out.push_back(take(loader, streams_[0]));
        }
        expect_status(PER_OK, per_loader_stop(loader.get()));
        fill(replay, walk, 30);
        for (std::size_t i = 0; i < read.size(); ++i)
            read[i] = queue_read(arrays_of(out[i].batch, options), streams_[0]);
        cudaStreamSynchronize(streams_[0]);
        ASSERT_TRUE(read == expected) << "seed " << simulator::options().seed;
    }
}

// ---- errors

TEST_F(GatheredLoader, what_it_cannot_be_asked_for_says_so_and_changes_nothing) {
    ReplayHandle replay = filled();
    const auto create = [](const ReplayHandle& target, const per_loader_options& options) {
        per_loader* loader = nullptr;
        const per_status status = per_loader_create(target.get(), &options, &loader);
        EXPECT_EQ(loader == nullptr, status != PER_OK);
        per_loader_free(loader);
        return status;
    };
    const simulator::Held held = simulator::held();
    per_loader_options options = loader_options(true, 3);
    options.gather_on_device = 2;
    expect_status(PER_ERROR_INVALID_ARGUMENT, create(replay, options), "gather_on_device is 2");
    options.gather_on_device = 1;
    options.reserved = 1;
    expect_status(PER_ERROR_INVALID_ARGUMENT, create(replay, options), "reserved is 1");
    options.reserved = 0;
    options.device = PER_CPU;
    expect_status(PER_ERROR_INVALID_ARGUMENT, create(replay, options), "gather_on_device is 1: device is PER_CPU");
    options.device = PER_CUDA;
    simulator::options().reaches_registered = false;
    expect_status(PER_ERROR_UNSUPPORTED, create(replay, options), "gather_on_device is 1: CUDA device 0");
    simulator::options().reaches_registered = true;
    simulator::options().n_devices = 0;
    expect_status(PER_ERROR_NO_DEVICE, create(replay, options), "no CUDA device");
    simulator::options().n_devices = 1;

    per_replay_options others = options_of(20);
    others.device = PER_CUDA;
    {
        const ReplayHandle on_device = create_replay(others);
        expect_status(PER_ERROR_INVALID_ARGUMENT, create(on_device, options), "gather_on_device is 1: allowed for");
    }
    others.device = PER_CPU;
    others.memory.allocate = [](void*, int64_t size, int64_t alignment, int32_t) {
        return std::aligned_alloc(static_cast<std::size_t>(alignment), static_cast<std::size_t>(size));
    };
    others.memory.deallocate = [](void*, void* memory, int64_t, int32_t) { std::free(memory); };
    expect_status(PER_ERROR_UNSUPPORTED, create(create_replay(others), options),
                  "gather_on_device is 1: the rows lie in memory of the caller's (allocate)");
    others.memory.allocate = nullptr;
    others.memory.deallocate = nullptr;
    const std::string folder = ::testing::TempDir();
    others.memory.storage = folder.c_str();
    expect_status(PER_ERROR_UNSUPPORTED, create(create_replay(others), options),
                  "gather_on_device is 1: the rows lie in a file (storage)");

    EXPECT_TRUE(simulator::held() == held);
    {
        const LoaderHandle loader = loader_of(replay, true);
        expect_status(PER_ERROR_BUSY, create(replay, options), "has a loader already");
        EXPECT_EQ(take(loader, streams_[0]).status, PER_OK) << per_last_error();
    }
    EXPECT_TRUE(simulator::held() == held);
}

// The library's own fields are all small, so nothing is gathered or pinned.
TEST_F(GatheredLoader, without_large_fields_it_is_a_loader_like_others) {
    per_replay_options options = options_of(30);
    per_field field = {};
    field.name = "observation";
    field.dtype = PER_FLOAT32;
    options.fields = &field;
    options.n_fields = 1;
    options.field_size = sizeof(per_field);
    per_replay* created = nullptr;
    ASSERT_EQ(per_replay_create(&options, &created), PER_OK);
    const ReplayHandle replay(created);
    const float values[n_envs] = {1, 2};
    const uint8_t flags[n_envs] = {};
    for (int i = 0; i < 10; ++i) {
        const per_array array = {values, nullptr, 0, PER_FLOAT32, nullptr};
        per_steps steps;
        per_steps_init(&steps, sizeof steps);
        steps.fields = &array;
        steps.reward = array;
        steps.terminated = steps.truncated = {flags, nullptr, 0, PER_BOOL, nullptr};
        ASSERT_EQ(per_replay_add(replay.get(), &steps, nullptr, nullptr), PER_OK) << per_last_error();
    }
    simulator::reset_counters();
    const LoaderHandle loader = loader_of(replay, true);
    EXPECT_EQ(take(loader, streams_[0]).status, PER_OK) << per_last_error();
    EXPECT_EQ(simulator::counters().launches, 0u);
}

// Any call may fail, on any thread: the batches are the same as without the failure. (If a slot cannot be opened, its
// draw is made later, so nothing may be added meanwhile.)
TEST_F(GatheredLoader, an_error_of_cuda_reaches_the_consumer_and_no_batch_is_lost) {
    const per_replay_options options = options_of(16);
    const ReplayHandle replay = create_replay(options), twin = create_replay(options);
    Walk walk(6);
    for (int i = 0; i < 20; ++i) add_to_both(walk, replay, twin);
    const LoaderHandle loader = loader_of(replay, true), plain = loader_of(twin, false);
    int n_failed = 0;
    for (uint64_t n = 0; n < 60; ++n) {
        simulator::fail_call(n % 30, cudaErrorInvalidValue);
        Taken taken;
        n_failed += failures_of_take(loader, streams_[0], taken);
        simulator::fail_call(0, 0);
        const Taken other = take_batch(plain, nullptr);
        ASSERT_TRUE(is_same(taken.batch, other.batch, options)) << "batch " << n;
        simulator::fail_call(n % 8, cudaErrorInvalidValue);
        n_failed += failures_of_release(loader, taken.slot, streams_[0]);
        expect_status(PER_OK, per_loader_release(plain.get(), other.slot, nullptr));
    }
    EXPECT_GT(n_failed, 10);
}

// An add whose wait fails adds nothing, and does not overwrite rows that are still to be read.
TEST_F(GatheredLoader, an_add_that_cannot_wait_changes_nothing) {
    const per_replay_options options = options_of(14);
    const ReplayHandle replay = create_replay(options), twin = create_replay(options);
    Walk walk(6);
    for (int i = 0; i < 20; ++i) add_to_both(walk, replay, twin);
    const LoaderHandle loader = loader_of(replay, true), plain = loader_of(twin, false);
    int n_failed = 0;
    for (uint64_t n = 0; n < 40; ++n) {
        const Taken taken = take(loader, streams_[0]), other = take(plain, nullptr);
        ASSERT_EQ(taken.status, PER_OK) << per_last_error();
        for (int i = 0; i < 3; ++i) {
            const Steps steps = walk.next();
            simulator::simulator_fail_call(n % 4, cudaErrorInvalidValue);
            n_failed += failures_until_success([&] { return steps.add(replay); });
            simulator::simulator_fail_call(0, 0);
            ASSERT_EQ(steps.add(twin), PER_OK);
        }
        ASSERT_TRUE(is_same(taken.batch, other.batch, options)) << "batch " << n;
        expect_status(PER_OK, per_loader_release(loader.get(), taken.slot, streams_[0]));
        expect_status(PER_OK, per_loader_release(plain.get(), other.slot, nullptr));
    }
    EXPECT_GT(n_failed, 10);
}

TEST_F(GatheredLoader, a_sticky_error_is_answered_by_every_call_and_free_works) {
    const ReplayHandle replay = filled(20);
    LoaderHandle loader = loader_of(replay, true);
    const Taken taken = take_batch(loader, streams_[0]);
    Walk walk(7);
    simulator::stick(cudaErrorIllegalAddress);
    expect_status(PER_ERROR_CUDA, take(loader, streams_[0]).status, "cudaErrorIllegalAddress");
    expect_status(PER_ERROR_CUDA, per_loader_release(loader.get(), taken.slot, streams_[0]), "cudaErrorIllegalAddress");
    per_replay_statistics before, after;
    per_status status = PER_OK;
    for (int i = 0; i < 40 && status == PER_OK; ++i) {
        per_replay_get_statistics(replay.get(), &before, sizeof before);
        status = walk.next().add(replay);
    }
    expect_status(PER_ERROR_CUDA, status, "cudaErrorIllegalAddress");
    per_replay_get_statistics(replay.get(), &after, sizeof after);
    EXPECT_EQ(std::memcmp(&before, &after, sizeof before), 0);
    expect_status(PER_ERROR_CUDA, per_loader_stop(loader.get()), "cudaErrorIllegalAddress");
    fill(replay, walk, 30);  // the rows are no longer read
    loader.reset();
    simulator::stick(0);
    loader = loader_of(replay, true);
    EXPECT_EQ(take(loader, streams_[0]).status, PER_OK) << per_last_error();
}

TEST_F(GatheredLoader, a_failing_call_of_creation_leaves_no_loader_and_no_leak) {
    const ReplayHandle replay = filled();
    const simulator::Held held = simulator::held();
    expect_no_loader_where_creation_fails(replay.get(), loader_options(true, 3));
    EXPECT_TRUE(simulator::held() == held);
}

TEST_F(GatheredLoader, a_failing_call_of_stop_leaves_no_leak) {
    const ReplayHandle replay = filled();
    const simulator::Held held = simulator::held();
    for (uint64_t n = 0; n < 20; ++n) {
        LoaderHandle loader = loader_of(replay, true);
        ASSERT_EQ(take(loader, streams_[0]).status, PER_OK);
        simulator::fail_call(n, cudaErrorInvalidValue);
        const per_status status = per_loader_stop(loader.get());
        simulator::fail_call(0, 0);
        if (status != PER_OK) expect_status(PER_ERROR_CUDA, status, "cudaErrorInvalidValue");
        loader.reset();
        EXPECT_TRUE(simulator::held() == held) << n;
    }
}

// ---- devices, forks

TEST_F(GatheredLoader, the_current_device_is_restored) {
    const ReplayHandle replay = filled(20);
    simulator::options().n_devices = 3;
    per_loader_options options = loader_options(true, 3);
    options.device_index = 2;
    cudaSetDevice(1);
    LoaderHandle loader = create_loader(replay.get(), options);
    expect_current_device(1);
    ASSERT_EQ(take(loader, nullptr).status, PER_OK) << per_last_error();
    Walk walk(9);
    fill(replay, walk, 30);
    expect_current_device(1);
    expect_status(PER_OK, per_loader_stop(loader.get()));
    expect_current_device(1);
    loader.reset();
    expect_current_device(1);
    cudaSetDevice(0);
}

// Overwrites freed memory, which could otherwise still look valid.
void overwrite_freed_blocks() {
    for (std::size_t bytes = 16; bytes <= 4096; bytes += 16)
        for (int n = 0; n < 8; ++n) {
            void* volatile block = std::malloc(bytes);
            std::memset(block, 0xa5, bytes);
        }
}

TEST_F(GatheredLoader, a_forked_child_has_a_buffer_that_nothing_reads) {
    const ReplayHandle replay = filled(20);
    LoaderHandle loader = loader_of(replay, true);
    const Taken taken = take_batch(loader, streams_[0]);
    for (const int n_before_free : {0, 20}) {
        SCOPED_TRACE(n_before_free);
        // Must not take the simulator's lock: the loader's thread may have held it at the fork.
        expect_in_child([&] {
            Walk walk(2);
            const simulator::Counters before = simulator::counters_of_thread();
            bool is_right = true;
            for (int i = 0; i < 40; ++i) {
                if (i == n_before_free) {
                    loader.reset();
                    overwrite_freed_blocks();
                }
                is_right = is_right && walk.next().add(replay) == PER_OK;
            }
            return is_right && simulator::counters_of_thread().host_waits == before.host_waits &&
                   simulator::counters_of_thread().allocations == before.allocations;
        });
    }
    expect_status(PER_OK, per_loader_release(loader.get(), taken.slot, streams_[0]));
    EXPECT_EQ(take(loader, streams_[0]).status, PER_OK) << per_last_error();
}

}  // namespace
}  // namespace per::test

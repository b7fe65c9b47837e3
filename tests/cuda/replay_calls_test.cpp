// A replay buffer on CUDA from the viewpoint of a user of the device: waits and allocations of its calls, captured
// graphs, streams, errors that only the device can detect, errors of the runtime, devices, forks.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>
#include <string>

#include "graph.h"
#include "replay_twins.h"
#include "run_length.h"
#include "simulator.h"
#include "steered_simulator.h"

namespace per::test {
namespace {

class CudaReplayCalls : public SteeredSimulator {};

// Calls made before the buffer has rows of every kind.
constexpr int n_warm_up = 15;

TEST_F(CudaReplayCalls, never_wait_and_never_allocate) {
    for (const int32_t scheme : {PER_STRATIFIED, PER_WITHOUT_REPLACEMENT}) {
        per_replay_options options = twin_options();
        options.scheme = scheme;
        options.prioritization = scheme == PER_STRATIFIED ? PER_RANK : PER_PROPORTIONAL;
        options.normalize_weights = PER_BUFFER_MAX;
        Twins twins(options);
        per_replay* const replay = twins.gpu.get();
        TwinWalk walk(1);
        std::deque<TwinSteps> steps;
        TwinBatch drawn(4), read(4);
        const per_batch batch = drawn.batch(), rows = read.batch(false);
        const std::vector<float> errors = {1.0f, 2.0f, 0.5f, 0.0f};
        std::vector<float> priorities(4);
        const std::vector<int64_t> actions = {1, 2, 3, 4};
        const per_array set_fields[n_fields] = {{}, {actions.data(), nullptr, 0, PER_INT64, nullptr}, {}, {}, {}};
        // Counts start after the first call of each kind.
        simulator::reset_counters();
        for (int i = 0; i < 2 * n_warm_up; ++i) {
            steps.push_back(walk.next(1 + i % 3));
            expect_status(PER_OK, steps.back().add(replay, twins.stream));
            if (i < n_warm_up) continue;
            expect_status(PER_OK, per_replay_sample(replay, nullptr, 4, &batch, twins.stream));
            expect_status(
                PER_OK, write_td_errors(replay, 4, drawn.ids.data(), 1, errors.data(), i % 2 ? nullptr : twins.stream));
            expect_status(PER_OK, write_priorities(replay, 4, drawn.ids.data(), errors.data(), twins.stream));
            expect_status(PER_OK,
                          per_replay_get_priorities(replay, 4, drawn.ids.data(), priorities.data(), twins.stream));
            expect_status(PER_OK, per_replay_get(replay, 4, drawn.ids.data(), &rows, twins.stream));
            expect_status(PER_OK, per_replay_set(replay, 4, drawn.ids.data(), set_fields, twins.stream));
        }
        expect_status(PER_OK, per_replay_cut(replay, 0, nullptr, twins.stream));
        expect_status(PER_OK, change_n_step(replay, 1, twins.stream));
        expect_status(PER_OK, change_alpha(replay, 0.5, twins.stream));
        expect_status(PER_OK, change_beta(replay, 0.5, twins.stream));
        expect_status(PER_OK, change_gamma(replay, 0.5, twins.stream));
        expect_status(PER_OK, per_replay_clear(replay, twins.stream));
        EXPECT_EQ(simulator::counters().host_waits, 0u);
        EXPECT_EQ(simulator::counters().allocations, 0u);
        EXPECT_GT(simulator::counters().launches, 0u);
        twins.synchronize();
        EXPECT_EQ(simulator::counters().host_waits, 1u);
        EXPECT_EQ(statistics_of(replay).samples, n_warm_up);
    }
}

// Another kernel writes to the ids while the blocks of an update wait for each other. The update may use any of the
// values that an id had. Later updates work as usual.
TEST_F(CudaReplayCalls, ids_that_change_during_an_update_leave_no_trace) {
    if (test::is_short) GTEST_SKIP() << "ThreadSanitizer reports the race, which is the caller's";
    constexpr int64_t n = 5000;
    for (uint64_t i = 1; i <= 30; ++i) {
        simulator::options().seed = i;
        Twins twins(twin_options());
        per_replay* const replay = twins.gpu.get();
        twins.begin(1, n_warm_up);
        twins.synchronize();
        const std::vector<int64_t> live = live_ids_of(replay);
        const int64_t n_live = static_cast<int64_t>(live.size());
        std::vector<int64_t> ids(n);
        for (std::size_t k = 0; k < ids.size(); ++k) ids[k] = live[k % live.size()];
        const std::vector<float> errors(n, 3.0f), twos(live.size(), 2.0f);
        simulator::meanwhile = [&] { std::memset(ids.data(), 0xff, n * sizeof(int64_t)); };
        expect_status(PER_OK, write_td_errors(replay, n, ids.data(), 1, errors.data(), twins.stream));
        cudaStreamSynchronize(twins.stream);
        simulator::meanwhile = nullptr;
        EXPECT_EQ(ids, std::vector<int64_t>(n, -1));
        expect_status(PER_OK, write_priorities(replay, n_live, live.data(), twos.data(), twins.stream));
        std::vector<float> read(live.size());
        expect_status(PER_OK, per_replay_get_priorities(replay, n_live, live.data(), read.data(), twins.stream));
        cudaStreamSynchronize(twins.stream);
        ASSERT_EQ(read, twos) << "seed " << i;
    }
}

// A single block, which makes a small update, would take too long to change the scale of so large a tree. A following
// launch on the whole device does this.
TEST_F(CudaReplayCalls, a_buffer_of_more_than_2_20_rows_gets_its_scale_from_the_whole_device) {
    per_replay_options options = twin_options();
    options.capacity = (1 << 20) + 64;
    options.prioritization = PER_RANK;
    Twins twins(options);
    twins.begin(2, 6);
    for (const float error : {1e30f, 1e-30f, 5.0f}) {
        twins.update(twins.sample(8), std::vector<float>(8, error));
        ASSERT_NO_FATAL_FAILURE(expect_same_statistics(twins.cpu.get(), twins.gpu.get()));
    }
}

// ---- graphs

// A step of acting and learning in one graph: each launch has the results of the same calls on the CPU. Its arrays are
// filled before each launch, and the graph updates the ids that it drew.
TEST_F(CudaReplayCalls, a_captured_step_is_replayed_as_the_cpu_repeats_it) {
    Twins twins(twin_options());
    TwinWalk walk = twins.begin(2, n_warm_up);
    TwinSteps steps = walk.next();
    TwinBatch of_graph(6), of_cpu(6);
    const per_batch graph_batch = of_graph.batch(), cpu_batch = of_cpu.batch();
    std::vector<float> errors(6, 1.0f);
    const auto step = [&](per_replay* replay, void* stream, TwinBatch& drawn, const per_batch& batch) {
        expect_status(PER_OK, steps.add(replay, stream));
        expect_status(PER_OK, per_replay_sample(replay, nullptr, 6, &batch, stream));
        expect_status(PER_OK, write_td_errors(replay, 6, drawn.ids.data(), 1, errors.data(), stream));
    };
    steps.with_priorities = true;
    simulator::reset_counters();
    const Graph graph(twins.stream, [&] { step(twins.gpu.get(), twins.stream, of_graph, graph_batch); });
    EXPECT_EQ(simulator::counters().host_waits, 0u);
    EXPECT_EQ(simulator::counters().allocations, 0u);
    for (int i = 0; i < 20; ++i) {
        const TwinSteps others = walk.next();
        std::copy(others.observation.begin(), others.observation.end(), steps.observation.begin());
        std::copy(others.next.begin(), others.next.end(), steps.next.begin());
        std::copy(others.reward.begin(), others.reward.end(), steps.reward.begin());
        std::copy(others.truncated.begin(), others.truncated.end(), steps.truncated.begin());
        std::copy(others.priority.begin(), others.priority.end(), steps.priority.begin());
        for (float& error : errors) error = std::ldexp(1.0f, static_cast<int>(walk.random() % 80) - 40);
        graph.launch();
        twins.synchronize();
        const std::vector<int64_t> ids = steps.ids;
        // add() on the CPU writes to the same vectors.
        std::copy(ids.begin(), ids.end(), steps.ids.begin());
        step(twins.cpu.get(), nullptr, of_cpu, cpu_batch);
        EXPECT_EQ(steps.ids, ids);
        EXPECT_TRUE(of_cpu == of_graph);
        EXPECT_EQ(of_cpu.ids, of_graph.ids);
        twins.expect_same();
        if (HasFailure()) break;
    }
    twins.use(walk, 5);
}

TEST_F(CudaReplayCalls, calls_that_wait_or_allocate_are_refused_in_a_capture) {
    Twins twins(twin_options());
    TwinWalk walk = twins.begin(3, n_warm_up);
    per_replay* const replay = twins.gpu.get();
    TwinBatch drawn(4);
    const per_batch batch = drawn.batch(), rows = drawn.batch(false);
    const per_sample_options ranks = sample_options(PER_RANK);
    const per_sample_options smallest = sample_options(of_buffer, PER_BUFFER_MAX);
    per_epochs* epochs = nullptr;
    int64_t count = 0;
    void* const stream = twins.stream;
    const std::vector<int64_t> ids(5000, -1);
    const std::vector<float> priorities(5000, 1.0f);
    while_captured(twins.stream, [&] {
        expect_status(PER_ERROR_INVALID_ARGUMENT, per_replay_synchronize(replay, stream), "captured");
        expect_status(PER_ERROR_INVALID_ARGUMENT, per_epochs_create(replay, 1, 4, 0, stream, &epochs), "captured");
        expect_status(PER_ERROR_INVALID_ARGUMENT, per_replay_get_bootstraps(replay, 4, &rows, &count, stream),
                      "captured");
        expect_status(PER_ERROR_INVALID_ARGUMENT, per_replay_sample(replay, &ranks, 4, &batch, stream), "captured");
        expect_status(PER_ERROR_INVALID_ARGUMENT, per_replay_sample(replay, &smallest, 4, &batch, stream), "captured");
        expect_status(PER_ERROR_INVALID_ARGUMENT, write_priorities(replay, 5000, ids.data(), priorities.data(), stream),
                      "the first batch or update of more than 4096 rows (5000) allocates memory");
        expect_status(PER_OK, per_replay_sample(replay, nullptr, 4, &batch, stream));
    });
    EXPECT_EQ(epochs, nullptr);
    // After a capture the buffer cannot grow: the graph would not notice.
    expect_status(PER_ERROR_INVALID_ARGUMENT, per_replay_sample(replay, &ranks, 4, &batch, stream), "captured");
    expect_status(PER_ERROR_INVALID_ARGUMENT, per_replay_sample(replay, &smallest, 4, &batch, stream), "captured");
    twins.use(walk, 5);
    twins.expect_same();
}

// ---- streams

// Calls on streams that change from call to call, ordered only by the handle.
TEST_F(CudaReplayCalls, calls_on_several_streams_run_in_the_order_in_which_they_were_made) {
    for (uint64_t seed = 1; seed <= 30; ++seed) {
        simulator::options().seed = seed;
        Twins twins(twin_options());
        TwinWalk walk(seed);
        cudaStream_t streams[3] = {nullptr, twins.stream, nullptr};
        cudaStreamCreateWithFlags(&streams[0], cudaStreamNonBlocking);
        twins.use(walk, 6);
        std::deque<TwinSteps> steps;
        std::deque<TwinBatch> of_cpu, of_gpu;
        std::deque<std::vector<float>> errors;
        for (int i = 0; i < 12; ++i) {
            const auto next_stream = [&] { return streams[walk.random() % 3]; };
            steps.push_back(walk.next());
            expect_status(PER_OK, steps.back().add(twins.cpu.get(), nullptr));
            expect_status(PER_OK, steps.back().add(twins.gpu.get(), next_stream()));
            of_cpu.emplace_back(5);
            of_gpu.emplace_back(5);
            errors.emplace_back(5, static_cast<float>(walk.random() % 100));
            const per_batch cpu_batch = of_cpu.back().batch(), gpu_batch = of_gpu.back().batch();
            if (per_replay_sample(twins.cpu.get(), nullptr, 5, &cpu_batch, nullptr) != PER_OK) continue;
            expect_status(PER_OK, per_replay_sample(twins.gpu.get(), nullptr, 5, &gpu_batch, next_stream()));
            const float* const of_step = errors.back().data();
            expect_status(PER_OK, write_td_errors(twins.cpu.get(), 5, of_cpu.back().ids.data(), 1, of_step, nullptr));
            expect_status(PER_OK,
                          write_td_errors(twins.gpu.get(), 5, of_gpu.back().ids.data(), 1, of_step, next_stream()));
        }
        twins.synchronize();
        for (std::size_t i = 0; i < of_cpu.size(); ++i) EXPECT_EQ(of_cpu[i].ids, of_gpu[i].ids) << seed << " " << i;
        twins.expect_same();
        if (HasFailure()) break;
        cudaStreamDestroy(streams[0]);
    }
}

// ---- errors that only the device can detect

TEST_F(CudaReplayCalls, what_was_not_allowed_is_skipped_counted_and_reported_once) {
    for (const int32_t on_invalid : {PER_INVALID_ERROR, PER_INVALID_SKIP}) {
        per_replay_options options = twin_options();
        options.on_invalid = PER_INVALID_SKIP;  // on the CPU, too
        ReplayHandle cpu = create_replay(options, PER_CPU);
        options.on_invalid = on_invalid;
        Twins twins(options);
        twins.cpu = std::move(cpu);
        TwinWalk walk = twins.begin(4, n_warm_up);
        per_replay* const gpu = twins.gpu.get();
        std::vector<int64_t> ids = twins.sample(4);
        const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
        const std::vector<float> errors = {1.0f, nan, infinity, 2.0f};
        expect_status(PER_OK, write_td_errors(twins.cpu.get(), 4, ids.data(), 1, errors.data(), nullptr));
        expect_status(PER_OK, write_td_errors(gpu, 4, ids.data(), 1, errors.data(), twins.stream));
        const bool reports = on_invalid == PER_INVALID_ERROR;
        expect_status(reports ? PER_ERROR_INVALID_ARGUMENT : PER_OK, per_replay_synchronize(gpu, twins.stream),
                      "2 priorities or td_errors");
        twins.synchronize();
        twins.expect_same();

        // The CPU refuses the whole call if an id was never issued.
        const std::vector<int64_t> never = {ids[0], INT64_MAX, -2, 1 << 20};
        const std::vector<int64_t> first = {ids[0]};
        const std::vector<float> priorities = {3.0f, 4.0f, 5.0f, 6.0f};
        expect_status(PER_OK, write_priorities(twins.cpu.get(), 1, first.data(), priorities.data(), nullptr));
        expect_status(PER_OK, write_priorities(gpu, 4, never.data(), priorities.data(), twins.stream));
        expect_status(PER_ERROR_INVALID_ARGUMENT, per_replay_synchronize(gpu, twins.stream), "3 ids");
        std::vector<float> read(4, -7.0f);
        expect_status(PER_OK, per_replay_get_priorities(gpu, 4, never.data(), read.data(), twins.stream));
        expect_status(PER_ERROR_INVALID_ARGUMENT, per_replay_synchronize(gpu, twins.stream), "3 ids");
        EXPECT_EQ(read, (std::vector<float>{3.0f, 0.0f, 0.0f, 0.0f}));
        TwinBatch rows(4);
        const per_batch batch = rows.batch(false);
        expect_status(PER_OK, per_replay_get(gpu, 4, never.data(), &batch, twins.stream));
        expect_status(PER_ERROR_INVALID_ARGUMENT, per_replay_synchronize(gpu, twins.stream), "3 ids");
        const auto observation = rows.observation.begin();  // two numbers a row
        EXPECT_EQ(std::vector<float>(observation + 2, observation + 8), std::vector<float>(6));
        twins.synchronize();
        twins.use(walk, 3);
    }
}

// ---- errors of the runtime

TEST_F(CudaReplayCalls, a_sticky_error_is_answered_by_every_call_and_free_works) {
    {
        Twins twins(twin_options());
        TwinWalk walk = twins.begin(8, 5);
        per_replay* const gpu = twins.gpu.get();
        TwinSteps steps = walk.next();
        TwinBatch drawn(2);
        const per_batch batch = drawn.batch();
        const int64_t id = 0;
        const float one = 1.0f;
        int64_t live = -7;
        per_epochs* epochs = nullptr;
        per_replay_statistics statistics;
        simulator::stick(cudaErrorIllegalAddress);
        const char* const name = "cudaErrorIllegalAddress";
        expect_status(PER_ERROR_CUDA, steps.add(gpu, twins.stream), name);
        expect_status(PER_ERROR_CUDA, per_replay_sample(gpu, nullptr, 2, &batch, twins.stream), name);
        expect_status(PER_ERROR_CUDA, write_priorities(gpu, 1, &id, &one, twins.stream), name);
        expect_status(PER_ERROR_CUDA, per_replay_clear(gpu, twins.stream), name);
        expect_status(PER_ERROR_CUDA, per_replay_get_live_ids(gpu, 0, nullptr, &live), name);
        expect_status(PER_ERROR_CUDA, per_replay_get_statistics(gpu, &statistics, sizeof statistics), name);
        expect_status(PER_ERROR_CUDA, per_epochs_create(gpu, 1, 1, 0, nullptr, &epochs), name);
        expect_status(PER_ERROR_CUDA, per_replay_synchronize(gpu, twins.stream), name);
    }
    simulator::stick(0);
}

TEST_F(CudaReplayCalls, a_failing_launch_is_an_error_of_the_call) {
    Twins twins(twin_options());
    twins.begin(9, 8);
    TwinBatch drawn(2);
    const per_batch batch = drawn.batch();
    int n_failed = 0;
    for (uint64_t n = 0; n < 6; ++n) {
        simulator::fail_call(n, cudaErrorInvalidConfiguration);
        const per_status status = per_replay_sample(twins.gpu.get(), nullptr, 2, &batch, twins.stream);
        simulator::fail_call(0, 0);
        n_failed += status == PER_ERROR_CUDA;
    }
    EXPECT_GE(n_failed, 4);
    expect_status(PER_OK, per_replay_sample(twins.gpu.get(), nullptr, 2, &batch, twins.stream));
    twins.synchronize();
}

// Two environments with one number each; their last two rows are pending.
struct TwoLanes {
    ReplayHandle replay;

    explicit TwoLanes(int32_t device) {
        per_field field = {};
        field.name = "observation";
        field.dtype = PER_FLOAT32;
        per_replay_options options;
        per_replay_options_init(&options, sizeof options);
        options.capacity = 20;
        options.n_envs = 2;
        options.n_step = 3;
        options.fields = &field;
        options.n_fields = 1;
        options.field_size = sizeof(per_field);
        options.device = device;
        per_replay* made = nullptr;
        expect_status(PER_OK, per_replay_create(&options, &made));
        replay.reset(made);
    }

    void add(int64_t env) {
        static const float number = 1.0f;
        static const uint8_t goes_on = 0;
        const per_array field = {&number, nullptr, 0, PER_FLOAT32, nullptr};
        per_steps steps;
        per_steps_init(&steps, sizeof steps);
        steps.n_envs = 1;
        steps.env_ids = &env;
        steps.fields = &field;
        steps.next_fields = &field;
        steps.reward = field;
        steps.terminated = steps.truncated = {&goes_on, nullptr, 0, PER_BOOL, nullptr};
        expect_status(PER_OK, per_replay_add(replay.get(), &steps, nullptr, nullptr));
    }

    per_status cut() {
        const int64_t env = 0;
        return per_replay_cut(replay.get(), 1, &env, nullptr);
    }

    uint64_t mass() {
        per_shard_summary law;
        expect_status(PER_OK, per_replay_summarize(replay.get(), PER_SCALE_AUTOMATIC, 0, &law, sizeof law));
        return law.total_mass;
    }
};

// Any launch of a cut may fail: an add to another environment then updates the rows that became live.
TEST_F(CudaReplayCalls, what_a_cut_that_failed_left_behind_is_settled_by_the_next_add) {
    TwoLanes cpu(PER_CPU);
    for (const int64_t env : {0, 0, 0, 1}) cpu.add(env);
    const uint64_t mass_before = cpu.mass();
    expect_status(PER_OK, cpu.cut());
    cpu.add(1);
    EXPECT_GT(cpu.mass(), mass_before);
    for (uint64_t seed = 1; seed <= (test::is_short ? 1 : 8); ++seed) {
        simulator::options().seed = seed;
        int n_left_behind = 0;
        for (uint64_t n = 0;; ++n) {
            TwoLanes gpu(PER_CUDA);
            for (const int64_t env : {0, 0, 0, 1}) gpu.add(env);
            simulator::fail_call(n, cudaErrorInvalidConfiguration);
            const per_status status = gpu.cut();
            if (simulator::fail_call(0, 0)) break;  // it has fewer calls
            const bool is_cut = statistics_of(gpu.replay.get()).cuts == 1;
            EXPECT_EQ(status, PER_ERROR_CUDA);
            n_left_behind += is_cut && gpu.mass() == mass_before;
            gpu.add(1);
            EXPECT_EQ(gpu.mass(), is_cut ? cpu.mass() : mass_before) << "seed " << seed << ", call " << n;
        }
        EXPECT_GE(n_left_behind, 2);
    }
}

// ---- devices and processes

TEST_F(CudaReplayCalls, the_current_device_is_restored) {
    simulator::options().n_devices = 3;
    {
        per_replay_options options = twin_options();
        options.device_index = 0;
        Twins twins(options);  // its stream belongs to the current device
        cudaSetDevice(1);
        EXPECT_NE(create_replay(options, PER_CUDA), nullptr);
        expect_current_device(1);
        twins.begin(10, 5);
        twins.expect_same();
        expect_current_device(1);
        simulator::stick(cudaErrorIllegalAddress);
        expect_status(PER_ERROR_CUDA, per_replay_clear(twins.gpu.get(), twins.stream));
        simulator::stick(0);
        expect_current_device(1);
    }
    expect_current_device(1);
    cudaSetDevice(0);
}

// The simulator, like CUDA, refuses streams, events and kernels of a device that is not the current one.
TEST_F(CudaReplayCalls, a_buffer_lies_on_the_device_that_was_asked_for) {
    simulator::options().n_devices = 3;
    per_replay_options options = twin_options();
    options.device_index = 2;
    cudaSetDevice(2);
    Twins twins(options);  // its stream belongs to the current device
    cudaSetDevice(1);
    TwinWalk walk(12);
    for (int i = 0; i < 3; ++i) {
        twins.use(walk, 10);
        twins.update({live_ids_of(twins.cpu.get())[0]}, {3.0f});
        twins.expect_same();
    }
    expect_current_device(1);
    cudaSetDevice(0);
}

TEST_F(CudaReplayCalls, a_forked_child_may_only_free) {
    Twins twins(twin_options());
    TwinWalk walk = twins.begin(11, 5);
    expect_in_child([&] {
        per_replay* const gpu = twins.gpu.get();
        TwinSteps steps = walk.next();
        int64_t live = -7;
        int n_right = 0;
        n_right += steps.add(gpu, twins.stream) == PER_ERROR_NO_DEVICE;
        n_right += std::strstr(per_last_error(), "forked") != nullptr;
        n_right += per_replay_get_live_ids(gpu, 0, nullptr, &live) == PER_ERROR_NO_DEVICE;
        n_right += per_replay_synchronize(gpu, twins.stream) == PER_ERROR_NO_DEVICE;
        // In the child any call of the CUDA runtime would fail, so freeing must make none.
        simulator::reset_counters();
        twins.gpu.reset();
        n_right += simulator::counters().allocations == 0;
        return n_right == 5;
    });
    twins.use(walk, 3);
}

}  // namespace
}  // namespace per::test

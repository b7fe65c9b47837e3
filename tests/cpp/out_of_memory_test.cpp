// Each allocation of a call fails in turn. The call returns PER_ERROR_OUT_OF_MEMORY, writes nothing, and leaves the
// buffer unchanged.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "../c/check.h"
#include "../c/struct_calls.h"
#include "expect.h"
#include "per.h"

namespace {

// Number of allocations of this thread before one fails; negative: no allocation fails.
thread_local int64_t allocations_before_failure = -1;
thread_local bool has_failed = false;
// Applies to all threads except those with has_memory.
std::atomic<bool> memory_has_ended = false;
thread_local bool has_memory = false;

[[maybe_unused]] bool fails() {
    if (memory_has_ended && !has_memory) return true;
    if (allocations_before_failure < 0 || allocations_before_failure-- > 0) return false;
    allocations_before_failure = 0;  // all later ones fail, too
    has_failed = true;
    return true;
}

}  // namespace

#ifndef SANITIZED  // a sanitizer defines these functions
void* operator new(std::size_t size) {
    if (fails()) throw std::bad_alloc();
    if (void* memory = std::malloc(size)) return memory;
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}
// The program's definitions take precedence over those of the C library.
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
    void* memory = nullptr;
    return !fails() && posix_memalign(&memory, alignment, size) == 0 ? memory : nullptr;
}
extern "C" void* mmap(void* address, std::size_t size, int protection, int flags, int file, off_t offset) noexcept {
    if (fails()) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return reinterpret_cast<void*>(syscall(SYS_mmap, address, size, protection, flags, file, offset));
}
#endif

namespace per::test {
namespace {

// Makes the call with only its first `n` allocations succeeding. Sets has_failed if it needed more.
template <class Call>
per_status failing_after(int64_t n, const Call& call) {
    has_failed = false;
    allocations_before_failure = n;
    const per_status status = call();
    allocations_before_failure = -1;
    return status;
}

struct NothingFails {
    ~NothingFails() { allocations_before_failure = before; }
    const int64_t before = std::exchange(allocations_before_failure, -1);
};

constexpr int64_t capacity = 3000;
constexpr int64_t small_batch = 8;
constexpr int64_t large_batch = 1500;
constexpr int64_t largest_steps = 6;  // of a sequence, with its next observation

// A batch of the fields below, and the other output arrays of calls.
struct Arrays {
    std::vector<float> observation = std::vector<float>(2 * large_batch * largest_steps, -7.0f);
    std::vector<float> next = std::vector<float>(2 * large_batch, -7.0f);
    std::vector<float> goal = std::vector<float>(2 * large_batch * largest_steps, -7.0f);
    std::vector<float> reward = std::vector<float>(large_batch * largest_steps, -7.0f);
    std::vector<float> weights = std::vector<float>(large_batch, -7.0f);
    std::vector<float> priorities = std::vector<float>(large_batch, -7.0f);
    std::vector<float> probabilities = std::vector<float>(large_batch, -7.0f);
    std::vector<int64_t> ids = std::vector<int64_t>(capacity, -7);

    bool operator==(const Arrays&) const = default;
};

struct BatchOf {
    explicit BatchOf(Arrays& arrays, bool with_next = true, bool is_drawn = true) {
        fields[0] = arrays.observation.data();
        fields[1] = arrays.goal.data();
        next_fields[0] = arrays.next.data();
        per_batch_init(&batch, sizeof batch);
        batch.fields = fields;
        if (with_next) batch.next_fields = next_fields;
        batch.reward = arrays.reward.data();
        batch.ids = arrays.ids.data();
        batch.priorities = arrays.priorities.data();
        if (!is_drawn) return;
        batch.weights = arrays.weights.data();
        batch.probabilities = arrays.probabilities.data();
    }

    void* fields[3] = {};
    void* next_fields[3] = {};
    per_batch batch;
};

using Handle = std::unique_ptr<per_replay, decltype(&per_replay_free)>;

per_replay_options options_of(const per_field* fields) {
    per_replay_options options = initialized(per_replay_options_init);
    options.capacity = capacity;
    options.fields = fields;
    options.n_fields = 3;
    options.field_size = sizeof(per_field);
    options.seed = 3;
    return options;
}

// Fields: an observation and a goal of two numbers, and an advantage.
const per_field* fields_of_buffers() {
    static const int64_t shape[] = {2};
    static const per_field fields[] = {{"observation", shape, 1, PER_FLOAT32, PER_ROLE_DEFAULT, 0, nullptr, 0, 0, 0},
                                       {"goal", shape, 1, PER_FLOAT32, PER_ROLE_DEFAULT, 0, nullptr, 0, 0, 0},
                                       {"advantage", nullptr, 0, PER_FLOAT32, PER_ROLE_DEFAULT, 0, nullptr, 0, 0, 0}};
    return fields;
}

// Calls add(steps) with steps t = first .. of one environment, in dtypes that must be cast. Every 50th ends an episode.
template <class Add>
per_status with_steps(int64_t first, int64_t n, const Add& add) {
    static double observations[2 * capacity], nexts[2 * capacity], rewards[capacity], priorities[capacity];
    static int16_t goals[2 * capacity], advantages[capacity];
    static uint8_t terminated[capacity], truncated[capacity];
    for (int64_t i = 0; i < n; ++i) {
        const auto t = static_cast<double>(first + i);
        observations[2 * i] = t;
        observations[2 * i + 1] = -t;
        nexts[2 * i] = t + 1;
        nexts[2 * i + 1] = -t - 1;
        rewards[i] = t;
        priorities[i] = static_cast<double>((first + i) * 7 % 31) + 0.5;
        terminated[i] = (first + i) % 50 == 49;
    }
    const auto array = [](const void* data, int32_t dtype) { return per_array{data, nullptr, 0, dtype, nullptr}; };
    const per_array fields[] = {array(observations, PER_FLOAT64), array(goals, PER_INT16),
                                array(advantages, PER_INT16)};
    const per_array next_fields[] = {array(nexts, PER_FLOAT64), {}, {}};
    per_steps steps = initialized(per_steps_init);
    steps.length = n;
    steps.fields = fields;
    steps.next_fields = next_fields;
    steps.reward = array(rewards, PER_FLOAT64);
    steps.terminated = array(terminated, PER_BOOL);
    steps.truncated = array(truncated, PER_BOOL);
    steps.priorities = array(priorities, PER_FLOAT64);
    return add(steps);
}

per_status add(per_replay* replay, int64_t first, int64_t n, int64_t* ids_out) {
    return with_steps(first, n,
                      [&](const per_steps& steps) { return per_replay_add(replay, &steps, ids_out, nullptr); });
}

Handle create(const per_replay_options& options) {
    per_replay* replay = nullptr;
    EXPECT_OK(per_replay_create(&options, &replay));
    for (int64_t first = 0; first < 2000; first += 100) EXPECT_EQ(add(replay, first, 100, nullptr), PER_OK);
    return {replay, per_replay_free};
}

// The statistics of a buffer without memory_bytes, which the first call of each kind increases.
std::vector<double> figures_of(per_replay* replay) {
    per_replay_statistics s;
    EXPECT_OK(per_replay_get_statistics(replay, &s, sizeof s));
    return {static_cast<double>(s.live),
            static_cast<double>(s.added),
            static_cast<double>(s.episodes),
            static_cast<double>(s.samples),
            static_cast<double>(s.beta_step),
            static_cast<double>(s.updates),
            static_cast<double>(s.stale_updates),
            s.total,
            s.max_priority,
            static_cast<double>(s.last_batch_size),
            s.last_mean_age,
            s.last_effective_size,
            s.last_duplicates};
}

class OutOfMemory : public ::testing::Test {
 protected:
    void SetUp() override {
#ifdef SANITIZED
        GTEST_SKIP() << "a sanitizer has these functions";
#endif
    }
};

using Work = std::function<per_status(per_replay*, int64_t size, Arrays&)>;

// Makes the work on many entries fail at its n-th allocation. A warm buffer has done the same work on a few entries
// before. After the failure, the work on half as many entries, and on as many, gives the results of a buffer without
// the failure.
void fail_allocation(int64_t n, bool is_warm, const per_replay_options& options, const Work& work, bool writes_early) {
    const Handle replay = create(options);
    const Handle twin = create(options);
    Arrays out, of_twin;
    if (is_warm) {
        ASSERT_OK(work(replay.get(), small_batch, out));
        ASSERT_EQ(work(twin.get(), small_batch, of_twin), PER_OK);
    }
    const std::vector<double> before = figures_of(replay.get());
    const per_status status = failing_after(n, [&] { return work(replay.get(), large_batch, out); });
    if (!has_failed) {
        ASSERT_EQ(status, PER_OK);
        return;
    }
    ASSERT_EQ(status, PER_ERROR_OUT_OF_MEMORY) << per_last_error();
    ASSERT_TRUE(writes_early || out == of_twin);
    ASSERT_EQ(figures_of(replay.get()), before);
    for (const int64_t size : {large_batch / 2, large_batch}) {
        out = of_twin = {};
        ASSERT_OK(work(replay.get(), size, out));
        ASSERT_EQ(work(twin.get(), size, of_twin), PER_OK);
        ASSERT_EQ(out, of_twin) << size << " entries";
        ASSERT_EQ(figures_of(replay.get()), figures_of(twin.get()));
    }
}

// writes_early: work that fails may have written to its arrays.
void fail_each_allocation(const per_replay_options& options, const Work& work, bool writes_early = false) {
    for (const bool is_warm : {false, true}) {
        for (int64_t n = 0;; ++n) {
            SCOPED_TRACE(testing::Message() << "allocation " << n << (is_warm ? ", warm" : ""));
            fail_allocation(n, is_warm, options, work, writes_early);
            if (testing::Test::HasFatalFailure()) return;
            if (has_failed) continue;
            EXPECT_GT(n, 0);
            break;
        }
    }
}

Work sampling(int32_t scheme, int32_t prioritization, double uniform_fraction) {
    return [=](per_replay* replay, int64_t size, Arrays& arrays) {
        BatchOf out(arrays);
        per_sample_options options = initialized(per_sample_options_init);
        options.scheme = scheme;
        options.prioritization = prioritization;
        options.uniform_fraction = uniform_fraction;
        options.normalize_weights = PER_BUFFER_MAX;
        return per_replay_sample(replay, &options, size, &out.batch, nullptr);
    };
}

TEST_F(OutOfMemory, draws_go_on_as_if_nothing_had_been) {
    for (const int32_t scheme : {PER_STRATIFIED, PER_INDEPENDENT, PER_WITHOUT_REPLACEMENT})
        for (const int32_t prioritization : {PER_PROPORTIONAL, PER_RANK, PER_UNIFORM})
            for (const double uniform_fraction : {0.0, 0.3}) {
                SCOPED_TRACE(testing::Message() << scheme << prioritization << uniform_fraction);
                fail_each_allocation(options_of(fields_of_buffers()),
                                     sampling(scheme, prioritization, uniform_fraction));
            }
}

TEST_F(OutOfMemory, draws_of_sequences_go_on_as_if_nothing_had_been) {
    per_replay_options options = options_of(fields_of_buffers());
    options.sequence_length = 4;
    options.sequence_stride = 1;
    fail_each_allocation(options, [](per_replay* replay, int64_t size, Arrays& arrays) {
        BatchOf out(arrays, false);
        return per_replay_sample(replay, nullptr, size, &out.batch, nullptr);
    });
}

// Fails if `context` says so.
int32_t reward(void* context, int64_t count, const void*, const void*, float* rewards_out, uint8_t*) {
    std::iota(rewards_out, rewards_out + count, 0.0f);
    return context != nullptr;
}

per_hindsight_options hindsight_options() {
    per_hindsight_options options = initialized(per_hindsight_options_init);
    options.achieved_field = 0;
    options.goal_field = 1;
    options.reward = reward;
    return options;
}

TEST_F(OutOfMemory, draws_with_hindsight_go_on_as_if_nothing_had_been) {
    for (const int32_t prioritization : {PER_PROPORTIONAL, PER_RANK}) {
        per_replay_options options = options_of(fields_of_buffers());
        options.prioritization = prioritization;
        options.n_step = 3;
        const Work work = [](per_replay* replay, int64_t size, Arrays& arrays) {
            BatchOf out(arrays);
            const per_hindsight_options hindsight = hindsight_options();
            return sample_with_hindsight(replay, nullptr, &hindsight, size, &out.batch, nullptr);
        };
        fail_each_allocation(options, work, true);
    }
}

// The same holds if the reward function fails or nothing is live.
TEST_F(OutOfMemory, draws_with_hindsight_allocate_nothing_after_the_first) {
    per_replay_options options = options_of(fields_of_buffers());
    options.n_step = 3;
    const Handle replay = create(options);
    Arrays arrays;
    BatchOf out(arrays);
    per_hindsight_options hindsight = hindsight_options();
    const auto draw = [&](int64_t size) {
        return sample_with_hindsight(replay.get(), nullptr, &hindsight, size, &out.batch, nullptr);
    };
    const auto check = [&](per_status expected) {
        ASSERT_EQ(failing_after(0, [&] { return draw(large_batch / 2); }), expected) << per_last_error();
        ASSERT_FALSE(has_failed);
    };
    for (int i = 0; i < 3; ++i) ASSERT_EQ(draw(large_batch), PER_OK);
    for (int i = 0; i < 10; ++i) {
        hindsight.context = i % 2 == 0 ? &hindsight : nullptr;
        check(i % 2 == 0 ? PER_ERROR_CALLBACK : PER_OK);
    }
    ASSERT_OK(per_replay_clear(replay.get(), nullptr));
    for (int i = 0; i < 3; ++i) check(PER_ERROR_EMPTY);
    ASSERT_EQ(add(replay.get(), 2000, 100, nullptr), PER_OK);
    check(PER_OK);
}

// Transitions that a draw used up before memory ran out stay used up. The rate limiter counts them as drawn, since it
// would otherwise block adds, and the summary counts a change.
TEST_F(OutOfMemory, what_a_draw_with_hindsight_has_used_up_counts) {
    per_replay_options options = options_of(fields_of_buffers());
    options.max_times_sampled = 1;
    options.scheme = PER_WITHOUT_REPLACEMENT;
    options.rate_limit.samples_per_insert = 1;
    options.rate_limit.samples_tolerance = large_batch;
    options.rate_limit.min_size_to_sample = 2000;
    const per_hindsight_options hindsight = hindsight_options();
    int n_used_up = 0;
    has_failed = true;
    for (int64_t n = 0; has_failed; ++n) {
        const Handle replay = create(options);
        Arrays arrays;
        BatchOf out(arrays);
        per_shard_summary law;
        ASSERT_OK(per_replay_summarize(replay.get(), PER_SCALE_AUTOMATIC, 0, &law, sizeof law));
        const per_shard_summary before = law;
        failing_after(n, [&] {
            return sample_with_hindsight(replay.get(), nullptr, &hindsight, large_batch, &out.batch, nullptr);
        });
        ASSERT_OK(per_replay_summarize(replay.get(), PER_SCALE_AUTOMATIC, 0, &law, sizeof law));
        const bool is_used_up = law.live != before.live;
        ASSERT_EQ(law.live, before.live - (is_used_up ? large_batch : 0)) << "allocation " << n;
        ASSERT_EQ(law.changes != before.changes, is_used_up) << "allocation " << n;
        ASSERT_EQ(per_replay_wait_to_sample(replay.get(), 1, 0), is_used_up ? PER_ERROR_BUSY : PER_OK)
            << "allocation " << n;
        if (has_failed && is_used_up) ++n_used_up;
    }
    EXPECT_GT(n_used_up, 0);
}

void open_channel(per_replay* replay, int32_t moved_by, per_channel*& channel, per_writer*& writer) {
    per_channel_options ring = initialized(per_channel_options_init);
    ring.slots = 2048;
    ring.moved_by = moved_by;
    ASSERT_OK(per_channel_create(replay, &ring, &channel));
    const char* path = nullptr;
    ASSERT_OK(per_channel_get_address(channel, &path, nullptr));
    ASSERT_OK(per_writer_attach(path, -1, nullptr, 0, 0, &writer));
}

// No step is lost: they stay in the ring, which fills up, and flush() reports the reason.
TEST_F(OutOfMemory, steps_of_a_channel_are_tried_again) {
    has_memory = true;
    const per_replay_options options = options_of(fields_of_buffers());
    per_replay* replay = nullptr;
    ASSERT_OK(per_replay_create(&options, &replay));
    per_channel* channel = nullptr;
    per_writer* writer = nullptr;
    ASSERT_NO_FATAL_FAILURE(open_channel(replay, PER_MOVED_BY_THREAD, channel, writer));
    ASSERT_OK(per_channel_flush(channel, -1));
    const auto write = [&](int64_t first, int64_t n, int64_t timeout_ms) {
        return with_steps(first, n, [&](const per_steps& steps) { return per_writer_add(writer, &steps, timeout_ms); });
    };
    const auto stats = [&] {
        per_channel_statistics statistics;
        EXPECT_OK(per_channel_get_statistics(channel, &statistics, sizeof statistics));
        return statistics;
    };
    memory_has_ended = true;
    ASSERT_EQ(write(0, 300, -1), PER_OK);
    for (int i = 0; i < 2; ++i) {
        EXPECT_FAILS(per_channel_flush(channel, -1), PER_ERROR_OUT_OF_MEMORY, "what was written is tried again");
    }
    EXPECT_EQ(write(300, 1800, 1), PER_ERROR_BUSY);
    EXPECT_EQ(stats().added, 0);
    EXPECT_EQ(stats().waiting, 300);
    memory_has_ended = false;
    EXPECT_OK(per_channel_flush(channel, -1));
    EXPECT_EQ(stats().added, 300);
    EXPECT_EQ(stats().refused, 0);
    EXPECT_EQ(stats().gaps, 1);  // from attaching the writer

    // A waiting writer returns when the channel ends, although nothing can be added.
    memory_has_ended = true;
    ASSERT_EQ(write(300, 500, -1), PER_OK);
    EXPECT_EQ(per_channel_flush(channel, -1), PER_ERROR_OUT_OF_MEMORY);
    per_channel_free(channel);
    memory_has_ended = false;
    EXPECT_EQ(write(800, 300, -1), PER_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(figures_of(replay)[1], 300);
    per_writer_free(writer);
    per_replay_free(replay);
    has_memory = false;
}

TEST_F(OutOfMemory, a_channel_without_a_thread_says_so_and_moves_its_steps_later) {
    const per_replay_options options = options_of(fields_of_buffers());
    per_replay* replay = nullptr;
    ASSERT_OK(per_replay_create(&options, &replay));
    per_channel* channel = nullptr;
    per_writer* writer = nullptr;
    ASSERT_NO_FATAL_FAILURE(open_channel(replay, PER_MOVED_BY_CALLS, channel, writer));
    const auto write = [&](const per_steps& steps) { return per_writer_add(writer, &steps, 0); };
    ASSERT_EQ(with_steps(0, 300, write), PER_OK);
    int64_t n_moved = -1;
    const auto move = [&] { return per_channel_move(channel, INT64_MAX, &n_moved); };
    int64_t n = 0;
    while (failing_after(n, move) != PER_OK) {
        ASSERT_TRUE(has_failed) << per_last_error();
        EXPECT_EQ(n_moved, 0);
        EXPECT_EQ(failing_after(n, [&] { return per_channel_flush(channel, 0); }), PER_ERROR_OUT_OF_MEMORY);
        EXPECT_EQ(figures_of(replay)[1], 0);
        ++n;
    }
    EXPECT_FALSE(has_failed);
    EXPECT_GT(n, 0);
    EXPECT_EQ(n_moved, 300);
    EXPECT_EQ(figures_of(replay)[1], 300);
    per_writer_free(writer);
    per_channel_free(channel);
    per_replay_free(replay);
}

TEST_F(OutOfMemory, rows_are_added_as_if_nothing_had_been) {
    fail_each_allocation(options_of(fields_of_buffers()), [](per_replay* replay, int64_t size, Arrays& arrays) {
        per_replay_statistics before;
        {
            const NothingFails nothing_fails;
            per_replay_get_statistics(replay, &before, sizeof before);
        }
        return add(replay, before.added, size, arrays.ids.data());
    });
}

TEST_F(OutOfMemory, rows_by_id_are_read_and_written_as_if_nothing_had_been) {
    static int64_t ids[large_batch];
    static float values[large_batch];
    static int16_t whole[large_batch];
    for (int64_t i = 0; i < large_batch; ++i) ids[i] = 306 + i + i / 50;  // a final observation after 50 steps
    std::iota(values, values + large_batch, 1.0f);
    std::iota(whole, whole + large_batch, int16_t{1});
    const per_replay_options options = options_of(fields_of_buffers());
    fail_each_allocation(options, [](per_replay* replay, int64_t size, Arrays&) {
        return write_td_errors(replay, size, ids, 1, values, nullptr);
    });
    fail_each_allocation(options, [](per_replay* replay, int64_t size, Arrays&) {
        const per_array fields[3] = {{}, {}, {whole, nullptr, 0, PER_INT16, nullptr}};
        return per_replay_set(replay, size, ids, fields, nullptr);
    });
    fail_each_allocation(
        options,
        [](per_replay* replay, int64_t size, Arrays& arrays) {
            BatchOf out(arrays, true, false);
            out.fields[2] = arrays.reward.data() + large_batch;
            const per_status status = per_replay_get(replay, size, ids, &out.batch, nullptr);
            if (status != PER_OK) return status;
            int64_t n_ids = 0;
            return per_replay_get_live_ids(replay, capacity, arrays.ids.data(), &n_ids);
        },
        true);
}

TEST_F(OutOfMemory, a_walk_that_cannot_begin_is_no_draw) {
    fail_each_allocation(options_of(fields_of_buffers()), [](per_replay* replay, int64_t size, Arrays& arrays) {
        per_epochs* walk = nullptr;
        const per_status status = per_epochs_create(replay, 1, size, 0, nullptr, &walk);
        if (status != PER_OK) return status;
        const NothingFails nothing_fails;
        BatchOf out(arrays);
        int64_t count = 0;
        EXPECT_OK(per_epochs_next(walk, &out.batch, &count, nullptr));
        per_epochs_free(walk);
        return PER_OK;
    });
}

TEST_F(OutOfMemory, a_walk_gives_what_it_could_not_give_before) {
    int n_failures = 0;
    for (int64_t n = 0;; ++n) {
        const Handle replay = create(options_of(fields_of_buffers()));
        const Handle twin = create(options_of(fields_of_buffers()));
        per_epochs *walk = nullptr, *walk_of_twin = nullptr;
        ASSERT_OK(per_epochs_create(replay.get(), 1, large_batch, 0, nullptr, &walk));
        ASSERT_OK(per_epochs_create(twin.get(), 1, large_batch, 0, nullptr, &walk_of_twin));
        Arrays arrays, of_twin;
        BatchOf out(arrays), out_of_twin(of_twin);
        int64_t count = -7;
        const per_status status = failing_after(n, [&] { return per_epochs_next(walk, &out.batch, &count, nullptr); });
        if (has_failed) {
            ++n_failures;
            ASSERT_EQ(status, PER_ERROR_OUT_OF_MEMORY);
            ASSERT_EQ(count, -7);
            ASSERT_EQ(arrays, of_twin);
            ASSERT_OK(per_epochs_next(walk, &out.batch, &count, nullptr));
        }
        ASSERT_EQ(count, large_batch);
        ASSERT_OK(per_epochs_next(walk_of_twin, &out_of_twin.batch, &count, nullptr));
        ASSERT_EQ(arrays, of_twin);
        per_epochs_free(walk);
        per_epochs_free(walk_of_twin);
        if (!has_failed) break;
    }
    EXPECT_GT(n_failures, 0);
}

TEST_F(OutOfMemory, a_loader_that_cannot_be_made_leaves_the_buffer_as_it_was) {
    fail_each_allocation(options_of(fields_of_buffers()), [](per_replay* replay, int64_t size, Arrays& arrays) {
        per_loader_options options = initialized(per_loader_options_init);
        options.batch_size = size;
        per_loader* loader = nullptr;
        const per_status status = per_loader_create(replay, &options, &loader);
        if (status != PER_OK) return status;
        const NothingFails nothing_fails;
        per_batch batch;
        int64_t slot = -1;
        per_batch_init(&batch, sizeof batch);
        EXPECT_OK(per_loader_next(loader, -1, &batch, &slot, nullptr));
        std::copy_n(batch.ids, size, arrays.ids.data());
        per_loader_free(loader);
        return PER_OK;
    });
}

// After a failed draw the units of the previous batch can still be fetched. After a draw, the calls that finish its
// batch allocate nothing.
TEST_F(OutOfMemory, a_coordinator_draws_or_goes_on_with_the_batch_before) {
    const per_replay_options options = options_of(fields_of_buffers());
    per_coordinator* coordinator = nullptr;
    ASSERT_OK(per_coordinator_create(&options, 1, nullptr, &coordinator));
    // One of 2000 transitions has nearly all of the mass, so it is taken out. Each of the others has one unit.
    constexpr int64_t heavy = int64_t{1} << 40;
    per_shard_summary law = {};
    law.struct_size = sizeof law;
    law.live = 2000;
    law.total_mass = law.measured_low = heavy + 1999;
    law.largest_leaf = 1.0f;
    law.is_scale_fixed = 1;
    int32_t todo = PER_SCALE_SET, scale = 0;
    int64_t reference = 0;
    while (todo != PER_SCALE_AGREED) {
        law.scale = law.measured_scale = scale;
        ASSERT_OK(per_coordinator_report(coordinator, 0, &law));
        ASSERT_OK(per_coordinator_agree_on_scale(coordinator, 0, &todo, &scale, &reference));
    }
    int64_t n_units = 0, n_before = 0;
    static int64_t shards[2000], units[2000], ids[2000];
    static uint64_t masses[2000], firsts[2000];
    const auto draw = [&](int32_t scheme, int64_t size) {
        per_sample_options sample = initialized(per_sample_options_init);
        sample.scheme = scheme;
        return per_coordinator_draw(coordinator, &sample, size, &n_units);
    };
    ASSERT_OK(draw(PER_STRATIFIED, small_batch));
    n_before = n_units;
    int64_t n = 0;
    while (failing_after(n, [&] { return draw(PER_WITHOUT_REPLACEMENT, 500); }) == PER_ERROR_OUT_OF_MEMORY) {
        ++n;
        ASSERT_OK(per_coordinator_get_units(coordinator, n_before, shards, units));
    }
    EXPECT_GT(n, 5);
    int n_rounds = 0;
    for (; n_units > 0; ++n_rounds) {
        ASSERT_OK(per_coordinator_get_units(coordinator, n_units, shards, units));
        for (int64_t i = 0; i < n_units; ++i) {
            ids[i] = std::max<int64_t>(units[i] - heavy + 1, 0);
            masses[i] = ids[i] == 0 ? heavy : 1;
            firsts[i] = ids[i] == 0 ? 0 : static_cast<uint64_t>(units[i]);
        }
        const auto found = [&] { return per_coordinator_submit(coordinator, n_units, ids, masses, firsts, &n_units); };
        ASSERT_OK(failing_after(0, found));
        ASSERT_FALSE(has_failed);
    }
    EXPECT_GT(n_rounds, 1);
    const auto finish = [&] { return per_coordinator_finish(coordinator, 500, ids, nullptr, nullptr); };
    ASSERT_EQ(failing_after(0, finish), PER_OK);
    ASSERT_FALSE(has_failed);
    per_coordinator_free(coordinator);
}

TEST_F(OutOfMemory, nothing_is_made_where_memory_ends) {
    per_replay_options options = options_of(fields_of_buffers());
    options.prioritization = PER_RANK;
    options.normalize_weights = PER_BUFFER_MAX;
    options.max_priority = PER_MAX_NOW;
    options.gather_threads = 4;
    options.store_next_observation = 1;
    per_replay* replay = nullptr;
    int64_t n = 0;
    while (failing_after(n, [&] { return per_replay_create(&options, &replay); }) == PER_ERROR_OUT_OF_MEMORY) {
        EXPECT_EQ(replay, nullptr);
        ++n;
    }
    EXPECT_GT(n, 5);
    EXPECT_NE(replay, nullptr);
    per_replay_free(replay);

    per_tree_options tree_options = initialized(per_tree_options_init);
    tree_options.capacity = 1000000;
    per_tree* tree = nullptr;
    for (n = 0; failing_after(n, [&] { return per_tree_create(&tree_options, &tree); }) == PER_ERROR_OUT_OF_MEMORY; ++n)
        EXPECT_EQ(tree, nullptr);
    EXPECT_GT(n, 1);
    per_tree_free(tree);
}

}  // namespace
}  // namespace per::test

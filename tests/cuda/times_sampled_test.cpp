// The counts of draws of a buffer on CUDA equal those of the CPU. Rows drawn max_times_sampled times die, for every
// scheme, in graphs, and in files.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "../c/checkpoints.h"
#include "graph.h"
#include "replay_twins.h"
#include "simulator.h"

namespace per::test {
namespace {

struct CountedBatch : TwinBatch {
    explicit CountedBatch(int64_t size) : TwinBatch(size), times_sampled(n, -7) {}

    per_batch batch(bool is_drawn = true) {
        per_batch batch = TwinBatch::batch(is_drawn);
        batch.times_sampled = times_sampled.data();
        return batch;
    }

    bool operator==(const CountedBatch& other) const {
        return TwinNumbers::operator==(other) && times_sampled == other.times_sampled;
    }

    std::vector<int32_t> times_sampled;
};

std::string saved(per_replay* replay) {
    std::string bytes;
    const auto write = [](void* context, const void* piece, int64_t size) {
        static_cast<std::string*>(context)->append(static_cast<const char*>(piece), static_cast<std::size_t>(size));
        return size;
    };
    EXPECT_EQ(save_to(replay, write, &bytes), PER_OK) << per_last_error();
    return bytes;
}

class Counted : public Twins {
 public:
    explicit Counted(const per_replay_options& options) : Twins(options) {}

    // Draws from both; returns no ids if too few have a priority above 0.
    std::vector<int64_t> draw(int64_t size) {
        CountedBatch of_cpu(size), of_gpu(size);
        const per_batch cpu_batch = of_cpu.batch(), gpu_batch = of_gpu.batch();
        if (per_replay_sample(cpu.get(), nullptr, size, &cpu_batch, nullptr) != PER_OK) return {};
        EXPECT_EQ(per_replay_sample(gpu.get(), nullptr, size, &gpu_batch, stream), PER_OK) << per_last_error();
        synchronize();
        EXPECT_TRUE(of_cpu == of_gpu);
        EXPECT_EQ(of_cpu.times_sampled, of_gpu.times_sampled);
        return of_cpu.ids;
    }

    // Compares the counts in windows of live rows and in rows by id.
    void read() {
        const std::vector<int64_t> ids = live_ids_of(cpu.get());
        const int64_t size = static_cast<int64_t>(ids.size());
        const auto get_windows = [&](per_replay* replay, const per_batch& batch, void* on) {
            return per_replay_get_windows(replay, nullptr, PER_INVALID_ERROR, size, ids.data(), &batch, on);
        };
        const auto get = [&](per_replay* replay, const per_batch& batch, void* on) {
            return per_replay_get(replay, size, ids.data(), &batch, on);
        };
        fill_alike<CountedBatch>(size, get_windows);
        fill_alike<CountedBatch>(size, get, false);
    }

    void change(uint64_t kind) {
        both([&](per_replay* replay, void* on) {
            if (kind < 3) return change_n_step(replay, 1 + static_cast<int64_t>(kind), on);
            if (kind == 3) return per_replay_clear(replay, on);
            return change_alpha(replay, 0.25 * static_cast<double>(kind - 4), on);
        });
    }

    void expect_same_files() { EXPECT_TRUE(saved(cpu.get()) == saved(gpu.get())); }
};

void use(const per_replay_options& options, uint64_t seed) {
    Counted twins(options);
    TwinWalk walk(seed);
    for (int i = 0; i < 40 && !testing::Test::HasFailure(); ++i) {
        twins.add(walk.next(1 + static_cast<int64_t>(walk.random() % 4)));
        const int64_t live = statistics_of(twins.cpu.get()).live;
        const bool is_distinct = options.scheme == PER_WITHOUT_REPLACEMENT;
        const int64_t size = is_distinct ? std::min<int64_t>(8, live) : live == 0 ? 0 : 12;
        if (size > 0) {
            const std::vector<int64_t> ids = twins.draw(size);
            twins.update(ids, std::vector<float>(ids.size(), static_cast<float>(walk.random() % 9)));
        }
        if (walk.random() % 6 == 0) twins.change(walk.random() % 7);
        if (walk.random() % 4 == 0) twins.read();
        twins.expect_same();
    }
    twins.expect_same_files();
}

TEST(CudaTimesSampled, are_those_of_the_cpu) {
    for (const int32_t scheme : {PER_STRATIFIED, PER_INDEPENDENT, PER_SYSTEMATIC, PER_WITHOUT_REPLACEMENT}) {
        per_replay_options options = twin_options();
        options.keep_times_sampled = 1;
        options.scheme = scheme;
        use(options, static_cast<uint64_t>(scheme) + 1);
    }
}

TEST(CudaTimesSampled, rows_that_are_used_up_are_those_of_the_cpu) {
    for (const int32_t most : {1, 3}) {
        for (const int32_t prioritization : {PER_PROPORTIONAL, PER_RANK, PER_UNIFORM}) {
            per_replay_options options = twin_options();
            options.max_times_sampled = most;
            options.scheme = PER_WITHOUT_REPLACEMENT;
            options.prioritization = prioritization;
            options.max_priority = most == 1 ? PER_MAX_NOW : PER_MAX_EVER;
            options.normalize_weights = most == 1 ? PER_BATCH_MAX : PER_BUFFER_MAX;
            use(options, static_cast<uint64_t>(10 * most + prioritization));
        }
    }
}

// Several blocks count the draws of these rows, and all must finish counting before any of them writes its counts.
TEST(CudaTimesSampled, a_row_has_the_same_number_at_each_of_its_places) {
    per_replay_options options = twin_options();
    options.keep_times_sampled = 1;
    options.scheme = PER_INDEPENDENT;
    Counted twins(options);
    TwinWalk walk(5);
    twins.add(walk.next(6));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(twins.draw(3000).size(), 3000U);
    twins.expect_same_files();
}

// One block uses up the first batch, of 200 rows. The second, of 900, takes several blocks.
TEST(CudaTimesSampled, many_rows_are_used_up_at_once) {
    per_replay_options options = twin_options();
    options.capacity = 3000;
    options.max_times_sampled = 1;
    options.scheme = PER_WITHOUT_REPLACEMENT;
    options.normalize_weights = PER_BUFFER_MAX;
    options.max_priority = PER_MAX_NOW;
    Counted twins(options);
    TwinWalk walk(6);
    for (int i = 0; i < 6; ++i) twins.add(walk.next(150));
    for (const int64_t size : {200, 900}) {
        ASSERT_GE(statistics_of(twins.cpu.get()).live, size);
        EXPECT_EQ(static_cast<int64_t>(twins.draw(size).size()), size);
        twins.expect_same();
    }
    twins.expect_same_files();
}

TEST(CudaTimesSampled, launches_of_a_graph_are_draws) {
    for (const int32_t most : {0, 2}) {
        per_replay_options options = twin_options();
        options.keep_times_sampled = 1;
        options.max_times_sampled = most;
        options.scheme = PER_WITHOUT_REPLACEMENT;
        Counted twins(options);
        TwinWalk walk(7);
        twins.add(walk.next(12));
        CountedBatch drawn(4);
        const per_batch batch = drawn.batch();
        const Graph graph(twins.stream, [&] {
            ASSERT_EQ(per_replay_sample(twins.gpu.get(), nullptr, 4, &batch, twins.stream), PER_OK) << per_last_error();
        });
        for (int i = 0; i < 4; ++i) {
            CountedBatch expected(4);
            const per_batch cpu_batch = expected.batch();
            ASSERT_EQ(per_replay_sample(twins.cpu.get(), nullptr, 4, &cpu_batch, nullptr), PER_OK) << per_last_error();
            graph.launch();
            twins.synchronize();
            EXPECT_EQ(drawn.ids, expected.ids);
            EXPECT_EQ(drawn.times_sampled, expected.times_sampled);
            twins.expect_same();
        }
    }
}

// An empty draw counts nothing: the numbers are 0, and the next draw is unaffected.
TEST(CudaTimesSampled, draws_that_find_too_few_are_no_uses) {
    for (const int32_t most : {0, 1}) {
        per_replay_options options = twin_options();
        options.keep_times_sampled = 1;
        options.max_times_sampled = most;
        options.scheme = PER_WITHOUT_REPLACEMENT;
        Counted twins(options);
        TwinWalk walk(8);
        twins.add(walk.next(12));
        const int64_t size = statistics_of(twins.cpu.get()).live + 1;
        CountedBatch none(size);
        const per_batch batch = none.batch();
        EXPECT_EQ(per_replay_sample(twins.gpu.get(), nullptr, size, &batch, twins.stream), PER_OK);
        EXPECT_EQ(per_replay_synchronize(twins.gpu.get(), twins.stream), PER_ERROR_INVALID_ARGUMENT);
        EXPECT_EQ(none.times_sampled, std::vector<int32_t>(none.n, 0));
        twins.expect_same();
        twins.draw(size - 1);
        twins.expect_same_files();
    }
}

}  // namespace
}  // namespace per::test

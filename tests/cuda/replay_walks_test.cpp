// Epochs, advantages and relabelled goals of a buffer on CUDA equal those of the CPU.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "replay_twins.h"
#include "simulator.h"
#include "steered_simulator.h"

namespace per::test {
namespace {

constexpr int32_t value_field = 2, advantage_field = 3, return_field = 4, goal_field = 5;

// ---- epochs

// Two epochs of both buffers.
class TwinEpochs {
 public:
    TwinEpochs(Twins& twins, int64_t batch_size, int32_t drop_last) {
        twins.both([&](per_replay* replay, void* on) {
            return per_epochs_create(replay, 2, batch_size, drop_last, on, &epochs_[on != nullptr]);
        });
    }
    ~TwinEpochs() {
        for (per_epochs* const epochs : epochs_) per_epochs_free(epochs);
    }
    TwinEpochs(const TwinEpochs&) = delete;
    TwinEpochs& operator=(const TwinEpochs&) = delete;

    per_epochs* of(void* stream) const { return epochs_[stream != nullptr]; }

 private:
    per_epochs* epochs_[2] = {nullptr, nullptr};
};

TEST(CudaWalks, epochs_give_the_minibatches_of_the_cpu) {
    Twins twins(twin_options());
    TwinWalk walk = twins.begin(1, 20);
    for (const int32_t drop_last : {0, 1}) {
        const TwinEpochs epochs(twins, 7, drop_last);
        for (int64_t count = 1; count > 0 && !testing::Test::HasFailure();) {
            int64_t counts[2] = {-7, -8};
            twins.fill_alike(7, [&](per_replay*, const per_batch& batch, void* on) {
                return per_epochs_next(epochs.of(on), &batch, &counts[on != nullptr], on);
            });
            count = counts[0];
            EXPECT_EQ(count, counts[1]);
        }
    }
    // The orders of epochs use up random numbers of draws.
    twins.use(walk, 3);
    twins.expect_same();
}

// More ids than fit into the parameters of a kernel, and more concurrent minibatches than the ring has buffers.
TEST(CudaWalks, large_minibatches_that_follow_each_other_are_those_of_the_cpu) {
    constexpr int64_t size = 300;
    per_replay_options options = twin_options();
    options.capacity = 2100;
    Twins twins(options);
    TwinWalk walk(3);
    twins.add(walk.next(700));
    const TwinEpochs epochs(twins, size, 0);
    std::vector<std::unique_ptr<TwinBatch>> cpu_rows, gpu_rows;
    for (int64_t count = 1; count > 0;) {
        int64_t gpu_count = -7;
        cpu_rows.push_back(std::make_unique<TwinBatch>(size));
        gpu_rows.push_back(std::make_unique<TwinBatch>(size));
        const per_batch cpu_batch = cpu_rows.back()->batch(), gpu_batch = gpu_rows.back()->batch();
        ASSERT_EQ(per_epochs_next(epochs.of(nullptr), &cpu_batch, &count, nullptr), PER_OK) << per_last_error();
        ASSERT_EQ(per_epochs_next(epochs.of(twins.stream), &gpu_batch, &gpu_count, twins.stream), PER_OK)
            << per_last_error();
        ASSERT_EQ(count, gpu_count);
    }
    twins.synchronize();
    EXPECT_GT(cpu_rows.size(), 8u);
    for (std::size_t i = 0; i < cpu_rows.size(); ++i) EXPECT_TRUE(*cpu_rows[i] == *gpu_rows[i]) << i;
}

TEST(CudaWalks, a_transition_that_is_gone_gives_zeros_and_is_reported) {
    Twins twins(twin_options());
    twins.begin(2, 10);
    per_epochs* epochs = nullptr;
    ASSERT_EQ(per_epochs_create(twins.gpu.get(), 1, 4, 0, nullptr, &epochs), PER_OK);
    ASSERT_EQ(per_replay_clear(twins.gpu.get(), twins.stream), PER_OK);
    TwinBatch rows(4);
    const per_batch batch = rows.batch();
    int64_t count = 0;
    ASSERT_EQ(per_epochs_next(epochs, &batch, &count, twins.stream), PER_OK);
    EXPECT_EQ(count, 4);
    expect_status(PER_ERROR_INVALID_ARGUMENT, per_replay_synchronize(twins.gpu.get(), twins.stream), "4 ids");
    EXPECT_EQ(rows.ids, std::vector<int64_t>(4, -1));
    EXPECT_EQ(rows.weights, std::vector<float>(4, 0.0f));
    EXPECT_EQ(rows.observation, std::vector<float>(16, 0.0f));
    per_epochs_free(epochs);
}

// ---- advantages

struct Bootstraps {
    std::vector<int64_t> ids;
    std::vector<float> values;
};

Bootstraps bootstraps_of(Twins& twins, int64_t capacity) {
    int64_t counts[2] = {-7, -8};
    const auto get = [&](per_replay* replay, const per_batch& batch, void* on) {
        return per_replay_get_bootstraps(replay, capacity, &batch, &counts[on != nullptr], on);
    };
    Bootstraps bootstraps = {twins.fill_alike(capacity, get, false), {}};
    const int64_t count = counts[0];
    EXPECT_EQ(count, counts[1]);
    bootstraps.ids.resize(static_cast<std::size_t>(std::min(count, capacity)));
    for (const int64_t id : bootstraps.ids) bootstraps.values.push_back(static_cast<float>(id % 7) - 2.5f);
    return bootstraps;
}

per_status advantages(per_replay* replay, const Bootstraps& bootstraps, int32_t returns, void* stream) {
    return per_replay_compute_advantages(replay, value_field, advantage_field, returns, 0.9,
                                         static_cast<int64_t>(bootstraps.ids.size()), bootstraps.ids.data(),
                                         bootstraps.values.data(), stream);
}

void expect_same_rows(Twins& twins) {
    const std::vector<int64_t> ids = live_ids_of(twins.cpu.get());
    const int64_t n = static_cast<int64_t>(ids.size());
    const auto get = [&](per_replay* replay, const per_batch& batch, void* on) {
        return per_replay_get(replay, n, ids.data(), &batch, on);
    };
    twins.fill_alike(n, get, false);
}

TEST(CudaWalks, advantages_are_those_of_the_cpu) {
    for (const bool stores_next : {false, true}) {
        for (const int64_t sequence_length : {0, 3}) {
            per_replay_options options = twin_options();
            options.store_next_observation = stores_next;
            options.sequence_length = sequence_length;
            options.capacity = 90;
            Twins twins(options);
            TwinWalk walk(3, stores_next);
            for (int i = 0; i < 40; ++i) {
                twins.add(walk.next(1 + i % 2));
                if (i % 8 != 7) continue;
                const int32_t returns = i % 16 == 7 ? return_field : -1;
                bootstraps_of(twins, 2);
                const Bootstraps due = bootstraps_of(twins, 100);
                ASSERT_GT(due.ids.size(), 0u);
                twins.both([&](per_replay* replay, void* on) { return advantages(replay, due, returns, on); });
                twins.synchronize();
                expect_same_rows(twins);
            }
        }
    }
}

TEST(CudaWalks, bootstraps_that_are_not_due_change_nothing_and_are_counted) {
    Twins twins(twin_options());
    twins.begin(4, 15);
    const Bootstraps due = bootstraps_of(twins, 100);
    ASSERT_GE(due.ids.size(), 2u);
    std::vector<Bootstraps> wrong(5, due);
    wrong[0].ids.pop_back();
    wrong[1].ids.push_back(wrong[1].ids[0]);
    wrong[1].values.push_back(0.0f);
    std::swap(wrong[2].ids[0], wrong[2].ids[1]);
    wrong[3].values[1] = std::nanf("");
    wrong[4].values[0] = -INFINITY;
    for (const Bootstraps& bootstraps : wrong)
        EXPECT_EQ(advantages(twins.gpu.get(), bootstraps, return_field, twins.stream), PER_OK) << per_last_error();
    expect_status(PER_ERROR_INVALID_ARGUMENT, per_replay_synchronize(twins.gpu.get(), twins.stream),
                  "5 calls for advantages");
    expect_same_rows(twins);
    // A valid call has the results that it would have without the failed calls.
    twins.both([&](per_replay* replay, void* on) { return advantages(replay, due, return_field, on); });
    twins.synchronize();
    expect_same_rows(twins);
}

// ---- hindsight

// The arguments of a reward function, and its results: rewards that depend on the goal, and an early end of some
// windows.
struct Question {
    std::vector<float> achieved, goals;
    std::vector<uint8_t> terminated;
    int answer = 0;
    bool breaks_device = false;  // the next call that can fail is out of memory
};

int32_t reward_of(void* context, int64_t count, const void* achieved, const void* goals, float* rewards_out,
                  uint8_t* terminated_out) {
    Question& question = *static_cast<Question*>(context);
    const float* const have = static_cast<const float*>(achieved);
    const float* const want = static_cast<const float*>(goals);
    question.achieved.insert(question.achieved.end(), have, have + 2 * count);
    question.goals.insert(question.goals.end(), want, want + 2 * count);
    question.terminated.insert(question.terminated.end(), terminated_out, terminated_out + count);
    for (int64_t i = 0; i < count; ++i) {
        rewards_out[i] = have[2 * i + 1] == want[2 * i + 1] ? 0.0f : -1.0f - 0.125f * want[2 * i];
        if (have[2 * i + 1] == want[2 * i + 1]) terminated_out[i] = 1;
    }
    if (question.breaks_device) simulator::fail_call(0, cudaErrorMemoryAllocation);
    return question.answer;
}

per_hindsight_options hindsight_options(int32_t strategy, Question& question) {
    per_hindsight_options options;
    per_hindsight_options_init(&options, sizeof options);
    options.achieved_field = 0;
    options.goal_field = goal_field;
    options.strategy = strategy;
    options.reward = reward_of;
    options.context = &question;
    return options;
}

per_sample_options range_from(int64_t n_step_min) {
    per_sample_options options = sample_options();
    options.n_step_min = n_step_min;
    return options;
}

// Expects that a call which relabels a batch of 24 gives the reward function the same arguments on both, and fills the
// batch equally. The call itself waits for the device. Returns the ids of the batch.
template <class Call>
std::vector<int64_t> ask_alike(Twins& twins, int32_t strategy, const Call& call) {
    Question questions[2];
    const std::vector<int64_t> ids =
        twins.fill_alike_at_once(24, [&](per_replay* replay, const per_batch& batch, void* on) {
            return call(replay, hindsight_options(strategy, questions[on != nullptr]), batch, on);
        });
    EXPECT_GT(questions[0].terminated.size(), 24u);
    EXPECT_EQ(questions[0].achieved, questions[1].achieved);
    EXPECT_EQ(questions[0].goals, questions[1].goals);
    EXPECT_EQ(questions[0].terminated, questions[1].terminated);
    return ids;
}

TEST(CudaWalks, hindsight_relabels_as_the_cpu_does) {
    for (const bool stores_next : {false, true}) {
        for (const int32_t strategy : {PER_GOAL_FUTURE, PER_GOAL_FINAL, PER_GOAL_EPISODE}) {
            per_replay_options options = twin_options();
            options.store_next_observation = stores_next;
            options.n_step = 3;
            Twins twins(options);
            TwinWalk walk(5, stores_next);
            twins.use(walk, 15);
            for (int i = 0; i < 6; ++i) {
                const per_sample_options range = range_from(i % 3);
                ask_alike(twins, strategy,
                          [&](per_replay* replay, const per_hindsight_options& hindsight, const per_batch& batch,
                              void* on) { return sample_with_hindsight(replay, &range, &hindsight, 24, &batch, on); });
                twins.use(walk, 1);
            }
            twins.expect_same();
            if (testing::Test::HasFailure()) return;
        }
    }
}

TEST(CudaWalks, hindsight_by_id_relabels_as_the_cpu_does) {
    per_replay_options options = twin_options();
    options.n_step = 3;
    Twins twins(options);
    TwinWalk walk = twins.begin(5, 15);
    for (int i = 0; i < 6; ++i) {
        std::vector<int64_t> ids = twins.sample(24);
        std::swap(ids[3], ids[17]);
        ids[5] = -1;
        ids[9] = 0;
        const per_sample_options range = range_from(i % 3);
        const std::vector<int64_t> given = ask_alike(
            twins, PER_GOAL_FUTURE,
            [&](per_replay* replay, const per_hindsight_options& hindsight, const per_batch& batch, void* on) {
                return get_windows_with_hindsight(replay, &range, &hindsight, PER_INVALID_SKIP, 24, ids.data(), &batch,
                                                  on);
            });
        EXPECT_EQ(given[5], -1);
        twins.use(walk, 1);
    }
    twins.expect_same();
}

TEST(CudaWalks, a_reward_function_that_fails_is_no_draw) {
    Twins twins(twin_options());
    TwinWalk walk = twins.begin(6, 12);
    Question question;
    question.answer = 1;
    const per_hindsight_options options = hindsight_options(PER_GOAL_FUTURE, question);
    TwinBatch rows(8);
    const per_batch batch = rows.batch();
    for (per_replay* const replay : {twins.cpu.get(), twins.gpu.get()})
        EXPECT_EQ(sample_with_hindsight(replay, nullptr, &options, 8, &batch, nullptr), PER_ERROR_CALLBACK);
    twins.expect_same();
    twins.use(walk, 3);
    twins.expect_same();
}

TEST(CudaWalks, rewards_that_cannot_be_written_are_no_draw) {
    Twins twins(twin_options());
    TwinWalk walk = twins.begin(6, 12);
    Question question;
    question.breaks_device = true;
    const per_hindsight_options options = hindsight_options(PER_GOAL_FUTURE, question);
    TwinBatch rows(8);
    const per_batch batch = rows.batch();
    EXPECT_EQ(sample_with_hindsight(twins.gpu.get(), nullptr, &options, 8, &batch, nullptr), PER_ERROR_OUT_OF_MEMORY);
    twins.expect_same();
    twins.use(walk, 3);
    twins.expect_same();
}

// The failing calls are made only on the device. Before the next draw one of many priorities changes: too few for ranks
// to be recomputed, if the failing calls had computed them.
TEST(CudaWalks, draws_that_fail_leave_ranks_as_they_were) {
    constexpr int64_t most = 1000;
    per_replay_options options = twin_options();
    options.capacity = most;
    options.prioritization = PER_RANK;
    for (const bool asks_for_rewards : {true, false}) {
        SCOPED_TRACE(asks_for_rewards);
        Twins twins(options);
        TwinWalk walk(6);
        TwinBatch of_cpu(24), of_gpu(24), rows(most);
        const per_batch cpu_batch = of_cpu.batch(), gpu_batch = of_gpu.batch(), batch = rows.batch();
        for (int i = 0; i < 2; ++i) twins.add(walk.next(80));
        if (asks_for_rewards) {
            Question question;
            question.answer = 1;
            const per_hindsight_options hindsight = hindsight_options(PER_GOAL_FUTURE, question);
            ASSERT_EQ(sample_with_hindsight(twins.gpu.get(), nullptr, &hindsight, 24, &batch, nullptr),
                      PER_ERROR_CALLBACK);
        } else {
            const per_sample_options without_replacement = sample_by(PER_WITHOUT_REPLACEMENT);
            ASSERT_EQ(per_replay_sample(twins.gpu.get(), &without_replacement, most, &batch, nullptr), PER_OK);
            ASSERT_EQ(per_replay_synchronize(twins.gpu.get(), nullptr), PER_ERROR_INVALID_ARGUMENT);
        }
        int64_t n_live = 0;
        std::vector<int64_t> ids(most);
        ASSERT_EQ(per_replay_get_live_ids(twins.cpu.get(), most, ids.data(), &n_live), PER_OK);
        ASSERT_GT(n_live, 64);
        const float largest = 1000;
        for (per_replay* const replay : {twins.cpu.get(), twins.gpu.get()})
            ASSERT_EQ(write_priorities(replay, 1, ids.data(), &largest, nullptr), PER_OK);
        ASSERT_EQ(per_replay_sample(twins.cpu.get(), nullptr, 24, &cpu_batch, nullptr), PER_OK);
        ASSERT_EQ(per_replay_sample(twins.gpu.get(), nullptr, 24, &gpu_batch, nullptr), PER_OK);
        ASSERT_EQ(per_replay_synchronize(twins.gpu.get(), nullptr), PER_OK);
        EXPECT_TRUE(of_cpu == of_gpu);
        twins.expect_same();
    }
}

TEST(CudaWalks, hindsight_from_nothing_is_an_error) {
    Twins twins(twin_options());
    Question question;
    const per_hindsight_options options = hindsight_options(PER_GOAL_FUTURE, question);
    TwinBatch rows(8);
    const per_batch batch = rows.batch();
    EXPECT_EQ(sample_with_hindsight(twins.gpu.get(), nullptr, &options, 8, &batch, nullptr), PER_ERROR_EMPTY);
    EXPECT_EQ(per_replay_synchronize(twins.gpu.get(), nullptr), PER_OK);
}

}  // namespace
}  // namespace per::test

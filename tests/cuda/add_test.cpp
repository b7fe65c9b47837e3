// Adds to a buffer on CUDA have bit-identical results to those on the CPU: lanes, rows, frames, given priorities, live
// rows, ids and counters.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "add_buffers.h"
#include "run_length.h"

namespace per {
namespace {

using test::BothBuffers;
using test::Declared;
using test::DeclaredField;
using test::is_short;
using test::Manner;

// ---------------------------------------------------------------------------------------------------- random histories

std::vector<DeclaredField> some_fields(std::mt19937_64& random, int32_t stack) {
    const int32_t observation = PER_ROLE_OBSERVATION;
    std::vector<DeclaredField> fields;
    switch (random() % 5) {
        case 0:
            return {{{6, 8}, PER_UINT8, observation, stack}, {{2}, PER_INT32, PER_ROLE_PLAIN}};
        case 3:  // frames that a whole warp checks
            return {{{50}, PER_FLOAT32, observation, stack}, {{70}, PER_INT64, PER_ROLE_PLAIN}};
        case 1:
            return {{{5}, PER_FLOAT32, observation, stack},
                    {{}, PER_FLOAT64, PER_ROLE_PLAIN},
                    {{3}, PER_FLOAT16, observation, 1},
                    {{1}, PER_BOOL, PER_ROLE_PLAIN}};
        case 2:
            return {{{2}, PER_INT64, observation, 1}, {{4}, PER_BFLOAT16, observation, stack}};
        default:
            for (int i = 0; i < 19; ++i)
                fields.push_back({{1 + i % 3},
                                  i % 2 == 0 ? PER_INT16 : PER_FLOAT32,
                                  i % 6 == 4 ? observation : PER_ROLE_PLAIN,
                                  i == 4 ? stack : 0});
            return fields;
    }
}

Declared some_buffer(std::mt19937_64& random) {
    const auto one_of = [&](std::initializer_list<int64_t> choices) {
        return choices.begin()[random() % choices.size()];
    };
    Declared declared;
    per_replay_options& options = declared.options;
    const int64_t stack = one_of({1, 1, 2, 4, 64});
    declared.fields = some_fields(random, static_cast<int32_t>(stack));
    options.n_envs = one_of({1, 2, 3, 5, 17});
    options.n_step = one_of({1, 1, 3, 5, 64});
    if (random() % 3 == 0) {
        options.sequence_length = one_of({1, 3, 4});
        options.burn_in = one_of({0, 0, 2});
        options.sequence_stride = one_of({0, 1, 2, 5});
    }
    options.store_next_observation = random() % 3 == 0;
    const int64_t steps = std::max<int64_t>(options.burn_in + options.sequence_length, 1);
    const int64_t least = least_rows(options.n_step, stack, steps, options.store_next_observation == 0);
    options.capacity = options.n_envs * (least + one_of({0, 1, 4, 9, 30}));
    options.max_priority = static_cast<int32_t>(one_of({PER_MAX_EVER, PER_MAX_NOW}));
    options.on_invalid = PER_INVALID_SKIP;
    options.autoreset =
        static_cast<int32_t>(one_of({PER_AUTORESET_DISABLED, PER_AUTORESET_NEXT_STEP, PER_AUTORESET_SAME_STEP}));
    options.overwrite = random() % 8 != 0;
    options.on_gap = random() % 8 == 0 ? PER_GAP_ERROR : PER_GAP_CUT;
    options.normalize_weights = random() % 4 == 0 ? PER_BUFFER_MAX : PER_BATCH_MAX;
    options.alpha = random() % 4 == 0 ? 0.0 : 0.6;
    return declared;
}

TEST(Add, random_histories_are_those_of_the_cpu) {
    int n_taken = 0;
    int n_refused = 0;
    for (uint64_t seed = 1; seed <= (is_short ? 12 : 80); ++seed) {
        std::mt19937_64 random(seed);
        Manner manner;
        manner.p_host_memory = seed % 3 == 0 ? 0.5 : seed % 3 == 1 ? 1.0 : 0.0;
        manner.p_end = seed % 4 == 0 ? 0.4 : 0.1;
        manner.p_bad_priority = 0.1;
        manner.longest = seed % 5 == 0 ? 70 : 12;
        BothBuffers both(some_buffer(random), seed, manner);
        for (int i = 0; i < (is_short ? 10 : 25); ++i) {
            both.random_call();
            ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed << ", call " << i;
        }
        n_taken += both.n_taken;
        n_refused += both.n_refused;
    }
    EXPECT_GT(n_taken, 5 * n_refused);
}

// Pending rows, the state that lanes pass on from step to step, and calls longer than a lane.
TEST(Add, long_calls_with_priorities_are_those_of_the_cpu) {
    for (uint64_t seed = 1; seed <= (is_short ? 8 : 30); ++seed) {
        std::mt19937_64 random(seed);
        Manner manner;
        manner.p_end = seed % 3 == 0 ? 0.0 : 0.03;
        manner.p_gap = seed % 4 == 1 ? 0.03 : 0.0;
        manner.p_rated = 0.8;
        manner.p_bad_priority = seed % 2 == 0 ? 0.5 : 0.05;
        manner.p_single = 0.2;
        manner.longest = 330;
        Declared declared = some_buffer(random);
        declared.options.max_priority = PER_MAX_EVER;
        declared.options.overwrite = 1;
        declared.options.capacity += declared.options.n_envs * (random() % 2 == 0 ? 0 : 250);
        BothBuffers both(declared, seed, manner);
        for (int i = 0; i < 8; ++i) {
            both.random_call();
            ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed << ", call " << i;
        }
    }
}

// More than the 2^14 entries that are enqueued at a time; the second and third part reuse rows of the earlier parts.
TEST(Add, of_pieces_with_priorities_is_that_of_the_cpu) {
    Declared declared;
    declared.fields = {{{}, PER_FLOAT32, PER_ROLE_OBSERVATION}};
    declared.options.n_envs = 3;
    declared.options.capacity = 3 * 4000;
    declared.options.n_step = 3;
    declared.options.on_invalid = PER_INVALID_SKIP;
    Manner manner;
    manner.p_end = 0.001;
    manner.p_rated = 1;
    manner.p_bad_priority = 0.3;
    manner.p_single = 0;
    manner.longest = 9000;
    for (uint64_t seed = 1; seed <= (is_short ? 1 : 2); ++seed) {
        BothBuffers both(declared, seed, manner);
        for (int i = 0; i < 4; ++i) {
            both.add(*both.environments().call());
            ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed << ", call " << i;
        }
    }
}

}  // namespace
}  // namespace per

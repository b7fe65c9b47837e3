// Random use of a replay buffer, compared with a naive model (replay_model.h) after each call: live transitions with
// all their values and priorities, and counters. Observations hold their environment and a serial number, so two are
// equal only on purpose.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../c/settings.h"
#include "choices.h"
#include "own_folder.h"
#include "replay_model.h"

namespace per::test {

// Environments that run, end, and reset, sometimes without telling the buffer.
class Environments {
 public:
    Environments(Choices& random, const per_replay_options& options)
        : random_(random), options_(options), states_(static_cast<size_t>(options.n_envs)) {
        for (size_t env = 0; env < states_.size(); ++env) states_[env].observation = fresh(static_cast<int64_t>(env));
        p_end_ = chance(0.3) ? 0.02 : chance(0.5) ? 0.1 : 0.5;
    }

    bool chance(double p) { return std::uniform_real_distribution<double>()(random_) < p; }
    int64_t number(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random_); }

    // A call that the buffer must accept, unless it is full or rejects gaps.
    GivenCall call(int64_t longest) {
        GivenCall call;
        call.length = chance(0.7) ? 1 : number(0, longest);
        const int64_t n = choose_environments(call);
        call.with_next = options_.store_next_observation || chance(0.6);
        call.with_mask = chance(0.3);
        call.with_next_mask = options_.autoreset == PER_AUTORESET_SAME_STEP || chance(0.4);
        call.with_priorities = chance(0.15);
        call.with_td_errors = !call.with_priorities && chance(0.15);
        for (int64_t i = 0; i < call.length * n; ++i)
            call.steps.push_back(step(call.env_ids.empty() ? i % n : call.env_ids[static_cast<size_t>(i % n)], call));
        return call;
    }

 private:
    struct State {
        Observation observation;
        bool resets_next = false;
    };

    Observation fresh(int64_t env) { return {static_cast<float>(env), static_cast<float>(++serial_)}; }

    int64_t choose_environments(GivenCall& call) {
        const int64_t n_envs = options_.n_envs;
        if (chance(0.5)) return n_envs;
        for (int64_t env = 0; env < n_envs; ++env)
            if (chance(0.6)) call.env_ids.push_back(env);
        std::shuffle(call.env_ids.begin(), call.env_ids.end(), random_);
        return call.env_ids.empty() ? n_envs : static_cast<int64_t>(call.env_ids.size());
    }

    GivenStep step(int64_t env, const GivenCall& call) {
        State& state = states_[static_cast<size_t>(env)];
        GivenStep step;
        step.given = !call.with_mask || chance(0.8);
        step.priority = static_cast<float>(number(0, 20)) * (chance(0.3) ? -1.0f : 1.0f);
        if (call.with_priorities) step.priority = std::abs(step.priority);
        if (chance(0.1)) step.priority = std::ldexp(step.priority, static_cast<int>(number(-40, 40)));
        if (options_.on_invalid == PER_INVALID_SKIP && chance(0.1)) step.priority = NAN;
        step.reward = static_cast<float>(number(-8, 8));
        step.action = number(-1000, 1000);
        // The values of a masked step are ignored, and its environment does not advance.
        step.observation = step.given ? state.observation : chance(0.5) ? Observation{NAN, NAN} : fresh(99);
        if (!step.given) return step;
        if (step.observation[0] == 0 && chance(0.1)) step.observation[0] = -0.0f;  // the same number

        if (state.resets_next) {  // Gymnasium's next_step: the action is ignored, the observation is the reset's
            state.resets_next = false;
            state.observation = step.next = fresh(env);
            if (chance(0.7)) step.reward = 0;
            return step;
        }
        step.next = fresh(env);
        // A gap can only be noticed if the next observation was announced. Only then the environment resets silently.
        if (chance(p_end_)) (chance(0.5) ? step.terminated : step.truncated) = true;
        if (chance(0.02)) step.terminated = step.truncated = true;
        const bool ends = step.terminated || step.truncated;
        const bool final_can_be_told = call.with_next || call.with_next_mask;
        if (ends && !final_can_be_told) step.terminated = step.truncated = false;
        if (step.terminated || step.truncated) {
            end(env, step, call);
        } else {
            state.observation = step.next;
            if (call.with_next_mask && !options_.store_next_observation) step.has_next = chance(0.7);
            if (!options_.store_next_observation && chance(0.03)) state.observation = fresh(env);
        }
        if (options_.on_nan == PER_NAN_ERROR) add_nan(step, call);
        return step;
    }

    // Adds NaNs, which are errors except in unknown next observations.
    void add_nan(GivenStep& step, const GivenCall& call) {
        if (call.with_next_mask && !step.has_next) step.next[1] = NAN;
        if (chance(0.001)) step.observation[0] = NAN;
        if (chance(0.001)) step.next[1] = NAN;
        if (chance(0.001)) step.reward = NAN;
    }

    void end(int64_t env, GivenStep& step, const GivenCall& call) {
        State& state = states_[static_cast<size_t>(env)];
        step.has_next = !call.with_next_mask || (call.with_next && chance(0.5));
        if (options_.autoreset == PER_AUTORESET_NEXT_STEP) {
            state.observation = step.next;
            state.resets_next = true;
            return;
        }
        state.observation = chance(0.2) ? step.next : fresh(env);  // some episodes begin where the previous one ended
        if (options_.autoreset == PER_AUTORESET_SAME_STEP && !step.has_next) step.next = state.observation;
    }

    Choices& random_;
    const per_replay_options& options_;
    std::vector<State> states_;
    double p_end_;  // probability that a step ends its episode
    int64_t serial_ = 0;
};

// An option that varies between walks, with its values.
struct VariedOption {
    std::vector<double> values;
    void (*set)(per_replay_options& options, double value);
};

// Indices of two varied options: the spare rows of each lane, and the rows by which the capacity falls short of whole
// lanes. Creation rounds it up to whole lanes; see options_of().
inline constexpr size_t spare_rows = 0;
inline constexpr size_t rows_left_out = 1;
// Index of the varied option that pads stacks of observations.
inline constexpr size_t padding = 2;

// Single transitions, and sequences with and without burn-in that overlap, are adjacent, or skip steps.
inline void set_sequences(per_replay_options& options, size_t i) {
    static const struct {
        int64_t length, burn_in, stride;
    } kinds[] = {{0, 0, 0}, {1, 0, 0}, {3, 2, 1}, {5, 0, 2}, {4, 3, 6}};
    options.sequence_length = kinds[i].length;
    options.burn_in = kinds[i].burn_in;
    options.sequence_stride = kinds[i].stride;
}

template <auto member>
void set(per_replay_options& options, double value) {
    options.*member = static_cast<std::remove_reference_t<decltype(options.*member)>>(value);
}

inline const std::vector<VariedOption>& varied_options() {
    using Options = per_replay_options;
    static const std::vector<VariedOption> all = {
        {{0, 1, 3, 20}, [](Options&, double) {}},
        {{0, 1}, [](Options&, double) {}},
        {{PER_PADDING_REPEAT, PER_PADDING_ZERO}, [](Options&, double) {}},
        {{1, 2, 3}, set<&Options::n_envs>},
        {{1, 2, 3, 4}, set<&Options::n_step>},
        {{1, 2, 4}, set<&Options::frame_stack>},
        {{0, 0.5, 1}, set<&Options::gamma>},
        {{0, 0.25}, set<&Options::epsilon>},
        {{PER_AUTORESET_DISABLED, PER_AUTORESET_NEXT_STEP, PER_AUTORESET_SAME_STEP}, set<&Options::autoreset>},
        {{0, 1}, set<&Options::store_next_observation>},
        {{1, 0}, set<&Options::overwrite>},
        {{PER_MAX_EVER, PER_MAX_NOW}, set<&Options::max_priority>},
        {{PER_INVALID_ERROR, PER_INVALID_SKIP}, set<&Options::on_invalid>},
        {{PER_GAP_CUT, PER_GAP_ERROR}, set<&Options::on_gap>},
        {{PER_NAN_ALLOW, PER_NAN_ERROR}, set<&Options::on_nan>},
        {{PER_PROPORTIONAL, PER_RANK, PER_UNIFORM}, set<&Options::prioritization>},
        {{0, 1, 2, 3, 4}, [](Options& o, double value) { set_sequences(o, static_cast<size_t>(value)); }},
        {{0, 0.5, 1}, set<&Options::sequence_eta>},
        {{PER_CRITICS_MEAN, PER_CRITICS_MAX}, set<&Options::critics>},
    };
    return all;
}

inline per_replay_options options_of(const ChosenValues& row, uint64_t seed, const char* storage) {
    per_replay_options options = Buffer::options(0);
    options.seed = seed;
    options.memory.storage = storage;
    for (size_t i = 0; i < row.size(); ++i) varied_options()[i].set(options, varied_options()[i].values[row[i]]);
    const auto number = [&](size_t choice) {
        return static_cast<int64_t>(varied_options()[choice].values[row[choice]]);
    };
    const int64_t steps = std::max<int64_t>(1, options.burn_in + options.sequence_length);
    const int64_t rows =
        options.n_step + options.frame_stack + steps + number(spare_rows) - (options.store_next_observation ? 2 : 0);
    options.capacity = rows * options.n_envs - std::min(number(rows_left_out), options.n_envs - 1);
    return options;
}

inline int32_t padding_of(const ChosenValues& row) {
    return static_cast<int32_t>(varied_options()[padding].values[row[padding]]);
}

inline void expect_equal_step(Buffer& buffer, const ReplayModel& model, int64_t id) {
    for (bool with_next : {false, true}) {
        const std::optional<Row> expected = model.step(id, with_next);
        std::vector<Row> rows;
        const per_status status = buffer.get({id}, rows, with_next);
        ASSERT_EQ(status, expected ? PER_OK : PER_ERROR_INVALID_ARGUMENT) << "id " << id;
        if (!expected) continue;
        if (!with_next) rows[0].next_observation = expected->next_observation;
        EXPECT_EQ(rows[0], *expected) << "id " << id;
    }
}

// Compares the live rows or sequences, by id, without weights and probabilities.
template <class Live>
void expect_equal_live(Buffer& buffer, std::map<int64_t, Live> live, const std::map<int64_t, Live>& expected) {
    EXPECT_EQ(buffer.statistics().live, static_cast<int64_t>(expected.size()));
    ASSERT_EQ(live.size(), expected.size());
    for (auto& [id, each] : live) {
        each.weight = 0;
        each.probability = 0;
        ASSERT_TRUE(expected.count(id)) << "id " << id << " must not be live";
        EXPECT_EQ(each, expected.at(id)) << "id " << id;
    }
}

inline void expect_equal(Buffer& buffer, ReplayModel& model, int64_t most_issued, bool has_sequences, int64_t n_step) {
    const per_replay_statistics statistics = buffer.statistics();
    EXPECT_EQ(statistics.added, model.added);
    EXPECT_EQ(statistics.dropped, model.dropped);
    EXPECT_EQ(statistics.episodes, model.episodes_ended);
    EXPECT_EQ(statistics.cuts, model.cuts);
    EXPECT_EQ(statistics.suspected_resets, model.suspected_resets);
    EXPECT_EQ(statistics.stale_updates, model.stale);
    EXPECT_EQ(statistics.rejected_updates, model.rejected);
    EXPECT_EQ(statistics.max_priority, static_cast<double>(model.largest_priority()));
    if (has_sequences) {
        for (int64_t n = n_step; n >= std::max<int64_t>(1, n_step - 1); --n)
            expect_equal_live(buffer, buffer.live_sequences(n), model.live_sequences(n));
    } else {
        expect_equal_live(buffer, buffer.live_rows(), model.live_rows());
    }
    const int64_t recent = std::max<int64_t>(0, most_issued - 2 * statistics.capacity);
    for (int64_t id = recent; id < most_issued; ++id) {
        float priority = -1;
        const per_status status = per_replay_get_priorities(buffer.get(), 1, &id, &priority, nullptr);
        EXPECT_EQ(status, model.was_issued(id) ? PER_OK : PER_ERROR_INVALID_ARGUMENT) << "id " << id;
        if (status == PER_OK) {
            EXPECT_EQ(priority, model.priority(id)) << "id " << id;
        }
        expect_equal_step(buffer, model, id);
    }
}

// Calls take(piece) for consecutive pieces of the call, of at most `longest` steps each, until it fails.
template <class Take>
per_status take_in_pieces(const GivenCall& call, int64_t n_envs, int64_t longest, const Take& take) {
    const int64_t n = call.env_ids.empty() ? n_envs : static_cast<int64_t>(call.env_ids.size());
    per_status status = PER_OK;
    for (int64_t k = 0, end; k < call.length && status == PER_OK; k = end) {
        end = std::min(k + longest, call.length);
        GivenCall piece = call;
        piece.length = end - k;
        piece.steps.assign(call.steps.begin() + k * n, call.steps.begin() + end * n);
        status = take(piece);
    }
    return status;
}

// Adds the steps of the call one by one.
inline per_status add_singly(Buffer& buffer, const GivenCall& call, int64_t n_envs, std::vector<int64_t>& ids_out) {
    ids_out.clear();
    return take_in_pieces(call, n_envs, 1, [&](const GivenCall& single) {
        std::vector<int64_t> ids;
        const per_status status = buffer.add(single, &ids);
        ids_out.insert(ids_out.end(), ids.begin(), ids.end());
        return status;
    });
}

class RandomUse {
 public:
    // Rows lie in memory, plain or compressed, or in a file in the directory of the checkpoints, which refer to it.
    RandomUse(const ChosenValues& row, uint64_t seed, const Choices& choices, const char* storage = nullptr,
              int32_t compression = PER_COMPRESSION_NONE)
        : random_(choices),
          options_(options_of(row, seed, storage)),
          buffer_(options_, padding_of(row), compression),
          single_(options_, padding_of(row), compression),
          model_(options_, padding_of(row)),
          environments_(random_, options_),
          n_step_(options_.n_step) {}

    // Makes at most n_calls calls, until the choices are used up or a difference is found. Compares everything only
    // after each `calls_of_look` calls, as a comparison takes hundreds of calls.
    void run(int n_calls, int calls_of_look) {
        for (int i = 0; i < n_calls && !random_.are_over() && !::testing::Test::HasFailure(); ++i) {
            one_call();
            if (stopped_) return;
            if ((i + 1) % calls_of_look == 0) expect_equal_to_model();
        }
        // Draws depend on the whole tree.
        if (buffer_.statistics().live == 0) return;
        const auto draw = [&](Buffer& buffer) {
            std::vector<int64_t> ids(32);
            std::vector<float> weights(32);
            per_batch batch = initialized(per_batch_init);
            batch.ids = ids.data();
            batch.weights = weights.data();
            EXPECT_OK(per_replay_sample(buffer.get(), nullptr, 32, &batch, nullptr));
            return std::pair(ids, weights);
        };
        while (single_.statistics().samples < buffer_.statistics().samples) draw(single_);
        EXPECT_EQ(draw(buffer_), draw(single_));
    }

 private:
    void expect_equal_to_model() {
        expect_equal(buffer_, model_, most_issued_ + options_.n_envs, options_.sequence_length > 0, n_step_);
        // Reading the live rows of a buffer sets its alpha to 0 and back, which chooses a new scale of masses.
        if (single_.statistics().live == 0) return;
        for (const double alpha : {0.0, single_.statistics().alpha})
            EXPECT_OK(change_alpha(single_.get(), alpha, nullptr));
    }

    void one_call() {
        const int64_t kind = environments_.number(0, 19);
        if (kind < 13) return add();
        if (kind < 15) return update();
        if (kind == 15) return set();
        if (kind == 16) return cut();
        if (kind == 17) return set_n_step();
        if (kind == 18 && environments_.chance(0.3)) return clear();
        if (kind == 18 && environments_.chance(options_.memory.storage != nullptr ? 0.8 : 0.15)) return reload();
        if (kind == 19) return set_gamma();
    }

    void add() {
        const GivenCall call = environments_.call(3 * (options_.capacity / options_.n_envs));
        ReplayModel next = model_;
        std::vector<int64_t> expected_ids, ids, single_ids;
        const per_status expected = next.add(call, expected_ids);
        const per_status status = buffer_.add(call, &ids);
        if (expected != PER_OK && on_cuda()) {
            // The device skips invalid steps and adds the others. The model has no such case, so the walk stops here.
            ASSERT_NE(status, PER_OK);
            stopped_ = true;
            return;
        }
        ASSERT_EQ(status, expected) << per_last_error();
        if (expected != PER_OK) {
            expect_equal_to_model();
            stopped_ = true;
            return;
        }
        model_ = next;
        EXPECT_EQ(ids, expected_ids);
        ASSERT_OK(add_singly(single_, call, options_.n_envs, single_ids));
        EXPECT_EQ(single_ids, ids);
        for (int64_t id : ids) most_issued_ = std::max(most_issued_, id + 1);
    }

    void update() {
        if (most_issued_ == 0) return;
        std::vector<int64_t> ids;
        std::vector<float> priorities;
        for (int64_t i = environments_.number(1, 6); i > 0; --i) {
            const int64_t recent = std::max<int64_t>(0, most_issued_ - 2 * options_.capacity);
            const int64_t id = environments_.chance(0.1) ? -1 : environments_.number(recent, most_issued_ - 1);
            if (id >= 0 && !model_.was_issued(id)) continue;
            ids.push_back(id);
            priorities.push_back(static_cast<float>(environments_.number(0, 30)));
            if (options_.on_invalid == PER_INVALID_SKIP && environments_.chance(0.1)) priorities.back() = -INFINITY;
        }
        if (options_.sequence_length > 0 && environments_.chance(0.6)) return update_by_errors(ids);
        model_.update(ids, priorities);
        on_both([&](per_replay* replay) {
            return write_priorities(replay, static_cast<int64_t>(ids.size()), ids.data(), priorities.data(), nullptr);
        });
    }

    void update_by_errors(const std::vector<int64_t>& ids) {
        const size_t steps = static_cast<size_t>(options_.burn_in + options_.sequence_length);
        std::vector<std::vector<std::vector<float>>> errors(environments_.chance(0.5) ? 1 : 2);
        std::vector<float> flat;
        for (auto& critic : errors) {
            for (size_t i = 0; i < ids.size(); ++i) {
                std::vector<float>& row = critic.emplace_back();
                for (size_t t = 0; t < steps; ++t) row.push_back(static_cast<float>(environments_.number(-9, 9)));
                flat.insert(flat.end(), row.begin(), row.end());
            }
        }
        model_.update(ids, errors);
        on_both([&](per_replay* replay) {
            return write_td_errors(replay, static_cast<int64_t>(ids.size()), ids.data(),
                                   static_cast<int64_t>(errors.size()), flat.data(), nullptr);
        });
    }

    void set() {
        if (most_issued_ == 0) return;
        std::vector<int64_t> ids, actions;
        for (int64_t i = environments_.number(1, 4); i > 0; --i) {
            const int64_t recent = std::max<int64_t>(0, most_issued_ - 2 * options_.capacity);
            const int64_t id = environments_.number(recent, most_issued_ - 1);
            if (!model_.was_issued(id)) continue;
            ids.push_back(id);
            actions.push_back(environments_.number(2000, 3000));
        }
        model_.set_actions(ids, actions);
        const per_array fields[3] = {{}, array_of(actions.data(), PER_INT64), {}};
        on_both([&](per_replay* replay) {
            return per_replay_set(replay, static_cast<int64_t>(ids.size()), ids.data(), fields, nullptr);
        });
    }

    void cut() {
        const int64_t env = environments_.number(0, options_.n_envs - 1);
        model_.cut(env);
        on_both([&](per_replay* replay) { return per_replay_cut(replay, 1, &env, nullptr); });
    }

    void set_n_step() {
        const int64_t rows = (options_.capacity + options_.n_envs - 1) / options_.n_envs;
        const int64_t steps = std::max<int64_t>(1, options_.burn_in + options_.sequence_length);
        const int64_t most = rows - options_.frame_stack - steps + (options_.store_next_observation ? 2 : 0);
        n_step_ = environments_.number(1, std::min<int64_t>(6, most));
        model_.set_n_step(n_step_);
        on_both([&](per_replay* replay) { return change_n_step(replay, n_step_, nullptr); });
    }

    void clear() {
        model_.clear();
        on_both([&](per_replay* replay) { return per_replay_clear(replay, nullptr); });
    }

    // Continues with the saved and loaded buffer, or after a checkpoint that refers to the file of its rows.
    void reload() {
        const char* const storage = options_.memory.storage;
        if (storage != nullptr) {
            ASSERT_OK(per_replay_checkpoint(buffer_.get(), storage, nullptr, nullptr));
            if (environments_.chance(0.5)) buffer_.reload(storage, storage);
            return;
        }
        const std::string path = ::testing::TempDir() + "per_replay_model_test." + std::to_string(getpid());
        ASSERT_OK(per_replay_save(buffer_.get(), path.c_str(), nullptr));
        buffer_.reload(path);
        unlink(path.c_str());
    }

    void set_gamma() {
        const double gamma = environments_.chance(0.5) ? 0.5 : 1.0;
        model_.set_gamma(gamma);
        on_both([&](per_replay* replay) { return change_gamma(replay, gamma, nullptr); });
    }

    template <class Call>
    void on_both(const Call& call) {
        for (const Buffer* buffer : {&buffer_, &single_}) ASSERT_OK(call(buffer->get()));
    }

    Choices random_;
    per_replay_options options_;
    Buffer buffer_;
    Buffer single_;  // gets the same calls, one step at a time
    ReplayModel model_;
    Environments environments_;
    int64_t n_step_;
    int64_t most_issued_ = 0;
    bool stopped_ = false;
};

}  // namespace per::test

// Priorities on the device and on the CPU, through the same random history. Rows come from the CPU's buffer: the
// effects of its calls on lanes and live rows are copied to the device, in the state in which the adding kernels would
// leave them, and the device updates its leaves accordingly.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/checks.h"
#include "cpu/replay/replay_state.h"
#include "cpu/replay/step_writer.h"
#include "cuda/replay/priorities.h"
#include "cuda/replay/replay_memory.h"
#include "simulator.h"

namespace per::test {

inline constexpr float nan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float infinity = std::numeric_limits<float>::infinity();

// The sum over all critics or the largest of them, in double.
inline double magnitude(const std::vector<float>& errors, std::size_t first, std::size_t stride, int64_t n_critics,
                        int32_t critics) {
    double sum = 0.0;
    double largest = 0.0;
    for (int64_t c = 0; c < n_critics; ++c) {
        const double error = std::fabs(static_cast<double>(errors[first + static_cast<std::size_t>(c) * stride]));
        if (std::isnan(error)) return error;
        sum += error;
        largest = std::max(largest, error);
    }
    return critics == PER_CRITICS_MEAN ? sum / static_cast<double>(n_critics) : largest;
}

class PriorityTwin {
 public:
    PriorityTwin(const per_replay_options& options, uint64_t seed)
        : numbers_(seed),
          fields_(options),
          options_(resolve_replay_options(options, fields_)),
          cpu_(options_, fields_),
          memory_(options_, fields_, nullptr) {
        simulator::options().seed += seed;
        if (options.prioritization == PER_RANK) cuda::queue_ranks(device(), nullptr);
    }
    ~PriorityTwin() { simulator::options().seed = seed_; }

    // Updates by this many TD errors of one critic.
    void update_by_td_errors(int64_t count) { update_by_td_errors(any_ids(count), 1); }

    void random_call() {
        switch (numbers_() % 12) {
            case 0:
                if (numbers_() % 3 == 0) cut();
                break;
            case 1:
                if (numbers_() % 4 == 0) set_n_step();
                break;
            case 2:
                if (numbers_() % 8 == 0) set_alpha();
                break;
            case 3:
                if (numbers_() % 12 == 0) clear();
                break;
            case 4:
                take_ranks();
                if (numbers_() % 4 == 0) update_to_zero();
                break;
            case 5:
            case 6:
            case 7:
                update_by_priorities();
                break;
            case 8: {
                const std::vector<int64_t> ids = any_ids();  // first, as compilers differ in the order of arguments
                update_by_td_errors(ids, 1 + below(3));
                break;
            }
            default:
                add(numbers_() % 6 == 0 ? 1 + below(2 * options_.capacity / options_.n_envs) : 1 + below(3));
        }
    }

    void expect_equal() {
        cudaDeviceSynchronize();
        const cuda::DevicePriorities& priorities = device().priorities;
        ASSERT_NO_FATAL_FAILURE(expect_same_tree(cpu_.priorities.tree(), priorities.tree));
        for (int64_t slot = 0; slot < options_.capacity; ++slot) {
            ASSERT_EQ(priorities.given[slot], cpu_.priorities.given(slot)) << slot;
            ASSERT_EQ(priorities.tree.claims[slot], 0u) << slot;
        }
        for (int64_t env = 0; env < options_.n_envs; ++env) {
            ASSERT_EQ(device().changes[env].died.end, 0);
            ASSERT_EQ(device().changes[env].born.end, 0);
        }
        const cuda::ReplayState& state = *device().state;
        ASSERT_EQ(state.largest_bits, bit_cast<uint32_t>(cpu_.priorities.scale().largest_ever));
        ASSERT_EQ(state.counters.updates, n_updates_);
        ASSERT_EQ(state.counters.stale_updates, n_stale_);
        ASSERT_EQ(state.counters.rejected_updates, n_rejected_ + n_never_issued_);
        ASSERT_EQ(state.errors.n_bad_ids, static_cast<uint64_t>(n_never_issued_ + n_never_issued_read_));
        ASSERT_EQ(state.errors.n_bad_priorities, static_cast<uint64_t>(n_rejected_));
        expect_maxima();
        expect_ranks();
    }

    // ---- calls

    // Each step is a separate change.
    void add(int64_t n_steps) {
        for (int64_t k = 0; k < n_steps; ++k) add_step();
    }

    void add_step() {
        const std::size_t n = static_cast<std::size_t>(options_.n_envs);
        std::vector<float> values(n);
        std::vector<float> next(n, 0.0f);
        std::vector<float> rewards(n, 0.0f);
        std::vector<float> given(n);
        std::vector<uint8_t> terminated(n), truncated(n), mask(n), next_mask(n);
        for (std::size_t i = 0; i < n; ++i) {
            values[i] = numbers_() % 16 == 0 ? 1.0f : 0.0f;
            given[i] = any_priority();
            terminated[i] = numbers_() % 12 == 0;
            truncated[i] = numbers_() % 12 == 0;
            mask[i] = numbers_() % 8 != 0;
            next_mask[i] = numbers_() % 4 != 0;
        }
        const bool has_priorities = numbers_() % 2 == 0;
        const GivenArray field = {{values.data(), nullptr, 0, PER_FLOAT32, nullptr}, 1};
        const GivenArray next_field = {{next.data(), nullptr, 0, PER_FLOAT32, nullptr}, 1};
        ReplaySteps steps = {};
        steps.length = 1;
        steps.n_envs = options_.n_envs;
        steps.fields = &field;
        steps.next_fields = &next_field;
        steps.reward = {rewards.data(), nullptr, 0, PER_FLOAT32, nullptr};
        steps.terminated = {terminated.data(), nullptr, 0, PER_BOOL, nullptr};
        steps.truncated = {truncated.data(), nullptr, 0, PER_BOOL, nullptr};
        steps.mask = {mask.data(), nullptr, 0, PER_BOOL, nullptr};
        steps.next_mask = {next_mask.data(), nullptr, 0, PER_BOOL, nullptr};
        if (has_priorities) steps.priorities = {given.data(), nullptr, 0, PER_FLOAT32, nullptr};
        const std::vector<Lane> before = cpu_.lanes;
        cpu::StepWriter(cpu_, options_).add(steps, nullptr);
        copy_rows(before);
        // The kernels that add would raise the maximum by the priorities that are given with steps.
        device().state->largest_bits = bit_cast<uint32_t>(cpu_.priorities.scale().largest_ever);
        change_lanes(1);
    }

    void cut() {
        const std::vector<Lane> before = cpu_.lanes;
        const std::vector<uint8_t> chosen = flags(static_cast<std::size_t>(options_.n_envs));
        std::vector<int64_t> env_ids;
        for (int64_t env = 0; env < options_.n_envs; ++env)
            if (chosen[static_cast<std::size_t>(env)] != 0) env_ids.push_back(env);
        cpu_.cut(static_cast<int64_t>(env_ids.size()), env_ids.data());
        copy_rows(before);
        change_lanes(1);
    }

    void set_n_step() {
        const int64_t n_step = 1 + below(options_.n_step);
        const std::vector<Lane> before = cpu_.lanes;
        const WindowRules rules = cpu_.rules;
        cpu_.set_n_step(n_step);
        copy_rows(before, rules);
        change_lanes(1);
    }

    void set_alpha() {
        const double alpha = static_cast<double>(below(5)) / 4;
        cpu_.priorities.set_alpha(alpha);
        cuda::queue_alpha(device(), alpha, nullptr);
    }

    void clear() {
        cpu_.clear();
        std::copy(cpu_.lanes.begin(), cpu_.lanes.end(), device().lanes);
        cuda::queue_no_priorities(device(), nullptr);
        expect_equal();
        ASSERT_EQ(device().state->n_live, 0);
        for (int64_t slot = 0; slot < options_.capacity; ++slot)
            ASSERT_FALSE(cuda::is_live(device().priorities.live, slot));
    }

    void take_ranks() {
        if (options_.prioritization != PER_RANK) return;
        for (int i = 0; i < 2; ++i) {
            cpu_.priorities.take_ranks_if_due();
            cuda::queue_take_ranks_if_due(device(), {0, 1}, nullptr);
            // A single change is too few for ranks to be due again.
            const int64_t env = below(options_.n_envs);
            const std::vector<int64_t> ids = {cpu_.ring().id(env, cpu_.lane(env).head - 1 - below(10))};
            const std::vector<float> priorities = {any_priority()};
            update_to(ids, priorities);
        }
    }

    void update_by_priorities() {
        const std::vector<int64_t> ids = any_ids();
        std::vector<float> priorities;
        for (std::size_t i = 0; i < ids.size(); ++i) priorities.push_back(any_given());
        update_to(ids, priorities);
    }

    // Resets every row; with alpha above 0 the tree is empty then.
    void update_to_zero() {
        std::vector<int64_t> ids;
        for (int64_t env = 0; env < options_.n_envs; ++env)
            for (int64_t row = oldest_row(cpu_.lane(env), cpu_.rules); row < cpu_.lane(env).head; ++row)
                ids.push_back(cpu_.ring().id(env, row));
        const std::vector<float> priorities(ids.size(), 0.0f);
        update_to(ids, priorities);
    }

    void update_by_td_errors(const std::vector<int64_t>& ids, int64_t n_critics) {
        const SequenceRules& sequence = cpu_.rules.sequence;
        const bool has_sequences = options_.sequence_length > 0;
        const int64_t n_left_out = has_sequences && numbers_() % 2 == 0 ? sequence.burn_in : 0;
        const auto left_out = static_cast<std::size_t>(n_left_out);
        const std::size_t steps = has_sequences ? static_cast<std::size_t>(sequence.steps) - left_out : 1;
        const std::size_t stride = ids.size() * steps;
        std::vector<float> errors;
        for (std::size_t i = 0; i < stride * static_cast<std::size_t>(n_critics); ++i)
            errors.push_back((numbers_() % 2 == 0 ? -1.0f : 1.0f) * (numbers_() % 40 == 0 ? infinity : any_priority()));
        std::vector<float> priorities;
        for (std::size_t i = 0; i < ids.size(); ++i) {
            if (!has_sequences) {
                const double error = magnitude(errors, i, stride, n_critics, options_.critics);
                priorities.push_back(static_cast<float>(error + options_.epsilon));
                continue;
            }
            const auto n_steps = static_cast<std::size_t>(learned_end(ids[i]));
            double sum = 0.0;
            double largest = 0.0;
            const auto burn_in = static_cast<std::size_t>(sequence.burn_in);
            for (std::size_t t = burn_in; t < n_steps; ++t) {
                const double error = magnitude(errors, i * steps + t - left_out, stride, n_critics, options_.critics);
                sum += error;
                largest = std::max(largest, error);
            }
            if (n_steps <= burn_in) {
                priorities.push_back(-2.0f);  // no priority
                continue;
            }
            const double mean = sum / static_cast<double>(n_steps - burn_in);
            priorities.push_back(static_cast<float>(options_.sequence_eta * largest +
                                                    (1.0 - options_.sequence_eta) * mean + options_.epsilon));
        }
        update(ids, priorities,
               {static_cast<int64_t>(ids.size()), ids.data(), n_critics, errors.data(), nullptr, n_left_out},
               has_sequences);
    }

    void read_priorities() {
        std::vector<int64_t> ids = any_ids();
        std::vector<float> priorities(ids.size(), -7.0f);
        cuda::queue_read_priorities(device(), static_cast<int64_t>(ids.size()), ids.data(), priorities.data(), nullptr);
        cudaDeviceSynchronize();
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const int64_t slot = slot_of(ids[i]);
            n_never_issued_read_ += slot == never_issued;
            ASSERT_EQ(priorities[i], slot >= 0 ? cpu_.priorities.priority(slot) : 0.0f) << ids[i];
        }
    }

    // Drops everything that a checkpoint does not contain, and restores it from the rest.
    void restore() {
        cudaDeviceSynchronize();
        const cuda::DeviceReplay& replay = device();
        const cuda::DevicePriorities& priorities = replay.priorities;
        const cuda::ReplayState state = *replay.state;
        const std::vector<float> given(priorities.given, priorities.given + options_.capacity);
        const std::vector<uint32_t> words(priorities.live.words, priorities.live.words + priorities.live.n_nodes[0]);
        cuda::queue_no_priorities(replay, nullptr);
        cudaDeviceSynchronize();
        priorities.tree.state->scale = 77;
        priorities.tree.state->low_water = 77;
        std::copy(given.begin(), given.end(), priorities.given);
        std::copy(words.begin(), words.end(), priorities.live.words);
        *replay.state = state;
        const cpu::PriorityScale scale = cpu_.priorities.scale();
        cuda::queue_restored_priorities(replay, scale.tree_scale, scale.tree_rescales_below, nullptr);
        if (options_.prioritization == PER_RANK) {
            const cpu::RankTree::State ranks = cpu_.priorities.known_ranks()->state();
            cuda::queue_ranks(replay, nullptr);
            cuda::queue_restored_ranks(replay, ranks.n_changes, ranks.tree_scale, ranks.tree_rescales_below, nullptr);
        }
        cudaDeviceSynchronize();
        for (int64_t node = 0; node < priorities.live.n_nodes[1]; ++node) {
            uint64_t n = 0;
            for (int64_t word = node * 32; word < (node + 1) * 32 && word < priorities.live.n_nodes[0]; ++word)
                n += static_cast<uint64_t>(__builtin_popcount(priorities.live.words[word]));
            ASSERT_EQ(priorities.live.sums[1][node], n);
        }
    }

 private:
    static constexpr int64_t never_issued = -2;

    const cuda::DeviceReplay& device() const { return memory_.device(); }
    int64_t below(int64_t n) { return static_cast<int64_t>(numbers_() % static_cast<uint64_t>(n)); }
    std::vector<uint8_t> flags(std::size_t n) {
        std::vector<uint8_t> flags;
        for (std::size_t i = 0; i < n; ++i) flags.push_back(numbers_() % 2);
        return flags;
    }

    // Mostly of one magnitude, which changes occasionally, with zeros and extremes.
    float any_priority() {
        const uint64_t kind = numbers_() % 300;
        if (kind < 20) return kind < 10 ? 0.0f : -0.0f;
        if (kind == 20) return std::numeric_limits<float>::denorm_min();
        if (kind == 21) return std::numeric_limits<float>::max() / 4;
        if (kind == 22) exponent_ = static_cast<int>(numbers_() % 160) - 80;
        return static_cast<float>(std::ldexp(static_cast<double>(numbers_() >> 11) * 0x1p-53, exponent_));
    }
    // A priority, which is sometimes invalid.
    float any_given() {
        const uint64_t kind = numbers_() % 100;
        return kind == 0 ? nan : kind == 1 ? infinity : kind == 2 ? -1.0f : any_priority();
    }

    // Ids of live, pending and overwritten rows, some of them repeated, and ids that were never issued.
    std::vector<int64_t> any_ids() {
        const bool is_long = numbers_() % 5 == 0;
        return any_ids(is_long ? below(4 * options_.capacity) : below(20));
    }
    std::vector<int64_t> any_ids(int64_t count) {
        std::vector<int64_t> ids(static_cast<std::size_t>(count));
        for (int64_t& id : ids) {
            const int64_t env = below(options_.n_envs);
            const int64_t head = cpu_.lane(env).head;
            const int64_t first = std::max<int64_t>(0, head - options_.capacity / options_.n_envs - 4);
            id = cpu_.ring().id(env, first + below(head - first + (numbers_() % 8 == 0 ? 3 : 1)));
            if (numbers_() % 20 == 0) id = numbers_() % 2 == 0 ? -1 : -5;
        }
        return ids;
    }

    // The slot of a row; -1 if it was overwritten, never_issued if no row had this id.
    int64_t slot_of(int64_t id) const {
        if (id == -1) return -1;
        if (id < 0 || id / options_.n_envs >= cpu_.lane(id % options_.n_envs).head) return never_issued;
        const int64_t env = id % options_.n_envs;
        const int64_t row = id / options_.n_envs;
        return row >= oldest_row(cpu_.lane(env), cpu_.rules) ? cpu_.ring().slot(env, row) : -1;
    }
    bool is_accepted(int64_t id) const {
        const int64_t slot = slot_of(id);
        if (slot < 0) return false;
        return cpu_.priorities.live().contains(slot) ||
               is_pending(cpu_.lane(id % options_.n_envs), cpu_.rules, id / options_.n_envs);
    }
    int64_t learned_end(int64_t id) const {
        if (!is_accepted(id)) return 0;
        const int64_t env = id % options_.n_envs;
        return complete_steps(cpu_.lane(env), cpu_.rules, id / options_.n_envs,
                              [&](int64_t row) { return cpu_.flags(env, row); });
    }

    void update(const std::vector<int64_t>& ids, const std::vector<float>& priorities, const ReplayUpdate& update,
                bool may_have_none) {
        std::vector<int64_t> slots;
        std::vector<float> accepted;
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const float p = priorities[i];
            if (slot_of(ids[i]) == never_issued) {
                ++n_never_issued_;
            } else if (may_have_none && p == -2.0f) {
                ++n_stale_;
            } else if (!(p >= 0.0f && p < infinity)) {
                ++n_rejected_;
            } else if (!is_accepted(ids[i])) {
                ++n_stale_;
            } else {
                slots.push_back(slot_of(ids[i]));
                accepted.push_back(p);
            }
        }
        n_updates_ += static_cast<int64_t>(slots.size());
        cpu_.priorities.update(static_cast<int64_t>(slots.size()), slots.data(), accepted.data());
        entries_.resize(static_cast<std::size_t>(update.count));
        cuda::queue_priorities(device(), update, entries_.data(), nullptr);
        cudaDeviceSynchronize();  // the host uses the arrays directly
    }

    void update_to(const std::vector<int64_t>& ids, const std::vector<float>& priorities) {
        update(ids, priorities, {static_cast<int64_t>(ids.size()), ids.data(), 0, nullptr, priorities.data()}, false);
    }

    // ---- changes that kernels make to rows

    void copy_rows(const std::vector<Lane>& before) { copy_rows(before, cpu_.rules); }
    void copy_rows(const std::vector<Lane>& before, const WindowRules& rules) {
        cudaDeviceSynchronize();
        const cuda::DeviceReplay& replay = device();
        for (int64_t slot = 0; slot < options_.capacity; ++slot) {
            replay.flags[slot] = cpu_.rows.flags()[slot];
            replay.priorities.given[slot] = cpu_.priorities.given(slot);
            if (cpu_.priorities.live().contains(slot))
                cuda::insert(replay.priorities.live, slot);
            else
                cuda::erase(replay.priorities.live, slot);
        }
        // The kernels that change these bits also count the changes of live rows. Here the count is copied.
        if (cpu::RankTree* const ranks = cpu_.priorities.known_ranks();
            ranks != nullptr && replay.priorities.ranks.state != nullptr)
            replay.priorities.ranks.state->n_changes = ranks->state().n_changes;
        for (int64_t env = 0; env < options_.n_envs; ++env) {
            const Lane& from = before[static_cast<std::size_t>(env)];
            const Lane& to = cpu_.lane(env);
            replay.lanes[env] = to;
            const int64_t first = complete_end(from, rules);
            const int64_t end = complete_end(to, cpu_.rules);
            cuda::LaneChange& change = replay.changes[env];
            if (from.tail < to.tail) change.died = {from.tail, to.tail};
            if (first < end) change.born = {first, end};
            if (end < first) change.died = {end, first};
        }
        replay.state->n_live = cpu_.priorities.live().count();
        replay.state->rules = cpu_.rules;
    }

    void change_lanes(int64_t rows) {
        cuda::queue_change_of_lanes(device(), numbers_() % 3 != 0 ? rows : 5000, nullptr);
    }

    // ---- comparison

    void expect_same_tree(const cpu::SumTree& tree, const cuda::DeviceTree& device_tree) const {
        ASSERT_EQ(device_tree.state->scale, tree.scale());
        ASSERT_EQ(device_tree.state->total, tree.total_mass());
        ASSERT_EQ(device_tree.state->low_water, tree.rescales_below());
        ASSERT_EQ(device_tree.state->plan, plan_keep);
        ASSERT_EQ(device_tree.state->has_too_large, 0u);
        ASSERT_EQ(device_tree.state->largest_bits, 0u);
        ASSERT_EQ(device_tree.state->sum.low, 0u);
        ASSERT_EQ(device_tree.state->sum.high, 0u);
        std::vector<uint64_t> below(static_cast<std::size_t>(device_tree.n_nodes[0]));
        for (int64_t slot = 0; slot < tree.capacity(); ++slot) {
            ASSERT_EQ(device_tree.leaves[slot], tree.priority(slot)) << slot;
            below[static_cast<std::size_t>(slot)] = tree.mass(slot);
        }
        for (int level = 1; level < device_tree.n_levels; ++level) {
            std::vector<uint64_t> sums(static_cast<std::size_t>(device_tree.n_nodes[level]));
            for (std::size_t i = 0; i < below.size(); ++i) sums[i / 32] += below[i];
            for (std::size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(device_tree.sums[level][i], sums[i]) << level;
            below = sums;
        }
    }

    template <class LeafAt>
    void expect_maximum(const cuda::DeviceMaximum& maximum, const LeafAt& leaf_at) const {
        std::vector<uint32_t> below;
        for (int64_t slot = 0; slot < options_.capacity; ++slot) below.push_back(bit_cast<uint32_t>(leaf_at(slot)));
        for (int level = 0; level < maximum.n_levels; ++level) {
            std::vector<uint32_t> nodes(static_cast<std::size_t>(maximum.n_nodes[level]));
            for (std::size_t i = 0; i < below.size(); ++i) nodes[i / 32] = std::max(nodes[i / 32], below[i]);
            for (std::size_t i = 0; i < nodes.size(); ++i) ASSERT_EQ(maximum.levels[level][i], nodes[i]) << level;
            below = nodes;
        }
        ASSERT_EQ(below.size(), 1u);
    }

    void expect_maxima() {
        const cuda::DevicePriorities& priorities = device().priorities;
        if (options_.max_priority == PER_MAX_NOW)
            expect_maximum(priorities.live_maximum,
                           [&](int64_t slot) { return cpu_.priorities.priority(slot) + 0.0f; });
        if (options_.normalize_weights != PER_BUFFER_MAX) return;
        expect_maximum(priorities.smallest_leaf,
                       [&](int64_t slot) { return reversed_leaf(cpu_.priorities.tree().priority(slot)); });
        if (cpu_.priorities.tree().total_mass() == 0) return;
        const float smallest = reversed_leaf(cuda::maximum_of(priorities.smallest_leaf));
        ASSERT_EQ(mass_of(smallest, power_of_two(priorities.tree.state->scale)),
                  cpu_.priorities.smallest_mass(PER_PROPORTIONAL));
    }

    void expect_ranks() {
        if (options_.prioritization != PER_RANK) return;
        const cuda::DeviceRanks& ranks = device().priorities.ranks;
        cpu::RankTree& expected = *cpu_.priorities.known_ranks();
        ASSERT_NO_FATAL_FAILURE(expect_same_tree(expected.tree(), ranks.tree));
        ASSERT_EQ(ranks.state->n_changes, expected.state().n_changes);
        ASSERT_EQ(ranks.state->n_live, cpu_.priorities.live().count());
        std::vector<uint64_t> counts(n_rank_buckets);
        for (int64_t slot = 0; slot < options_.capacity; ++slot) {
            const bool is_live = cpu_.priorities.live().contains(slot);
            const int32_t bucket = is_live ? rank_bucket(cpu_.priorities.given(slot)) : -1;
            ASSERT_EQ(ranks.buckets[slot], static_cast<uint32_t>(bucket + 1));
            if (is_live) ++counts[static_cast<std::size_t>(bucket)];
        }
        for (std::size_t bucket = 0; bucket < counts.size(); ++bucket) {
            ASSERT_EQ(ranks.counts[bucket], counts[bucket]) << bucket;
            ASSERT_EQ(ranks.weights[bucket], expected.weights()[bucket]) << bucket;
        }
    }

    std::mt19937_64 numbers_;
    Fields fields_;
    per_replay_options options_;
    cpu::ReplayState cpu_;
    std::vector<cuda::UpdateEntry> entries_;
    cuda::ReplayMemory memory_;
    int exponent_ = 0;
    const uint64_t seed_ = simulator::options().seed;

    int64_t n_updates_ = 0;
    int64_t n_stale_ = 0;
    int64_t n_rejected_ = 0;
    int64_t n_never_issued_ = 0;  // number of updates of ids that were never issued
    int64_t n_never_issued_read_ = 0;
};

}  // namespace per::test

// A replay buffer on the CPU and one on CUDA that get the same calls.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "add_history.h"
#include "backend/replay_options.h"
#include "base/error.h"
#include "core/checks.h"
#include "cpu/replay_backend.h"
#include "cuda/add/step_queue.h"
#include "cuda/replay/replay_memory.h"
#include "cuda/runtime/stream_order.h"
#include "simulator.h"

namespace per::test {

// The state of the CPU's backend is private, but an explicit instantiation of a template may name a private member.
template <auto member>
struct StateOf {
    friend cpu::ReplayState& state_of(cpu::CpuReplayBackend& backend) { return backend.*member; }
};
cpu::ReplayState& state_of(cpu::CpuReplayBackend& backend);
template struct StateOf<&cpu::CpuReplayBackend::state_>;

struct DeclaredField {
    std::vector<int64_t> shape;
    int32_t dtype;
    int32_t role;
    int32_t stack = 0;
};

struct Declared {
    std::vector<DeclaredField> fields;
    per_replay_options options = default_replay_options;

    Fields resolved() const {
        std::vector<std::string> names;
        for (std::size_t i = 0; i < fields.size(); ++i) names.push_back("field_" + std::to_string(i));
        std::vector<per_field> declared;
        for (std::size_t i = 0; i < fields.size(); ++i)
            declared.push_back({names[i].c_str(), fields[i].shape.data(), static_cast<int32_t>(fields[i].shape.size()),
                                fields[i].dtype, fields[i].role, fields[i].stack, nullptr, PER_PADDING_REPEAT, 0, 0});
        per_replay_options with_fields = options;
        with_fields.fields = declared.data();
        with_fields.n_fields = static_cast<int64_t>(declared.size());
        with_fields.field_size = sizeof(per_field);
        return Fields(with_fields);
    }
};

class BothBuffers {
 public:
    BothBuffers(const Declared& declared, uint64_t seed, const Manner& manner = {})
        : random_(seed),
          fields_(declared.resolved()),
          options_(resolve_replay_options(declared.options, fields_)),
          cpu_(options_, fields_),
          order_(0),
          memory_(options_, fields_, order_.own_stream()),
          queue_(memory_, fields_, options_, order_.own_stream()),
          environments_(random_, options_, fields_, manner) {
        simulator::options().seed = seed;
        simulator::options().has_host_memory = true;
        for (cudaStream_t& stream : streams_) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cudaDeviceSynchronize();
    }
    ~BothBuffers() {
        cudaDeviceSynchronize();
        for (const cudaStream_t stream : streams_) cudaStreamDestroy(stream);
        simulator::options().seed = 1;
        simulator::options().has_host_memory = false;
    }

    void random_call() {
        const double p = std::uniform_real_distribution<double>()(random_);
        if (p < 0.07)
            cut();
        else if (p < 0.14)
            set_n_step(environments_.number(1, options_.n_step));
        else
            add(*environments_.call());
    }

    // Calls that the CPU refuses are not made on CUDA: other tests cover it step by step.
    void add(GivenCall& call) {
        const std::size_t n = static_cast<std::size_t>(call.steps[0].length * call.steps[0].n_envs);
        std::vector<int64_t> expected(n, -7);
        BothArrays ids(n * sizeof(int64_t));
        try {
            cpu_.add(call.steps[0], expected.data(), nullptr);
        } catch (const Error&) {
            ++n_refused;
            return;
        }
        queue(call, reinterpret_cast<int64_t*>(ids.device()));
        ++n_taken;
        compare();
        ASSERT_EQ(std::memcmp(ids.device(), expected.data(), n * sizeof(int64_t)), 0);
    }

    // Adds only on CUDA.
    void queue(GivenCall& call, int64_t* ids_out) {
        call_on_some_stream([&](const cuda::StreamOrder::Call& order) { queue_.add(call.steps[1], ids_out, order); });
        for (const auto& array : call.arrays) array->take_back();
    }

    void cut() {
        std::vector<int64_t> env_ids;
        const bool all = environments_.chance(0.5);
        for (int64_t env = options_.n_envs - 1; env >= 0 && !all; --env)
            if (environments_.chance(0.6)) env_ids.push_back(env);
        const int64_t count = all ? options_.n_envs : static_cast<int64_t>(env_ids.size());
        const int64_t* const which = all ? nullptr : env_ids.data();
        cpu_.cut(count, which, nullptr);
        call_on_some_stream([&](const cuda::StreamOrder::Call& order) { queue_.cut(count, which, order); });
        compare();
    }

    void set_n_step(int64_t n_step) {
        per_replay_settings settings = default_settings;
        settings.n_step = n_step;
        cpu_.change_settings(settings, nullptr);
        call_on_some_stream([&](const cuda::StreamOrder::Call& order) { queue_.set_n_step(n_step, order); });
        compare();
    }

    void compare() {
        cudaDeviceSynchronize();
        for (int64_t env = 0; env < options_.n_envs; ++env) compare_lane(env);
        const int64_t capacity = options_.capacity;
        const cpu::ReplayState& expected = cpu();
        const cuda::ReplayState& state = *device().state;
        for (int64_t slot = 0; slot < capacity; ++slot) {
            ASSERT_EQ(device().flags[slot], cpu().rows.flags(slot)) << slot;
            ASSERT_EQ(cpu().rows.flags_side_by_side()[slot], cpu().rows.flags(slot)) << slot;
            ASSERT_EQ(device().priorities.given[slot], cpu().priorities.given(slot)) << slot;
            const bool is_live = cuda::is_live(device().priorities.live, slot);
            ASSERT_EQ(is_live, expected.priorities.live().contains(slot)) << slot;
            ASSERT_EQ(device().priorities.tree.leaves[slot], expected.priorities.tree().priority(slot)) << slot;
        }
        const cuda::DevicePriorities& priorities = device().priorities;
        const cuda::TreeState& tree = *priorities.tree.state;
        const double factor = power_of_two(tree.scale);
        compare_sums(priorities.tree, [&](int64_t i) { return cuda::leaf_mass(priorities.tree.leaves[i], factor); });
        compare_sums(priorities.live,
                     [&](int64_t i) { return static_cast<uint64_t>(std::popcount(priorities.live.words[i])); });
        ASSERT_EQ(tree.total, expected.priorities.tree().total_mass());
        ASSERT_EQ(tree.scale, expected.priorities.tree().scale());
        ASSERT_EQ(tree.low_water, expected.priorities.tree().rescales_below());
        ASSERT_EQ(cuda::priority_of_unrated(device()), expected.priorities.largest());
        ASSERT_EQ(state.n_live, expected.priorities.live().count());
        ASSERT_EQ(bit_cast<float>(state.largest_bits), expected.priorities.scale().largest_ever);
        ASSERT_EQ(std::memcmp(&state.counters, &expected.counters, sizeof state.counters), 0);
        ASSERT_EQ(state.rules.n_step, expected.rules.n_step);
        ASSERT_EQ(state.pending.n_live, 0);
        ASSERT_EQ(state.pending.largest_bits, 0u);
        ASSERT_EQ(state.pending.has_waiting, 0u);
    }

    const cuda::DeviceReplay& device() const { return memory_.device(); }
    cpu::ReplayState& cpu() { return state_of(cpu_); }
    Environments& environments() { return environments_; }

    int n_taken = 0;
    int n_refused = 0;

 private:
    // Each sum equals the sum of its children.
    template <class LeafAt>
    void compare_sums(const cuda::DeviceSums& sums, const LeafAt& leaf_at) {
        for (int level = 1; level < sums.n_levels; ++level)
            for (int64_t node = 0; node < sums.n_nodes[level]; ++node) {
                uint64_t sum = 0;
                for (int64_t i = node * 32; i < (node + 1) * 32 && i < sums.n_nodes[level - 1]; ++i)
                    sum += level == 1 ? leaf_at(i) : sums.sums[level - 1][i];
                ASSERT_EQ(sums.sums[level][node], sum) << level << ", " << node;
            }
    }

    template <class MakeCall>
    void call_on_some_stream(const MakeCall& make_call) {
        cuda::StreamOrder::Call order(order_, streams_[random_() % 3]);
        make_call(order);
        order.finish();
    }

    void compare_lane(int64_t env) {
        const Lane& expected = cpu().lane(env);
        const Lane& lane = device().lanes[env];
        ASSERT_EQ(lane.head, expected.head);
        ASSERT_EQ(lane.first, expected.first);
        ASSERT_EQ(lane.tail, expected.tail);
        ASSERT_EQ(lane.episode, expected.episode);
        ASSERT_EQ(lane.state, expected.state);
        const cuda::LaneChange& change = device().changes[env];
        ASSERT_GE(change.died.first, change.died.end);
        ASSERT_GE(change.born.first, change.born.end);
        for (int64_t row = oldest_row(lane, cpu().rules); row < used_end(lane, cpu().rules); ++row)
            compare_row(env, row);
    }

    // Compares the visible parts of a row.
    void compare_row(int64_t env, int64_t row) {
        const int64_t slot = cpu().ring().slot(env, row);
        const uint8_t flags = cpu().flags(env, row);
        if (flags & row_is_step) {
            ASSERT_EQ(device().rewards[slot], cpu().rows.rewards()[slot]);
        }
        const bool knows_next = cpu().rules.store_next_observation && !(flags & row_final_unknown);
        for (int64_t i = 0; i < fields_.count(); ++i) {
            const cuda::DeviceField& field = device().fields[i];
            const int64_t bytes = fields_[i].bytes;
            const auto is_same = [&](const std::byte* array, const cpu::Column<const std::byte>& column) {
                return std::memcmp(array + slot * bytes, column.at(slot), static_cast<std::size_t>(bytes)) == 0;
            };
            if (flags & row_is_step || fields_[i].is_observation()) {
                ASSERT_TRUE(is_same(field.frames, cpu().rows.field(i))) << "env " << env << " row " << row;
            }
            if (fields_[i].is_observation() && knows_next) {
                ASSERT_TRUE(is_same(field.next_frames, cpu().rows.next_field(i))) << "env " << env << " row " << row;
            }
        }
    }

    std::mt19937_64 random_;
    Fields fields_;
    per_replay_options options_;
    cpu::CpuReplayBackend cpu_;
    cuda::StreamOrder order_;
    cuda::ReplayMemory memory_;
    cuda::StepQueue queue_;
    Environments environments_;
    cudaStream_t streams_[3];
};

}  // namespace per::test

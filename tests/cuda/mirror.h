// Copies the content of a buffer in host memory into one on the simulated device, whose memory the host can write. Both
// then have the same content, without using the device's functions.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "cpu/replay_backend.h"
#include "cuda/replay/replay_memory.h"
#include "per.h"
#include "rules/mass.h"
#include "rules/priority.h"
#include "rules/rank.h"

namespace per::test {

// Sums of a node's children, from level 1 on; leaf_at(i) is the contribution of leaf i.
template <class LeafAt>
void fill_sums(const cuda::DeviceSums& sums, const LeafAt& leaf_at) {
    for (int level = 1; level < sums.n_levels; ++level) std::fill_n(sums.sums[level], sums.n_nodes[level], 0);
    for (int64_t i = 0; i < sums.n_nodes[0]; ++i) {
        const uint64_t leaf = leaf_at(i);
        int64_t node = i;
        for (int level = 1; leaf != 0 && level < sums.n_levels; ++level)
            sums.sums[level][node /= cuda::fan_out] += leaf;
    }
}

// Maxima of a node's children, from level 1 on, of non-negative numbers.
template <class LeafAt>
void fill_maximum(const cuda::DeviceMaximum& maximum, int64_t n_leaves, const LeafAt& leaf_at) {
    for (int level = 0; level < maximum.n_levels; ++level) {
        std::fill_n(maximum.levels[level], maximum.n_nodes[level], 0);
        const int64_t n_below = level == 0 ? n_leaves : maximum.n_nodes[level - 1];
        for (int64_t i = 0; i < n_below; ++i) {
            const uint32_t bits = level == 0 ? std::bit_cast<uint32_t>(leaf_at(i)) : maximum.levels[level - 1][i];
            uint32_t& largest = maximum.levels[level][i / cuda::fan_out];
            largest = std::max(largest, bits);
        }
    }
}

inline void mirror_tree(const cpu::SumTree& from, const cuda::DeviceTree& to) {
    std::copy_n(from.leaves(), from.capacity(), to.leaves);
    fill_sums(to, [&](int64_t i) { return i < from.capacity() ? from.mass(i) : 0; });
    to.state->total = from.total_mass();
    to.state->low_water = from.rescales_below();
    to.state->scale = from.scale();
}

inline void mirror_priorities(cpu::PriorityStore& from, const cuda::DevicePriorities& to) {
    const cpu::LiveSet& live = from.live();
    const int64_t capacity = to.tree.capacity;
    for (int64_t slot = 0; slot < capacity; ++slot) to.given[slot] = from.by_slot()[slot];
    mirror_tree(from.tree(), to.tree);
    std::fill_n(to.live.words, to.live.n_nodes[0], 0);
    for (int64_t slot = 0; slot < capacity; ++slot)
        if (live.contains(slot)) to.live.words[slot / 32] |= 1u << (slot % 32);
    fill_sums(to.live, [&](int64_t i) { return static_cast<uint64_t>(std::popcount(to.live.words[i])); });
    fill_maximum(to.live_maximum, capacity, [&](int64_t slot) { return from.priority(slot); });
    fill_maximum(to.smallest_leaf, capacity, [&](int64_t slot) { return reversed_leaf(to.tree.leaves[slot]); });
}

inline void mirror_ranks(cpu::PriorityStore& from, const cuda::DeviceRanks& to) {
    cpu::RankTree* const ranks = from.known_ranks();
    if (to.state == nullptr || ranks == nullptr) return;
    to.state->n_live = from.live().count();
    to.state->n_changes = ranks->state().n_changes;
    std::copy_n(ranks->weights(), n_rank_buckets, to.weights);
    std::fill_n(to.counts, n_rank_buckets, 0);
    for (int64_t slot = 0; slot < to.tree.capacity; ++slot) {
        const bool is_live = from.live().contains(slot);
        to.buckets[slot] = is_live ? static_cast<uint32_t>(rank_bucket(from.priority(slot)) + 1) : 0;
        if (is_live) ++to.counts[to.buckets[slot] - 1];
    }
    mirror_tree(ranks->tree(), to.tree);
}

// The device must be idle.
inline void mirror(cpu::CpuReplayBackend& from, const cuda::ReplayMemory& memory) {
    const cuda::DeviceReplay& to = memory.device();
    cpu::ReplayState& state = from.state();
    per_replay_statistics statistics = {};
    from.statistics(statistics);

    to.state->rules = state.rules;
    to.state->beta.step = statistics.beta_step;
    to.state->alpha = statistics.alpha;
    to.state->gamma = statistics.gamma;
    to.state->batches = static_cast<uint64_t>(statistics.samples);
    to.state->counters = state.counters;
    to.state->n_live = statistics.live;
    to.state->largest_bits = std::bit_cast<uint32_t>(state.priorities.scale().largest_ever);
    std::copy(state.lanes.begin(), state.lanes.end(), to.lanes);
    const auto mirror = [&](void* device_array, int64_t bytes, cpu::Column<const std::byte> column) {
        cpu::copy_frames(static_cast<std::byte*>(device_array), bytes, column.first, column.stride, to.capacity, bytes);
    };
    mirror(to.flags, sizeof(uint8_t), state.rows.flags().as_bytes());
    mirror(to.rewards, sizeof(float), state.rows.rewards().as_bytes());
    for (int64_t i = 0; i < to.n_fields; ++i) {
        const cuda::DeviceField& field = to.fields[i];
        mirror(field.frames, field.bytes, state.rows.field(i));
        if (field.next_frames != nullptr) mirror(field.next_frames, field.bytes, state.rows.next_field(i));
    }
    mirror_priorities(state.priorities, to.priorities);
    mirror_ranks(state.priorities, to.priorities.ranks);
}

}  // namespace per::test

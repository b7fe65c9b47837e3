#include "cpu/priority_store.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "cpu/row_store.h"
#include "per.h"
#include "td_error.h"

namespace per::cpu {
namespace {

// Positive float32 mapped to positive float32 in the opposite order; 0 stays 0, below all of them. Its own inverse.
float reversed(float leaf) {
    constexpr uint32_t bits_of_infinity = 0x7f800000;
    return leaf > 0.0f ? std::bit_cast<float>(bits_of_infinity - std::bit_cast<uint32_t>(leaf)) : 0.0f;
}

}  // namespace

PriorityStore::PriorityStore(const per_replay_options& options)
    : capacity_(options.capacity),
      alpha_(options.alpha),
      memory_(array_bytes(options.capacity, sizeof(float))),
      priorities_(reinterpret_cast<float*>(memory_.data())),
      tree_(options.capacity),
      live_(options.capacity),
      staging_(array_bytes(max_staged, sizeof(int64_t) + sizeof(float))),
      staged_slots_(reinterpret_cast<int64_t*>(staging_.data())),
      staged_leaves_(reinterpret_cast<float*>(staged_slots_ + max_staged)) {
    if (options.max_priority == PER_MAX_NOW) live_maximum_.emplace(capacity_);
    if (options.normalize_weights == PER_BUFFER_MAX) smallest_leaf_.emplace(capacity_);
    if (options.prioritization == PER_RANK) ranks_.emplace(capacity_);
}

float PriorityStore::largest() const {
    if (!live_maximum_) return largest_ever_;
    return live_.count() > 0 ? live_maximum_->maximum() : 1.0f;
}

// What the tree is to hold for each slot.
void PriorityStore::compute_leaves(int64_t n, const int64_t* slots, float* leaves_out) const {
    for (int64_t i = 0; i < n; ++i) leaves_out[i] = priority(slots[i]);
    tree_.kernels().power.raise(n, leaves_out, alpha_, leaves_out);
    if (alpha_ != 0.0) return;  // 0^alpha is 0 of itself
    for (int64_t i = 0; i < n; ++i)
        if (!live_.contains(slots[i])) leaves_out[i] = 0.0f;
}

void PriorityStore::give(int64_t slot, float priority) {
    priorities_[slot] = priority;
    if (live_.contains(slot)) stage(slot);
}

void PriorityStore::make_live(int64_t slot, float otherwise) {
    if (priorities_[slot] == not_given) priorities_[slot] = otherwise;
    live_.insert(slot);
    stage(slot);
}

void PriorityStore::make_dead(int64_t slot) {
    if (live_.erase(slot)) stage(slot);
}

void PriorityStore::raise_largest(float priority) {
    if (priority > largest_ever_) largest_ever_ = priority;
}

void PriorityStore::stage(int64_t slot) {
    if (live_maximum_) live_maximum_->update(slot, [this](int64_t i) { return priority(i); });
    if (n_staged_ == max_staged) commit();
    staged_slots_[n_staged_++] = slot;
}

void PriorityStore::commit() {
    if (n_staged_ == 0) return;
    compute_leaves(n_staged_, staged_slots_, staged_leaves_);
    const int64_t first = staged_slots_[0];
    int64_t run = 1;
    while (run < n_staged_ && staged_slots_[run] == first + run) ++run;
    if (run == n_staged_) {
        tree_.set_run(first, n_staged_, staged_leaves_);
    } else {
        tree_.set(n_staged_, staged_slots_, staged_leaves_);
    }
    if (smallest_leaf_)
        for (int64_t i = 0; i < n_staged_; ++i) update_smallest(staged_slots_[i]);
    if (ranks_) set_ranks(n_staged_, staged_slots_);
    n_staged_ = 0;
}

// Uses the memory of staged leaves.
void PriorityStore::set_ranks(int64_t n, const int64_t* slots) {
    for (int64_t i = 0; i < n; ++i) staged_leaves_[i] = live_.contains(slots[i]) ? priorities_[slots[i]] : -1.0f;
    ranks_->set(n, slots, staged_leaves_);
}

RankTree& PriorityStore::ranks() {
    if (!ranks_) {
        ranks_.emplace(capacity_);
        fill_ranks();
    }
    return *ranks_;
}

void PriorityStore::fill_ranks() {
    for (int64_t first = 0; first < capacity_; first += max_staged) {
        const int64_t n = std::min(max_staged, capacity_ - first);
        std::iota(staged_slots_, staged_slots_ + n, first);
        set_ranks(n, staged_slots_);
    }
}

SumTree& PriorityStore::tree_to_draw(int32_t prioritization) {
    if (prioritization != PER_RANK) return tree_;
    ranks().take_ranks_if_due(alpha_);
    return ranks_->tree();
}

void PriorityStore::update_smallest(int64_t slot) {
    smallest_leaf_->update(slot, [this](int64_t i) { return reversed(tree_.priority(i)); });
}

void PriorityStore::find_smallest() {
    for (int64_t slot = 0; slot < capacity_; slot += MaximumTree::fan_out) update_smallest(slot);
}

uint64_t PriorityStore::smallest_mass(int32_t prioritization) {
    if (prioritization == PER_RANK) return ranks().smallest_mass();
    if (!smallest_leaf_) {
        smallest_leaf_.emplace(capacity_);
        find_smallest();
    }
    return mass_of(reversed(smallest_leaf_->maximum()), power_of_two(tree_.scale()));
}

void PriorityStore::clear() {
    live_.clear();
    tree_.reset();
    if (live_maximum_) live_maximum_->reset();
    if (smallest_leaf_) smallest_leaf_->reset();
    if (ranks_) ranks_->clear();
}

void PriorityStore::write_leaves() {
    for (int64_t first = 0; first < capacity_; first += max_staged) {
        const int64_t n = std::min(max_staged, capacity_ - first);
        std::iota(staged_slots_, staged_slots_ + n, first);
        compute_leaves(n, staged_slots_, tree_.leaves() + first);
    }
}

void PriorityStore::set_alpha(double alpha) {
    alpha_ = alpha;
    write_leaves();
    tree_.rebuild();
    if (smallest_leaf_) find_smallest();
    if (ranks_) ranks_->forget_ranks();
}

bool PriorityStore::restore(const std::vector<int64_t>& live, const PriorityScale& scale) {
    for (int64_t slot : live) {
        if (!is_priority(priorities_[slot])) return false;
        live_.insert(slot);
        if (live_maximum_) live_maximum_->update(slot, [this](int64_t i) { return priority(i); });
    }
    largest_ever_ = scale.largest_ever;
    write_leaves();
    if (!tree_.rebuild_at(scale.tree_scale, scale.tree_rescales_below)) return false;
    if (smallest_leaf_) find_smallest();
    if (ranks_) fill_ranks();
    return true;
}

}  // namespace per::cpu

#include "cpu/tree/priority_store.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/replay_options.h"
#include "per.h"
#include "rules/priority.h"

namespace per::cpu {
namespace {

// Calls visit(slot) for one slot of each group of slots that MaximumTree::update() covers.
template <class Visit>
void for_each_group(int64_t first, int64_t end, const Visit& visit) {
    constexpr int64_t size = MaximumTree::fan_out;
    for (int64_t slot = first; slot < end; slot = slot / size * size + size) visit(slot);
}

}  // namespace

PriorityStore::PriorityStore(const per_replay_options& options, const RowColumn<float>& priorities,
                             const Births& births)
    : capacity_(options.capacity),
      alpha_(options.alpha),
      freshness_(freshness_of(options)),
      births_(births),
      priorities_(priorities),
      tree_(options.capacity, {options.memory, PER_MEMORY_PRIORITIES}),
      live_(options.capacity, {options.memory, PER_MEMORY_PRIORITIES}),
      always_has_ranks_(options.prioritization == PER_RANK),
      staging_(array_bytes(max_staged, 2 * sizeof(int64_t) + sizeof(float))),
      staged_slots_(reinterpret_cast<int64_t*>(staging_.data())),
      staged_leaves_(reinterpret_cast<float*>(staged_slots_ + 2 * max_staged)),
      births_of_staged_(staged_slots_ + max_staged) {
    const MemorySource source(options.memory, PER_MEMORY_PRIORITIES);
    if (options.max_priority == PER_MAX_NOW) live_maximum_.emplace(capacity_, source);
    if (options.normalize_weights == PER_BUFFER_MAX) smallest_leaf_.emplace(capacity_, source);
    if (always_has_ranks_) ranks_.emplace(capacity_, source);
}

float PriorityStore::largest() const {
    if (!live_maximum_) return largest_ever_;
    return live_.count() > 0 ? live_maximum_->maximum() : 1.0f;
}

// Caches priority_to_alpha(), which takes a tenth of the time of adding a single step.
float PriorityStore::power_of(float priority) const {
    if (last_power_.priority != priority) last_power_ = {priority, priority_to_alpha(priority, alpha_), 0.0};
    return last_power_.leaf;
}

// Caches log2_of_power() in the same way.
double PriorityStore::exponent_of(float priority) const {
    if (last_power_.priority != priority)
        last_power_ = {priority, 0.0f, log2_of_power<double, uint64_t>(static_cast<double>(priority), alpha_)};
    return last_power_.exponent;
}

float PriorityStore::decayed(float priority, int64_t birth) const {
    if (priority == 0.0f && alpha_ != 0.0) return 0.0f;
    return static_cast<float>(decayed_power<double, uint64_t>(exponent_of(priority), half_lives_at(freshness_, birth),
                                                              static_cast<double>(freshness_.reference)));
}

// Turns priorities into the tree's leaves in place, for each slot. If `births` is NULL, they are looked up.
void PriorityStore::compute_leaves(int64_t n, const int64_t* slots, const int64_t* births, float* leaves_out) const {
    if (freshness_.decays() && n <= 2) {
        for (int64_t i = 0; i < n; ++i) leaves_out[i] = decayed(leaves_out[i], births_.of_slot(slots[i]));
    } else if (freshness_.decays()) {
        const GivenBirths given =
            births != nullptr ? GivenBirths{births} : births_.of_slots(n, slots, births_of_staged_);
        tree_.kernels().power.decay(n, leaves_out, alpha_, freshness_, given, leaves_out);
    } else if (n <= 2) {  // a single step usually has the priority of the one before
        for (int64_t i = 0; i < n; ++i)
            if (leaves_out[i] > 0.0f || alpha_ == 0.0) leaves_out[i] = power_of(leaves_out[i]);
    } else {
        tree_.kernels().power.raise(n, leaves_out, alpha_, leaves_out);
    }
    if (alpha_ != 0.0) return;  // 0^alpha is 0
    for (int64_t i = 0; i < n; ++i)
        if (!live_.contains(slots[i])) leaves_out[i] = 0.0f;
}

// priority() of adjacent slots: usually most are live, or none.
void PriorityStore::read_run(int64_t first, int64_t n, float* priorities_out) const {
    for (int64_t i = 0; i < n;) {
        const int64_t slot = first + i;
        const int64_t in_word = std::min(64 - slot % 64, n - i);
        const uint64_t live = live_.word(slot) >> (slot % 64);
        const uint64_t all = ~uint64_t{0} >> (64 - in_word);
        if ((live & all) == all)
            for (int64_t k = 0; k < in_word; ++k) priorities_out[i + k] = priorities_[slot + k];
        else
            for (int64_t k = 0; k < in_word; ++k) priorities_out[i + k] = live >> k & 1 ? priorities_[slot + k] : 0.0f;
        i += in_word;
    }
}

// compute_leaves() of adjacent slots. Rows that were given no priority share one, whose power is computed once.
void PriorityStore::compute_run(int64_t first, int64_t n, float* leaves_out) const {
    read_run(first, n, leaves_out);
    const float largest = tree_.kernels().update.largest(n, leaves_out);
    int32_t has_others = 0;  // as wide as a leaf, so that the loop is vectorised
    for (int64_t i = 0; i < n; ++i) has_others |= (leaves_out[i] != largest) & (leaves_out[i] != 0.0f);
    if (freshness_.decays()) {
        decay_run(first, n, has_others == 0 ? largest : not_given, leaves_out);
    } else if (has_others == 0) {
        const float leaf_of_zero = power_of(0.0f);
        const float leaf = power_of(largest);  // last, as it is cached
        for (int64_t i = 0; i < n; ++i) leaves_out[i] = leaves_out[i] > 0.0f ? leaf : leaf_of_zero;
    } else {
        tree_.kernels().power.raise(n, leaves_out, alpha_, leaves_out);
    }
    clear_dead(first, n, leaves_out);
}

// Turns the priorities of adjacent slots into leaves that decay. All that are not 0 are `priority`, if that is given.
void PriorityStore::decay_run(int64_t first, int64_t n, float priority, float* leaves_out) const {
    const PowerKernels& kernels = tree_.kernels().power;
    if (alpha_ == 0.0) {  // no priority matters, not even 0
        priority = 1.0f;
        std::fill_n(leaves_out, n, priority);
    }
    births_.for_each_run(first, n, [&](int64_t n_rows, int64_t birth, int64_t step) {
        if (priority == not_given) {
            for (int64_t i = 0; i < n_rows; ++i) births_of_staged_[i] = birth + step * i;
            kernels.decay(n_rows, leaves_out, alpha_, freshness_, {births_of_staged_}, leaves_out);
        } else if (step == 0) {
            const float leaf = decayed(priority, birth);
            for (int64_t i = 0; i < n_rows; ++i) leaves_out[i] = leaves_out[i] > 0.0f ? leaf : 0.0f;
        } else if (priority > 0.0f) {
            kernels.decay_run(n_rows, exponent_of(priority), freshness_, birth, leaves_out);
        }
        leaves_out += n_rows;
    });
}

// 0^alpha is 0, unless alpha is 0, too.
void PriorityStore::clear_dead(int64_t first, int64_t n, float* leaves) const {
    for (int64_t i = 0; alpha_ == 0.0 && i < n; ++i)
        if (!live_.contains(first + i)) leaves[i] = 0.0f;
}

// Works in pieces whose lines stay in the cache from the first pass to the last. Ranks count the rows that move, and
// must see only the final priority of each slot. So with ranks all priorities are written first.
void PriorityStore::update(int64_t n, const int64_t* slots, const float* priorities, const int64_t* births) {
    constexpr int64_t piece = 256;
    static_assert(piece <= max_staged);
    const bool is_written_first = ranks_.has_value();
    int64_t n_moved = 0;
    const Column<float> written = priorities_.to_write({slots, static_cast<size_t>(n)});
    for (int64_t i = 0; is_written_first && i < n; ++i) written[slots[i]] = priorities[i];
    begin_change(n);
    for (int64_t first = 0; first < n; first += piece) {
        const int64_t end = std::min(n, first + piece);
        int64_t n_staged = 0;  // a local variable, which stays in a register
        for (int64_t i = first; i < end; ++i) {
            if (i + fetched_ahead < n) prefetch_to_update(slots[i + fetched_ahead]);
            const int64_t slot = slots[i];
            const float priority = priorities[i];
            if (!is_written_first) written[slot] = priority;
            staged_slots_[n_staged] = slot;
            staged_leaves_[n_staged] = priority;
            n_staged += live_.contains(slot);
        }
        n_staged_ = n_staged;
        for (int64_t i = 0; live_maximum_ && i < n_staged_; ++i) update_live_maximum(staged_slots_[i]);
        const bool are_all_live = n_staged == end - first;
        n_moved += commit_staged(births != nullptr && are_all_live ? births + first : nullptr);
    }
    end_change(n_moved);
    raise_largest_of(n, slots, priorities);
}

// Raises the largest priority ever to the largest of these, except those that a later one for the same slot replaces.
void PriorityStore::raise_largest_of(int64_t n, const int64_t* slots, const float* priorities) {
    if (tree_.kernels().update.largest(n, priorities) <= largest_ever_) return;
    for (int64_t i = 0; i < n; ++i) raise_largest(priorities_[slots[i]]);
}

void PriorityStore::make_live(int64_t first, int64_t n, int64_t row, float otherwise) {
    const Column<float> priorities = priorities_.to_write(first, n);
    for (int64_t i = 0; i < n; ++i) priorities[i] = priorities[i] == not_given ? otherwise : priorities[i];
    live_.insert(first, n);
    n_made_live_ += n;
    if (freshness_.decays()) latest_birth_ = std::max(latest_birth_, births_.of_row(row + n - 1, first + n - 1));
    if (live_maximum_) update_live_maximum(first, n);
}

void PriorityStore::make_dead(int64_t first, int64_t n) {
    if (live_.erase(first, n) > 0 && live_maximum_) update_live_maximum(first, n);
}

void PriorityStore::use_up(int64_t slot) {
    make_dead(slot, 1);
    ++n_used_up_;
}

void PriorityStore::raise_largest(float priority) {
    if (priority > largest_ever_) largest_ever_ = priority;
}

// ---- changes of the tree

void PriorityStore::begin_change(int64_t n) {
    tree_.begin_change(n);
    if (ranks_) ranks_->begin_change(n);
}

// n_changes: number of changes of ranks (rank.h).
void PriorityStore::end_change(int64_t n_changes) {
    commit_staged_slots();
    tree_.end_change();
    if (ranks_) ranks_->end_change(n_changes);
}

// Makes room for the leaves of the rows that were made live.
void PriorityStore::rebase_if_due() {
    if (!freshness_.decays() || !is_rebase_due(freshness_, latest_birth_)) return;
    tree_.raise_scale(rebase_leaves(reference_for(freshness_, latest_birth_)));
}

// Returns the amount by which the reference was raised. The caller must raise or choose the scale next.
int64_t PriorityStore::rebase_leaves(int64_t reference) {
    const int64_t before = std::exchange(freshness_.reference, reference);
    const int64_t raised = reference - before;
    if (raised == 0) return 0;
    float* const leaves = tree_.leaves();
    for (int64_t slot = 0; slot < capacity_ && tree_.total_mass() != 0; ++slot)
        leaves[slot] = rebased_leaf(leaves[slot], raised);
    if (smallest_leaf_) find_smallest();
    return raised;
}

// An upper bound on the leaf of any priority up to this one and any birth up to `latest`, however powers are rounded.
float PriorityStore::leaf_bound(float priority, int64_t latest) const {
    const float leaf = freshness_.decays() ? decayed(priority, latest) : power_of(priority);
    return leaf > 0.0f ? leaf * (1.0f + 0x1p-20f) + 0x1p-149f : 0.0f;
}

double PriorityStore::mass_bound(const SumTree& tree, float leaf) {
    return scaled_priority(leaf, power_of_two(tree.scale())) + 1.0;
}

void PriorityStore::commit_slots(int64_t first, int64_t n) {
    if (n >= min_run) return commit_run(first, n);
    for (int64_t slot = first; slot < first + n; ++slot) {
        if (!live_.contains(slot) && tree_.priority(slot) == 0.0f && !ranks_) continue;
        if (n_staged_ == max_staged) commit_staged_slots();
        staged_slots_[n_staged_++] = slot;
    }
}

void PriorityStore::commit_run(int64_t first, int64_t n) {
    commit_staged_slots();  // the loop uses their memory
    for (const int64_t end = first + n; first < end; first += max_staged) {
        const int64_t size = std::min(max_staged, end - first);
        compute_run(first, size, staged_leaves_);
        tree_.change_run(first, size, staged_leaves_);
        if (smallest_leaf_) for_each_group(first, first + size, [this](int64_t slot) { update_smallest(slot); });
        if (ranks_) set_ranks(first, size);
    }
}

void PriorityStore::commit_staged_slots() {
    for (int64_t i = 0; i < n_staged_; ++i) staged_leaves_[i] = priority(staged_slots_[i]);
    commit_staged(nullptr);
}

// Commits slots that are staged with their priorities. `births` may be NULL. Returns the number of rows that moved in the
// ranks.
int64_t PriorityStore::commit_staged(const int64_t* births) {
    if (n_staged_ == 0) return 0;
    compute_leaves(n_staged_, staged_slots_, births, staged_leaves_);
    tree_.change(n_staged_, staged_slots_, staged_leaves_);
    if (smallest_leaf_)
        for (int64_t i = 0; i < n_staged_; ++i) update_smallest(staged_slots_[i]);
    const int64_t n_moved = ranks_ ? set_ranks(n_staged_, staged_slots_) : 0;
    n_staged_ = 0;
    return n_moved;
}

// Brings the priorities of these slots to the ranks. Returns the number of rows that moved there. Overwrites the staged
// leaves.
int64_t PriorityStore::set_ranks(int64_t n, const int64_t* slots) {
    for (int64_t i = 0; i < n; ++i) staged_leaves_[i] = live_.contains(slots[i]) ? priorities_[slots[i]] : -1.0f;
    return ranks_->set(n, slots, staged_leaves_);
}

// The same for slots first .. first + n - 1. Also overwrites the staged slots.
void PriorityStore::set_ranks(int64_t first, int64_t n) {
    std::iota(staged_slots_, staged_slots_ + n, first);
    set_ranks(n, staged_slots_);
}

RankTree& PriorityStore::ranks() {
    if (!ranks_) {
        ranks_.emplace(capacity_);
        fill_ranks();
    }
    return *ranks_;
}

void PriorityStore::fill_ranks() {
    ranks_->begin_change(live_.count());
    live_.for_each_used_line([this](int64_t first, int64_t n) { set_ranks(first, n); });
    ranks_->end_change(0);  // ranks were never taken
}

void PriorityStore::update_live_maximum(int64_t slot) {
    live_maximum_->update(slot, [this](int64_t i) { return priority(i); });
}

void PriorityStore::update_live_maximum(int64_t first, int64_t n) {
    for_each_group(first, first + n, [this](int64_t slot) { update_live_maximum(slot); });
}

void PriorityStore::update_smallest(int64_t slot) {
    smallest_leaf_->update(slot, [this](int64_t i) { return reversed_leaf(tree_.priority(i)); });
}

void PriorityStore::find_smallest() {
    live_.for_each_used_line([this](int64_t first, int64_t n) {
        for_each_group(first, first + n, [this](int64_t slot) { update_smallest(slot); });
    });
}

uint64_t PriorityStore::smallest_mass(int32_t prioritization) {
    if (prioritization == PER_RANK) return ranks().smallest_mass();
    if (!smallest_leaf_) {
        smallest_leaf_.emplace(capacity_);
        find_smallest();
    }
    return mass_of(reversed_leaf(smallest_leaf_->maximum()), power_of_two(tree_.scale()));
}

MemoryUse PriorityStore::memory_use() const {
    MemoryUse use = staging_.use() + tree_.memory_use() + live_.memory_use();
    if (live_maximum_) use += live_maximum_->memory_use();
    if (smallest_leaf_) use += smallest_leaf_->memory_use();
    if (ranks_) use += ranks_->memory_use();
    return use;
}

void PriorityStore::clear() {
    tree_.reset();
    if (live_maximum_) live_maximum_->reset();
    if (smallest_leaf_) smallest_leaf_->reset();
    if (ranks_) ranks_->clear(live_);
    live_.clear();
}

void PriorityStore::write_leaves() {
    for (int64_t first = 0; first < capacity_; first += max_staged)
        compute_run(first, std::min(max_staged, capacity_ - first), tree_.leaves() + first);
}

void PriorityStore::set_alpha(double alpha) {
    alpha_ = alpha;
    last_power_ = {};
    write_leaves();
    tree_.rebuild();
    if (smallest_leaf_) find_smallest();
    if (ranks_) ranks_->forget_ranks();
}

void PriorityStore::set_scale(const LeafScale& scale) {
    rebase_leaves(scale.reference);
    if (scale.scale == PER_SCALE_AUTOMATIC)
        tree_.rebuild();
    else
        tree_.fix_scale(scale.scale);
}

// Touches only the memory that live rows need.
void PriorityStore::restore(const PriorityScale& scale) {
    largest_ever_ = scale.largest_ever;
    freshness_.reference = scale.reference;
    tree_.restore_scale(scale.tree_scale, scale.tree_rescales_below);
    live_.for_each_used_line([this](int64_t first, int64_t n) {
        tree_.add_run(first, n);
        if (live_maximum_) update_live_maximum(first, n);
    });
    if (smallest_leaf_) find_smallest();
}

void PriorityStore::restore_ranks(const RankTree::State& state, const float* weights) {
    if (!ranks_) ranks_.emplace(capacity_);
    std::copy_n(weights, n_rank_buckets, ranks_->weights());
    ranks_->restore_state(state);
    live_.for_each_used_line([this](int64_t first, int64_t n) {
        int64_t n_live = 0;
        for (int64_t slot = first; slot < first + n; ++slot) {
            if (!live_.contains(slot)) continue;
            staged_slots_[n_live] = slot;
            staged_leaves_[n_live++] = priorities_[slot];
        }
        ranks_->restore(n_live, staged_slots_, staged_leaves_);
    });
}

}  // namespace per::cpu

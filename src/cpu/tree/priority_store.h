// The priority of every slot in host memory, and a sum tree of p^alpha for slots whose rows are live. With a half-life
// the leaves are those of freshness.h, which this comment and others below also call p^alpha.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "cpu/memory/column.h"
#include "cpu/memory/memory.h"
#include "cpu/tree/births.h"
#include "cpu/tree/live_set.h"
#include "cpu/tree/maximum_tree.h"
#include "cpu/tree/rank_tree.h"
#include "cpu/tree/sum_tree.h"
#include "per.h"
#include "rules/freshness.h"

namespace per::cpu {

struct PriorityScale {
    float largest_ever;
    int32_t tree_scale;
    uint64_t tree_rescales_below;
    int64_t reference;  // of freshness.h
};

// Keeps the tree's leaf at (live ? p^alpha : 0). A priority can be given before its row becomes live. Changes by
// make_live() and make_dead() reach the tree with commit(), as one change. Only the constructor allocates.
class PriorityStore {
 public:
    // The options must have been resolved. Priorities are kept in `priorities`, in which no slot may have one yet.
    PriorityStore(const per_replay_options& options, const RowColumn<float>& priorities, const Births& births);

    const SumTree& tree() const { return tree_; }
    const LiveSet& live() const { return live_; }

    // Must be called before draws by PER_RANK. Returns true if ranks were due; forget_ranks() makes them due again.
    // Unless the options have PER_RANK, the first call takes a pass over the buffer and 6.6 bytes a row.
    bool take_ranks_if_due() { return ranks().take_ranks_if_due(alpha_); }
    void forget_ranks() { ranks_->forget_ranks(); }

    // The tree and the live set for a draw. The draw may change them, but must restore them at its end.
    // `prioritization` selects the tree.
    SumTree& tree_to_draw(int32_t prioritization) { return prioritization == PER_RANK ? ranks_->tree() : tree_; }
    LiveSet& live_to_draw() { return live_; }
    double alpha() const { return alpha_; }
    const Freshness& freshness() const { return freshness_; }

    // p of a live row, 0 of others.
    float priority(int64_t slot) const { return live_.contains(slot) ? priorities_[slot] : 0.0f; }

    // The prefetch distance of loops over many rows.
    static constexpr int64_t fetched_ahead = 64;
    void prefetch(int64_t slot) const {
        live_.prefetch(slot);
        prefetch_to_read(priorities_.at(slot));
    }
    // Prefetches a row for update(). The caller prefetches the first fetched_ahead rows; update() itself prefetches the
    // others.
    void prefetch_to_update(int64_t slot) const {
        live_.prefetch(slot);
        prefetch_to_write(priorities_.at(slot));
        tree_.prefetch_to_set(slot);
    }

    // p of a row, even if it is not live; not_given if it was given none.
    float given(int64_t slot) const { return priorities_[slot]; }

    // The priority of a row that becomes live without one: the largest ever or the largest live one, by max_priority.
    float largest() const;
    // The largest priority ever: no row has a larger one.
    float largest_ever() const { return largest_ever_; }

    // The smallest mass of a live row in the tree of a per_prioritization, which must not be empty. Rows of priority 0
    // count only if there are no others. Unless the options have PER_BUFFER_MAX, the first call takes a pass over the
    // buffer and 0.27 bytes a row.
    uint64_t smallest_mass(int32_t prioritization);

    // Forgets the priorities of slots first .. first + n - 1, whose rows are not live.
    void forget(int64_t first, int64_t n) {
        const Column<float> priorities = priorities_.to_write(first, n);
        for (int64_t i = 0; i < n; ++i) priorities[i] = not_given;
    }
    // Stores the priority of a row that is not live yet.
    void store(int64_t slot, float priority) { priorities_.to_write(slot) = priority; }
    // Sets priorities of rows, live or not, as a change of the tree. Of equal slots the last one wins; the largest of
    // the winners raises the largest ever. `births` of live rows may be given where they are known.
    void update(int64_t n, const int64_t* slots, const float* priorities, const int64_t* births = nullptr);
    // Makes rows live, with priority `otherwise` if they were given none. They are rows `row`, `row` + 1, .. of a lane.
    void make_live(int64_t first, int64_t n, int64_t row, float otherwise);
    // Makes rows dead. Their priorities stay. This does not count as a change of ranks: the rows that replace these do.
    void make_dead(int64_t first, int64_t n);
    // Makes a live row dead that no other replaces, so this counts as a change of ranks.
    void use_up(int64_t slot);
    void raise_largest(float priority);

    // Raises the reference, which must not be smaller than that of freshness(), and sets the scale; see
    // SumTree::fix_scale(). With PER_SCALE_AUTOMATIC the tree chooses.
    void set_scale(const LeafScale& scale);

    // Brings the tree up to date. Calls visit(commit_slots), which must call commit_slots(first, n) for runs of slots
    // first .. first + n - 1. Together the runs must contain every slot that became live or dead since the last commit;
    // they may contain other slots.
    template <class Visit>
    void commit(const Visit& visit) {
        rebase_if_due();
        begin_change(n_made_live_);
        visit([this](int64_t first, int64_t n) { commit_slots(first, n); });
        end_change(n_made_live_ + n_used_up_);
        n_made_live_ = n_used_up_ = 0;
    }
    // True if the trees surely keep their scales while n_born rows become live, with priority `largest` and birth
    // `latest` at most, and n_dying rows die. One commit() for all of these then has the same result as several.
    // visit_dying(visit) must call visit(first, n) for slots first .. first + n - 1 until all dying rows are among them.
    // It is called only if the number of dying rows does not decide.
    template <class VisitDying>
    bool keeps_scales(int64_t n_born, float largest, int64_t latest, int64_t n_dying,
                      const VisitDying& visit_dying) const {
        if (freshness_.decays() && is_rebase_due(freshness_, latest)) return false;
        const auto keeps = [&](const SumTree& tree, float largest_leaf, float largest_written) {
            const double most_lost = mass_bound(tree, largest_leaf) * static_cast<double>(n_dying);
            if (most_lost < 0x1p62 && tree.keeps_scale(n_born, largest_written, static_cast<uint64_t>(most_lost)))
                return true;
            if (!tree.keeps_scale(n_born, largest_written, 0)) return false;
            uint64_t lost = 0;
            visit_dying([&](int64_t first, int64_t n) { lost += tree.mass_of_run(first, n); });
            return tree.keeps_scale(n_born, largest_written, lost);
        };
        const float of_any = leaf_bound(largest_ever_, latest);
        if (!keeps(tree_, of_any, largest == largest_ever_ ? of_any : leaf_bound(largest, latest))) return false;
        return !ranks_ || keeps(ranks_->tree(), ranks_->largest_weight(), ranks_->largest_weight());
    }
    // If fewer slots than this lie between two runs, one run over all of them is cheaper.
    static constexpr int64_t min_run = 8;

    // For checkpoints: priorities by slot, -1 where none was given, and the rest of the state that decides later draws.
    const RowColumn<float>& by_slot() const { return priorities_; }
    PriorityScale scale() const { return {largest_ever_, tree_.scale(), tree_.rescales_below(), freshness_.reference}; }
    // NULL if ranks were never asked for. With PER_RANK in the options they exist from the beginning.
    RankTree* known_ranks() { return ranks_ ? &*ranks_ : nullptr; }
    bool always_has_ranks() const { return always_has_ranks_; }
    // Restore a saved buffer into one without rows. First the caller fills by_slot(). It then passes the leaves of
    // slots first .. first + n - 1 to restore_leaves(): p^alpha of live rows, which must fit the saved scale, and 0 of
    // others. Then it passes live slots to restore_live(), and at last calls restore(), which computes the rest.
    void restore_leaves(int64_t first, int64_t n, const float* leaves) {
        std::copy_n(leaves, n, tree_.leaves() + first);
    }
    void restore_live(int64_t first, int64_t n) { live_.insert(first, n); }
    void restore(const PriorityScale& scale);
    // Call it after restore(). weights: [n_rank_buckets].
    void restore_ranks(const RankTree::State& state, const float* weights);

    MemoryUse memory_use() const;

    // Makes all rows dead. The largest priority ever stays.
    void clear();
    void set_alpha(double alpha);

 private:
    static constexpr float not_given = -1.0f;
    static constexpr int64_t max_staged = 2048;

    void begin_change(int64_t n);
    void end_change(int64_t n_changes);
    float leaf_bound(float priority, int64_t latest) const;
    void rebase_if_due();
    int64_t rebase_leaves(int64_t reference);
    static double mass_bound(const SumTree& tree, float leaf);
    void commit_slots(int64_t first, int64_t n);
    void commit_run(int64_t first, int64_t n);
    int64_t commit_staged(const int64_t* births);
    void commit_staged_slots();
    float power_of(float priority) const;
    double exponent_of(float priority) const;
    float decayed(float priority, int64_t birth) const;
    void compute_leaves(int64_t n, const int64_t* slots, const int64_t* births, float* leaves_out) const;
    void read_run(int64_t first, int64_t n, float* priorities_out) const;
    void compute_run(int64_t first, int64_t n, float* leaves_out) const;
    void decay_run(int64_t first, int64_t n, float priority, float* leaves_out) const;
    void clear_dead(int64_t first, int64_t n, float* leaves) const;
    void write_leaves();
    int64_t set_ranks(int64_t n, const int64_t* slots);
    void set_ranks(int64_t first, int64_t n);
    RankTree& ranks();
    void fill_ranks();
    void raise_largest_of(int64_t n, const int64_t* slots, const float* priorities);
    void update_live_maximum(int64_t first, int64_t n);
    void update_live_maximum(int64_t slot);
    void update_smallest(int64_t slot);
    void find_smallest();

    int64_t capacity_;
    double alpha_;
    Freshness freshness_;
    const Births births_;
    RowColumn<float> priorities_;  // not_given or p
    SumTree tree_;
    LiveSet live_;
    std::optional<MaximumTree> live_maximum_;   // with PER_MAX_NOW
    std::optional<MaximumTree> smallest_leaf_;  // of reversed leaves; made when it is first needed
    float largest_ever_ = 1.0f;

    const bool always_has_ranks_;
    std::optional<RankTree> ranks_;  // with PER_RANK in the options, or since a call used it

    Memory staging_;
    int64_t n_staged_ = 0;
    int64_t* staged_slots_;
    float* staged_leaves_;  // priorities, until commit_staged() computes leaves in their place
    int64_t* births_of_staged_;

    // Since the last commit().
    int64_t n_made_live_ = 0;
    int64_t n_used_up_ = 0;

    int64_t latest_birth_ = 0;  // of all rows made live

    // Cache of the last power: rows added one by one usually have the same priority.
    struct Power {
        float priority = not_given;
        float leaf = 0.0f;
        double exponent = 0.0;  // in place of the leaf, if priorities decay
    };
    mutable Power last_power_;  // at this alpha
};

}  // namespace per::cpu

#ifndef PER_BENCH_PLAIN_REPLAY_H
#define PER_BENCH_PLAIN_REPLAY_H

#include <cstdint>
#include <vector>

#include "binary_tree.h"
#include "page_array.h"
#include "row.h"

namespace bench {

/*
 * A simple replay buffer: a ring for each field and one for next observations, with a binary float32 tree on top. It
 * stores no final observations, so it holds step after step.
 */
class PlainReplay {
 public:
    PlainReplay(const RowKind& kind, int64_t capacity);

    void set_priorities(const float* priorities) { tree_.fill(priorities); }
    int64_t next_step() const { return next_step_; }

    /* Copies steps into the rings; add() also gives them the priority 1. */
    void store(const Steps& steps);
    void add(const Steps& steps);

    /* The ids of its rows are their slots. */
    void sample(Draws& draws, Rows& rows);

    /*
     * Copies the rows of known slots, and the next observations from the slots after their windows.
     * Windows and stacks lie inside an episode.
     */
    void copy_rows_and_followers(const std::vector<int64_t>& slots, Rows& rows) const;

    /* Copies `bytes` contiguous bytes, from a ring's byte `first` on. */
    void copy_bytes(int64_t first, int64_t bytes, std::byte* out) const;
    int64_t ring_bytes() const { return fields_[0].size(); }

    int64_t capacity() const { return capacity_; }

    /* The row (see row.h) of the step in a slot. */
    int64_t row_in(int64_t slot) const;

 private:
    void copy_row(int64_t i, int64_t slot, const std::vector<PageArray<std::byte>>& next_rings, int64_t next_slot,
                  Rows& rows) const;
    void store_run(const Steps& steps, int64_t first, int64_t count, int64_t slot);
    void prefetch(int64_t slot) const;

    RowKind kind_;
    int64_t capacity_;
    int64_t next_step_ = 0;
    std::vector<PageArray<std::byte>> fields_;
    std::vector<PageArray<std::byte>> next_fields_;
    PageArray<float> reward_;
    PageArray<uint8_t> terminated_;
    BinaryTree tree_;
};

}  // namespace bench

#endif

#ifndef PER_BENCH_LIBPER_REPLAY_H
#define PER_BENCH_LIBPER_REPLAY_H

#include <per.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "row.h"
#include "sequences.h"

namespace bench {

/* A per_replay of one environment with the rows of row.h. */
class LibperReplay {
 public:
    LibperReplay(const RowKind& kind, int64_t capacity, int32_t gather_threads = 1, double half_life = 0);

    int64_t next_step() const { return next_step_; }

    /* Adds steps in one call, or in one call per step. With `priorities` NULL they get the largest so far. */
    void add(const Steps& steps, const float* priorities, int64_t* ids_out);
    void add_singly(const Steps& steps, int64_t* ids_out);

    /* Draws a batch with weights, ids and everything else that was stored. */
    void sample_rows(Rows& rows);

    /* Like sample_rows(), with half of the rows from `other`. `sources` is kept from batch to batch. */
    void sample_mixture(LibperReplay& other, std::array<per_source, 2>& sources, Rows& rows);

    /* Like sample_rows(), for sequences. */
    void sample_sequences(Sequences& sequences);

    /* Draws weights and ids only, in proportion to priorities or not. */
    void sample_ids(per_prioritization prioritization, std::vector<int64_t>& ids, std::vector<float>& weights);

    void update(const std::vector<int64_t>& ids, const std::vector<float>& td_errors);

    /* Reads the rows of rows.ids. */
    void get(Rows& rows) const;

    std::vector<float> priorities(const std::vector<int64_t>& ids) const;
    double alpha() const;

 private:
    per_batch outputs(Rows& rows) const;
    void add_part(const Steps& steps, int64_t first, int64_t length, const float* priorities, int64_t* ids_out);

    struct Free {
        void operator()(per_replay* replay) const { per_replay_free(replay); }
    };

    RowKind kind_;
    std::vector<per_array> field_arrays_;
    std::vector<per_array> next_field_arrays_;
    mutable std::vector<void*> field_outputs_;
    mutable std::vector<void*> next_field_outputs_;
    int64_t next_step_ = 0;
    std::unique_ptr<per_replay, Free> replay_;
};

}  // namespace bench

#endif

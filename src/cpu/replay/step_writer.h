// Adding steps to a replay buffer in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "cpu/replay/given_steps.h"
#include "cpu/replay/replay_state.h"
#include "per.h"

namespace per::cpu {

// Adds in two passes. The first casts and checks all values, and advances copies of the lanes; it leaves the buffer
// unchanged and may throw. The second writes, and cannot fail. Memory is kept for the next call.
//
// A run of steps of a lane (see longest_run() in window.h) is taken at once, so that checks, copies and changes of the
// tree work on whole arrays.
class StepWriter {
 public:
    StepWriter(ReplayState& state, const per_replay_options& options);

    // ids_out: [length, n_envs] or NULL.
    void add(const ReplaySteps& steps, int64_t* ids_out);

 private:
    // Step k of the call's j-th environment, in lane `env`, at `index` of the call's arrays.
    struct Place {
        int64_t k;
        int64_t j;
        int64_t env;
        int64_t index;
    };
    // A step, or a run of `count` steps. Of the input of a run only next_known is used.
    struct Segment {
        Place place;
        int64_t count;
        StepInput input;
    };
    // Frames of consecutive entries, and the rows that take them.
    struct FrameRun {
        int64_t field;
        bool is_next_field;  // the rows take them as next observations
        const GivenValues& values;
        int64_t entry;
        RowRange rows;
    };
    // The state of the first pass for the call's j-th environment.
    struct LaneCheck {
        Lane lane;            // after the steps checked so far
        int64_t next_step;    // to be checked
        int64_t announcing;   // index of the entry that announced last; -1: it was in an earlier call
        int64_t ungiven_end;  // all rows from here on were given priorities
        int64_t first_frame;  // the first row whose frames will be written; -1: none yet
    };

    Place place(int64_t k, int64_t j) const;
    LaneCheck& check_of(const Place& place) { return checks_[static_cast<size_t>(place.j)]; }
    // True if the observation of the next step lies in the row that it will take.
    bool was_announced(LaneState state) const { return state == LaneState::announced && next_takes_row(state_.rules); }
    const LaneCheck& check_of(const Place& place) const { return checks_[static_cast<size_t>(place.j)]; }

    void check_all();
    void reserve_rows();
    void note_frames(LaneCheck& check, LaneState before, const StepOutcome& outcome);
    void await_reads();
    void prepare_frames();
    int64_t check(const Place& place);
    void check_step(const Place& place);
    void check_run(const Place& place, int64_t count);
    bool check_priority(const Place& place, bool starts_sequence);
    bool matches_announced(const Place& place) const;
    int64_t run_length(const Place& place) const;
    int64_t matching_steps(int64_t index, int64_t most) const;

    void write_all(int64_t* ids_out);
    int64_t end_of_change(int64_t first, int64_t most) const;
    bool keeps_scales(int64_t first, int64_t n) const;
    int64_t latest_birth(int64_t n) const;
    float largest_to_come(int64_t first, int64_t n) const;
    template <class Visit>
    void visit_dying(int64_t n, const Visit& visit) const;
    Segment take_part(Segment& segment, int64_t end) const;
    void fetch_rows(const Segment& segment, int64_t k) const;
    StepOutcome advance_segment(Lane& lane, const Segment& segment) const;
    void write(const Segment& segment, float largest, int64_t* ids_out);
    void write_flags(int64_t env, RowRange rows, const StepOutcome& outcome);
    void write_values(const Segment& segment, RowRange rows, int64_t* ids_out);
    template <class Visit>
    void for_each_run(const Segment& segment, RowRange rows, bool first_is_there, int64_t next_row,
                      const Visit& visit) const;
    void write_frames(const Segment& segment, RowRange rows, bool first_is_there, int64_t next_row);

    ReplayState& state_;
    const int32_t autoreset_;
    const int32_t on_gap_;
    const int32_t on_invalid_;
    const bool takes_runs_;
    const bool overwrite_;
    const double epsilon_;

    // State of the call:
    const ReplaySteps* steps_ = nullptr;
    GivenSteps given_;
    std::vector<LaneCheck> checks_;     // by j
    std::vector<Segment> segments_;     // those checked, by k; a segment that is written has no steps left
    std::vector<float> largest_given_;  // by k, if priorities are given
    int64_t n_rejected_ = 0;
    std::vector<Lane> prepared_lanes_;          // by j, where frames go to heaps
    mutable std::vector<std::byte> announced_;  // a frame
};

}  // namespace per::cpu

// Adding steps to a replay buffer in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend.h"
#include "cpu/given_steps.h"
#include "cpu/replay_state.h"
#include "per.h"

namespace per::cpu {

// Adds in two passes. The first casts and checks all values, and moves copies of the lanes; it changes nothing and may
// throw. The second writes, and cannot fail. Memory is kept for the next call.
class StepWriter {
 public:
    StepWriter(ReplayState& state, const per_replay_options& options);

    // ids_out: [length, n_envs] or NULL.
    void add(const ReplaySteps& steps, int64_t* ids_out);

 private:
    // Step k of the call's j-th environment, in lane `env`; its arrays have it at `index`.
    struct Place {
        int64_t k;
        int64_t j;
        int64_t env;
        int64_t index;
    };
    struct Entry {
        StepInput input;
        bool has_priority;
        bool was_announced;  // its observations are in its row already
        float priority;
        int64_t row;       // -1: not added
        int64_t next_row;  // that the observations after it go to; -1: none
    };

    template <class Visit>
    void for_each_given(int64_t k, Visit visit);

    void check(const Place& place);
    void check_next_observation(const Place& place, const StepInput& step) const;
    void check_priority(const Place& place, Entry& entry);
    bool matches_announced(const Place& place) const;

    void write(int64_t* ids_out);
    void write_step(const Place& place, float largest);
    void write_frames();
    void find_slots();

    ReplayState& state_;
    const int32_t autoreset_;
    const int32_t on_gap_;
    const int32_t on_invalid_;
    const bool overwrite_;
    const double epsilon_;

    // Of the call.
    const ReplaySteps* steps_ = nullptr;
    GivenSteps given_;
    std::vector<Entry> entries_;
    std::vector<Lane> lanes_;          // by j: as the steps checked so far leave them
    std::vector<int64_t> announcing_;  // by j: index of the entry that announced last; -1: it was in an earlier call
    int64_t n_rejected_ = 0;
    // By index, where the entry's frames go; -1: nowhere.
    std::vector<int64_t> row_slots_;
    std::vector<int64_t> observation_slots_;
    std::vector<int64_t> next_slots_;
};

// Writes the frames of entries to slots of an array, runs of neighbours at once. Slot -1: the entry is left out.
void write_to_slots(const GivenValues& values, const std::vector<int64_t>& slots, int64_t bytes, std::byte* array);

}  // namespace per::cpu

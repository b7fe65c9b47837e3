// The steps of a batch whose rewards are asked for anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace per {

// What per_replay_sample_hindsight() relabels with.
struct ReplayHindsight {
    int64_t achieved_field;
    int64_t goal_field;
    int32_t strategy;  // a per_goal_strategy
    double fraction;
};

// Between the draw of a batch and its rewards the buffer is not locked and may change: all that the second half needs
// is here, in host memory. Kept from batch to batch.
struct Relabelling {
    // A transition, or sequence, that got another goal.
    struct Span {
        int64_t place;          // in the batch
        int64_t n_returns;      // that are formed anew: 1, or of a sequence one for each step that is no padding
        int64_t n_transitions;  // that they are formed from
        uint8_t last_flags;     // RowFlags of the last of them
    };
    std::vector<Span> spans;

    // Of each of these transitions, span by span, in order of time.
    std::vector<std::byte> achieved;  // after it
    std::vector<std::byte> goals;
    std::vector<float> rewards;
    std::vector<uint8_t> terminated;

    // By field: observations after each of them but the last of its span, in the same order, for windows that the rewards
    // end earlier. Empty for fields whose next observations are not wanted, and for sequences.
    std::vector<std::vector<std::byte>> next_fields;

    // Of the draw.
    double gamma;
    int64_t n_step;
    uint64_t step;
    bool by_schedule;  // it advanced beta

    int64_t n_steps() const { return static_cast<int64_t>(rewards.size()); }

    void clear(int64_t n_fields) {
        spans.clear();
        achieved.clear();
        goals.clear();
        rewards.clear();
        terminated.clear();
        next_fields.resize(static_cast<size_t>(n_fields));
        for (std::vector<std::byte>& frames : next_fields) frames.clear();
    }
};

}  // namespace per

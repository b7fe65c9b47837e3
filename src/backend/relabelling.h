// The steps of a batch that got another goal. The caller's function computes their new rewards.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/replay_statistics.h"
#include "rules/hindsight.h"
#include "rules/n_step.h"

namespace per {

struct ReplayHindsight {
    int64_t achieved_field;
    int64_t goal_field;
    int32_t strategy;  // a per_goal_strategy
    double fraction;
};

// The second half of a draw with hindsight. Between the draw and the rewards the buffer is not locked and may change,
// so all that this half needs is here, in host memory. The memory is kept from batch to batch.
struct Relabelling {
    // A transition, or sequence, that got another goal.
    struct Span {
        int64_t place;          // in the batch
        int64_t n_returns;      // to be formed: 1, or one for each step of a sequence that is no padding
        int64_t n_transitions;  // from which they are formed
        uint8_t last_flags;     // RowFlags of the last of these transitions
        int64_t n_step;         // of each return
    };
    std::vector<Span> spans;

    // One entry for each of these transitions, span by span, in order of time.
    std::vector<std::byte> achieved;  // the goals achieved after the transitions
    std::vector<std::byte> goals;
    std::vector<float> rewards;
    std::vector<uint8_t> terminated;

    // By field, in the same order: the observations after each transition but the last of its span. If the caller's
    // function ends a window earlier, one of them becomes its next observation. Empty for fields whose next
    // observations are not wanted, for sequences, and for the goal, which is the same after every step unless its
    // stacks begin with zeros.
    std::vector<std::vector<std::byte>> next_fields;

    bool is_drawn;  // the draw was made, whatever failed after it
    double gamma;
    uint64_t batch_number;
    bool by_schedule;  // the draw advanced beta
    bool took_ranks;   // ranks were due
    LastBatch batch_before;

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

// Calls visit(i, return, inner) for each return that follows from the rewards. i is the return's index in the batch's
// arrays of returns, which have returns_of_place entries for each place of the batch. If the window of the return ends
// earlier than before, `inner` is the index in next_fields of the observation after it; otherwise it is -1.
template <class Visit>
void for_each_relabelled_return(const Relabelling& relabelling, int64_t returns_of_place, const Visit& visit) {
    const float* rewards = relabelling.rewards.data();
    const uint8_t* terminated = relabelling.terminated.data();
    int64_t first_inner = 0;  // index in next_fields of the span's first observation
    for (const Relabelling::Span& span : relabelling.spans) {
        for (int64_t t = 0; t < span.n_returns; ++t) {
            const int64_t n_steps = std::min(span.n_step, span.n_transitions - t);
            const uint8_t last_flags = t + n_steps == span.n_transitions ? span.last_flags : uint8_t{row_is_step};
            const Return answer = relabelled_return(relabelling.gamma, static_cast<int32_t>(n_steps), last_flags,
                                                    rewards + t, terminated + t);
            visit(span.place * returns_of_place + t, answer,
                  answer.n_steps < n_steps ? first_inner + answer.n_steps - 1 : -1);
        }
        rewards += span.n_transitions;
        terminated += span.n_transitions;
        first_inner += span.n_transitions - 1;
    }
}

}  // namespace per

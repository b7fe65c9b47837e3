// The places of a drawn transition's frames, and the numbers of its window. Host and device run these same functions.
#pragma once

#include <stdint.h>

#include "per.h"
#include "rules/host_device.h"
#include "rules/n_step.h"
#include "rules/window.h"

namespace per {

// The places of the frames of a row of a batch. Older frames of a stack lie in the slots before.
struct GatherRow {
    int64_t env;
    int64_t slot;                // of the transition
    int64_t next_slot;           // of the newest next observation
    int32_t frames_before;       // frames that a stack may reach back before padding
    int32_t next_frames_before;  // the same for next observations
    bool next_is_own_array;      // the newest next observation lies in the array of next observations, in this slot;
                                 // the frame before it is the observation in the same slot
};

// The frames that a batch asks for.
struct GatherWishes {
    int64_t stack;  // the longest, in frames
    bool next;      // next observations
};

// The places for the window that begins in a slot. flags_of(distance) gives the RowFlags of the row at that distance.
template <class FlagsOf>
PER_HOST_DEVICE GatherRow gather_row(const WindowRules& rules, int64_t env, int64_t slot, const Return& window,
                                     const GatherWishes& wishes, const FlagsOf& flags_of) {
    GatherRow row = {env, slot, slot, 0, 0, false};
    row.frames_before = static_cast<int32_t>(frames_before(0, wishes.stack, flags_of));
    if (!wishes.next) return row;

    const int64_t last = window.n_steps - 1;
    if (window.bootstrap == last) {  // repeats its own last observation
        row.next_slot = rules.ring.later(env, slot, last);
        row.next_frames_before = static_cast<int32_t>(frames_before(last, wishes.stack, flags_of));
        return row;
    }
    row.next_is_own_array = rules.store_next_observation;
    row.next_slot = rules.ring.later(env, slot, row.next_is_own_array ? last : last + 1);
    if (wishes.stack > 1)
        row.next_frames_before = static_cast<int32_t>(1 + frames_before(last, wishes.stack - 1, flags_of));
    return row;
}

// True if two rows have their frames in the same places. Both rows must have the same slot.
PER_HOST_DEVICE bool has_same_frames(const GatherRow& a, const GatherRow& b) {
    return a.next_slot == b.next_slot && a.frames_before == b.frames_before &&
           a.next_frames_before == b.next_frames_before && a.next_is_own_array == b.next_is_own_array;
}

// The place of a frame: an array of its field, and a slot in it.
struct FramePlace {
    int64_t slot;
    bool is_next_array;
};

// True if the frame of an observation or next observation that is `age` steps older than the newest is padding, from
// before the episode.
PER_HOST_DEVICE bool is_padding(const GatherRow& row, bool is_next, int64_t age) {
    return age > (is_next ? row.next_frames_before : row.frames_before);
}

// The place of that frame. Padding that is not all zero repeats the oldest frame of the episode.
PER_HOST_DEVICE FramePlace frame_place(const Ring& ring, const GatherRow& row, bool is_next, int64_t age) {
    if (is_padding(row, is_next, age)) age = is_next ? row.next_frames_before : row.frames_before;
    const bool is_own = is_next && row.next_is_own_array;
    if (age == 0) return {is_next ? row.next_slot : row.slot, is_own};
    if (is_own) --age;
    return {ring.moved(row.env, is_next ? row.next_slot : row.slot, -age), false};
}

PER_HOST_DEVICE void write_return(int64_t i, const Return& window, const per_batch& batch) {
    if (batch.reward != nullptr) batch.reward[i] = window.reward;
    if (batch.discount != nullptr) batch.discount[i] = window.discount();
    if (batch.n_steps != nullptr) batch.n_steps[i] = window.n_steps;
    if (batch.terminated != nullptr) batch.terminated[i] = window.is_terminated();
    if (batch.truncated != nullptr) batch.truncated[i] = (window.last_flags & row_truncated) != 0;
    if (batch.gamma_m != nullptr) batch.gamma_m[i] = window.gamma_m;
}

}  // namespace per

// Copying sequences of a replay buffer into a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/memory/column.h"
#include "cpu/replay/replay_state.h"
#include "per.h"
#include "rules/n_step.h"
#include "rules/sequence.h"

namespace per::cpu {

// Writes the arrays of a batch that have a value for each step. The caller writes those of whole sequences: ids,
// weights.
class SequenceGather {
 public:
    explicit SequenceGather(const ReplayState& state) : state_(state) {}

    // Plans the copies into the arrays of `batch` that are not NULL; call it before run(). For fields with an array in
    // `gather`, run() writes the addresses of the frames instead of copying them. Only prepare() may throw.
    void prepare(const NSteps& n_steps, const per_batch& batch, const FramePlaces* gather);
    // Writes the sequences that start in these slots, all of them live.
    void run(const std::vector<int64_t>& slots);

 private:
    struct Sequence {
        int64_t env;
        int64_t slot;           // of the start
        int64_t frames_before;  // older frames of its stack in its episode
        int64_t n_step;         // of its returns
        SequenceSpan span;
    };
    // Consecutive frames of an array of the batch: their bytes, or their addresses.
    struct Frames {
        std::byte* out;
        const std::byte** places;  // NULL: they are copied
        int64_t bytes;             // of each frame

        Frames after(int64_t n) const { return {out + n * bytes, places == nullptr ? nullptr : places + n, bytes}; }
        void clear(int64_t n) const;
        // Copies the n frames that lie before this place to it.
        void repeat(int64_t n) const;
    };
    struct Source {
        Column<const std::byte> column;
        const PackedFrames* packed;  // NULL: frames are in the column
    };
    struct Copy {
        Source source;
        Source next_source;  // of observations, with store_next_observation
        Frames frames;
        int64_t stack;
        int64_t length;  // entries for a sequence: one for each step, one for each observation, or 1
        bool is_observation;
        bool pads_with_zeros;
    };

    void prefetch_numbers(int64_t slot) const;
    Sequence find(int64_t i, int64_t slot);
    void write_numbers(int64_t i, const Sequence& sequence);

    void prefetch(const Sequence& sequence) const;
    void copy_field(int64_t i, const Sequence& sequence, const Copy& copy) const;
    void copy_rows(const Sequence& sequence, const Copy& copy, int64_t n_rows, const Frames& out) const;
    void copy_observation_after(const Sequence& sequence, const Copy& copy, const Frames& out) const;
    void copy_stack(const Sequence& sequence, const Copy& copy, int64_t n_frames, int64_t newest, int64_t reach,
                    Frames out) const;
    void copy_run(const Sequence& sequence, const Source& source, int64_t first, int64_t n, const Frames& out) const;
    void copy_side_by_side(const Source& source, int64_t slot, int64_t n, const Frames& out) const;
    const uint8_t* flags_of(const Sequence& sequence);
    const float* rewards_of(const Sequence& sequence);

    const ReplayState& state_;

    // State of the batch:
    per_batch batch_;
    NSteps n_steps_ = {1};
    int64_t longest_stack_ = 1;
    std::vector<float> gammas_;  // gamma^m by m
    std::vector<Copy> copies_;

    // Scratch for a sequence:
    std::vector<uint8_t> flags_;  // if it wraps around the end of its lane
    std::vector<float> rewards_;
    std::vector<double> sums_;
};

}  // namespace per::cpu

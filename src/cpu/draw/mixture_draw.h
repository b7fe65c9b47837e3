// Drawing from the mixture of the uniform and the prioritized distribution over the live transitions (rules/draw.h).
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/tree/live_set.h"
#include "cpu/tree/sum_tree.h"
#include "rules/draw.h"

namespace per::cpu {

// Memory is kept from batch to batch.
class MixtureDraw {
 public:
    // Draws with replacement. Of the mixture_units, `uniform` draw uniformly and the others by priority. If `uniform`
    // is not 0 a transition must be live, and if it is not all units the tree must have some mass. Throws nothing if
    // reserve() was called for a batch of this size.
    void draw(const SumTree& tree, const LiveSet& live, uint64_t uniform, const DrawRequest& request,
              int64_t* slots_out);
    // Finds the slot that owns each unit. Units are numbered as in per_replay_get_units(), and all of them must exist.
    void find(const SumTree& tree, const LiveSet& live, int64_t count, const int64_t* units, int64_t* slots_out);
    void reserve(int64_t batch_size);

 private:
    void begin_parts();
    void find_parts(const SumTree& tree, const LiveSet& live, int64_t* slots_out);

    // One of the two parts of a mixture: targets within it, their places in the batch, and the slots found.
    struct Part {
        std::vector<uint64_t> targets;
        std::vector<int64_t> places;
        std::vector<int64_t> slots;
        int64_t n = 0;

        void reserve(int64_t batch_size);
        void add(uint64_t target, int64_t place);
        void scatter(int64_t* slots_out) const;
    };

    std::vector<uint64_t> targets_;
    Part uniform_;
    Part prioritized_;
};

}  // namespace per::cpu

// Drawing live transitions, and their importance-sampling weights, in host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/priority_store.h"
#include "cpu/sum_tree.h"

namespace per::cpu {

// The draws of a batch. Memory is kept from batch to batch.
struct Draws {
    std::vector<int64_t> slots;
    std::vector<uint64_t> masses;  // q_i; 1 for each where the draw is uniform
    uint64_t total_mass;           // P(i) = q_i / total
};

// Draws in proportion to p^alpha; uniformly if all those are 0. Some transition must be live.
void draw_live(const PriorityStore& priorities, const DrawRequest& request, Draws& draws);

// Normalised by the largest of the batch (section 3.4): (min_j P(j) / P(i))^beta.
void write_weights(const Draws& draws, double beta, float* weights_out);

void write_probabilities(const Draws& draws, float* probabilities_out);

}  // namespace per::cpu

// A batch that several buffers draw as one.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "backend/distinct_rounds.h"
#include "per.h"
#include "rules/draw.h"

namespace per {

// Intervals of the units, or ranks, that draws skip because their transitions were taken out.
class LeftOut {
 public:
    // Allocates memory for n_parts intervals. The other functions throw nothing.
    void reserve(size_t n_parts) { parts_.reserve(n_parts); }
    void clear();
    void add(uint64_t first, uint64_t size);
    // Call after add(), before the two functions below. Overlaps count once.
    void merge();
    uint64_t size() const { return size_; }
    // Returns the unit with `rest` units before it that are not left out.
    uint64_t unit(uint64_t rest) const;

 private:
    struct Part {
        uint64_t first;
        uint64_t size;
        uint64_t rest;  // number of units before it that are not left out
    };
    std::vector<Part> parts_;
    uint64_t size_ = 0;
};

// A draw in progress: its units, which are spread over the shards, and the transitions that the shards found for them.
struct ShardDraw {
    enum class Stage { none, round, found };

    // The transition that a shard found for a unit.
    struct Found {
        int64_t id;
        uint64_t mass;
        uint64_t first_unit;
    };

    void clear_shards();
    void add_shard(const per_shard_summary& summary);
    uint64_t mass() const { return mass_before.back(); }
    uint64_t live() const { return live_before.back(); }
    uint64_t mass_of(size_t shard) const { return mass_before[shard + 1] - mass_before[shard]; }

    // Begins the first round. Returns its number of units.
    int64_t begin(const DrawRequest& request);
    // Takes round_found. Returns the number of units of the next round, or 0 if the batch is complete. Throws Error.
    int64_t end_round();
    void weigh(double beta, float* weights_out, float* probabilities_out);

    Stage stage = Stage::none;
    ReplaySample sample = {};
    bool of_sequences = false;
    DrawLaw law = {};
    uint64_t smallest_mass = 0;
    // For each shard, the total mass and number of live transitions of the shards before it; at the end, those of all
    // shards.
    std::vector<uint64_t> mass_before;
    std::vector<uint64_t> live_before;
    // The current round.
    std::vector<uint64_t> targets;
    std::vector<uint64_t> positions;  // its units or ranks, in the whole
    std::vector<int64_t> shards;
    std::vector<int64_t> units;
    std::vector<Found> round_found;  // with global ids
    // The transitions found so far.
    std::vector<int64_t> ids;
    std::vector<uint64_t> masses;
    std::vector<uint64_t> firsts;  // without replacement: their first units, or ranks
    DistinctRounds rounds;
    LeftOut left_out;
    std::vector<double> shares;

 private:
    uint64_t left() const;
    void make_units(const DrawRequest& request);
    bool take_round();
};

}  // namespace per

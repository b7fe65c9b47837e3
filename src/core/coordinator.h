// per_coordinator: what buffers that draw as one need besides themselves. See per.h, "many as one".
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "backend/distinct_rounds.h"
#include "per.h"
#include "rules/beta_schedule.h"
#include "rules/draw.h"
#include "rules/mass.h"
#include "threads/handle_lock.h"

namespace per {

// Parts of the line of units, or of ranks, that draws leave out: those of transitions that were taken out.
class LeftOut {
 public:
    void clear();
    void add(uint64_t first, uint64_t size);
    uint64_t size() const { return size_; }
    // The unit that has `rest` others before it which are not left out. Needs no add() since sort().
    void sort();
    uint64_t unit(uint64_t rest) const;

 private:
    struct Part {
        uint64_t first;
        uint64_t size;
        uint64_t rest;  // how many units before it are not left out
    };
    std::vector<Part> parts_;
    uint64_t size_ = 0;
};

// Pointers have been checked, and that `count` is not negative.
class Coordinator {
 public:
    Coordinator(const per_replay_options& options, int64_t n_shards);

    struct Share {
        int64_t capacity;
        int64_t n_envs;
        int64_t first_env;
    };
    Share share(int64_t shard);

    void tell(int64_t shard, const per_law* law);
    per_settling settle(bool chooses_anew, int32_t& scale_out);

    // Both return how many units the next round has.
    int64_t draw(const per_sample_options& options, int64_t batch_size);
    int64_t found(const int64_t* ids, const uint64_t* masses, const uint64_t* first_units);
    void units(int64_t* shards_out, int64_t* units_out);
    void finish(int64_t* ids_out, float* weights_out, float* probabilities_out);

    void locate(int64_t count, const int64_t* ids, int64_t* shards_out, int64_t* shard_ids_out);
    void ids(int64_t shard, int64_t count, const int64_t* shard_ids, int64_t* ids_out);

    per_coordinator_status state();
    void restore(const per_coordinator_status& status);

 private:
    struct Shard {
        int64_t first_env;
        int64_t n_envs;
        bool has_told;
        bool is_there;
        bool has_answered;  // what settle() asked for last
        per_law law;
        // How much of the whole the shards before it have.
        uint64_t mass_before;
        uint64_t live_before;
    };
    enum class Settling { none, largest, sum, scale };
    enum class Drawing { none, round, found };

    Shard& shard_at(int64_t shard);
    void check_drawing(Drawing expected, const char* what) const;
    template <class Add>
    void for_each_there(const Add& add);
    per_settling ask(Settling settling, per_settling todo, int32_t scale, int32_t& scale_out);
    void require_answers(Settling settling);
    WideSum total();
    bool needs_scale(const WideSum& total);
    void add_up();
    uint64_t smallest_mass();
    void make_units(const DrawRequest& request);
    void place_units(int64_t n, bool are_ranks);
    void take_round(const int64_t* ids, const uint64_t* masses, const uint64_t* first_units);
    uint64_t left() const;
    int64_t whole_id(const Shard& shard, int64_t id) const;
    int64_t max_shard_id(const Shard& shard) const;

    HandleLock lock_;
    per_replay_options options_;  // of the whole; no fields
    std::vector<Shard> shards_;
    BetaSchedule beta_;
    int64_t samples_ = 0;
    float max_priority_ = 1.0f;

    // The scale of the whole, as a tree has it (mass.h).
    int32_t scale_ = 0;
    uint64_t total_mass_ = 0;
    uint64_t low_water_ = 0;
    Settling settling_ = Settling::none;
    int32_t asked_scale_ = 0;
    float largest_leaf_ = 0.0f;
    bool is_settled_ = false;

    // The batch under way.
    Drawing drawing_ = Drawing::none;
    ReplaySample sample_ = {};
    BatchKey key_ = {};
    DrawLaw law_ = {};
    uint64_t mass_ = 0;
    uint64_t live_ = 0;
    uint64_t smallest_mass_ = 0;
    std::vector<uint64_t> targets_;
    std::vector<uint64_t> positions_;  // the units or ranks of the round, in the whole
    std::vector<int64_t> shards_of_units_;
    std::vector<int64_t> units_;
    std::vector<int64_t> ids_;
    std::vector<uint64_t> masses_;
    std::vector<uint64_t> firsts_;  // of those found without replacement: where their units or ranks begin
    DistinctRounds rounds_;
    LeftOut left_out_;
    std::vector<double> shares_;
};

}  // namespace per

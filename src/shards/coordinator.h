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
    // Memory for so many parts. The rest throws nothing.
    void reserve(size_t n_parts) { parts_.reserve(n_parts); }
    void clear();
    void add(uint64_t first, uint64_t size);
    // Comes after add(), before the two below. What parts have in common counts once.
    void merge();
    uint64_t size() const { return size_; }
    // The unit that has `rest` others before it which are not left out.
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
    // It goes on from that state.
    Coordinator(const per_replay_options& options, int64_t n_shards, const per_coordinator_state& state);

    struct Share {
        int64_t capacity;
        int64_t n_envs;
        int64_t first_env;
    };
    Share share(int64_t shard);

    void report(int64_t shard, const per_shard_summary* summary);
    per_scale_request agree_on_scale(bool chooses_anew, int32_t& scale_out);

    // Both return how many units the next round has.
    int64_t draw(const per_sample_options& options, int64_t batch_size);
    int64_t submit(int64_t count, const int64_t* ids, const uint64_t* masses, const uint64_t* first_units);
    void units(int64_t count, int64_t* shards_out, int64_t* units_out);
    void finish(int64_t batch_size, int64_t* ids_out, float* weights_out, float* probabilities_out);

    void locate(int64_t count, const int64_t* ids, int64_t* shards_out, int64_t* shard_ids_out);
    void ids(int64_t shard, int64_t count, const int64_t* shard_ids, int64_t* ids_out);

    per_coordinator_state state();

 private:
    struct Shard {
        int64_t first_env;
        int64_t n_envs;
        bool has_reported;
        bool is_there;
        bool has_answered;  // what agree_on_scale() asked for last
        per_shard_summary summary;
    };
    enum class Agreement { none, largest, sum, scale };
    enum class Drawing { none, round, found };

    // What a shard has found for a unit.
    struct Found {
        int64_t id;
        uint64_t mass;
        uint64_t first_unit;
    };

    // A batch under way. Of the shards it knows what they told before the draw.
    struct Batch {
        uint64_t mass() const { return mass_before.back(); }
        uint64_t live() const { return live_before.back(); }
        uint64_t mass_of(size_t shard) const { return mass_before[shard + 1] - mass_before[shard]; }
        uint64_t left() const;
        void add_up(const std::vector<Shard>& shards);
        int64_t begin(const DrawRequest& request);
        void make_units(const DrawRequest& request);
        bool take_round();

        Drawing drawing = Drawing::none;
        ReplaySample sample = {};
        DrawLaw law = {};
        uint64_t smallest_mass = 0;
        // How much of the whole the shards before each have; and the whole.
        std::vector<uint64_t> mass_before;
        std::vector<uint64_t> live_before;
        // The round.
        std::vector<uint64_t> targets;
        std::vector<uint64_t> positions;  // its units or ranks, in the whole
        std::vector<int64_t> shards;
        std::vector<int64_t> units;
        std::vector<Found> round_found;  // with ids of the whole
        // What was found so far.
        std::vector<int64_t> ids;
        std::vector<uint64_t> masses;
        std::vector<uint64_t> firsts;  // without replacement: where their units or ranks begin
        DistinctRounds rounds;
        LeftOut left_out;
        std::vector<double> shares;
    };

    Shard& shard_at(int64_t shard);
    const Batch& batch_in(Drawing expected, const char* what) const;
    template <class Add>
    void for_each_there(const Add& add);
    per_scale_request ask(Agreement agreement, per_scale_request todo, int32_t scale, int32_t& scale_out);
    void require_answers(Agreement agreement);
    WideSum total();
    bool needs_scale(const WideSum& total);
    uint64_t smallest_mass();
    void read_found(const int64_t* ids, const uint64_t* masses, const uint64_t* first_units);
    int64_t whole_id(const Shard& shard, int64_t id) const;
    int64_t max_shard_id(const Shard& shard) const;

    HandleLock lock_;
    per_replay_options options_;  // of the whole; no fields
    std::vector<Shard> shards_;
    BetaSchedule beta_;
    int64_t samples_ = 0;
    float max_priority_ = 1.0f;

    // The scale of the whole, as a tree has it (mass.h), since agree_on_scale() said last that it is that of all shards.
    int32_t scale_ = 0;
    uint64_t total_mass_ = 0;
    uint64_t low_water_ = 0;
    bool is_agreed_ = false;
    // What agree_on_scale() is about until it says so again.
    Agreement agreement_ = Agreement::none;
    int32_t asked_scale_ = 0;
    float largest_leaf_ = 0.0f;  // 0: no scale is chosen
    bool chooses_anew_ = false;

    Batch batch_;
    Batch next_;  // draw() makes a batch here, so that an error leaves the one under way as it is
};

}  // namespace per

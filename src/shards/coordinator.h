// per_coordinator: lets several buffers draw as one. See per.h, "many as one".
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "per.h"
#include "rules/beta_schedule.h"
#include "rules/freshness.h"
#include "rules/mass.h"
#include "shards/shard_draw.h"
#include "threads/handle_lock.h"

namespace per {

// Callers must check pointers before, and that `count` is not negative.
class Coordinator {
 public:
    // Continues from that state. Throws Error.
    Coordinator(const per_replay_options& options, int64_t n_shards, const per_coordinator_state& state);

    struct Share {
        int64_t capacity;
        int64_t n_envs;
        int64_t first_env;
    };
    Share share(int64_t shard);

    void report(int64_t shard, const per_shard_summary* summary);
    struct ScaleRequest {
        per_scale_request todo;
        LeafScale scale;
    };
    ScaleRequest agree_on_scale(bool chooses_anew);

    // draw() and submit() return the number of units in the next round.
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
        bool has_answered;  // the latest request of agree_on_scale()
        per_shard_summary summary;
    };
    enum class Agreement { none, largest, sum, scale };

    Shard& shard_at(int64_t shard);
    ShardDraw& draw_at(ShardDraw::Stage expected, const char* what);
    ShardDraw& draw_in_round();
    template <class Add>
    void for_each_there(const Add& add);
    ScaleRequest ask(Agreement agreement, per_scale_request todo, int32_t scale);
    bool has_asked_scale(const per_shard_summary& summary) const;
    void require_answers(Agreement agreement);
    void require_one_version();
    WideSum total();
    LeafScale rebased_scale();
    bool needs_scale(const LeafScale& rebased, const WideSum& total);
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

    // The scale of the whole and what follows from it, as in a tree (mass.h). They date from when agree_on_scale() last
    // found one scale in all shards.
    LeafScale scale_ = {};
    uint64_t total_mass_ = 0;
    uint64_t low_water_ = 0;
    bool is_agreed_ = false;
    // The state of agree_on_scale() until it finds one scale in all shards.
    Agreement agreement_ = Agreement::none;
    LeafScale asked_ = {};
    float largest_leaf_ = 0.0f;  // 0: no scale is being chosen
    bool chooses_anew_ = false;

    ShardDraw draw_;
    ShardDraw next_;  // draw() prepares its batch here, so that an error leaves the current one as it is
};

}  // namespace per

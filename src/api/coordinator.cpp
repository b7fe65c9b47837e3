// The functions of per.h that are about coordinators.
#include "shards/coordinator.h"

#include "api/handle.h"
#include "api/struct_size.h"
#include "backend/replay_options.h"

struct per_coordinator {
    static constexpr const char* argument = "coordinator";
    per::Coordinator object;
};

using namespace per;

per_status per_coordinator_create(const per_replay_options* options, int64_t n_shards,
                                  const per_coordinator_state* state, per_coordinator** coordinator_out) {
    return create("coordinator_out", coordinator_out, [&] {
        const per_replay_options known = read_struct("options", options);
        return Coordinator(known, n_shards, read_struct_or(default_coordinator_state, "state", state));
    });
}

void per_coordinator_free(per_coordinator* coordinator) {
    delete coordinator;
}

per_status per_coordinator_describe_shard(per_coordinator* coordinator, int64_t shard, int64_t* capacity_out,
                                          int64_t* n_envs_out, int64_t* first_env_out) {
    return call_on(coordinator, [&](Coordinator& target) {
        require_pointer("capacity_out", capacity_out);
        require_pointer("n_envs_out", n_envs_out);
        require_pointer("first_env_out", first_env_out);
        const Coordinator::Share share = target.share(shard);
        *capacity_out = share.capacity;
        *n_envs_out = share.n_envs;
        *first_env_out = share.first_env;
    });
}

per_status per_coordinator_report(per_coordinator* coordinator, int64_t shard, const per_shard_summary* summary) {
    return call_on(coordinator, [&](Coordinator& target) {
        if (summary == nullptr) return target.report(shard, nullptr);
        const per_shard_summary known = read_struct("summary", summary);
        target.report(shard, &known);
    });
}

per_status per_coordinator_agree_on_scale(per_coordinator* coordinator, int32_t chooses_anew, int32_t* todo_out,
                                          int32_t* scale_out, int64_t* reference_out) {
    return call_on(coordinator, [&](Coordinator& target) {
        require_pointer("todo_out", todo_out);
        require_pointer("scale_out", scale_out);
        require_pointer("reference_out", reference_out);
        const auto [todo, scale] = target.agree_on_scale(chooses_anew != 0);
        *todo_out = todo;
        *scale_out = scale.scale;
        *reference_out = scale.reference;
    });
}

per_status per_coordinator_draw(per_coordinator* coordinator, const per_sample_options* options, int64_t batch_size,
                                int64_t* count_out) {
    return call_on(coordinator, [&](Coordinator& target) {
        const per_sample_options given = read_struct_or(default_sample_options, "options", options);
        require_pointer("count_out", count_out);
        *count_out = target.draw(given, batch_size);
    });
}

per_status per_coordinator_get_units(per_coordinator* coordinator, int64_t count, int64_t* shards_out,
                                     int64_t* units_out) {
    return call_on(coordinator, [&](Coordinator& target) {
        require_array("shards_out", shards_out);
        require_array("units_out", units_out);
        target.units(count, shards_out, units_out);
    });
}

per_status per_coordinator_submit(per_coordinator* coordinator, int64_t count, const int64_t* ids,
                                  const uint64_t* masses, const uint64_t* first_units, int64_t* count_out) {
    return call_on(coordinator, [&](Coordinator& target) {
        require_array("ids", ids);
        require_array("masses", masses);
        check_aligned("first_units", first_units);
        require_pointer("count_out", count_out);
        *count_out = target.submit(count, ids, masses, first_units);
    });
}

per_status per_coordinator_finish(per_coordinator* coordinator, int64_t batch_size, int64_t* ids_out,
                                  float* weights_out, float* probabilities_out) {
    return call_on(coordinator, [&](Coordinator& target) {
        require_array("ids_out", ids_out);
        check_aligned("weights_out", weights_out);
        check_aligned("probabilities_out", probabilities_out);
        target.finish(batch_size, ids_out, weights_out, probabilities_out);
    });
}

per_status per_coordinator_locate(per_coordinator* coordinator, int64_t count, const int64_t* ids, int64_t* shards_out,
                                  int64_t* shard_ids_out) {
    return call_on(coordinator, [&](Coordinator& target) {
        require_arrays(count, "ids", ids, "shards_out", shards_out);
        if (count > 0) require_array("shard_ids_out", shard_ids_out);
        target.locate(count, ids, shards_out, shard_ids_out);
    });
}

per_status per_coordinator_get_ids(per_coordinator* coordinator, int64_t shard, int64_t count, const int64_t* shard_ids,
                                   int64_t* ids_out) {
    return call_on(coordinator, [&](Coordinator& target) {
        require_arrays(count, "shard_ids", shard_ids, "ids_out", ids_out);
        target.ids(shard, count, shard_ids, ids_out);
    });
}

per_status per_coordinator_get_state(per_coordinator* coordinator, per_coordinator_state* state_out,
                                     uint64_t struct_size) {
    return call_on(coordinator, [&](Coordinator& target) {
        fill_struct("state_out", state_out, struct_size, [&] { return target.state(); });
    });
}

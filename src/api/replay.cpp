// The functions of per.h that are about the replay buffer. They check pointers and structs; Replay does the rest.
#include "core/replay.h"

#include <algorithm>
#include <vector>

#include "api/given_fields.h"
#include "api/replay_handle.h"
#include "api/struct_size.h"
#include "backend/replay_options.h"
#include "core/checks.h"
#include "rows/fields.h"

using namespace per;

namespace {

// Converts the options of a call to this library's struct. If they have a struct for hindsight, it is converted into
// `hindsight`, and the result points to that copy.
per_sample_options read_options(const per_sample_options* options, per_hindsight_options& hindsight) {
    per_sample_options known = read_struct_or(default_sample_options, "options", options);
    read_nested("hindsight", known.hindsight, hindsight);
    return known;
}

}  // namespace

per_status per_field_check(const per_field* field, int64_t field_size) {
    return guarded([&] {
        require_pointer("field", field);
        check_field(read_field("field", field, field_size, 0));
    });
}

per_status per_replay_options_init(per_replay_options* options, uint64_t struct_size) {
    return guarded([&] { initialize_struct("options", options, struct_size, default_replay_options); });
}

per_status per_replay_create(const per_replay_options* options, per_replay** replay_out) {
    return create("replay_out", replay_out, [&] { return Replay(GivenOptions(options).options); });
}

per_status per_replay_compute_capacity(const per_replay_options* options, int64_t transitions, int64_t episode_length,
                                       int64_t* capacity_out) {
    return guarded([&] {
        require_pointer("capacity_out", capacity_out);
        *capacity_out = capacity_for(GivenOptions(options).options, transitions, episode_length);
    });
}

void per_replay_free(per_replay* replay) {
    if (replay != nullptr) free_with(replay->object, replay);
}

per_status per_replay_describe(per_replay* replay, per_replay_options* options_out) {
    return call_on(replay, [&](Replay& target) { write_struct("options_out", options_out, target.describe()); });
}

per_status per_steps_init(per_steps* steps, uint64_t struct_size) {
    return guarded([&] { initialize_struct("steps", steps, struct_size, default_steps); });
}

per_status per_replay_add(per_replay* replay, const per_steps* steps, int64_t* ids_out, void* stream) {
    return call_on(replay, stream, [&](Replay& target) {
        const per_steps known = read_struct("steps", steps);
        check_aligned("ids_out", ids_out);
        target.add(known, ids_out, stream);
    });
}

per_status per_replay_cut(per_replay* replay, int64_t count, const int64_t* env_ids, void* stream) {
    return call_on(replay, stream, [&](Replay& target) {
        if (env_ids != nullptr) check_entries("count", count, 0);
        check_aligned("env_ids", env_ids);
        target.cut(count, env_ids, Deadline::never(), stream);
    });
}

per_status per_sample_options_init(per_sample_options* options, uint64_t struct_size) {
    return guarded([&] { initialize_struct("options", options, struct_size, default_sample_options); });
}

per_status per_batch_init(per_batch* batch, uint64_t struct_size) {
    return guarded([&] { initialize_struct("batch", batch, struct_size, default_batch); });
}

per_status per_replay_sample(per_replay* replay, const per_sample_options* options, int64_t batch_size,
                             const per_batch* batch, void* stream) {
    return call_on(replay, stream, [&](Replay& target) {
        per_hindsight_options hindsight;
        const per_sample_options given = read_options(options, hindsight);
        target.sample(given, batch_size, read_struct("batch", batch), stream);
    });
}

per_status per_priorities_init(per_priorities* priorities, uint64_t struct_size) {
    return guarded([&] { initialize_struct("priorities", priorities, struct_size, default_priorities); });
}

per_status per_replay_update_priorities(per_replay* replay, const per_priorities* priorities, void* stream) {
    return call_on(replay, stream, [&](Replay& target) {
        target.update(read_struct("priorities", priorities), Deadline::never(), stream);
    });
}

per_status per_replay_get_priorities(per_replay* replay, int64_t count, const int64_t* ids, float* priorities_out,
                                     void* stream) {
    return call_on(replay, stream, [&](Replay& target) {
        require_arrays(count, "ids", ids, "priorities_out", priorities_out);
        if (count == 0) return;
        target.locked([&](ReplayBackend& backend) { backend.priorities(count, ids, priorities_out, stream); });
    });
}

per_status per_replay_get(per_replay* replay, int64_t count, const int64_t* ids, const per_batch* batch, void* stream) {
    return call_on(replay, stream, [&](Replay& target) {
        check_entries("count", count, 0);
        const per_batch known = read_struct("batch", batch);
        if (count > 0) require_array("ids", ids);
        target.get(count, ids, known, stream);
    });
}

per_status per_replay_get_windows(per_replay* replay, const per_sample_options* options, int32_t on_invalid,
                                  int64_t count, const int64_t* ids, const per_batch* batch, void* stream) {
    return call_on(replay, stream, [&](Replay& target) {
        per_hindsight_options hindsight;
        const per_sample_options given = read_options(options, hindsight);
        const per_batch known = read_struct("batch", batch);
        if (count > 0) require_array("ids", ids);
        target.get_windows(given, count, RowsOfIds{ids, on_invalid}, known, stream);
    });
}

per_status per_replay_get_units(per_replay* replay, const per_sample_options* options, int64_t count,
                                const int64_t* units, const per_batch* batch, uint64_t* masses_out,
                                uint64_t* first_units_out, void* stream) {
    return call_on(replay, stream, [&](Replay& target) {
        const per_sample_options given = read_struct_or(default_sample_options, "options", options);
        const per_batch known = read_struct("batch", batch);
        if (count > 0) require_array("units", units);
        check_aligned("masses_out", masses_out);
        check_aligned("first_units_out", first_units_out);
        target.get_windows(given, count, RowsOfUnits{units, masses_out, first_units_out}, known, stream);
    });
}

per_status per_replay_summarize(per_replay* replay, int32_t measured_scale, int64_t measured_reference,
                                per_shard_summary* summary_out, uint64_t struct_size) {
    return call_on(replay, [&](Replay& target) {
        fill_struct("summary_out", summary_out, struct_size,
                    [&] { return target.summarize(measured_scale, measured_reference); });
    });
}

per_status per_replay_set_scale(per_replay* replay, int32_t scale, int64_t reference) {
    return call_on(replay, [&](Replay& target) { target.set_scale(scale, reference); });
}

per_status per_replay_raise_max_priority(per_replay* replay, float priority, void* stream) {
    return call_on(replay, stream, [&](Replay& target) { target.raise_max_priority(priority, stream); });
}

per_status per_replay_set(per_replay* replay, int64_t count, const int64_t* ids, const per_array* fields,
                          void* stream) {
    return call_on(replay, stream, [&](Replay& target) {
        require_arrays(count, "ids", ids, "fields", fields);
        if (count == 0) return;
        target.set(count, ids, fields, stream);
    });
}

per_status per_replay_clear(per_replay* replay, void* stream) {
    return call_on(replay, stream, [&](Replay& target) { target.clear(stream); });
}

per_status per_replay_settings_init(per_replay_settings* settings, uint64_t struct_size) {
    return guarded([&] { initialize_struct("settings", settings, struct_size, default_settings); });
}

per_status per_replay_change_settings(per_replay* replay, const per_replay_settings* settings, void* stream) {
    return call_on(replay, stream,
                   [&](Replay& target) { target.change_settings(read_struct("settings", settings), stream); });
}

per_status per_replay_wait_to_add(per_replay* replay, int64_t count, int64_t timeout_ms) {
    return call_on(replay, [&](Replay& target) {
        check_entries("count", count, 0);
        target.wait_to_add(count, deadline_of(timeout_ms));
    });
}

per_status per_replay_wait_to_sample(per_replay* replay, int64_t batch_size, int64_t timeout_ms) {
    return call_on(replay, [&](Replay& target) { target.wait_to_sample(batch_size, deadline_of(timeout_ms)); });
}

per_status per_replay_stop_limiting(per_replay* replay) {
    return call_on(replay, [&](Replay& target) { target.stop_limiting(); });
}

per_status per_replay_get_live_ids(per_replay* replay, int64_t capacity, int64_t* ids_out, int64_t* count_out) {
    return call_on(replay, [&](Replay& target) {
        check_count("capacity", capacity, 0);
        if (capacity > 0) require_array("ids_out", ids_out);
        require_pointer("count_out", count_out);
        if (capacity == 0) {
            *count_out = target.locked([](ReplayBackend& backend) { return backend.live(); });
            return;
        }
        const std::vector<int64_t> ids =
            target.locked([](ReplayBackend& backend) { return backend.live_ids(nullptr); });
        const int64_t count = static_cast<int64_t>(ids.size());
        std::copy_n(ids.data(), std::min(count, capacity), ids_out);
        *count_out = count;
    });
}

per_status per_replay_get_statistics(per_replay* replay, per_replay_statistics* statistics_out, uint64_t struct_size) {
    return call_on(replay, [&](Replay& target) {
        fill_struct("statistics_out", statistics_out, struct_size, [&] { return target.statistics(); });
    });
}

per_status per_replay_synchronize(per_replay* replay, void* stream) {
    return call_on(replay, stream, [&](Replay& target) {
        target.locked([&](ReplayBackend& backend) { backend.synchronize(stream); });
    });
}

per_status per_hindsight_options_init(per_hindsight_options* options, uint64_t struct_size) {
    return guarded([&] { initialize_struct("options", options, struct_size, default_hindsight_options); });
}

per_status per_replay_get_bootstraps(per_replay* replay, int64_t capacity, const per_batch* batch, int64_t* count_out,
                                     void* stream) {
    return call_on(replay, stream, [&](Replay& target) {
        check_count("capacity", capacity, 0);
        const bool counts_only = capacity == 0 && batch == nullptr;
        const per_batch known = counts_only ? default_batch : read_struct("batch", batch);
        require_pointer("count_out", count_out);
        *count_out = target.bootstraps(capacity, known, stream);
    });
}

per_status per_replay_compute_advantages(per_replay* replay, int32_t value_field, int32_t advantage_field,
                                         int32_t return_field, double lambda, int64_t count, const int64_t* ids,
                                         const float* bootstrap_values, void* stream) {
    return call_on(replay, stream, [&](Replay& target) {
        require_arrays(count, "ids", ids, "bootstrap_values", bootstrap_values);
        target.advantages({value_field, advantage_field, return_field, lambda, count, ids, bootstrap_values}, stream);
    });
}

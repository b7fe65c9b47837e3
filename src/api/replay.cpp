// The functions of per.h that are about the replay buffer: they check pointers and structs, call, and turn exceptions
// into a status.
#include "core/replay.h"

#include <algorithm>
#include <vector>

#include "api/replay_handle.h"
#include "api/struct_size.h"
#include "backend/replay_options.h"
#include "file/caller_stream.h"
#include "file/checkpoint_file.h"
#include "per.h"
#include "rows/arguments.h"
#include "rows/fields.h"
#include "rows/guarded.h"

using namespace per;

namespace {

per_replay_options place_on(int32_t device, int32_t device_index) {
    per_replay_options place = default_replay_options;
    place.device = device;
    place.device_index = device_index;
    return place;
}

}  // namespace

per_status per_field_check(const per_field* field) {
    return guarded([&] {
        require_pointer("field", field);
        check_field(*field);
    });
}

per_status per_replay_options_init(per_replay_options* options, uint64_t struct_size) {
    return guarded([&] { initialize_struct("options", options, struct_size, default_replay_options); });
}

per_status per_replay_create(const per_replay_options* options, per_replay** replay_out) {
    return guarded([&] {
        require_pointer("replay_out", replay_out);
        *replay_out = nullptr;
        *replay_out = new per_replay{Replay(read_struct("options", options))};
    });
}

per_status per_replay_capacity_for(const per_replay_options* options, int64_t transitions, int64_t episode_length,
                                   int64_t* capacity_out) {
    return guarded([&] {
        require_pointer("capacity_out", capacity_out);
        *capacity_out = capacity_for(read_struct("options", options), transitions, episode_length);
    });
}

void per_replay_free(per_replay* replay) {
    delete replay;
}

per_status per_replay_describe(per_replay* replay, per_replay_options* options_out) {
    return guarded([&] {
        Replay& target = replay_of(replay);
        write_struct("options_out", options_out, target.describe());
    });
}

per_status per_steps_init(per_steps* steps, uint64_t struct_size) {
    return guarded([&] { initialize_struct("steps", steps, struct_size, default_steps); });
}

per_status per_replay_add(per_replay* replay, const per_steps* steps, int64_t* ids_out, void* stream) {
    return guarded([&] {
        Replay& target = replay_of(replay, stream);
        const per_steps known = read_struct("steps", steps);
        check_aligned("ids_out", ids_out);
        target.add(known, ids_out, stream);
    });
}

per_status per_replay_cut(per_replay* replay, int64_t count, const int64_t* env_ids, void* stream) {
    return guarded([&] {
        Replay& target = replay_of(replay, stream);
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
    return guarded([&] {
        Replay& target = replay_of(replay, stream);
        const per_sample_options given = options == nullptr ? default_sample_options : read_struct("options", options);
        target.sample(given, batch_size, read_struct("batch", batch), stream);
    });
}

per_status per_replay_update_priorities(per_replay* replay, int64_t count, const int64_t* ids, int64_t n_critics,
                                        const float* td_errors, void* stream) {
    return guarded([&] {
        Replay& target = replay_of(replay, stream);
        require_arrays(count, "ids", ids, "td_errors", td_errors);
        target.update({count, ids, n_critics, td_errors, nullptr}, Deadline::never(), stream);
    });
}

per_status per_replay_update_sequences(per_replay* replay, int64_t count, const int64_t* ids, int64_t n_critics,
                                       int64_t n_steps, const float* td_errors, void* stream) {
    return guarded([&] {
        Replay& target = replay_of(replay, stream);
        require_arrays(count, "ids", ids, "td_errors", td_errors);
        target.update({count, ids, n_critics, td_errors, nullptr, target.steps_left_out(n_steps)}, Deadline::never(),
                      stream);
    });
}

per_status per_replay_set_priorities(per_replay* replay, int64_t count, const int64_t* ids, const float* priorities,
                                     void* stream) {
    return guarded([&] {
        Replay& target = replay_of(replay, stream);
        require_arrays(count, "ids", ids, "priorities", priorities);
        target.update({count, ids, 1, nullptr, priorities}, Deadline::never(), stream);
    });
}

per_status per_replay_priorities(per_replay* replay, int64_t count, const int64_t* ids, float* priorities_out,
                                 void* stream) {
    return guarded([&] {
        Replay& target = replay_of(replay, stream);
        require_arrays(count, "ids", ids, "priorities_out", priorities_out);
        if (count == 0) return;
        target.priorities(count, ids, priorities_out, stream);
    });
}

per_status per_replay_get(per_replay* replay, int64_t count, const int64_t* ids, const per_batch* batch, void* stream) {
    return guarded([&] {
        Replay& target = replay_of(replay, stream);
        check_entries("count", count, 0);
        const per_batch known = read_struct("batch", batch);
        if (count > 0) require_array("ids", ids);
        target.get(count, ids, known, stream);
    });
}

per_status per_replay_get_windows(per_replay* replay, const per_sample_options* options, int32_t on_invalid,
                                  int64_t count, const int64_t* ids, const per_batch* batch, void* stream) {
    return guarded([&] {
        Replay& target = replay_of(replay, stream);
        const per_sample_options given = options == nullptr ? default_sample_options : read_struct("options", options);
        const per_batch known = read_struct("batch", batch);
        if (count > 0) require_array("ids", ids);
        target.get_windows(given, WindowIds{on_invalid, count, ids}, known, stream);
    });
}

per_status per_replay_get_units(per_replay* replay, const per_sample_options* options, int64_t count,
                                const int64_t* units, const per_batch* batch, uint64_t* masses_out,
                                uint64_t* first_units_out, void* stream) {
    return guarded([&] {
        Replay& target = replay_of(replay, stream);
        const per_sample_options given = options == nullptr ? default_sample_options : read_struct("options", options);
        const per_batch known = read_struct("batch", batch);
        if (count > 0) require_array("units", units);
        check_aligned("masses_out", masses_out);
        check_aligned("first_units_out", first_units_out);
        target.get_windows(given, WindowUnits{count, units, masses_out, first_units_out}, known, stream);
    });
}

per_status per_law_init(per_law* law, uint64_t struct_size) {
    return guarded([&] { initialize_struct("law", law, struct_size, default_law); });
}

per_status per_replay_law(per_replay* replay, int32_t measured_scale, per_law* law_out) {
    return guarded([&] {
        Replay& target = replay_of(replay);
        check_struct_out("law_out", law_out);
        write_struct("law_out", law_out, target.law(measured_scale));
    });
}

per_status per_replay_set_scale(per_replay* replay, int32_t scale) {
    return guarded([&] { replay_of(replay).set_scale(scale); });
}

per_status per_replay_raise_max_priority(per_replay* replay, float priority, void* stream) {
    return guarded([&] { replay_of(replay, stream).raise_max_priority(priority, stream); });
}

per_status per_replay_set(per_replay* replay, int64_t count, const int64_t* ids, const per_array* fields,
                          void* stream) {
    return guarded([&] {
        Replay& target = replay_of(replay, stream);
        require_arrays(count, "ids", ids, "fields", fields);
        if (count == 0) return;
        target.set(count, ids, fields, stream);
    });
}

per_status per_replay_clear(per_replay* replay, void* stream) {
    return guarded([&] { replay_of(replay, stream).clear(stream); });
}

per_status per_replay_set_alpha(per_replay* replay, double alpha, void* stream) {
    return guarded([&] { replay_of(replay, stream).set_alpha(alpha, stream); });
}

per_status per_replay_set_beta(per_replay* replay, double beta, void* stream) {
    return guarded([&] { replay_of(replay, stream).set_beta(beta, stream); });
}

per_status per_replay_set_gamma(per_replay* replay, double gamma, void* stream) {
    return guarded([&] { replay_of(replay, stream).set_gamma(gamma, stream); });
}

per_status per_replay_set_n_step(per_replay* replay, int64_t n_step, void* stream) {
    return guarded([&] { replay_of(replay, stream).set_n_step(n_step, stream); });
}

per_status per_replay_set_save_compression(per_replay* replay, int32_t save_compression) {
    return guarded([&] { replay_of(replay).set_save_compression(save_compression); });
}

per_status per_replay_wait_to_add(per_replay* replay, int64_t count, int64_t timeout_ms) {
    return guarded([&] {
        Replay& target = replay_of(replay);
        check_entries("count", count, 0);
        check_count("timeout_ms", timeout_ms, -1);
        target.wait_to_add(count, Deadline(timeout_ms));
    });
}

per_status per_replay_wait_to_sample(per_replay* replay, int64_t batch_size, int64_t timeout_ms) {
    return guarded([&] {
        Replay& target = replay_of(replay);
        check_count("timeout_ms", timeout_ms, -1);
        target.wait_to_sample(batch_size, Deadline(timeout_ms));
    });
}

per_status per_replay_stop_limiting(per_replay* replay) {
    return guarded([&] { replay_of(replay).stop_limiting(); });
}

per_status per_replay_live(per_replay* replay, int64_t* live_out) {
    return guarded([&] {
        Replay& target = replay_of(replay);
        require_pointer("live_out", live_out);
        *live_out = target.live();
    });
}

per_status per_replay_live_ids(per_replay* replay, int64_t capacity, int64_t* ids_out, int64_t* count_out) {
    return guarded([&] {
        Replay& target = replay_of(replay);
        check_count("capacity", capacity, 0);
        if (capacity > 0) require_array("ids_out", ids_out);
        require_pointer("count_out", count_out);
        const std::vector<int64_t> ids = target.live_ids();
        const int64_t count = static_cast<int64_t>(ids.size());
        std::copy_n(ids.data(), std::min(count, capacity), ids_out);
        *count_out = count;
    });
}

per_status per_replay_statistics_init(per_replay_statistics* statistics, uint64_t struct_size) {
    return guarded([&] { initialize_struct("statistics", statistics, struct_size, default_statistics); });
}

per_status per_replay_stats(per_replay* replay, per_replay_statistics* statistics_out) {
    return guarded([&] {
        Replay& target = replay_of(replay);
        write_struct("statistics_out", statistics_out, target.statistics());
    });
}

per_status per_replay_save(per_replay* replay, const char* path) {
    return guarded([&] {
        Replay& target = replay_of(replay);
        require_pointer("path", path);
        target.save(path);
    });
}

per_status per_replay_checkpoint(per_replay* replay, const char* directory, int64_t* bytes_written_out) {
    return per_replay_checkpoint_within(replay, directory, PER_DIRECTORY_TIMEOUT_MS, bytes_written_out);
}

per_status per_replay_checkpoint_within(per_replay* replay, const char* directory, int64_t timeout_ms,
                                        int64_t* bytes_written_out) {
    return guarded([&] {
        Replay& target = replay_of(replay);
        require_pointer("directory", directory);
        check_count("timeout_ms", timeout_ms, -1);
        const int64_t bytes_written = target.checkpoint(directory, timeout_ms);
        if (bytes_written_out != nullptr) *bytes_written_out = bytes_written;
    });
}

per_status per_replay_load(const char* path, int32_t device, int32_t device_index, per_replay** replay_out) {
    return guarded([&] {
        require_pointer("replay_out", replay_out);
        *replay_out = nullptr;
        require_pointer("path", path);
        CheckpointReader reader(path);
        *replay_out = new per_replay{Replay(reader, place_on(device, device_index))};
    });
}

per_status per_replay_load_with(const char* path, const per_replay_options* place, per_replay** replay_out) {
    return per_replay_load_within(path, place, PER_DIRECTORY_TIMEOUT_MS, replay_out);
}

per_status per_replay_load_within(const char* path, const per_replay_options* place, int64_t timeout_ms,
                                  per_replay** replay_out) {
    return guarded([&] {
        require_pointer("replay_out", replay_out);
        *replay_out = nullptr;
        require_pointer("path", path);
        const per_replay_options known = read_struct("place", place);
        check_count("timeout_ms", timeout_ms, -1);
        CheckpointReader reader(path, timeout_ms);
        *replay_out = new per_replay{Replay(reader, known)};
    });
}

per_status per_replay_save_to(per_replay* replay, int64_t (*write)(void* context, const void* bytes, int64_t size),
                              void* context) {
    return guarded([&] {
        Replay& target = replay_of(replay);
        require_pointer("write", reinterpret_cast<const void*>(write));
        target.save({write, context});
    });
}

per_status per_replay_load_from(int64_t (*read)(void* context, void* bytes_out, int64_t size), void* context,
                                int32_t device, int32_t device_index, per_replay** replay_out) {
    return guarded([&] {
        require_pointer("replay_out", replay_out);
        *replay_out = nullptr;
        require_pointer("read", reinterpret_cast<const void*>(read));
        const ReadFunction stream = {read, context};
        CheckpointReader reader([&](void* data, std::size_t size) { return stream.read(data, size); });
        *replay_out = new per_replay{Replay(reader, place_on(device, device_index))};
    });
}

per_status per_replay_synchronize(per_replay* replay, void* stream) {
    return guarded([&] { replay_of(replay, stream).synchronize(stream); });
}

per_status per_hindsight_options_init(per_hindsight_options* options, uint64_t struct_size) {
    return guarded([&] { initialize_struct("options", options, struct_size, default_hindsight_options); });
}

per_status per_replay_sample_hindsight(per_replay* replay, const per_sample_options* options,
                                       const per_hindsight_options* hindsight, int64_t batch_size,
                                       const per_batch* batch, void* stream) {
    return guarded([&] {
        Replay& target = replay_of(replay, stream);
        const per_sample_options given = options == nullptr ? default_sample_options : read_struct("options", options);
        const per_hindsight_options known = read_struct("hindsight", hindsight);
        target.sample_hindsight(given, known, batch_size, read_struct("batch", batch), stream);
    });
}

per_status per_replay_get_windows_hindsight(per_replay* replay, const per_sample_options* options,
                                            const per_hindsight_options* hindsight, int32_t on_invalid, int64_t count,
                                            const int64_t* ids, const per_batch* batch, void* stream) {
    return guarded([&] {
        Replay& target = replay_of(replay, stream);
        const per_sample_options given = options == nullptr ? default_sample_options : read_struct("options", options);
        const per_hindsight_options known = read_struct("hindsight", hindsight);
        const per_batch known_batch = read_struct("batch", batch);
        if (count > 0) require_array("ids", ids);
        target.get_windows_hindsight(given, known, {on_invalid, count, ids}, known_batch, stream);
    });
}

per_status per_replay_bootstraps(per_replay* replay, int64_t capacity, const per_batch* batch, int64_t* count_out,
                                 void* stream) {
    return guarded([&] {
        Replay& target = replay_of(replay, stream);
        check_count("capacity", capacity, 0);
        const bool counts_only = capacity == 0 && batch == nullptr;
        const per_batch known = counts_only ? default_batch : read_struct("batch", batch);
        require_pointer("count_out", count_out);
        *count_out = target.bootstraps(capacity, known, stream);
    });
}

per_status per_replay_advantages(per_replay* replay, int32_t value_field, int32_t advantage_field, int32_t return_field,
                                 double lambda, int64_t count, const int64_t* ids, const float* bootstrap_values,
                                 void* stream) {
    return guarded([&] {
        Replay& target = replay_of(replay, stream);
        require_arrays(count, "ids", ids, "bootstrap_values", bootstrap_values);
        target.advantages({value_field, advantage_field, return_field, lambda, count, ids, bootstrap_values}, stream);
    });
}

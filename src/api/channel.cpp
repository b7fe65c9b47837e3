// The functions of per.h that are about channels and their writers.
#include "process/channel.h"

#include <vector>

#include "api/given_fields.h"
#include "api/replay_handle.h"
#include "api/struct_size.h"
#include "backend/replay_options.h"
#include "process/writer.h"

struct per_channel {
    static constexpr const char* argument = "channel";
    per::Channel object;
    per::LateFree late_free = {};
};

struct per_writer {
    static constexpr const char* argument = "writer";
    per::Writer object;
};

using namespace per;

per_status per_channel_options_init(per_channel_options* options, uint64_t struct_size) {
    return guarded([&] { initialize_struct("options", options, struct_size, default_channel_options); });
}

per_status per_channel_create(per_replay* replay, const per_channel_options* options, per_channel** channel_out) {
    return create("channel_out", channel_out, [&] {
        Replay& target = object_of(replay);
        return Channel(target, read_struct_or(default_channel_options, "options", options));
    });
}

per_status per_channel_get_address(per_channel* channel, const char** path_out, int32_t* descriptor_out) {
    return get_address(channel, path_out, descriptor_out);
}

per_status per_channel_flush(per_channel* channel, int64_t timeout_ms) {
    return call_on(channel, [&](Channel& target) { target.flush(deadline_of(timeout_ms)); });
}

per_status per_channel_move(per_channel* channel, int64_t max_steps, int64_t* steps_out) {
    return call_on(channel, [&](Channel& target) {
        require_pointer("steps_out", steps_out);
        *steps_out = 0;
        check_count("max_steps", max_steps, 0);
        *steps_out = target.move(max_steps);
    });
}

per_status per_channel_get_statistics(per_channel* channel, per_channel_statistics* statistics_out,
                                      uint64_t struct_size) {
    return call_on(channel, [&](const Channel& target) {
        fill_struct("statistics_out", statistics_out, struct_size, [&] { return target.statistics(); });
    });
}

void per_channel_free(per_channel* channel) {
    if (channel != nullptr) free_with(channel->object.replay(), channel);
}

per_status per_writer_attach(const char* path, int32_t descriptor, const per_field* fields, int64_t n_fields,
                             int64_t field_size, per_writer** writer_out) {
    return create("writer_out", writer_out, [&] {
        if (fields == nullptr) check_range("n_fields", n_fields, 0, 0);
        const std::vector<per_field> known = read_fields(fields, n_fields, field_size);
        return Writer(path, descriptor, known.empty() ? fields : known.data(), n_fields);
    });
}

per_status per_writer_describe(per_writer* writer, per_replay_options* options_out) {
    return call_on(writer, [&](const Writer& target) { write_struct("options_out", options_out, target.describe()); });
}

per_status per_writer_add(per_writer* writer, const per_steps* steps, int64_t timeout_ms) {
    return call_on(writer, [&](Writer& target) {
        const per_steps known = read_struct("steps", steps);
        target.add(known, deadline_of(timeout_ms));
    });
}

per_status per_writer_cut(per_writer* writer, int64_t count, const int64_t* env_ids, int64_t timeout_ms) {
    return call_on(writer, [&](Writer& target) {
        if (env_ids != nullptr) check_entries("count", count, 0);
        check_aligned("env_ids", env_ids);
        target.cut(count, env_ids, deadline_of(timeout_ms));
    });
}

per_status per_writer_flush(per_writer* writer, int64_t timeout_ms) {
    return call_on(writer, [&](Writer& target) { target.flush(deadline_of(timeout_ms)); });
}

void per_writer_free(per_writer* writer) {
    delete writer;
}

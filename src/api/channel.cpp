// The functions of per.h that are about channels and their writers.
#include "process/channel.h"

#include <vector>

#include "api/given_fields.h"
#include "api/replay_handle.h"
#include "api/struct_size.h"
#include "backend/replay_options.h"
#include "base/guarded.h"
#include "process/writer.h"

struct per_channel {
    per::Channel channel;
};

struct per_writer {
    per::Writer writer;
};

namespace per {
namespace {

Channel& channel_of(per_channel* channel) {
    require_pointer("channel", channel);
    return channel->channel;
}

Writer& writer_of(per_writer* writer) {
    require_pointer("writer", writer);
    return writer->writer;
}

}  // namespace
}  // namespace per

using namespace per;

per_status per_channel_options_init(per_channel_options* options, uint64_t struct_size) {
    return guarded([&] { initialize_struct("options", options, struct_size, default_channel_options); });
}

per_status per_channel_create(per_replay* replay, const per_channel_options* options, per_channel** channel_out) {
    return guarded([&] {
        require_pointer("channel_out", channel_out);
        *channel_out = nullptr;
        Replay& target = replay_of(replay);
        const per_channel_options given =
            options == nullptr ? default_channel_options : read_struct("options", options);
        *channel_out = new per_channel{Channel(target, given)};
    });
}

per_status per_channel_get_address(per_channel* channel, const char** path_out, int32_t* descriptor_out) {
    return guarded([&] {
        const Channel& target = channel_of(channel);
        const char* const path = target.path();
        const int32_t descriptor = target.descriptor();
        if (path_out != nullptr) *path_out = path;
        if (descriptor_out != nullptr) *descriptor_out = descriptor;
    });
}

per_status per_channel_flush(per_channel* channel, int64_t timeout_ms) {
    return guarded([&] {
        Channel& target = channel_of(channel);
        check_count("timeout_ms", timeout_ms, -1);
        target.flush(Deadline(timeout_ms));
    });
}

per_status per_channel_move(per_channel* channel, int64_t max_steps, int64_t* steps_out) {
    return guarded([&] {
        Channel& target = channel_of(channel);
        require_pointer("steps_out", steps_out);
        *steps_out = 0;
        check_count("max_steps", max_steps, 0);
        *steps_out = target.move(max_steps);
    });
}

per_status per_channel_get_statistics(per_channel* channel, per_channel_statistics* statistics_out,
                                      uint64_t struct_size) {
    return guarded([&] {
        const Channel& target = channel_of(channel);
        fill_struct("statistics_out", statistics_out, struct_size, [&] { return target.statistics(); });
    });
}

void per_channel_free(per_channel* channel) {
    delete channel;
}

per_status per_writer_attach(const char* path, int32_t descriptor, const per_field* fields, int64_t n_fields,
                             int64_t field_size, per_writer** writer_out) {
    return guarded([&] {
        require_pointer("writer_out", writer_out);
        *writer_out = nullptr;
        if (fields == nullptr) check_range("n_fields", n_fields, 0, 0);
        const std::vector<per_field> known = read_fields(fields, n_fields, field_size);
        *writer_out = new per_writer{Writer(path, descriptor, known.empty() ? fields : known.data(), n_fields)};
    });
}

per_status per_writer_describe(per_writer* writer, per_replay_options* options_out) {
    return guarded([&] {
        const Writer& target = writer_of(writer);
        write_struct("options_out", options_out, target.describe());
    });
}

per_status per_writer_add(per_writer* writer, const per_steps* steps, int64_t timeout_ms) {
    return guarded([&] {
        Writer& target = writer_of(writer);
        const per_steps known = read_struct("steps", steps);
        check_count("timeout_ms", timeout_ms, -1);
        target.add(known, Deadline(timeout_ms));
    });
}

per_status per_writer_cut(per_writer* writer, int64_t count, const int64_t* env_ids, int64_t timeout_ms) {
    return guarded([&] {
        Writer& target = writer_of(writer);
        if (env_ids != nullptr) check_entries("count", count, 0);
        check_aligned("env_ids", env_ids);
        check_count("timeout_ms", timeout_ms, -1);
        target.cut(count, env_ids, Deadline(timeout_ms));
    });
}

per_status per_writer_flush(per_writer* writer, int64_t timeout_ms) {
    return guarded([&] {
        Writer& target = writer_of(writer);
        check_count("timeout_ms", timeout_ms, -1);
        target.flush(Deadline(timeout_ms));
    });
}

void per_writer_free(per_writer* writer) {
    delete writer;
}

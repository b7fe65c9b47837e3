// The functions of channels and shared loaders in a build with PER_PORTABLE. They refuse all calls, since channels and
// shared loaders need memory, wakes and locks that only Linux has.
#include "base/error.h"
#include "per.h"

namespace {

per_status refuse() {
    return per::record_error(PER_ERROR_UNSUPPORTED,
                             "this libper was built with PER_PORTABLE: channels and shared loaders need Linux");
}

// Refuses a call that creates an object.
template <class Object>
per_status refuse(Object** object_out) {
    if (object_out != nullptr) *object_out = nullptr;
    return refuse();
}

}  // namespace

per_status per_channel_options_init(per_channel_options*, uint64_t) {
    return refuse();
}

per_status per_channel_create(per_replay*, const per_channel_options*, per_channel** channel_out) {
    return refuse(channel_out);
}

per_status per_channel_get_address(per_channel*, const char**, int32_t*) {
    return refuse();
}

per_status per_channel_flush(per_channel*, int64_t) {
    return refuse();
}

per_status per_channel_move(per_channel*, int64_t, int64_t*) {
    return refuse();
}

per_status per_channel_get_statistics(per_channel*, per_channel_statistics*, uint64_t) {
    return refuse();
}

void per_channel_free(per_channel*) {}

per_status per_writer_attach(const char*, int32_t, const per_field*, int64_t, int64_t, per_writer** writer_out) {
    return refuse(writer_out);
}

per_status per_writer_describe(per_writer*, per_replay_options*) {
    return refuse();
}

per_status per_writer_add(per_writer*, const per_steps*, int64_t) {
    return refuse();
}

per_status per_writer_cut(per_writer*, int64_t, const int64_t*, int64_t) {
    return refuse();
}

per_status per_writer_flush(per_writer*, int64_t) {
    return refuse();
}

void per_writer_free(per_writer*) {}

per_status per_shared_loader_options_init(per_shared_loader_options*, uint64_t) {
    return refuse();
}

per_status per_shared_loader_create(per_replay*, const per_shared_loader_options*, per_shared_loader** loader_out) {
    return refuse(loader_out);
}

per_status per_shared_loader_get_address(per_shared_loader*, const char**, int32_t*) {
    return refuse();
}

per_status per_shared_loader_get_statistics(per_shared_loader*, per_shared_loader_statistics*, uint64_t) {
    return refuse();
}

void per_shared_loader_free(per_shared_loader*) {}

per_status per_reader_attach(const char*, int32_t, per_reader** reader_out) {
    return refuse(reader_out);
}

per_status per_reader_describe(per_reader*, per_replay_options*, int64_t*) {
    return refuse();
}

per_status per_reader_next(per_reader*, int64_t, per_batch*, int64_t*) {
    return refuse();
}

per_status per_reader_release(per_reader*, int64_t) {
    return refuse();
}

per_status per_reader_update_priorities(per_reader*, const per_priorities*, int64_t) {
    return refuse();
}

per_status per_reader_flush(per_reader*, int64_t) {
    return refuse();
}

per_status per_reader_stop(per_reader*) {
    return refuse();
}

void per_reader_free(per_reader*) {}

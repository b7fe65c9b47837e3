// The functions of per.h that are about loaders.
#include "loader/loader.h"

#include "api/replay_handle.h"
#include "api/struct_size.h"
#include "backend/replay_options.h"

struct per_loader {
    static constexpr const char* argument = "loader";
    static constexpr const char* noun = "loader";
    per::Loader object;
    per::LateFree late_free = {};
};

using namespace per;

per_status per_loader_options_init(per_loader_options* options, uint64_t struct_size) {
    return guarded([&] { initialize_struct("options", options, struct_size, default_loader_options); });
}

per_status per_loader_create(per_replay* replay, const per_loader_options* options, per_loader** loader_out) {
    return create("loader_out", loader_out, [&] {
        Replay& target = object_of(replay);
        per_loader_options given = read_struct("options", options);
        per_sample_options sample;
        read_nested("sample", given.sample, sample);
        return Loader(target, given);
    });
}

per_status per_loader_next(per_loader* loader, int64_t timeout_ms, per_batch* batch_out, int64_t* slot_out,
                           void* stream) {
    return call_on(loader, stream, [&](Loader& target) {
        const Deadline deadline = deadline_of(timeout_ms);
        check_struct_out("batch_out", batch_out);
        require_pointer("slot_out", slot_out);
        per_batch batch;
        *slot_out = target.next(deadline, batch, stream);
        write_struct("batch_out", batch_out, batch);
    });
}

per_status per_loader_release(per_loader* loader, int64_t slot, void* stream) {
    return call_on(loader, stream, [&](Loader& target) { target.release(slot, stream); });
}

per_status per_loader_stop(per_loader* loader) {
    return call_on(loader, [](Loader& target) { target.stop(); });
}

void per_loader_free(per_loader* loader) {
    if (loader != nullptr) free_with(loader->object.replay(), loader);
}

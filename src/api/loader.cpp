// The functions of per.h that are about loaders.
#include "loader/loader.h"

#include "api/replay_handle.h"
#include "api/struct_size.h"
#include "backend/replay_options.h"
#include "base/guarded.h"

struct per_loader {
    per::Loader loader;
};

namespace per {
namespace {

// The loader of a call that queues work on a stream.
Loader& loader_of(per_loader* loader, void* stream) {
    require_pointer("loader", loader);
    check_stream(stream, "loader", loader->loader.device());
    return loader->loader;
}

}  // namespace
}  // namespace per

using namespace per;

per_status per_loader_options_init(per_loader_options* options, uint64_t struct_size) {
    return guarded([&] { initialize_struct("options", options, struct_size, default_loader_options); });
}

per_status per_loader_create(per_replay* replay, const per_loader_options* options, per_loader** loader_out) {
    return guarded([&] {
        require_pointer("loader_out", loader_out);
        *loader_out = nullptr;
        Replay& target = replay_of(replay);
        per_loader_options given = read_struct("options", options);
        per_sample_options sample;
        if (given.sample != nullptr) {
            sample = read_struct("sample", given.sample);
            given.sample = &sample;
        }
        *loader_out = new per_loader{Loader(target, given)};
    });
}

per_status per_loader_next(per_loader* loader, int64_t timeout_ms, per_batch* batch_out, int64_t* slot_out,
                           void* stream) {
    return guarded([&] {
        Loader& target = loader_of(loader, stream);
        check_count("timeout_ms", timeout_ms, -1);
        check_struct_out("batch_out", batch_out);
        require_pointer("slot_out", slot_out);
        per_batch batch;
        *slot_out = target.next(Deadline(timeout_ms), batch, stream);
        write_struct("batch_out", batch_out, batch);
    });
}

per_status per_loader_release(per_loader* loader, int64_t slot, void* stream) {
    return guarded([&] { loader_of(loader, stream).release(slot, stream); });
}

per_status per_loader_stop(per_loader* loader) {
    return guarded([&] {
        require_pointer("loader", loader);
        loader->loader.stop();
    });
}

void per_loader_free(per_loader* loader) {
    delete loader;
}

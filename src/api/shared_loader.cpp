// The functions of per.h that are about shared loaders and their readers.
#include "process/shared_loader.h"

#include "api/replay_handle.h"
#include "api/struct_size.h"
#include "backend/replay_options.h"
#include "process/reader.h"

struct per_shared_loader {
    static constexpr const char* argument = "loader";
    per::SharedLoader object;
    per::LateFree late_free = {};
};

struct per_reader {
    static constexpr const char* argument = "reader";
    per::Reader object;
};

using namespace per;

per_status per_shared_loader_options_init(per_shared_loader_options* options, uint64_t struct_size) {
    return guarded([&] { initialize_struct("options", options, struct_size, default_shared_loader_options); });
}

per_status per_shared_loader_create(per_replay* replay, const per_shared_loader_options* options,
                                    per_shared_loader** loader_out) {
    return create("loader_out", loader_out, [&] {
        Replay& target = object_of(replay);
        per_shared_loader_options given = read_struct("options", options);
        per_sample_options sample;
        read_nested("sample", given.sample, sample);
        return SharedLoader(target, given);
    });
}

per_status per_shared_loader_get_address(per_shared_loader* loader, const char** path_out, int32_t* descriptor_out) {
    return get_address(loader, path_out, descriptor_out);
}

per_status per_shared_loader_get_statistics(per_shared_loader* loader, per_shared_loader_statistics* statistics_out,
                                            uint64_t struct_size) {
    return call_on(loader, [&](const SharedLoader& target) {
        fill_struct("statistics_out", statistics_out, struct_size, [&] { return target.statistics(); });
    });
}

void per_shared_loader_free(per_shared_loader* loader) {
    if (loader != nullptr) free_with(loader->object.replay(), loader);
}

per_status per_reader_attach(const char* path, int32_t descriptor, per_reader** reader_out) {
    return create("reader_out", reader_out, [&] { return Reader(path, descriptor); });
}

per_status per_reader_describe(per_reader* reader, per_replay_options* options_out, int64_t* batch_size_out) {
    return call_on(reader, [&](const Reader& target) {
        check_struct_out("options_out", options_out);
        require_pointer("batch_size_out", batch_size_out);
        write_struct("options_out", options_out, target.describe());
        *batch_size_out = target.batch_size();
    });
}

per_status per_reader_next(per_reader* reader, int64_t timeout_ms, per_batch* batch_out, int64_t* slot_out) {
    return call_on(reader, [&](Reader& target) {
        const Deadline deadline = deadline_of(timeout_ms);
        check_struct_out("batch_out", batch_out);
        require_pointer("slot_out", slot_out);
        per_batch batch;
        *slot_out = target.next(deadline, batch);
        write_struct("batch_out", batch_out, batch);
    });
}

per_status per_reader_release(per_reader* reader, int64_t slot) {
    return call_on(reader, [&](Reader& target) { target.release(slot); });
}

per_status per_reader_update_priorities(per_reader* reader, const per_priorities* priorities, int64_t timeout_ms) {
    return call_on(reader, [&](Reader& target) {
        const per_priorities known = read_struct("priorities", priorities);
        target.update(known, deadline_of(timeout_ms));
    });
}

per_status per_reader_flush(per_reader* reader, int64_t timeout_ms) {
    return call_on(reader, [&](Reader& target) { target.flush(deadline_of(timeout_ms)); });
}

per_status per_reader_stop(per_reader* reader) {
    return call_on(reader, [&](Reader& target) { target.stop(); });
}

void per_reader_free(per_reader* reader) {
    delete reader;
}

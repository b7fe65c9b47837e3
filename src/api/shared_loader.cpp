// The functions of per.h that are about shared loaders and their readers.
#include "process/shared_loader.h"

#include "api/replay_handle.h"
#include "api/struct_size.h"
#include "backend/replay_options.h"
#include "base/guarded.h"
#include "process/reader.h"

struct per_shared_loader {
    per::SharedLoader loader;
};

struct per_reader {
    per::Reader reader;
};

namespace per {
namespace {

SharedLoader& loader_of(per_shared_loader* loader) {
    require_pointer("loader", loader);
    return loader->loader;
}

Reader& reader_of(per_reader* reader) {
    require_pointer("reader", reader);
    return reader->reader;
}

}  // namespace
}  // namespace per

using namespace per;

per_status per_shared_loader_options_init(per_shared_loader_options* options, uint64_t struct_size) {
    return guarded([&] { initialize_struct("options", options, struct_size, default_shared_loader_options); });
}

per_status per_shared_loader_create(per_replay* replay, const per_shared_loader_options* options,
                                    per_shared_loader** loader_out) {
    return guarded([&] {
        require_pointer("loader_out", loader_out);
        *loader_out = nullptr;
        Replay& target = replay_of(replay);
        per_shared_loader_options given = read_struct("options", options);
        per_sample_options sample;
        if (given.sample != nullptr) {
            sample = read_struct("sample", given.sample);
            given.sample = &sample;
        }
        *loader_out = new per_shared_loader{SharedLoader(target, given)};
    });
}

per_status per_shared_loader_get_address(per_shared_loader* loader, const char** path_out, int32_t* descriptor_out) {
    return guarded([&] {
        const SharedLoader& target = loader_of(loader);
        const char* const path = target.path();
        const int32_t descriptor = target.descriptor();
        if (path_out != nullptr) *path_out = path;
        if (descriptor_out != nullptr) *descriptor_out = descriptor;
    });
}

per_status per_shared_loader_get_statistics(per_shared_loader* loader, per_shared_loader_statistics* statistics_out,
                                            uint64_t struct_size) {
    return guarded([&] {
        const SharedLoader& target = loader_of(loader);
        fill_struct("statistics_out", statistics_out, struct_size, [&] { return target.statistics(); });
    });
}

void per_shared_loader_free(per_shared_loader* loader) {
    delete loader;
}

per_status per_reader_attach(const char* path, int32_t descriptor, per_reader** reader_out) {
    return guarded([&] {
        require_pointer("reader_out", reader_out);
        *reader_out = nullptr;
        *reader_out = new per_reader{Reader(path, descriptor)};
    });
}

per_status per_reader_describe(per_reader* reader, per_replay_options* options_out, int64_t* batch_size_out) {
    return guarded([&] {
        const Reader& target = reader_of(reader);
        check_struct_out("options_out", options_out);
        require_pointer("batch_size_out", batch_size_out);
        write_struct("options_out", options_out, target.describe());
        *batch_size_out = target.batch_size();
    });
}

per_status per_reader_next(per_reader* reader, int64_t timeout_ms, per_batch* batch_out, int64_t* slot_out) {
    return guarded([&] {
        Reader& target = reader_of(reader);
        check_count("timeout_ms", timeout_ms, -1);
        check_struct_out("batch_out", batch_out);
        require_pointer("slot_out", slot_out);
        per_batch batch;
        *slot_out = target.next(Deadline(timeout_ms), batch);
        write_struct("batch_out", batch_out, batch);
    });
}

per_status per_reader_release(per_reader* reader, int64_t slot) {
    return guarded([&] { reader_of(reader).release(slot); });
}

per_status per_reader_update_priorities(per_reader* reader, const per_priorities* priorities, int64_t timeout_ms) {
    return guarded([&] {
        Reader& target = reader_of(reader);
        const per_priorities known = read_struct("priorities", priorities);
        check_count("timeout_ms", timeout_ms, -1);
        target.update(known, Deadline(timeout_ms));
    });
}

per_status per_reader_flush(per_reader* reader, int64_t timeout_ms) {
    return guarded([&] {
        Reader& target = reader_of(reader);
        check_count("timeout_ms", timeout_ms, -1);
        target.flush(Deadline(timeout_ms));
    });
}

per_status per_reader_stop(per_reader* reader) {
    return guarded([&] { reader_of(reader).stop(); });
}

void per_reader_free(per_reader* reader) {
    delete reader;
}

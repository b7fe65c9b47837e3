// The functions of per/files.h: saves, saves in the background, and loads.
#include "per.h"

#include <memory>

#include "api/replay_handle.h"
#include "api/struct_size.h"
#include "backend/replay_options.h"
#include "core/checks.h"
#include "core/save.h"
#include "file/caller_stream.h"
#include "file/checkpoint_file.h"

struct per_save {
    std::shared_ptr<per::Save> save;
};

namespace per {
namespace {

const Save& save_of(per_save* save) {
    require_pointer("save", save);
    save->save->check_usable();
    return *save->save;
}

void require_none(const char* name, bool is_given, const char* reason) {
    if (is_given) throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is given: must be NULL %s", name, reason);
}

per_save_options read_options(const per_save_options* options) {
    if (options == nullptr) return default_save_options;
    const per_save_options given = read_struct("options", options);
    check_save_options(given);
    return given;
}

// Reads the options of a call that writes a file. Such a call takes no function of the caller's to write with.
per_save_options read_options_of_file(const per_save_options* options) {
    const per_save_options given = read_options(options);
    require_none("write", given.write != nullptr, "except for per_replay_save()");
    return given;
}

per_load_options read_options(const per_load_options* options) {
    if (options == nullptr) return default_load_options;
    const per_load_options given = read_struct("options", options);
    check_load_options(given);
    if (given.read != nullptr) {
        require_none("allocate", given.memory.allocate != nullptr, "if read is given");
        require_none("storage", given.memory.storage != nullptr, "if read is given");
    }
    return given;
}

// Frees, at the end of a save, the handles that its `write` has freed. The last of them may be the buffer's.
struct LateFrees {
    LateFree* first = nullptr;

    LateFrees() = default;
    ~LateFrees() {
        while (first != nullptr) {
            const LateFree late = *first;
            late.free(late.handle);
            first = late.next;
        }
    }
    LateFrees(const LateFrees&) = delete;
    LateFrees& operator=(const LateFrees&) = delete;
};

}  // namespace
}  // namespace per

using namespace per;

per_status per_save_options_init(per_save_options* options, uint64_t struct_size) {
    return guarded([&] { initialize_struct("options", options, struct_size, default_save_options); });
}

per_status per_replay_save(per_replay* replay, const char* path, const per_save_options* options) {
    return call_on(replay, [&](Replay& target) {
        const per_save_options given = read_options(options);
        if (given.write == nullptr)
            require_pointer("path", path);
        else
            require_none("path", path != nullptr, "if write is given");
        LateFrees late_frees;
        target.save(path, given, late_frees.first);
    });
}

per_status per_replay_checkpoint(per_replay* replay, const char* directory, const per_save_options* options,
                                 int64_t* bytes_written_out) {
    return call_on(replay, [&](Replay& target) {
        require_pointer("directory", directory);
        const per_save_options given = read_options_of_file(options);
        const int64_t bytes_written = target.checkpoint(directory, given);
        if (bytes_written_out != nullptr) *bytes_written_out = bytes_written;
    });
}

per_status per_replay_save_start(per_replay* replay, const char* path, const per_save_options* options,
                                 per_save** save_out) {
    return guarded([&] {
        require_pointer("save_out", save_out);
        *save_out = nullptr;
        Replay& target = object_of(replay);
        require_pointer("path", path);
        const per_save_options given = read_options_of_file(options);
        auto handle = std::make_unique<per_save>();
        handle->save = target.start_save(path, given);
        *save_out = handle.release();
    });
}

per_status per_save_wait(per_save* save, int64_t timeout_ms, int64_t* written_out, int64_t* total_out) {
    return guarded([&] {
        const Save& target = save_of(save);
        check_count("timeout_ms", timeout_ms, -1);
        const bool has_ended = target.wait(Deadline(timeout_ms));
        const int64_t n_written = target.n_written();
        if (written_out != nullptr) *written_out = n_written;
        if (total_out != nullptr) *total_out = target.n_bytes();
        if (!has_ended)
            throw Error(PER_ERROR_BUSY,
                        "the save is still running: %" PRId64 " of %" PRId64 " bytes of rows are written", n_written,
                        target.n_bytes());
        target.check_success();
    });
}

void per_save_free(per_save* save) {
    delete save;
}

per_status per_load_options_init(per_load_options* options, uint64_t struct_size) {
    return guarded([&] { initialize_struct("options", options, struct_size, default_load_options); });
}

per_status per_replay_load(const char* path, const per_load_options* options, per_replay** replay_out) {
    return create("replay_out", replay_out, [&] {
        const per_load_options given = read_options(options);
        if (given.read == nullptr) {
            require_pointer("path", path);
            CheckpointReader reader(path, given.timeout_ms);
            return Replay(reader, given);
        }
        require_none("path", path != nullptr, "if read is given");
        const ReadFunction stream = {given.read, given.context};
        CheckpointReader reader([&](void* data, std::size_t size) { return stream.read(data, size); });
        return Replay(reader, given);
    });
}

// The functions of per.h that are about saves in the background.
#include "core/save.h"

#include "api/replay_handle.h"
#include "rows/arguments.h"
#include "rows/guarded.h"

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

}  // namespace
}  // namespace per

using namespace per;

per_status per_replay_save_start(per_replay* replay, const char* path, per_save** save_out) {
    return guarded([&] {
        require_pointer("save_out", save_out);
        *save_out = nullptr;
        Replay& target = replay_of(replay);
        require_pointer("path", path);
        auto handle = std::make_unique<per_save>();
        handle->save = target.start_save(path);
        *save_out = handle.release();
    });
}

per_status per_save_progress(per_save* save, int64_t* written_out, int64_t* total_out) {
    return guarded([&] {
        const Save& target = save_of(save);
        if (written_out != nullptr) *written_out = target.n_written();
        if (total_out != nullptr) *total_out = target.n_bytes();
    });
}

per_status per_save_wait(per_save* save, int64_t timeout_ms) {
    return guarded([&] {
        const Save& target = save_of(save);
        check_count("timeout_ms", timeout_ms, -1);
        target.wait(timeout_ms);
    });
}

void per_save_free(per_save* save) {
    delete save;
}

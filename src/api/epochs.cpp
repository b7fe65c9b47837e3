// The functions of per.h that are about epochs over a buffer.
#include "core/epochs.h"

#include <memory>

#include "api/replay_handle.h"
#include "api/struct_size.h"

struct per_epochs {
    per_replay* replay;
    per::Epochs order;
};

using namespace per;

per_status per_epochs_create(per_replay* replay, int64_t n_epochs, int64_t batch_size, int32_t drop_last, void* stream,
                             per_epochs** epochs_out) {
    return guarded([&] {
        require_pointer("epochs_out", epochs_out);
        *epochs_out = nullptr;
        Replay& target = object_of(replay, stream);
        auto epochs = std::make_unique<per_epochs>(per_epochs{replay, {}});
        target.start_epochs(n_epochs, batch_size, drop_last != 0, epochs->order, stream);
        *epochs_out = epochs.release();
    });
}

per_status per_epochs_next(per_epochs* epochs, const per_batch* batch, int64_t* count_out, void* stream) {
    return guarded([&] {
        require_pointer("epochs", epochs);
        Replay& target = object_of(epochs->replay, stream);
        const per_batch known = read_struct("batch", batch);
        require_pointer("count_out", count_out);
        *count_out = target.next_of_epochs(epochs->order, known, stream);
    });
}

void per_epochs_free(per_epochs* epochs) {
    delete epochs;
}

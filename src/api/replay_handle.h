// The handle of a buffer, for the functions of per.h that take one.
#pragma once

#include "api/handle.h"
#include "core/replay.h"

struct per_replay {
    static constexpr const char* argument = "replay";
    static constexpr const char* noun = "handle";
    per::Replay object;
    per::LateFree late_free = {};
};

namespace per {

// Frees the handle of a buffer, or one whose object uses the buffer. Called by `write` of a save of the buffer, it
// leaves this to per_replay_save(): it would wait for itself.
template <class Handle>
void free_with(Replay& replay, Handle* handle) {
    handle->late_free = {[](void* freed) { delete static_cast<Handle*>(freed); }, handle};
    if (!replay.free_after_save(handle->late_free)) delete handle;
}

}  // namespace per

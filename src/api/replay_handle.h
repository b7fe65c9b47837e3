// The handle of a buffer, for the functions of per.h that take one.
#pragma once

#include "base/arguments.h"
#include "core/replay.h"
#include "per.h"

struct per_replay {
    per::Replay replay;
};

namespace per {

inline Replay& replay_of(per_replay* replay) {
    require_pointer("replay", replay);
    return replay->replay;
}

// The buffer of a call that queues work on a stream.
inline Replay& replay_of(per_replay* replay, void* stream) {
    Replay& target = replay_of(replay);
    check_stream(stream, "handle", target.device());
    return target;
}

}  // namespace per

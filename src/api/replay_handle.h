// The handle of a buffer, for the functions of per.h that take one.
#pragma once

#include "api/handle.h"
#include "core/replay.h"

struct per_replay {
    static constexpr const char* argument = "replay";
    static constexpr const char* noun = "handle";
    per::Replay object;
};

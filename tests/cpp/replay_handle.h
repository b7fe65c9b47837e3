// A buffer that is freed with its handle.
#pragma once

#include <memory>

#include "per.h"

namespace per::test {

struct FreeReplay {
    void operator()(per_replay* replay) const { per_replay_free(replay); }
};
using ReplayHandle = std::unique_ptr<per_replay, FreeReplay>;

}  // namespace per::test

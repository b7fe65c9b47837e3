// Saving and restoring a replay buffer in host memory.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "cpu/replay/replay_state.h"
#include "file/checkpoint_file.h"

namespace per::cpu {

void save_state(CheckpointWriter& writer, ReplayState& state);
// For a thread that saves what the state is now, while it changes.
std::unique_ptr<ReplaySnapshot> snapshot_of(ReplayState& state);
// For a state just made with the options of the one that was saved. Throws Error with CORRUPT_FILE for what cannot be.
void restore_state(CheckpointReader& reader, ReplayState& state);

}  // namespace per::cpu

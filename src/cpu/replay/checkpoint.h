// Saving and restoring a replay buffer in host memory.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "cpu/replay/replay_state.h"
#include "file/checkpoint_file.h"

namespace per::cpu {

void save_state(CheckpointWriter& writer, ReplayState& state);
// A snapshot for a thread that saves the present state while calls go on.
std::unique_ptr<ReplaySnapshot> snapshot_of(ReplayState& state);
// Restores a saved state into `state`, which must be new and have the options of the saved one. Throws Error with
// CORRUPT_FILE for an impossible state.
void restore_state(CheckpointReader& reader, ReplayState& state);

}  // namespace per::cpu

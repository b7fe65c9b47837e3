// Defaults of the structs of a replay buffer: their _init functions write these, and calls that fill such a struct
// start from these. Also the window rules of a buffer with given options.
#pragma once

#include "per.h"
#include "rows/fields.h"
#include "rules/freshness.h"
#include "rules/window.h"

namespace per {

extern const per_replay_options default_replay_options;
extern const per_save_options default_save_options;
extern const per_load_options default_load_options;
extern const per_replay_settings default_settings;
extern const per_steps default_steps;
extern const per_sample_options default_sample_options;
extern const per_hindsight_options default_hindsight_options;
extern const per_batch default_batch;
extern const per_priorities default_priorities;
extern const per_loader_options default_loader_options;
extern const per_replay_statistics default_statistics;
extern const per_shard_summary default_summary;
extern const per_coordinator_state default_coordinator_state;
extern const per_channel_options default_channel_options;
extern const per_channel_statistics default_channel_statistics;
extern const per_shared_loader_options default_shared_loader_options;
extern const per_shared_loader_statistics default_shared_loader_statistics;

// True if a buffer in this memory can keep fields compressed.
bool can_compress(int32_t device, const per_memory& memory);

// True if transitions above a maximum age, in this per_age, are not live.
bool has_max_age(const per_replay_options& options, int32_t age);

// How the priorities of a new buffer decay.
Freshness freshness_of(const per_replay_options& options);

// The rules that decide which transitions are live. The options must have been resolved.
WindowRules window_rules(const per_replay_options& options, const Fields& fields);

}  // namespace per

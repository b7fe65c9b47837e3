// The options structs of a replay buffer: their defaults, what is allowed, and what they resolve to.
#pragma once

#include "backend/backend.h"
#include "backend/relabelling.h"
#include "per.h"
#include "rows/fields.h"
#include "rules/window.h"

namespace per {

extern const per_replay_options default_replay_options;
extern const per_steps default_steps;
extern const per_sample_options default_sample_options;
extern const per_hindsight_options default_hindsight_options;
extern const per_batch default_batch;
extern const per_loader_options default_loader_options;
extern const per_replay_statistics default_statistics;

// What each of these throws is an Error that names the option, its value and what is allowed.

// All options but `fields`, which Fields checks.
void check_replay_options(const per_replay_options& options);

// What per_replay_capacity_for() gives.
int64_t capacity_for(const per_replay_options& options, int64_t transitions, int64_t episode_length);

// The options with capacity, rows and stride as they will be, `fields` being those of the buffer.
per_replay_options resolve_replay_options(const per_replay_options& options, const Fields& fields);

// The buffer's options where those of the call say so; batch_size and batch are left to the caller.
ReplaySample resolve_sample_options(const per_sample_options& given, const per_replay_options& buffer);

// What decides which transitions of such a buffer, whose options have been resolved, are live.
WindowRules window_rules(const per_replay_options& options, const Fields& fields);

ReplayHindsight resolve_hindsight_options(const per_hindsight_options& given, const Fields& fields);

// Of any handle.
void check_device(int32_t device, int32_t device_index);

void check_alpha(double alpha);
void check_beta(double beta);
void check_gamma(double gamma);
// For such a buffer, whose options have been resolved.
void check_n_step(int64_t n_step, const per_replay_options& options, const Fields& fields);

}  // namespace per

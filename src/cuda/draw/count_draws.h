// How often rows are drawn, with keep_times_sampled.
#pragma once

#include "cuda/draw/live_draw.h"
#include "cuda/replay/replay_state.h"

namespace per::cuda {

// Counts what queue_sample() has queued the draw of, and writes times_sampled of the batch. Rows that have been drawn
// max_times_sampled times stop being live. One launch.
void queue_count_draws(const DeviceReplay& replay, const DrawMemory& memory, const DrawPlan& plan, cudaStream_t stream);

void load_count_kernels();

}  // namespace per::cuda

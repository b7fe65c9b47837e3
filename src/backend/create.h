// Functions that make the backends. Without CUDA, cuda/runtime/absent.cpp defines those of PER_CUDA.
#pragma once

#include <cstddef>
#include <memory>

#include "backend/backend.h"
#include "backend/batch.h"
#include "backend/frame_gather.h"
#include "backend/loader_slots.h"
#include "per.h"
#include "rows/fields.h"

namespace per::cpu {

std::unique_ptr<TreeBackend> create_tree_backend(const per_tree_options& options);

// The options must have been resolved; `fields` must outlive the backend.
std::unique_ptr<ReplayBackend> create_replay_backend(const per_replay_options& options, const Fields& fields);

}  // namespace per::cpu

namespace per::cuda {

// Throws Error: NO_DEVICE, OUT_OF_MEMORY, CUDA.
std::unique_ptr<TreeBackend> create_tree_backend(const per_tree_options& options);

// The options must have been resolved; `fields` must outlive the backend. Throws the same errors.
std::unique_ptr<ReplayBackend> create_replay_backend(const per_replay_options& options, const Fields& fields);

// Slots for three kinds of buffers: in host memory; in host memory, where the device copies frames out of the arrays
// `rows`; and on the device itself. Throw the same errors, and UNSUPPORTED.
std::unique_ptr<LoaderSlots> create_copied_slots(int32_t device_index, const Fields& fields, const BatchShape& shape,
                                                 std::size_t n_slots);
std::unique_ptr<LoaderSlots> create_gathered_slots(int32_t device_index, const Fields& fields, const BatchShape& shape,
                                                   std::size_t n_slots, const FrameArrays& rows);
std::unique_ptr<LoaderSlots> create_drawn_slots(int32_t device_index, const Fields& fields, const BatchShape& shape,
                                                std::size_t n_slots);

}  // namespace per::cuda

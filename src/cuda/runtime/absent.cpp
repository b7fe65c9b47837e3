// Replaces the CUDA backend in a libper that is built without it.
#include "backend/create.h"
#include "base/error.h"

namespace per::cuda {
namespace {

[[noreturn]] void refuse() {
    throw Error(PER_ERROR_NO_DEVICE, "device is PER_CUDA: this libper was built without CUDA");
}

}  // namespace

std::unique_ptr<TreeBackend> create_tree_backend(const per_tree_options&) {
    refuse();
}

std::unique_ptr<ReplayBackend> create_replay_backend(const per_replay_options&, const Fields&) {
    refuse();
}

std::unique_ptr<LoaderSlots> create_copied_slots(int32_t, const Fields&, const BatchShape&, std::size_t) {
    refuse();
}

std::unique_ptr<LoaderSlots> create_gathered_slots(int32_t, const Fields&, const BatchShape&, std::size_t,
                                                   const FrameArrays&) {
    throw Error(PER_ERROR_NO_DEVICE, "gather_on_device is 1, and device PER_CUDA: this libper was built without CUDA");
}

std::unique_ptr<LoaderSlots> create_drawn_slots(int32_t, const Fields&, const BatchShape&, std::size_t) {
    refuse();
}

}  // namespace per::cuda

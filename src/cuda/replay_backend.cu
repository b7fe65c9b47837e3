#include "cuda/replay_backend.h"

#include "cuda/check.h"
#include "cuda/create.h"
#include "error.h"

namespace per::cuda {
namespace {

[[noreturn]] void refuse(const char* what) {
    throw Error(PER_ERROR_UNSUPPORTED, "device is PER_CUDA: %s on CUDA is not in this version", what);
}

}  // namespace

CudaReplayBackend::CudaReplayBackend(const per_replay_options& options, const Fields& fields)
    : fields_(fields),
      order_(options.device_index),
      state_copy_(sizeof(ReplayState)),
      memory_(options, fields, order_.own_stream()) {}

CudaReplayBackend::~CudaReplayBackend() {
    if (order_.is_own_process()) return;
    order_.abandon();
    memory_.abandon();
    state_copy_.abandon();
}

void CudaReplayBackend::add(const ReplaySteps&, int64_t*, void*) {
    refuse("per_replay_add");
}
void CudaReplayBackend::cut(int64_t, const int64_t*, void*) {
    refuse("per_replay_cut");
}
void CudaReplayBackend::sample(const ReplaySample&, void*) {
    refuse("per_replay_sample");
}
void CudaReplayBackend::sample_hindsight(const ReplaySample&, const ReplayHindsight&, Relabelling&, void*) {
    refuse("per_replay_sample_hindsight");
}
void CudaReplayBackend::relabel(const Relabelling&, const per_batch&, void*) {
    refuse("per_replay_sample_hindsight");
}
void CudaReplayBackend::take_back_draw(const Relabelling&) {
    refuse("per_replay_sample_hindsight");
}
void CudaReplayBackend::update(const ReplayUpdate&, void*) {
    refuse("per_replay_update_priorities");
}
void CudaReplayBackend::priorities(int64_t, const int64_t*, float*, void*) {
    refuse("per_replay_priorities");
}
void CudaReplayBackend::get(int64_t, const int64_t*, const per_batch&, void*) {
    refuse("per_replay_get");
}
void CudaReplayBackend::set(int64_t, const int64_t*, const per_array*, void*) {
    refuse("per_replay_set");
}
void CudaReplayBackend::clear(void*) {
    refuse("per_replay_clear");
}
void CudaReplayBackend::hand_out() {
    refuse("per_loader_create");
}
void CudaReplayBackend::drop_ahead() {
    refuse("per_loader_create");
}
std::vector<int64_t> CudaReplayBackend::live_ids(void*) {
    refuse("per_replay_live_ids");
}
uint64_t CudaReplayBackend::reserve_draws(int64_t, void*) {
    refuse("per_epochs_create");
}
void CudaReplayBackend::take(int64_t, const int64_t*, float, const per_batch&, void*) {
    refuse("per_epochs_next");
}
int64_t CudaReplayBackend::bootstraps(int64_t, const per_batch&, void*) {
    refuse("per_replay_bootstraps");
}
void CudaReplayBackend::advantages(const ReplayAdvantages&, void*) {
    refuse("per_replay_advantages");
}
void CudaReplayBackend::set_alpha(double, void*) {
    refuse("per_replay_set_alpha");
}
void CudaReplayBackend::set_beta(double, void*) {
    refuse("per_replay_set_beta");
}
void CudaReplayBackend::set_gamma(double, void*) {
    refuse("per_replay_set_gamma");
}
void CudaReplayBackend::set_n_step(int64_t, void*) {
    refuse("per_replay_set_n_step");
}
int64_t CudaReplayBackend::live() {
    refuse("per_replay_live");
}
void CudaReplayBackend::statistics(per_replay_statistics&) {
    refuse("per_replay_stats");
}
void CudaReplayBackend::synchronize(void*) {
    refuse("per_replay_synchronize");
}
void CudaReplayBackend::save(CheckpointWriter&) {
    refuse("per_replay_save");
}
void CudaReplayBackend::restore(CheckpointReader&) {
    refuse("per_replay_load");
}

std::unique_ptr<ReplayBackend> create_replay_backend(const per_replay_options& options, const Fields& fields) {
    require_device(options.device_index);
    const CurrentDevice device(options.device_index);
    return std::make_unique<CudaReplayBackend>(options, fields);
}

}  // namespace per::cuda

#include "cuda/tree/tree_backend.h"

#include <bit>
#include <cinttypes>
#include <cstddef>
#include <string>

#include "backend/create.h"
#include "base/error.h"
#include "cuda/runtime/device.h"
#include "cuda/tree/layout.h"
#include "cuda/tree/tree_kernels.h"

namespace per::cuda {
namespace {

// Updates of up to this many entries never allocate.
constexpr int64_t first_entries = 4096;

// Throws Error if there were bad entries. The message says how many each array had.
void report_bad_entries(const TreeState& state) {
    constexpr const char* names[n_tree_arguments] = {"indices", "priorities", "prefix_sums", "units"};
    std::string found;
    uint64_t n = 0;
    for (int argument = 0; argument < n_tree_arguments; ++argument) {
        const uint64_t n_bad = state.n_bad_entries[argument];
        if (n_bad == 0) continue;
        found += (n == 0 ? "" : ", ") + std::to_string(n_bad) + " of " + names[argument];
        n += n_bad;
    }
    if (n != 0)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "%" PRIu64 " entries were not allowed, and skipped: %s", n,
                    found.c_str());
}

}  // namespace

CudaTreeBackend::CudaTreeBackend(const per_tree_options& options)
    : order_(options.device_index),
      memory_(bytes_of_layout([&](Layout& layout) { lay_out_tree(options.capacity, layout); })),
      state_copy_(sizeof(TreeState)),
      seed_(options.seed) {
    Layout layout(memory_.data());
    tree_ = lay_out_tree(options.capacity, layout);
    load_update_kernels();
    load_draw_kernels();
    StreamOrder::Call call(order_, order_.own_stream());
    check(cudaMemsetAsync(memory_.data(), 0, layout.n_bytes(), call.stream()), "clearing the tree");
    call.finish();
    wait_for(call.stream());
    entries_for(first_entries, call);
}

UpdateEntry* CudaTreeBackend::entries_for(int64_t count, const StreamOrder::Call& call) {
    if (count > max_entries_) {
        if (call.is_captured())
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "stream is %p: it is being captured, and the first update of more than %" PRId64
                        " entries (%" PRId64 ") allocates memory: make one such call before",
                        static_cast<void*>(call.stream()), max_entries_, count);
        const uint64_t n = std::bit_ceil(static_cast<uint64_t>(count));
        entries_.emplace_back(n * sizeof(UpdateEntry));
        max_entries_ = static_cast<int64_t>(n);
    }
    return reinterpret_cast<UpdateEntry*>(entries_.back().data());
}

void CudaTreeBackend::update(int64_t count, const int64_t* indices, const float* priorities, void* stream) {
    StreamOrder::Call call(order_, stream);
    if (count > 0) require_reachable("indices", indices);
    queue_update(tree_, count, indices, priorities, entries_for(count, call), call.stream());
    call.finish();
}

void CudaTreeBackend::sample(const TreeSample& sample, void* stream) {
    StreamOrder::Call call(order_, stream);
    require_reachable("indices_out", sample.indices_out);
    if (sample.scheme == PER_WITHOUT_REPLACEMENT)
        queue_distinct_draw(tree_, sample, seed_, call.stream());
    else
        queue_draw(tree_, sample, seed_, call.stream());
    call.finish();
}

void CudaTreeBackend::find(int64_t count, const double* prefix_sums, int64_t* indices_out, void* stream) {
    StreamOrder::Call call(order_, stream);
    if (count > 0) require_reachable("prefix_sums", prefix_sums);
    queue_find(tree_, count, prefix_sums, indices_out, call.stream());
    call.finish();
}

void CudaTreeBackend::find_mass(int64_t count, const uint64_t* units, int64_t* indices_out, void* stream) {
    StreamOrder::Call call(order_, stream);
    if (count > 0) require_reachable("units", units);
    queue_find(tree_, count, units, indices_out, call.stream());
    call.finish();
}

void CudaTreeBackend::priorities(int64_t count, const int64_t* indices, float* priorities_out, void* stream) {
    StreamOrder::Call call(order_, stream);
    if (count > 0 && indices != nullptr) require_reachable("indices", indices);
    if (count > 0 && indices == nullptr) require_reachable("priorities_out", priorities_out);
    if (indices == nullptr)
        check(cudaMemcpyAsync(priorities_out, tree_.leaves, static_cast<std::size_t>(count) * sizeof(float),
                              cudaMemcpyDefault, call.stream()),
              "copying priorities");
    else
        queue_read(tree_, count, indices, priorities_out, call.stream());
    call.finish();
}

void CudaTreeBackend::reset(void* stream) {
    StreamOrder::Call call(order_, stream);
    queue_reset(tree_, call.stream());
    call.finish();
}

TreeState CudaTreeBackend::read_state(const StreamOrder::Call& call, bool ends_report) {
    TreeState* const copy = reinterpret_cast<TreeState*>(state_copy_.data());
    copy_to_host(copy, tree_.state, 1, call.stream());
    if (ends_report)
        check(cudaMemsetAsync(&tree_.state->n_empty_draws, 0, sizeof(TreeState) - offsetof(TreeState, n_empty_draws),
                              call.stream()),
              "ending the report");
    wait_for(call.stream());
    require_ordered(copy->meeting);
    return *copy;
}

TreeMass CudaTreeBackend::mass() {
    StreamOrder::Call call(order_, order_.own_stream());
    const TreeState state = read_state(call, false);
    call.finish();
    return {state.total, state.scale};
}

void CudaTreeBackend::synchronize(void* stream) {
    StreamOrder::Call call(order_, stream);
    if (call.is_captured()) refuse_capture(stream);
    const TreeState state = read_state(call, true);
    call.finish();
    report_bad_entries(state);
    if (state.n_short_draws != 0)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "batch_size was more than the leaves of positive priority in %" PRIu32
                    " draws without replacement: they gave indices -1",
                    state.n_short_draws);
    if (state.n_empty_draws != 0)
        throw Error(PER_ERROR_EMPTY, "all priorities of the tree were 0 in %" PRIu32 " calls: they gave indices -1",
                    state.n_empty_draws);
}

std::unique_ptr<TreeBackend> create_tree_backend(const per_tree_options& options) {
    require_device(options.device_index);
    const CurrentDevice device(options.device_index);
    const ApartFromCaptures apart;
    return std::make_unique<CudaTreeBackend>(options);
}

}  // namespace per::cuda

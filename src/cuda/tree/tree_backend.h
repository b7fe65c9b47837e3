// per_tree in the memory of a CUDA device.
#pragma once

#include "backend/backend.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/stream_order.h"
#include "cuda/tree/sum_tree.h"

namespace per::cuda {

class CudaTreeBackend final : public TreeBackend {
 public:
    explicit CudaTreeBackend(const per_tree_options& options);

    bool reads_concurrently() const override { return false; }
    void update(int64_t count, const int64_t* indices, const float* priorities, void* stream) override;
    void sample(const TreeSample& sample, void* stream) override;
    void find(int64_t count, const double* prefix_sums, int64_t* indices_out, void* stream) override;
    void find_mass(int64_t count, const uint64_t* units, int64_t* indices_out, void* stream) override;
    void priorities(int64_t count, const int64_t* indices, float* priorities_out, void* stream) override;
    TreeMass mass() override;
    void reset(void* stream) override;
    void synchronize(void* stream) override;

 private:
    // Copies the state to the host, and waits for the stream.
    TreeState read_state(const StreamOrder::Call& call, bool ends_report);

    // Memory for the entries of an update.
    UpdateEntry* entries_for(int64_t count, const StreamOrder::Call& call);

    StreamOrder order_;
    DeviceMemory memory_;
    std::vector<DeviceMemory> entries_;  // the last is in use; captured graphs may use the others
    int64_t max_entries_ = 0;            // that the last of entries_ has room for
    PinnedMemory state_copy_;
    DeviceTree tree_;
    uint64_t seed_;
};

}  // namespace per::cuda

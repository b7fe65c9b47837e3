// What the policy classes ask of a device: one virtual call for a batch of work. Array arguments lie in the memory of the
// device; `stream` is a cudaStream_t, NULL on the CPU. Scalars, pointers and enums have been checked by the callers; what
// lies in the arrays is checked here, as far as the device can, before the first write.
#pragma once

#include <cstdint>
#include <memory>

#include "per.h"

namespace per {

// Where per_sample() writes its batch, and how it is drawn.
struct TreeSample {
    int64_t batch_size;
    int32_t scheme;  // a per_scheme
    double beta;
    int64_t* indices_out;
    float* priorities_out;  // may be NULL
    float* weights_out;     // may be NULL
};

struct TreeMass {
    uint64_t total;
    int32_t scale;
};

// The memory and the work of a tree. It counts the batches drawn, as that number is needed on the device.
class TreeBackend {
 public:
    virtual ~TreeBackend() = default;

    // Whether several threads may be inside calls that only read at the same time: find..(), priorities(), mass(), and
    // sample() except without replacement, which may write in between.
    virtual bool reads_concurrently() const = 0;

    virtual void update(int64_t count, const int64_t* indices, const float* priorities, void* stream) = 0;
    virtual void sample(const TreeSample& sample, void* stream) = 0;
    virtual void find(int64_t count, const double* prefix_sums, int64_t* indices_out, void* stream) = 0;
    virtual void find_mass(int64_t count, const uint64_t* units, int64_t* indices_out, void* stream) = 0;
    // With indices NULL the first `count`.
    virtual void priorities(int64_t count, const int64_t* indices, float* priorities_out, void* stream) = 0;
    virtual TreeMass mass() = 0;
    virtual void reset(void* stream) = 0;
    virtual void synchronize(void* stream) = 0;
};

}  // namespace per

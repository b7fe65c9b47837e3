// A batch that owns its arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "fields.h"
#include "per.h"

namespace per {

// What the arrays of a batch are made for.
struct BatchShape {
    int64_t batch_size;
    int64_t steps;   // of a sequence; 0: single transitions
    int64_t n_step;  // with which sequences are drawn
};

// Host memory for every array that a batch of drawn transitions or sequences has. Throws Error with OUT_OF_MEMORY.
class BatchMemory {
 public:
    BatchMemory(const Fields& fields, const BatchShape& shape);

    // Valid as long as this object, also after it was moved.
    const per_batch& batch() const { return batch_; }

 private:
    struct Free {
        void operator()(std::byte* memory) const { std::free(memory); }
    };

    // Points the arrays into `memory`, one behind the other, each on a cache line of its own; returns the bytes they
    // take. With memory NULL it only counts.
    std::size_t lay_out(const Fields& fields, const BatchShape& shape, std::byte* memory);

    std::vector<void*> fields_;
    std::vector<void*> next_fields_;
    per_batch batch_;
    std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace per

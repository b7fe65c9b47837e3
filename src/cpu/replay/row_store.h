// The rows of a replay buffer in host memory: one array a field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/memory/memory.h"
#include "rows/fields.h"
#include "rules/window.h"

namespace per::cpu {

// Arrays by slot; rows, lanes and ids are Ring's matter.
class RowStore {
 public:
    RowStore(const Fields& fields, int64_t capacity, bool store_next_observation);

    // Frames of a field: that in slot i is bytes_of_frame * i further.
    std::byte* field(int64_t i) { return fields_[static_cast<size_t>(i)].data(); }
    const std::byte* field(int64_t i) const { return fields_[static_cast<size_t>(i)].data(); }

    // Next observations, with store_next_observation: by slot of the step that they were made after.
    std::byte* next_field(int64_t i) { return next_fields_[static_cast<size_t>(i)].data(); }
    const std::byte* next_field(int64_t i) const { return next_fields_[static_cast<size_t>(i)].data(); }

    float* rewards() { return rewards_; }
    const float* rewards() const { return rewards_; }
    uint8_t* flags() { return flags_; }  // RowFlags
    const uint8_t* flags() const { return flags_; }

    std::size_t memory_bytes() const;

 private:
    std::vector<Memory> fields_;
    std::vector<Memory> next_fields_;
    Memory reward_memory_;
    Memory flag_memory_;
    float* rewards_;
    uint8_t* flags_;
};

// count * bytes, for an array. Throws Error with OUT_OF_MEMORY where that is beyond any memory.
std::size_t array_bytes(int64_t count, int64_t bytes);

}  // namespace per::cpu

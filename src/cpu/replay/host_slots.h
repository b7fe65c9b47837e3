// Slots of a loader whose consumer reads host memory: batches are drawn where they are handed out.
#pragma once

#include <vector>

#include "backend/batch_memory.h"
#include "backend/loader_slots.h"
#include "rows/fields.h"

namespace per::cpu {

class HostSlots final : public LoaderSlots {
 public:
    // Throws Error with OUT_OF_MEMORY.
    HostSlots(const Fields& fields, const BatchShape& shape, std::size_t n_slots) {
        slots_.reserve(n_slots);
        for (std::size_t i = 0; i < n_slots; ++i) slots_.emplace_back(fields, shape);
    }

    OpenSlot open(std::size_t slot) override { return {slots_[slot].batch(), nullptr, nullptr}; }
    void send(std::size_t) override {}
    const per_batch& hand_out(std::size_t slot, void*) override { return slots_[slot].batch(); }
    void take_back(std::size_t, void*) override {}

 private:
    std::vector<BatchMemory> slots_;
};

}  // namespace per::cpu

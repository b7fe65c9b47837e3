// The rows of a replay buffer that a device may still read, while a loader gathers there.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "backend/frame_gather.h"
#include "cpu/memory/memory.h"

namespace per::cpu {

// For each slot the number of the last gather that reads a frame there. A call that would overwrite frames first waits
// for that gather, and for no later one. Calls need the lock of the buffer.
class RowReads {
 public:
    // Throws Error with OUT_OF_MEMORY.
    void begin(FrameGather& gather, int64_t capacity) {
        last_ = Memory(array_bytes(capacity, sizeof(uint64_t)));
        made_ = 0;
        gather_ = &gather;
    }
    void end() {
        gather_ = nullptr;
        last_ = Memory();
    }

    // Notes that the next gather, if there is one, reads a frame of the slot. Several threads may call this.
    void note(int64_t slot) const {
        if (gather_ != nullptr) std::atomic_ref(last(slot)).store(gather_->number(), std::memory_order_relaxed);
    }

    // True if a loader gathers on a device.
    bool are_made() const { return gather_ != nullptr; }

    // Must be called before frames in slots first .. first + n - 1 are overwritten, and before any other change. Throws
    // Error with CUDA.
    void await(int64_t first, int64_t n) {
        if (gather_ == nullptr) [[likely]]
            return;
        uint64_t number = 0;
        for (int64_t slot = first; slot < first + n; ++slot) number = std::max(number, last(slot));
        if (number <= made_) return;
        gather_->await(number);
        made_ = std::min(number, gather_->number() - 1);  // a failed draw may have noted the number of the next gather
    }

 private:
    uint64_t& last(int64_t slot) const { return reinterpret_cast<uint64_t*>(last_.data())[slot]; }

    FrameGather* gather_ = nullptr;
    Memory last_;        // by slot; 0: no gather
    uint64_t made_ = 0;  // gathers known to be complete
};

}  // namespace per::cpu

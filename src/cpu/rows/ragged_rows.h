// The rows of a field with max_length, which differ in their numbers of values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/rows/frame_heap.h"
#include "rows/fields.h"

namespace per::cpu {

// A block holds the values of a row. An empty row has no block.
class RaggedRows final : public FrameHeap {
 public:
    RaggedRows(const Field& field, const Place& place);

    int64_t value_bytes() const { return value_bytes_; }
    static std::span<const std::byte> bytes_of(const Block* row) {
        return row == nullptr ? std::span<const std::byte>() : row->bytes();
    }
    std::span<const std::byte> operator[](int64_t slot) const { return bytes_of(by_slot()[slot]); }

    // Frees the row of a slot, which is then empty.
    void drop(int64_t slot) noexcept;
    // Makes room for a row of this many bytes, which the caller must write.
    std::byte* prepare(int64_t slot, int64_t n_bytes);
    void prepare(int64_t slot, std::span<const std::byte> values);

 private:
    const int64_t value_bytes_;
};

}  // namespace per::cpu

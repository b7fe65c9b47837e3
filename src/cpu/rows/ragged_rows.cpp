#include "cpu/rows/ragged_rows.h"

#include <algorithm>
#include <utility>

namespace per::cpu {

namespace {

constexpr int64_t most_bytes_in_chunk = int64_t{1} << 15;
constexpr std::size_t n_largest_in_chunk = 8;  // sizes of blocks are an eighth apart

}  // namespace

RaggedRows::RaggedRows(const Field& field, const Place& place)
    : FrameHeap(std::min(field.max_length * field.bytes, most_bytes_in_chunk), n_largest_in_chunk, place),
      value_bytes_(field.bytes) {}

void RaggedRows::drop(int64_t slot) noexcept {
    if (by_slot()[slot] != nullptr) release(std::exchange(by_slot().to_write(slot), nullptr));
}

std::byte* RaggedRows::prepare(int64_t slot, int64_t n_bytes) {
    Prepared& prepared = begin(slot);
    if (n_bytes == 0) return nullptr;
    prepared.block = allocate(n_bytes);
    return prepared.block->bytes_to_write();
}

void RaggedRows::prepare(int64_t slot, std::span<const std::byte> values) {
    std::ranges::copy(values, prepare(slot, std::ssize(values)));
}

}  // namespace per::cpu

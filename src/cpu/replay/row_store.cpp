#include "cpu/replay/row_store.h"

#include <cinttypes>

#include "rows/error.h"

namespace per::cpu {

std::size_t array_bytes(int64_t count, int64_t bytes) {
    int64_t product;
    if (__builtin_mul_overflow(count, bytes, &product))
        throw Error(PER_ERROR_OUT_OF_MEMORY, "out of memory: %" PRId64 " times %" PRId64 " bytes were asked for", count,
                    bytes);
    return static_cast<std::size_t>(product);
}

RowStore::RowStore(const Fields& fields, int64_t capacity, bool store_next_observation)
    : reward_memory_(array_bytes(capacity, sizeof(float))), flag_memory_(array_bytes(capacity, sizeof(uint8_t))) {
    for (const Field& field : fields) {
        const std::size_t bytes = array_bytes(capacity, field.bytes);
        fields_.emplace_back(bytes);
        next_fields_.emplace_back();
        if (store_next_observation && field.is_observation()) next_fields_.back() = Memory(bytes);
    }
    rewards_ = reinterpret_cast<float*>(reward_memory_.data());
    flags_ = reinterpret_cast<uint8_t*>(flag_memory_.data());
}

std::size_t RowStore::memory_bytes() const {
    std::size_t bytes = reward_memory_.bytes() + flag_memory_.bytes();
    for (const Memory& memory : fields_) bytes += memory.bytes();
    for (const Memory& memory : next_fields_) bytes += memory.bytes();
    return bytes;
}

}  // namespace per::cpu

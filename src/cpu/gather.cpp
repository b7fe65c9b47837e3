#include "cpu/gather.h"

#include <algorithm>
#include <cstring>

namespace per::cpu {
namespace {

constexpr size_t prefetch_distance = 8;
constexpr int64_t prefetched_bytes = 256;  // of an array's row; the hardware's own prefetch takes over from there

// Widths that are known to the compiler become a few moves; a call of memcpy costs more than they do.
void copy_frame(std::byte* out, const std::byte* frame, int64_t bytes) {
    switch (bytes) {
        case 1:
            std::memcpy(out, frame, 1);
            return;
        case 2:
            std::memcpy(out, frame, 2);
            return;
        case 4:
            std::memcpy(out, frame, 4);
            return;
        case 8:
            std::memcpy(out, frame, 8);
            return;
        case 12:
            std::memcpy(out, frame, 12);
            return;
        case 16:
            std::memcpy(out, frame, 16);
            return;
        case 24:
            std::memcpy(out, frame, 24);
            return;
        case 32:
            std::memcpy(out, frame, 32);
            return;
        case 48:
            std::memcpy(out, frame, 48);
            return;
        case 64:
            std::memcpy(out, frame, 64);
            return;
        default:
            std::memcpy(out, frame, static_cast<size_t>(bytes));
    }
}

}  // namespace

void Gather::prepare(const per_batch& batch, bool single_frames) {
    copies_.clear();
    stack_ = 1;
    wants_next_ = false;
    for (int64_t i = 0; i < state_.fields.count(); ++i) {
        const Field& field = state_.fields[i];
        const int64_t stack = single_frames ? 1 : field.stack;
        const std::byte* const array = state_.rows.field(i);
        const size_t before = copies_.size();
        if (batch.fields != nullptr && batch.fields[i] != nullptr)
            copies_.push_back({array, nullptr, static_cast<std::byte*>(batch.fields[i]), field.bytes, stack, false});
        if (field.is_observation() && batch.next_fields != nullptr && batch.next_fields[i] != nullptr) {
            copies_.push_back({array, state_.rows.next_field(i), static_cast<std::byte*>(batch.next_fields[i]),
                               field.bytes, stack, true});
            wants_next_ = true;
        }
        if (copies_.size() > before) stack_ = std::max(stack_, stack);
    }
}

// The frame of a row that is `age` steps older than the newest.
const std::byte* Gather::frame(const Copy& copy, const GatherRow& row, int64_t age) const {
    const int64_t reach = copy.is_next ? row.next_frames_before : row.frames_before;
    const int64_t newest = copy.is_next ? row.next_slot : row.slot;
    age = std::min(age, reach);
    if (copy.is_next && row.next_is_own_array) {
        if (age == 0) return copy.next_array + newest * copy.bytes;
        --age;
    }
    return copy.array + state_.ring().moved(row.env, newest, -age) * copy.bytes;
}

void Gather::prefetch(const GatherRow& row) const {
    for (const Copy& copy : copies_) {
        for (int64_t age = 0; age < copy.stack; ++age) {
            const std::byte* const first = frame(copy, row, age);
            for (int64_t i = 0; i < copy.bytes && i < prefetched_bytes; i += 64) __builtin_prefetch(first + i);
            __builtin_prefetch(first + std::min(copy.bytes, prefetched_bytes) - 1);
        }
    }
}

void Gather::run(const std::vector<GatherRow>& rows) const {
    if (copies_.empty()) return;
    for (size_t i = 0; i < std::min(prefetch_distance, rows.size()); ++i) prefetch(rows[i]);
    for (size_t i = 0; i < rows.size(); ++i) {
        if (i + prefetch_distance < rows.size()) prefetch(rows[i + prefetch_distance]);
        for (const Copy& copy : copies_) {
            std::byte* out = copy.out + static_cast<int64_t>(i) * copy.stack * copy.bytes;
            for (int64_t age = copy.stack - 1; age >= 0; --age) {
                copy_frame(out, frame(copy, rows[i], age), copy.bytes);
                out += copy.bytes;
            }
        }
    }
}

}  // namespace per::cpu

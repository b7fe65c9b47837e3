// The arrays of a batch: those that a caller gives, and memory that holds them all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "per.h"
#include "rows/dtype.h"
#include "rows/fields.h"

namespace per {

// Calls visit(name, array, is_of_steps) for each array of a batch but ids and those of fields. Those of steps have an
// entry for each step of a sequence, the others one for each place of the batch.
template <class Batch, class Visit>
void for_each_number(Batch& batch, const Visit& visit) {
    visit("reward", batch.reward, true);
    visit("discount", batch.discount, true);
    visit("n_steps", batch.n_steps, true);
    visit("terminated", batch.terminated, true);
    visit("truncated", batch.truncated, true);
    visit("weights", batch.weights, false);
    visit("priorities", batch.priorities, false);
    visit("probabilities", batch.probabilities, false);
    visit("mask", batch.mask, true);
    visit("gamma_m", batch.gamma_m, true);
    visit("times_sampled", batch.times_sampled, false);
}

// Calls visit(name, array, size of an element) for each array of a batch, ids first; array is NULL if it is not wanted.
// For rows of any length that is their per_ragged.
template <class Visit>
void for_each_array(const per_batch& batch, const Fields& fields, const Visit& visit) {
    visit("ids", batch.ids, sizeof *batch.ids);
    for (int64_t i = 0; i < fields.count(); ++i) {
        const Field& field = fields[i];
        const auto size = field.is_ragged() ? alignof(per_ragged) : static_cast<std::size_t>(dtype_size(field.dtype));
        if (batch.fields != nullptr) visit(field.name.c_str(), batch.fields[i], size);
        if (batch.next_fields != nullptr && field.is_observation())
            visit(field.next_name.c_str(), batch.next_fields[i], size);
    }
    for_each_number(batch, [&](const char* name, const auto* array, bool) { visit(name, array, sizeof *array); });
}

struct BatchShape {
    int64_t batch_size;
    int64_t steps;   // of a sequence; 0: single transitions
    int64_t n_step;  // with which sequences are drawn
    bool has_times_sampled = false;

    // The entries that one place of the batch has in an array of for_each_number().
    int64_t entries_of_place(bool is_of_steps) const { return is_of_steps && steps > 0 ? steps : 1; }
};

// The number of values of a field in one transition or sequence of a batch, and their bytes with all their frames.
int64_t length_of(const Field& field, const BatchShape& shape);
int64_t bytes_of_place(const Field& field, const BatchShape& shape);

// Clears place i of a batch of that shape: id -1, and zeros in all other arrays but those of rows of any length.
void clear_place(const per_batch& batch, const Fields& fields, const BatchShape& shape, int64_t i);

// The rows of an array of a batch whose field has rows of any length.
inline int64_t rows_of(const Field& field, const BatchShape& shape) {
    return shape.batch_size * length_of(field, shape);
}

// Calls visit(rows, field, name, number of rows) for each per_ragged of a batch.
template <class Visit>
void for_each_ragged(const per_batch& batch, const Fields& fields, const BatchShape& shape, const Visit& visit) {
    for (int64_t i = 0; i < fields.count() && fields.has_ragged(); ++i) {
        const Field& field = fields[i];
        const auto visit_array = [&](void* const* arrays, const std::string& name) {
            if (field.is_ragged() && arrays != nullptr && arrays[i] != nullptr)
                visit(*static_cast<per_ragged*>(arrays[i]), field, name, rows_of(field, shape));
        };
        visit_array(batch.fields, field.name);
        if (field.is_observation()) visit_array(batch.next_fields, field.next_name);
    }
}

// Room for the values of rows of any length. `total` must be set; all of it fits where only lengths are wanted.
bool has_room(const per_ragged& rows);
// The number of values to make room for if there is too little. It is larger than the total, as the next batch may be.
int64_t room_for(const per_ragged& rows);
// Throws Error with FULL.
[[noreturn]] void throw_no_room(const std::string& name, const per_ragged& rows);

// All arrays of a batch of drawn transitions or sequences, one after the other in a block of memory. The block is not
// touched: it may be a device's. Rows of any length are packed; only their offsets are in the block, and at first they
// have no room for values.
class BatchArrays {
 public:
    // The size of the block, a multiple of the alignment. Throws Error with OUT_OF_MEMORY if it is beyond 63 bits.
    static std::size_t n_bytes(const Fields& fields, const BatchShape& shape);
    // Each array begins at a multiple of this number if the block does; see host_batch_offset.
    static constexpr std::size_t alignment = 64;

    BatchArrays(const Fields& fields, const BatchShape& shape, std::byte* block);

    // Valid as long as this object, even after a move.
    const per_batch& batch() const { return batch_; }

 private:
    std::vector<void*> fields_;
    std::vector<void*> next_fields_;
    std::vector<per_ragged> ragged_;  // fields_ and next_fields_ point to them
    per_batch batch_;
    std::size_t n_bytes_;
};

// Host batches that are written again later begin at this offset within a cache line. JAX uses numpy arrays that begin
// on a line in place, and never says when it is done with them. It copies all others, and says when it is done.
inline constexpr std::size_t host_batch_offset = BatchArrays::alignment / 2;

// Host memory for a batch. Throws Error with OUT_OF_MEMORY.
class BatchMemory {
 public:
    BatchMemory(const Fields& fields, const BatchShape& shape);

    const per_batch& batch() const { return arrays_.batch(); }
    // Makes room for the rows of any length that a draw has found. Returns false if they all had room.
    bool make_room(const Fields& fields, const BatchShape& shape);

 private:
    struct Free {
        void operator()(std::byte* memory) const { std::free(memory); }
    };
    using Block = std::unique_ptr<std::byte, Free>;

    static Block allocate(std::size_t bytes);

    Block memory_;
    std::vector<Block> values_;  // of rows of any length, in the order of for_each_ragged(); then those replaced
    BatchArrays arrays_;
};

}  // namespace per

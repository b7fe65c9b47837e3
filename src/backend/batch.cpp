#include "backend/batch.h"

#include <cinttypes>
#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "backend/replay_options.h"
#include "base/error.h"
#include "base/overflow.h"

namespace per {
namespace {

constexpr std::size_t alignment = BatchArrays::alignment;

class Places {
 public:
    explicit Places(std::byte* memory) : memory_(memory) {}

    template <class Element>
    void place(Element*& array, int64_t count, int64_t bytes = sizeof(Element)) {
        array = memory_ == nullptr ? nullptr : reinterpret_cast<Element*>(memory_ + used_);
        int64_t size;
        const bool fits = !__builtin_mul_overflow(count, bytes, &size) &&
                          static_cast<uint64_t>(size) <= PTRDIFF_MAX - alignment - used_;
        if (!fits) throw Error(PER_ERROR_OUT_OF_MEMORY, "out of memory: the bytes of a batch are beyond 63 bits");
        used_ += (static_cast<std::size_t>(size) + alignment - 1) / alignment * alignment;
    }

    std::size_t used() const { return used_; }

 private:
    std::byte* memory_;
    std::size_t used_ = 0;
};

}  // namespace

int64_t length_of(const Field& field, const BatchShape& shape) {
    if (shape.steps == 0 || field.role == PER_ROLE_RECURRENT_STATE) return 1;
    return field.is_observation() ? shape.steps + shape.n_step : shape.steps;
}

int64_t bytes_of_place(const Field& field, const BatchShape& shape) {
    return length_of(field, shape) * field.stack * field.bytes;
}

void clear_place(const per_batch& batch, const Fields& fields, const BatchShape& shape, int64_t i) {
    const auto clear = [&](void* array, int64_t bytes) {
        if (array != nullptr)
            std::memset(static_cast<std::byte*>(array) + i * bytes, 0, static_cast<std::size_t>(bytes));
    };
    for (int64_t j = 0; j < fields.count(); ++j) {
        if (fields[j].is_ragged()) continue;
        const int64_t bytes = bytes_of_place(fields[j], shape);
        if (batch.fields != nullptr) clear(batch.fields[j], bytes);
        if (batch.next_fields != nullptr && fields[j].is_observation()) clear(batch.next_fields[j], bytes);
    }
    for_each_number(batch, [&](const char*, auto* array, bool is_of_steps) {
        clear(array, shape.entries_of_place(is_of_steps) * int64_t{sizeof *array});
    });
    if (batch.ids != nullptr) batch.ids[i] = -1;
}

std::size_t BatchArrays::n_bytes(const Fields& fields, const BatchShape& shape) {
    return BatchArrays(fields, shape, nullptr).n_bytes_;
}

BatchArrays::BatchArrays(const Fields& fields, const BatchShape& shape, std::byte* block)
    : fields_(static_cast<std::size_t>(fields.count())),
      next_fields_(static_cast<std::size_t>(fields.count())),
      batch_(default_batch) {
    Places places(block);
    const bool has_sequences = shape.steps > 0;
    const int64_t batch_size = shape.batch_size;
    const int64_t n_steps = has_sequences ? saturated_product(batch_size, shape.steps) : batch_size;
    ragged_.reserve(2 * fields_.size());
    const auto place_field = [&](void*& array, const Field& field) {
        const int64_t n = saturated_product(batch_size, length_of(field, shape));
        if (field.is_ragged()) {
            per_ragged& rows = ragged_.emplace_back(per_ragged{block, nullptr, 0, 0, 0});
            places.place(rows.offsets, saturated_sum(n, 1));
            array = &rows;
            return;
        }
        std::byte* first;
        places.place(first, saturated_product(n, field.stack), field.bytes);
        array = first;
    };
    for (int64_t i = 0; i < fields.count(); ++i) {
        const auto place = static_cast<std::size_t>(i);
        place_field(fields_[place], fields[i]);
        if (fields[i].is_observation() && !has_sequences) place_field(next_fields_[place], fields[i]);
    }
    places.place(batch_.ids, batch_size);
    for_each_number(batch_, [&](std::string_view name, auto*& array, bool is_of_steps) {
        if (name == "mask" && !has_sequences) return;
        if (name == "times_sampled" && !shape.has_times_sampled) return;
        places.place(array, is_of_steps ? n_steps : batch_size);
    });
    n_bytes_ = places.used();
    batch_.fields = fields_.data();
    batch_.next_fields = next_fields_.data();
}

BatchMemory::BatchMemory(const Fields& fields, const BatchShape& shape)
    : memory_(allocate(BatchArrays::n_bytes(fields, shape))),
      values_(fields.has_ragged() ? 2 * static_cast<std::size_t>(fields.count()) : 0),
      arrays_(fields, shape, memory_.get() + host_batch_offset) {}

// Returns a block with room for that many bytes behind host_batch_offset.
BatchMemory::Block BatchMemory::allocate(std::size_t bytes) {
    const std::size_t size = (bytes + alignment - 1) / alignment * alignment + alignment;
    void* const memory = size < bytes ? nullptr : std::aligned_alloc(alignment, size);
    if (memory == nullptr) throw_out_of_memory(bytes);
    return Block(static_cast<std::byte*>(memory));
}

bool BatchMemory::make_room(const Fields& fields, const BatchShape& shape) {
    bool had_too_little = false;
    std::size_t i = 0;
    for_each_ragged(batch(), fields, shape, [&](per_ragged& rows, const Field& field, const std::string&, int64_t) {
        const std::size_t place = i++;
        if (has_room(rows)) return;
        had_too_little = true;
        const int64_t capacity = room_for(rows);
        Block values = allocate(static_cast<std::size_t>(saturated_product(capacity, field.bytes)));
        values_.reserve(values_.size() + 1);
        // Arrays of earlier batches may still be read, so their memory stays.
        values_.push_back(std::exchange(values_[place], std::move(values)));
        rows.values = values_[place].get() + host_batch_offset;
        rows.capacity = capacity;
    });
    return had_too_little;
}

bool has_room(const per_ragged& rows) {
    return rows.values == nullptr || rows.total <= (rows.padded_length > 0 ? rows.padded_length : rows.capacity);
}

int64_t room_for(const per_ragged& rows) {
    return rows.total + rows.total / 4;
}

void throw_no_room(const std::string& name, const per_ragged& rows) {
    const bool is_padded = rows.padded_length > 0;
    throw Error(PER_ERROR_FULL, "%s.%s is %" PRId64 ": must be at least %" PRId64 " (see total)", name.c_str(),
                is_padded ? "padded_length" : "capacity", is_padded ? rows.padded_length : rows.capacity, rows.total);
}

}  // namespace per

#include "row.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "variant.h"

namespace bench {
namespace {

int64_t bytes_of(per_dtype dtype) {
    return dtype == PER_UINT8 ? 1 : 4;
}  // the dtypes of the rows here

template <class T>
void write_counting(std::byte* out, int64_t elements, int64_t first) {
    T* const values = reinterpret_cast<T*>(out);
    for (int64_t i = 0; i < elements; ++i) values[i] = static_cast<T>(first + i);
}

std::vector<std::vector<std::byte>> arrays(const RowKind& kind, int64_t length, int64_t frames, bool next) {
    std::vector<std::vector<std::byte>> result;
    for (const RowField& field : kind.fields) {
        const bool given = !next || field.is_observation();
        const int64_t entries = field.is_observation() ? length * frames : length;
        result.emplace_back(given ? static_cast<size_t>(entries * field.bytes()) : 0);
    }
    return result;
}

/* True if `frames` are the newest `stack` observations up to that of `row`, with the episode's first one repeated. */
bool are_frames(const RowField& field, int64_t row, int64_t stack, const std::byte* frames) {
    std::vector<std::byte> expected(static_cast<size_t>(field.bytes()));
    for (int64_t age = stack - 1; age >= 0; --age) {
        write_value(field, row - std::min(age, steps_before(row)), expected.data());
        if (std::memcmp(expected.data(), frames, expected.size()) != 0) return false;
        frames += field.bytes();
    }
    return true;
}

}  // namespace

int64_t RowField::elements() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t RowField::bytes() const {
    return elements() * bytes_of(dtype);
}

int64_t RowKind::bytes() const {
    int64_t sum = n_step * static_cast<int64_t>(sizeof(float) + sizeof(uint8_t));
    for (const RowField& field : fields) sum += field.is_observation() ? 2 * stack * field.bytes() : field.bytes();
    return sum;
}

void write_value(const RowField& field, int64_t row, std::byte* out) {
    // Neighbouring rows differ in every element; the numbers are exact in float32.
    const int64_t first = row * 31 % 65521 + (field.is_observation() ? 0 : 7);
    switch (field.dtype) {
        case PER_UINT8:
            return write_counting<uint8_t>(out, field.elements(), first);
        case PER_INT32:
            return write_counting<int32_t>(out, field.elements(), first);
        default:
            return write_counting<float>(out, field.elements(), first);
    }
}

Steps::Steps(const RowKind& kind, int64_t length)
    : fields(arrays(kind, length, 1, false)),
      next_fields(arrays(kind, length, 1, true)),
      reward(static_cast<size_t>(length)),
      terminated(static_cast<size_t>(length)),
      truncated(static_cast<size_t>(length)) {}

void Steps::set(const RowKind& kind, int64_t first_step) {
    for (int64_t i = 0; i < length(); ++i) {
        const int64_t row = row_of_step(first_step + i);
        for (size_t f = 0; f < kind.fields.size(); ++f) {
            const RowField& field = kind.fields[f];
            write_value(field, row, fields[f].data() + i * field.bytes());
            if (field.is_observation()) write_value(field, row + 1, next_fields[f].data() + i * field.bytes());
        }
        reward[i] = reward_of(row);
        terminated[i] = is_terminated(row);
    }
}

Rows::Rows(const RowKind& kind, int64_t batch)
    : fields(arrays(kind, batch, kind.stack, false)),
      next_fields(arrays(kind, batch, kind.stack, true)),
      reward(static_cast<size_t>(batch)),
      terminated(static_cast<size_t>(batch)),
      weights(static_cast<size_t>(batch)),
      ids(static_cast<size_t>(batch)) {}

void check_rows(const RowKind& kind, const Rows& rows) {
    for (int64_t i = 0; i < rows.batch(); ++i) {
        const int64_t row = rows.ids[i];
        require(!is_final_observation(row), "no final observation is drawn");
        const int64_t m = std::min(kind.n_step, episode_steps - steps_before(row));
        double expected = 0;
        for (int64_t k = m - 1; k >= 0; --k) expected = reward_of(row + k) + row_gamma * expected;
        require(rows.reward[i] == static_cast<float>(expected), "a row has the rewards of its window");
        require(rows.terminated[i] == is_terminated(row + m - 1), "a row has the flag of its window's last step");
        for (size_t f = 0; f < kind.fields.size(); ++f) {
            const RowField& field = kind.fields[f];
            const int64_t stack = field.is_observation() ? kind.stack : 1;
            const int64_t offset = i * stack * field.bytes();
            require(are_frames(field, row, stack, rows.fields[f].data() + offset),
                    "a row has the values that were stored in it");
            if (!field.is_observation()) continue;
            require(are_frames(field, row + m, stack, rows.next_fields[f].data() + offset),
                    "a row's next observation is that of the row after its window");
        }
    }
}

}  // namespace bench

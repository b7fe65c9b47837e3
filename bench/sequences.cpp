#include "sequences.h"

#include <algorithm>

#include "variant.h"

namespace bench {
namespace {

size_t numbers(const RowKind& kind, int64_t batch) {
    return static_cast<size_t>(batch * kind.steps());
}

/* True if a field's entry equals the stored value of the row; all bytes are 0 for `row` -1. */
bool is_value(const RowField& field, int64_t row, const std::byte* entry) {
    std::vector<std::byte> expected(static_cast<size_t>(field.bytes()));
    if (row >= 0) write_value(field, row, expected.data());
    return std::equal(expected.begin(), expected.end(), entry);
}

void check_step(const RowKind& kind, const Sequences& sequences, int64_t place, int64_t row) {
    const int64_t m = std::min(kind.n_step, episode_steps - steps_before(row));
    double reward = 0, discount = 1;
    for (int64_t k = m - 1; k >= 0; --k) reward = reward_of(row + k) + row_gamma * reward;
    for (int64_t k = 0; k < m; ++k) discount *= row_gamma;
    const auto i = static_cast<size_t>(place);
    const bool ends = is_terminated(row + m - 1);
    require(sequences.reward[i] == static_cast<float>(reward), "a step has the rewards of its window");
    require(sequences.discount[i] == (ends ? 0 : static_cast<float>(discount)), "a step has its discount");
    require(sequences.n_steps[i] == m && sequences.mask[i] == 1, "a step has the length of its window");
    require(sequences.terminated[i] == ends && sequences.truncated[i] == 0, "a step has its window's last flags");
}

}  // namespace

int64_t entries_of(const RowKind& kind, const RowField& field) {
    return field.is_observation() ? kind.steps() + kind.n_step : kind.steps();
}

int64_t bytes_of_sequence(const RowKind& kind) {
    int64_t sum = kind.steps() * static_cast<int64_t>(2 * sizeof(float) + sizeof(int32_t) + 3 * sizeof(uint8_t));
    for (const RowField& field : kind.fields) sum += entries_of(kind, field) * field.bytes();
    return sum;
}

Sequences::Sequences(const RowKind& kind, int64_t batch)
    : reward(numbers(kind, batch)),
      discount(numbers(kind, batch)),
      n_steps(numbers(kind, batch)),
      terminated(numbers(kind, batch)),
      truncated(numbers(kind, batch)),
      mask(numbers(kind, batch)),
      weights(static_cast<size_t>(batch)),
      ids(static_cast<size_t>(batch)) {
    for (const RowField& field : kind.fields)
        fields.emplace_back(static_cast<size_t>(batch * entries_of(kind, field) * field.bytes()));
}

void check_sequences(const RowKind& kind, const Sequences& sequences) {
    for (int64_t i = 0; i < sequences.batch(); ++i) {
        const int64_t start = sequences.ids[static_cast<size_t>(i)];
        const int64_t left = episode_steps - steps_before(start);
        require(steps_before(start) % kind.sequence_length == 0, "sequences start at multiples of their length");
        require(left > kind.burn_in, "a sequence has steps after its burn-in");
        for (int64_t t = 0; t < kind.steps(); ++t) {
            const int64_t place = i * kind.steps() + t;
            if (t < left)
                check_step(kind, sequences, place, start + t);
            else
                require(sequences.mask[static_cast<size_t>(place)] == 0, "what is padded is masked");
        }
        for (size_t f = 0; f < kind.fields.size(); ++f) {
            const RowField& field = kind.fields[f];
            const int64_t length = entries_of(kind, field);
            const int64_t known = field.is_observation() ? left + 1 : left;
            for (int64_t t = 0; t < length; ++t)
                require(is_value(field, t < known ? start + t : -1,
                                 sequences.fields[f].data() + (i * length + t) * field.bytes()),
                        "a step has the values that were stored in it");
        }
    }
}

}  // namespace bench

#ifndef PER_BENCH_ROW_H
#define PER_BENCH_ROW_H

#include <per.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bench {

/* A declared field of a transition. */
struct RowField {
    std::string name;
    per_dtype dtype;
    std::vector<int64_t> shape;

    bool is_observation() const { return name == "observation"; }
    int64_t elements() const;
    int64_t bytes() const;
};

/* The transitions of one case: these fields, next observation, reward and terminated. */
struct RowKind {
    std::string name;
    std::vector<RowField> fields;
    int64_t n_step = 1;  // steps of a return, with discount row_gamma
    int64_t stack = 1;   // frames of an observation
    int64_t burn_in = 0;
    int64_t sequence_length = 0;  // 0: single transitions

    int64_t steps() const { return burn_in + sequence_length; }

    /* Bytes of a transition of a batch: frames, other fields, and the rewards and flags of its window. */
    int64_t bytes() const;
};

constexpr double row_gamma = 0.5;

/*
 * The contents of rows. Row r of an environment holds values derived from r. An episode is episode_steps rows and the
 * row of its final observation, so the next observation of row r is always the observation of row r + 1.
 */
constexpr int64_t episode_steps = 200;

/* The row, and therefore the id, of step t of the environment. */
inline int64_t row_of_step(int64_t step) {
    return step / episode_steps * (episode_steps + 1) + step % episode_steps;
}

inline bool is_terminated(int64_t row) {
    return row % (episode_steps + 1) == episode_steps - 1;
}
/* Number of earlier steps in the row's episode. */
inline int64_t steps_before(int64_t row) {
    return row % (episode_steps + 1);
}
inline bool is_final_observation(int64_t row) {
    return row % (episode_steps + 1) == episode_steps;
}
inline float reward_of(int64_t row) {
    return static_cast<float>(row % 1021);
}

/* Writes the value of the field in row r. */
void write_value(const RowField& field, int64_t row, std::byte* out);

/* Consecutive steps, as arrays. */
struct Steps {
    Steps(const RowKind& kind, int64_t length);

    /* Sets them to the steps from `first_step` on. */
    void set(const RowKind& kind, int64_t first_step);

    int64_t length() const { return static_cast<int64_t>(reward.size()); }

    std::vector<std::vector<std::byte>> fields;
    std::vector<std::vector<std::byte>> next_fields;  // by field; empty if it is no observation
    std::vector<float> reward;
    std::vector<uint8_t> terminated;
    std::vector<uint8_t> truncated;
};

/* The arrays of a batch of transitions. */
struct Rows {
    Rows(const RowKind& kind, int64_t batch);

    int64_t batch() const { return static_cast<int64_t>(ids.size()); }

    std::vector<std::vector<std::byte>> fields;
    std::vector<std::vector<std::byte>> next_fields;  // by field; empty if it is no observation
    std::vector<float> reward;
    std::vector<uint8_t> terminated;
    std::vector<float> weights;
    std::vector<int64_t> ids;
};

/* Throws WrongResult unless each transition begins in the row of its id. */
void check_rows(const RowKind& kind, const Rows& rows);

}  // namespace bench

#endif

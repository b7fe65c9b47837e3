#include "plain_replay.h"

#include <algorithm>
#include <cstring>

#include "fetched_blocks.h"

namespace bench {
namespace {

/* Field size in bytes above which the hardware prefetcher does better. */
constexpr int64_t largest_prefetched = 1024;
constexpr int64_t line_bytes = 64;

}  // namespace

PlainReplay::PlainReplay(const RowKind& kind, int64_t capacity)
    : kind_(kind), capacity_(capacity), reward_(capacity), terminated_(capacity), tree_(capacity) {
    for (const RowField& field : kind_.fields) {
        fields_.emplace_back(capacity * field.bytes());
        next_fields_.emplace_back(field.is_observation() ? capacity * field.bytes() : 0);
    }
}

int64_t PlainReplay::row_in(int64_t slot) const {
    const int64_t newest = next_step_ - 1;
    return row_of_step(newest - (newest - slot) % capacity_);
}

void PlainReplay::store(const Steps& steps) {
    for (int64_t done = 0; done < steps.length();) {
        const int64_t slot = next_step_ % capacity_;
        const int64_t count = std::min(steps.length() - done, capacity_ - slot);
        store_run(steps, done, count, slot);
        done += count;
        next_step_ += count;
    }
}

void PlainReplay::store_run(const Steps& steps, int64_t first, int64_t count, int64_t slot) {
    for (size_t f = 0; f < fields_.size(); ++f) {
        const int64_t bytes = kind_.fields[f].bytes();
        const auto run_bytes = static_cast<size_t>(count * bytes);
        std::memcpy(fields_[f].data() + slot * bytes, steps.fields[f].data() + first * bytes, run_bytes);
        if (steps.next_fields[f].empty()) continue;
        std::memcpy(next_fields_[f].data() + slot * bytes, steps.next_fields[f].data() + first * bytes, run_bytes);
    }
    std::copy_n(steps.reward.data() + first, count, reward_.data() + slot);
    std::copy_n(steps.terminated.data() + first, count, terminated_.data() + slot);
}

void PlainReplay::add(const Steps& steps) {
    const int64_t first = next_step_;
    store(steps);
    for (int64_t step = first; step < next_step_; ++step) {
        const int64_t slot = step % capacity_;
        const float largest = 1;
        tree_.update(1, &slot, &largest);
    }
}

void PlainReplay::sample(Draws& draws, Rows& rows) {
    tree_.sample_stratified(draws);
    importance_weights(draws);
    for (int64_t i = 0; i < draws.batch(); ++i) copy_row(i, draws.indices[i], next_fields_, draws.indices[i], rows);
    rows.weights = draws.weights;
}

void PlainReplay::copy_row(int64_t i, int64_t slot, const std::vector<PageArray<std::byte>>& next_rings,
                           int64_t next_slot, Rows& rows) const {
    for (size_t f = 0; f < fields_.size(); ++f) {
        const int64_t bytes = kind_.fields[f].bytes();
        const int64_t stack = kind_.fields[f].is_observation() ? kind_.stack : 1;
        const int64_t size = stack * bytes;
        const int64_t before = (stack - 1) * bytes;  // the older frames
        std::memcpy(rows.fields[f].data() + i * size, fields_[f].data() + slot * bytes - before,
                    static_cast<size_t>(size));
        if (rows.next_fields[f].empty()) continue;
        std::memcpy(rows.next_fields[f].data() + i * size, next_rings[f].data() + next_slot * bytes - before,
                    static_cast<size_t>(size));
    }
    double reward = 0;
    uint8_t terminated = 0;
    for (int64_t k = kind_.n_step - 1; k >= 0; --k) {
        reward = static_cast<double>(reward_[slot + k]) + row_gamma * reward;
        terminated |= terminated_[slot + k];
    }
    rows.reward[i] = static_cast<float>(reward);
    rows.terminated[i] = terminated;
    rows.ids[i] = slot;
}

void PlainReplay::prefetch(int64_t slot) const {
    for (size_t f = 0; f < fields_.size(); ++f) {
        const int64_t bytes = kind_.fields[f].bytes();
        if (bytes > largest_prefetched) continue;
        const bool is_observation = kind_.fields[f].is_observation();
        const std::byte* const first = fields_[f].data() + (slot - (is_observation ? kind_.stack - 1 : 0)) * bytes;
        const int64_t touched = is_observation ? (kind_.stack + kind_.n_step) * bytes : bytes;
        for (int64_t byte = 0; byte < touched; byte += line_bytes) fetch_line(first + byte);
        fetch_line(first + touched - 1);
    }
    fetch_line(reward_.data() + slot);
    fetch_line(terminated_.data() + slot);
}

void PlainReplay::copy_rows_and_followers(const std::vector<int64_t>& slots, Rows& rows) const {
    in_fetched_blocks(
        static_cast<int64_t>(slots.size()), [&](int64_t i) { prefetch(slots[static_cast<size_t>(i)]); },
        [&](int64_t i) {
            const int64_t slot = slots[static_cast<size_t>(i)];
            copy_row(i, slot, fields_, slot + kind_.n_step, rows);
        });
}

void PlainReplay::copy_bytes(int64_t first, int64_t bytes, std::byte* out) const {
    std::memcpy(out, fields_[0].data() + first, static_cast<size_t>(bytes));
}

}  // namespace bench

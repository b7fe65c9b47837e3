#include "record_rows.h"

#include <cstring>

#include "fetched_blocks.h"

namespace bench {
namespace {

constexpr int64_t line_bytes = 64;

/* Fields, reward, flag; the next record's fields are aligned again. */
int64_t bytes_of_record(const RowKind& kind) {
    int64_t bytes = sizeof(float) + sizeof(uint8_t);
    for (const RowField& field : kind.fields) bytes += field.bytes();
    return (bytes + 3) / 4 * 4;
}

}  // namespace

RecordRows::RecordRows(const RowKind& kind, const PlainReplay& replay)
    : kind_(kind), record_bytes_(bytes_of_record(kind)), records_(replay.capacity() * record_bytes_) {
    for (int64_t slot = 0; slot < replay.capacity(); ++slot) {
        const int64_t row = replay.row_in(slot);
        std::byte* out = records_.data() + slot * record_bytes_;
        for (const RowField& field : kind_.fields) {
            write_value(field, row, out);
            out += field.bytes();
        }
        const float reward = reward_of(row);
        std::memcpy(out, &reward, sizeof reward);
        out[sizeof reward] = std::byte{is_terminated(row)};
    }
}

void RecordRows::prefetch(int64_t slot) const {
    const std::byte* const first = record(slot);
    const int64_t touched = 2 * record_bytes_;
    for (int64_t byte = 0; byte < touched; byte += line_bytes) fetch_line(first + byte);
    fetch_line(first + touched - 1);
}

void RecordRows::copy_row(size_t i, int64_t slot, Rows& rows) const {
    const std::byte* from = record(slot);
    for (size_t f = 0; f < kind_.fields.size(); ++f) {
        const auto bytes = static_cast<size_t>(kind_.fields[f].bytes());
        std::memcpy(rows.fields[f].data() + i * bytes, from, bytes);
        if (!rows.next_fields[f].empty())
            std::memcpy(rows.next_fields[f].data() + i * bytes, from + record_bytes_, bytes);
        from += bytes;
    }
    std::memcpy(&rows.reward[i], from, sizeof(float));
    rows.terminated[i] = static_cast<uint8_t>(from[sizeof(float)]);
    rows.ids[i] = slot;
}

void RecordRows::copy_rows_and_followers(const std::vector<int64_t>& slots, Rows& rows) const {
    in_fetched_blocks(
        static_cast<int64_t>(slots.size()), [&](int64_t i) { prefetch(slots[static_cast<size_t>(i)]); },
        [&](int64_t i) { copy_row(static_cast<size_t>(i), slots[static_cast<size_t>(i)], rows); });
}

}  // namespace bench

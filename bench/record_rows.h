#ifndef PER_BENCH_RECORD_ROWS_H
#define PER_BENCH_RECORD_ROWS_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "page_array.h"
#include "plain_replay.h"
#include "row.h"

namespace bench {

/*
 * The rows of a plain replay, each with all its fields, reward and flag side by side: one place in memory for a row and
 * the next, where an array a field has one for each. For rows without windows and stacks.
 */
class RecordRows {
 public:
    RecordRows(const RowKind& kind, const PlainReplay& replay);

    /* As PlainReplay's. */
    void copy_rows_and_followers(const std::vector<int64_t>& slots, Rows& rows) const;

 private:
    const std::byte* record(int64_t slot) const { return records_.data() + slot * record_bytes_; }
    void copy_row(size_t i, int64_t slot, Rows& rows) const;
    void prefetch(int64_t slot) const;

    RowKind kind_;
    int64_t record_bytes_;
    PageArray<std::byte> records_;
};

}  // namespace bench

#endif

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
 * The rows of a plain replay as records: all fields, reward and flag of a row are contiguous, so a row and the next are
 * in one place in memory, instead of one place per field. For rows without windows and stacks.
 */
class RecordRows {
 public:
    RecordRows(const RowKind& kind, const PlainReplay& replay);

    /* Like PlainReplay::copy_rows_and_followers(). */
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

// Checks of values that calls write to rows: steps that are added, and fields that are set. Each throws Error, which
// names the argument, its value and what is allowed. Only the elements of env_ids are read here: the backends check
// those of other arrays.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "per.h"
#include "rows/fields.h"

namespace per {

void check_fields_set(int64_t count, const per_array* given, const Fields& fields, int32_t device);

// Checks steps that are added. Its results are valid until the next call.
class StepChecks {
 public:
    // Both arguments must outlive this object.
    StepChecks(const Fields& fields, const per_replay_options& buffer);

    ReplaySteps steps(const per_steps& steps);

    // Returns each environment once. A repetition is left out if may_repeat, and otherwise an error.
    std::span<const int64_t> environments(int64_t count, const int64_t* env_ids, bool may_repeat);

 private:
    bool has_next_fields(const per_steps& steps) const;

    const Fields& declared_;
    const per_replay_options& buffer_;
    std::vector<GivenArray> fields_;
    std::vector<GivenArray> next_fields_;
    std::vector<int64_t> environments_;
    std::vector<uint64_t> last_call_of_;  // by environment: the number of the call that last had it
    uint64_t n_calls_ = 0;
};

}  // namespace per

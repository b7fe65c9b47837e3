// The arrays that a caller gives for a batch.
#pragma once

#include <cstddef>

#include "per.h"
#include "rows/dtype.h"
#include "rows/fields.h"

namespace per {

// Calls visit(name, array, size of an element) for each of them, ids first; array is NULL for what is not asked for.
template <class Visit>
void for_each_array(const per_batch& batch, const Fields& fields, const Visit& visit) {
    const auto numbers = [&](const char* name, const auto* array) { visit(name, array, sizeof *array); };
    numbers("ids", batch.ids);
    for (int64_t i = 0; i < fields.count(); ++i) {
        const Field& field = fields[i];
        const auto size = static_cast<std::size_t>(dtype_size(field.dtype));
        if (batch.fields != nullptr) visit(field.name.c_str(), batch.fields[i], size);
        if (batch.next_fields != nullptr && field.is_observation())
            visit(field.next_name.c_str(), batch.next_fields[i], size);
    }
    numbers("reward", batch.reward);
    numbers("discount", batch.discount);
    numbers("n_steps", batch.n_steps);
    numbers("terminated", batch.terminated);
    numbers("truncated", batch.truncated);
    numbers("weights", batch.weights);
    numbers("priorities", batch.priorities);
    numbers("probabilities", batch.probabilities);
    numbers("mask", batch.mask);
}

}  // namespace per

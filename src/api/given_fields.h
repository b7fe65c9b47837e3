// The fields that a program gives. It may be built against another header, in which a per_field has another size:
// field_size is the distance between two fields.
#pragma once

#include <cstdint>
#include <vector>

#include "per.h"

namespace per {

// Returns field i. Throws Error for a field_size that no header has had, and for a member that this library does not
// know, unless it is zero.
per_field read_field(const char* name, const per_field* fields, int64_t field_size, int64_t i);

// Copies of the fields; empty if there are no fields, or more than a buffer may have, which the checks refuse.
std::vector<per_field> read_fields(const per_field* fields, int64_t n_fields, int64_t field_size);

// The options of a new buffer.
struct GivenOptions {
    explicit GivenOptions(const per_replay_options* given);
    GivenOptions(const GivenOptions&) = delete;
    GivenOptions& operator=(const GivenOptions&) = delete;

    std::vector<per_field> fields;
    per_replay_options options;  // with those fields
};

}  // namespace per

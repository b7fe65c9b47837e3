// The fields of a program, which may be built against another header: field_size says how far they are apart.
#pragma once

#include <cstdint>
#include <vector>

#include "per.h"

namespace per {

// Field i. Throws Error for a field_size that no header has had, and for what this library does not know in the field.
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

// The declared fields of a transition, once they are checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "per.h"

namespace per {

// A field as its buffer keeps it: role and stack are resolved, never "default".
struct Field {
    std::string name;
    std::string next_name;  // "next_" + name: the name of the array of next observations in errors
    std::vector<int64_t> shape;
    int32_t dtype;
    int32_t role;
    int32_t stack;
    int32_t padding;                       // a per_padding
    int32_t compression;                   // a per_compression
    int64_t max_length;                    // 0: a row has one frame per step; above 0: any number of values up to this
    int64_t elements;                      // of one frame, or of one value of a row of any length
    int64_t bytes;                         // of one frame, or of one value of a row of any length
    std::vector<std::byte> default_value;  // one frame; empty: the field must be given

    bool is_observation() const { return role == PER_ROLE_OBSERVATION; }
    bool has_default() const { return !default_value.empty(); }
    bool is_compressed() const { return compression != PER_COMPRESSION_NONE; }
    bool is_ragged() const { return max_length > 0; }  // has rows of any length
    bool pads_with_zeros() const { return padding == PER_PADDING_ZERO && stack > 1; }
};

// Throws what Fields would throw for this field alone. A name that is NULL passes.
void check_field(const per_field& field);

// The fields of a buffer, in the order of their declaration.
class Fields {
 public:
    // Checks and copies options.fields. Throws Error with INVALID_ARGUMENT, or with OUT_OF_MEMORY if the bytes of a row
    // are beyond 64 bits. options.frame_stack is the default stack, and must have been checked.
    explicit Fields(const per_replay_options& options);

    // described() points into the fields, which stay in place when this object is moved, but not when it is copied.
    Fields(Fields&&) = default;
    Fields& operator=(Fields&&) = default;

    int64_t count() const { return static_cast<int64_t>(fields_.size()); }
    const Field& operator[](int64_t i) const { return fields_[static_cast<size_t>(i)]; }
    auto begin() const { return fields_.begin(); }
    auto end() const { return fields_.end(); }

    int64_t row_bytes() const { return row_bytes_; }  // of one frame of every field, without rows of any length
    int32_t max_stack() const { return max_stack_; }
    bool has_ragged() const { return first_ragged_ >= 0; }
    const Field* first_ragged() const { return has_ragged() ? &(*this)[first_ragged_] : nullptr; }

    // [count()] for per_replay_describe(). The array is valid as long as this object.
    const per_field* described() const { return described_.data(); }

 private:
    std::vector<Field> fields_;
    std::vector<per_field> described_;
    std::vector<per_array> described_defaults_;
    int64_t row_bytes_ = 0;
    int64_t first_ragged_ = -1;
    int32_t max_stack_ = 1;
};

}  // namespace per

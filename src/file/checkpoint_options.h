// The options at the beginning of a buffer's checkpoint: its fields, and all others with their latest values.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "file/checkpoint_file.h"
#include "per.h"

namespace per {

void write_options(CheckpointWriter& writer, const per_replay_options& options);

// Options read from a checkpoint, with the arrays that they point to.
class CheckpointOptions {
 public:
    // Throws Error with CORRUPT_FILE. The caller must check the values of the options.
    explicit CheckpointOptions(CheckpointReader& reader);

    // Returns the options of a buffer on the device and in the memory of `place`. Fields are uncompressed if none can
    // be compressed there. The options point to data of this object and of `place`, and are valid only as long as both
    // are.
    per_replay_options options(const per_load_options& place) const;

 private:
    void read_field(CheckpointReader& reader);
    const per_array* read_default(CheckpointReader& reader, const per_field& field);

    per_replay_options options_;
    std::vector<per_field> fields_;
    std::vector<per_field> uncompressed_fields_;
    std::deque<std::string> names_;
    std::deque<std::vector<int64_t>> shapes_;
    std::deque<std::vector<std::byte>> default_values_;
    std::deque<per_array> defaults_;
};

}  // namespace per

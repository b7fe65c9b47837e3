#include "file/checkpoint_options.h"

#include <algorithm>
#include <cstring>

#include "backend/replay_options.h"
#include "rows/dtype.h"
#include "rows/fields.h"
#include "rules/limits.h"

namespace per {
namespace {

// Calls visit(member) for the options in a file, in order. Device and memory are not among them, since each
// per_replay_load() chooses these.
template <class Options, class Visit>
void for_each_option(Options& options, Visit visit) {
    visit(options.capacity);
    visit(options.n_envs);
    visit(options.seed);
    visit(options.n_step);
    visit(options.frame_stack);
    visit(options.sequence_length);
    visit(options.burn_in);
    visit(options.sequence_stride);
    visit(options.beta_steps);
    visit(options.rate_limit.samples_tolerance);
    visit(options.rate_limit.min_size_to_sample);
    visit(options.gamma);
    visit(options.alpha);
    visit(options.beta);
    visit(options.beta_final);
    visit(options.epsilon);
    visit(options.sequence_eta);
    visit(options.uniform_fraction);
    visit(options.freshness.half_life);
    visit(options.freshness.max_age);
    visit(options.freshness.age);
    visit(options.rate_limit.samples_per_insert);
    visit(options.prioritization);
    visit(options.scheme);
    visit(options.normalize_weights);
    visit(options.max_priority);
    visit(options.on_invalid);
    visit(options.on_gap);
    visit(options.autoreset);
    visit(options.store_next_observation);
    visit(options.overwrite);
    visit(options.critics);
    visit(options.gather_threads);
    visit(options.on_nan);
    visit(options.save_compression);
    visit(options.keep_times_sampled);
    visit(options.max_times_sampled);
}

// The kinds of data that can follow the numbers of a field.
constexpr uint8_t has_nothing = 0, has_default = 1, has_max_length = 2;

// Writes all elements of a field's default, in the dtype of the field, or its max_length. No field has both.
void write_rest(SectionContent& content, const per_field& field) {
    content.number(field.max_length > 0 ? has_max_length : field.default_value != nullptr ? has_default : has_nothing);
    if (field.max_length > 0) return content.number(field.max_length);
    if (field.default_value == nullptr) return;
    int64_t n_bytes = dtype_size(field.dtype);
    for (int32_t axis = 0; axis < field.ndim; ++axis) n_bytes *= field.shape[axis];
    content.bytes(field.default_value->data, static_cast<std::size_t>(n_bytes));
}

}  // namespace

void write_options(CheckpointWriter& writer, const per_replay_options& options) {
    SectionContent content;
    for_each_option(options, [&](auto option) { content.number(option); });
    content.number(options.n_fields);
    for (int64_t i = 0; i < options.n_fields; ++i) {
        const per_field& field = options.fields[i];
        const uint32_t length = static_cast<uint32_t>(std::strlen(field.name));
        content.number(length);
        content.bytes(field.name, length);
        content.number(field.ndim);
        for (int32_t axis = 0; axis < field.ndim; ++axis) content.number(field.shape[axis]);
        content.number(field.dtype);
        content.number(field.role);
        content.number(field.stack);
        content.number(field.padding);
        content.number(field.compression);
        write_rest(content, field);
    }
    writer.write("options", content);
}

CheckpointOptions::CheckpointOptions(CheckpointReader& reader) : options_(default_replay_options) {
    reader.begin("options");
    for_each_option(options_,
                    [&](auto& option) { option = reader.number<std::remove_reference_t<decltype(option)>>(); });
    // These bounds limit allocations before the checksum is read; core checks the options.
    options_.n_fields = reader.number<int64_t>(1, max_n_fields);
    for (int64_t i = 0; i < options_.n_fields; ++i) read_field(reader);
    reader.end();
}

void CheckpointOptions::read_field(CheckpointReader& reader) {
    std::string& name = names_.emplace_back(reader.number<uint32_t>(1, max_name_length), '\0');
    reader.bytes(name.data(), name.size());
    per_field field = {};
    field.name = name.c_str();
    field.ndim = reader.number<int32_t>(0, max_field_ndim);
    std::vector<int64_t>& shape = shapes_.emplace_back();
    for (int32_t axis = 0; axis < field.ndim; ++axis) shape.push_back(reader.number<int64_t>());
    field.shape = shape.data();
    field.dtype = reader.number<int32_t>();
    field.role = reader.number<int32_t>();
    field.stack = reader.number<int32_t>();
    field.padding = reader.number<int32_t>();
    field.compression = reader.number<int32_t>();
    const auto rest = reader.number<uint8_t>(has_nothing, has_max_length);
    if (rest == has_default) field.default_value = read_default(reader, field);
    if (rest == has_max_length) field.max_length = reader.number<int64_t>(1, INT64_MAX);
    fields_.push_back(field);
    field.compression = PER_COMPRESSION_NONE;
    uncompressed_fields_.push_back(field);
}

// The default is read in pieces, so that the file bounds the memory: the shape, which gives the size, has not been
// checked yet.
const per_array* CheckpointOptions::read_default(CheckpointReader& reader, const per_field& field) {
    constexpr int64_t max_at_once = int64_t{1} << 20;
    int64_t n_left = is_dtype(field.dtype) ? dtype_size(field.dtype) : 0;
    for (int32_t axis = 0; axis < field.ndim; ++axis)
        if (field.shape[axis] < 1 || __builtin_mul_overflow(n_left, field.shape[axis], &n_left)) n_left = 0;
    if (n_left == 0) reader.refuse("a field in it cannot be");
    std::vector<std::byte>& value = default_values_.emplace_back();
    while (n_left > 0) {
        const std::size_t n = static_cast<std::size_t>(std::min(n_left, max_at_once));
        value.resize(value.size() + n);
        reader.bytes(value.data() + value.size() - n, n);
        n_left -= static_cast<int64_t>(n);
    }
    return &defaults_.emplace_back(per_array{value.data(), nullptr, 0, field.dtype, nullptr});
}

per_replay_options CheckpointOptions::options(const per_load_options& place) const {
    per_replay_options options = options_;
    options.fields = can_compress(place.device, place.memory) ? fields_.data() : uncompressed_fields_.data();
    options.device = place.device;
    options.device_index = place.device_index;
    options.memory = place.memory;
    return options;
}

}  // namespace per

#include "rows/fields.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "base/arguments.h"
#include "base/error.h"
#include "base/utf8.h"
#include "rows/cast.h"
#include "rows/dtype.h"
#include "rules/limits.h"

namespace per {

namespace {

constexpr std::string_view next_prefix = "next_";
constexpr std::string_view reserved_names[] = {"reward",     "terminated",    "truncated", "weights",
                                               "ids",        "discount",      "mask",      "n_steps",
                                               "priorities", "probabilities", "gamma_m",   "times_sampled"};

void check_range(const std::string& argument, int64_t value, int64_t least, int64_t most) {
    per::check_range(argument.c_str(), value, least, most);
}

// A name for an error: on one line, with a '?' for each byte that no name can have.
std::string quoted(std::string_view name) {
    std::string result = "\"";
    while (!name.empty()) {
        const std::size_t size = character_bytes(name);
        const std::string_view character = name.substr(0, std::max<std::size_t>(size, 1));
        if (size == 0 || is_control(character))
            result.append(character.size(), '?');
        else
            result += character;
        name.remove_prefix(character.size());
    }
    return result + '"';
}

// True if a text is UTF-8 without control characters.
bool is_plain_text(std::string_view text) {
    while (!text.empty()) {
        const std::size_t size = character_bytes(text);
        if (size == 0 || is_control(text.substr(0, size))) return false;
        text.remove_prefix(size);
    }
    return true;
}

// Returns a name once it is checked. If the name is NULL, the error calls it `argument`.
std::string checked_name(const std::string& argument, const char* given) {
    constexpr const char* allowed = ": allowed are 1 to 255 bytes of UTF-8 without control characters";
    if (given == nullptr) refuse(argument + " is NULL" + allowed);
    const std::string_view name(given, strnlen(given, max_name_length + 1));
    const std::string_view shown = name.substr(0, whole_characters(name, max_name_length));
    if (shown.size() < name.size()) refuse("name of a field is " + quoted(shown) + "..." + allowed);
    if (name.empty() || !is_plain_text(name)) refuse("name of a field is " + quoted(name) + allowed);
    if (std::ranges::find(reserved_names, name) != std::end(reserved_names))
        refuse("name of a field is " + quoted(name) + ": it is reserved, for what every buffer or batch has");
    if (name.starts_with(next_prefix))
        refuse("name of a field is " + quoted(name) + ": names that begin with \"next_\" are reserved");
    return std::string(name);
}

bool is_named_observation(std::string_view name) {
    return name == "observation" || name.starts_with("observation.");
}

int64_t product(const std::string& of, int64_t a, int64_t b) {
    int64_t result;
    if (!__builtin_mul_overflow(a, b, &result)) return result;
    throw Error(PER_ERROR_OUT_OF_MEMORY, "shape%s takes more than 2^63 - 1 bytes a row", of.c_str());
}

// The default value of a field: one frame, in the dtype of the field.
std::vector<std::byte> checked_default(const std::string& argument, const per_array& given, const Field& field) {
    if (given.data == nullptr) refuse(argument + " has no data");
    const bool is_number = given.shape != nullptr && given.ndim == 0;
    const int64_t elements = is_number ? 1 : field.elements;
    const std::span<const int64_t> shape = is_number ? std::span<const int64_t>() : field.shape;
    check_array(argument, given, {1, 1, shape});
    std::vector<std::byte> frame(static_cast<size_t>(field.bytes));
    cast(argument, given, field.dtype, frame.data(), {.entries = 1, .elements = elements});
    const int64_t bytes = field.bytes / field.elements * elements;
    for (int64_t i = bytes; i < field.bytes; ++i) frame[static_cast<size_t>(i)] = frame[static_cast<size_t>(i - bytes)];
    return frame;
}

// Compression would only make smaller frames larger. The upper limit bounds the size of a compressed frame.
void check_compression(const std::string& of, const Field& field) {
    if (!field.is_compressed()) return;
    if (field.bytes >= min_compressed_bytes && field.bytes <= max_compressed_bytes) return;
    refuse("compression" + of + " is PER_COMPRESSION_DELTA (1): its frame has " + std::to_string(field.bytes) +
           " bytes, and must have " + std::to_string(min_compressed_bytes) + " .. " +
           std::to_string(max_compressed_bytes));
}

void refuse_ragged_stack(const std::string& of, const Field& field) {
    if (!field.is_ragged() || field.stack <= 1) return;
    throw Error(PER_ERROR_UNSUPPORTED, "stack%s is %" PRId32 ": must be 1 with max_length", of.c_str(), field.stack);
}

// The lengths of rows are counted in bytes, in 32 bits.
void check_max_length(const std::string& of, const Field& field) {
    check_range("max_length" + of, field.max_length, 0, max_ragged_bytes / field.bytes);
    if (!field.is_ragged()) return;
    const auto refuse_with = [&](const char* member) {
        throw Error(PER_ERROR_UNSUPPORTED, "%s%s is given: must not be with max_length", member, of.c_str());
    };
    if (field.is_compressed()) refuse_with("compression");
    if (field.has_default()) refuse_with("default");
    refuse_ragged_stack(of, field);
}

// Checks all members of a field but its name, and returns the field without it. In messages, `of` follows the name of a
// member.
Field checked_members(const std::string& of, const per_field& given) {
    Field field;
    check_range("ndim" + of, given.ndim, 0, max_field_ndim);
    check_range("dtype" + of, given.dtype, PER_BOOL, PER_FLOAT64);
    check_range("role" + of, given.role, PER_ROLE_DEFAULT, PER_ROLE_RECURRENT_STATE);
    check_range("stack" + of, given.stack, 0, max_stack);
    check_range("padding" + of, given.padding, PER_PADDING_REPEAT, PER_PADDING_ZERO);
    check_range("compression" + of, given.compression, PER_COMPRESSION_NONE, PER_COMPRESSION_DELTA);
    if (given.ndim > 0 && given.shape == nullptr)
        refuse("shape" + of + " is NULL: with ndim " + std::to_string(given.ndim) + " it is required");
    if (given.ndim > 0) check_aligned("shape" + of, given.shape, alignof(int64_t));
    field.shape.assign(given.shape, given.shape + given.ndim);
    field.elements = 1;
    for (const int64_t length : field.shape) {
        if (length < 1) refuse("shape" + of + " is " + shape_text(field.shape) + ": allowed are axes of 1 and above");
        field.elements = product(of, field.elements, length);
    }
    field.bytes = product(of, field.elements, dtype_size(given.dtype));
    field.dtype = given.dtype;
    field.role = given.role;
    field.stack = given.stack;
    field.padding = given.padding;
    field.compression = given.compression;
    check_compression(of, field);
    if (given.default_value != nullptr)
        field.default_value = checked_default("default" + of, *given.default_value, field);
    field.max_length = given.max_length;
    check_max_length(of, field);
    return field;
}

void refuse_default_of_observation(const std::string& of, const Field& field) {
    if (field.has_default() && field.is_observation())
        refuse("default" + of + " is given: an observation comes with every step");
}

Field checked_field(const std::string& argument, const per_field& given, int64_t frame_stack) {
    const std::string name = checked_name(argument + ".name", given.name);
    const std::string of = " of field " + quoted(name);
    Field field = checked_members(of, given);
    field.name = name;
    field.next_name = std::string(next_prefix) + name;
    if (field.role == PER_ROLE_DEFAULT) field.role = is_named_observation(name) ? PER_ROLE_OBSERVATION : PER_ROLE_PLAIN;
    refuse_default_of_observation(of, field);
    if (field.stack == 0) field.stack = field.is_observation() ? static_cast<int32_t>(frame_stack) : 1;
    refuse_ragged_stack(of, field);
    return field;
}

}  // namespace

void check_field(const per_field& field) {
    if (field.name != nullptr) checked_name("name", field.name);
    refuse_default_of_observation("", checked_members("", field));
}

Fields::Fields(const per_replay_options& options) {
    check_range("n_fields", options.n_fields, 1, max_n_fields);
    if (options.fields == nullptr)
        refuse("fields is NULL: with n_fields " + std::to_string(options.n_fields) + " it is required");
    bool observed = false;
    fields_.reserve(static_cast<size_t>(options.n_fields));
    for (int64_t i = 0; i < options.n_fields; ++i) {
        const std::string argument = "fields[" + std::to_string(i) + "]";
        Field field = checked_field(argument, options.fields[i], options.frame_stack);
        for (int64_t other = 0; other < i; ++other)
            if ((*this)[other].name == field.name)
                refuse(argument + ".name is " + quoted(field.name) + ": fields[" + std::to_string(other) +
                       "] has that name");
        if (!field.is_ragged() && __builtin_add_overflow(row_bytes_, field.bytes, &row_bytes_))
            throw Error(PER_ERROR_OUT_OF_MEMORY, "fields take more than 2^63 - 1 bytes a row");
        observed = observed || field.is_observation();
        if (field.is_ragged() && !has_ragged()) first_ragged_ = i;
        max_stack_ = std::max(max_stack_, field.stack);
        fields_.push_back(std::move(field));
    }
    if (!observed)
        refuse("fields have no observation: name one \"observation\", or give one the role PER_ROLE_OBSERVATION");
    described_.reserve(fields_.size());
    described_defaults_.reserve(fields_.size());
    for (const Field& field : fields_) {
        const int32_t ndim = static_cast<int32_t>(field.shape.size());
        const per_array* default_value = nullptr;
        if (field.has_default())
            default_value = &described_defaults_.emplace_back(
                per_array{field.default_value.data(), field.shape.data(), ndim, field.dtype, nullptr});
        described_.push_back({field.name.c_str(), field.shape.data(), ndim, field.dtype, field.role, field.stack,
                              default_value, field.padding, field.compression, field.max_length});
    }
}

}  // namespace per

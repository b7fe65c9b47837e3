#include "cuda/add/given_arrays.h"

#include <algorithm>
#include <limits>

#include "cuda/batch/copy_frames.h"
#include "rows/dtype.h"

namespace per::cuda {
namespace {

// The alignment of arrays in the staging buffer, enough for words of any size.
constexpr int64_t alignment = 256;
constexpr int64_t max_element_bytes = 8;
constexpr int64_t min_buffer_bytes = int64_t{256} << 10;
constexpr int64_t max_step_bytes = int64_t{64} << 20;

constexpr int64_t n_arrays(int64_t n_fields, int64_t n_numbers) {
    return 2 * n_fields + n_numbers;
}

// The size of a staging buffer. A step of all environments fits unless it exceeds max_step_bytes. A step of one
// environment always fits, even if all its arrays have the largest dtype.
std::size_t buffer_bytes(const Fields& fields, int64_t n_envs, int64_t n_numbers) {
    int64_t entry = n_numbers * max_element_bytes;
    int64_t largest_entry = entry;
    for (const Field& field : fields) {
        const int64_t n_frames = field.is_observation() ? 2 : 1;
        entry += n_frames * field.bytes;
        largest_entry += n_frames * field.elements * max_element_bytes;
    }
    const int64_t step = entry > max_step_bytes / n_envs ? max_step_bytes : n_envs * entry;
    const int64_t gaps = n_arrays(fields.count(), n_numbers) * alignment;
    return static_cast<std::size_t>(std::max({min_buffer_bytes, step, largest_entry}) + gaps);
}

}  // namespace

int64_t GivenArrays::Array::given_bytes() const {
    return frames * elements * dtype_size(given.dtype);
}

int64_t GivenArrays::Array::kept_bytes() const {
    return elements * dtype_size(dtype);
}

GivenArrays::GivenArrays(const Fields& fields, const ReplayMemory& memory, int64_t n_envs, int64_t max_entries)
    : fields_(fields),
      memory_(memory),
      arrays_(static_cast<std::size_t>(n_arrays(fields.count(), n_numbers))),
      staging_(buffer_bytes(fields, n_envs, n_numbers)) {
    for (int64_t i = 0; i < fields.count(); ++i) {
        arrays_[static_cast<std::size_t>(i)].name = fields[i].name;
        arrays_[static_cast<std::size_t>(i)].elements = fields[i].elements;
        next_of(i).name = fields[i].next_name;
        next_of(i).elements = fields[i].elements;
    }
    const char* const names[n_numbers] = {"reward",    "terminated", "truncated", "mask",
                                          "next_mask", "priorities", "td_errors"};
    for (int i = 0; i < n_numbers; ++i) number(static_cast<Number>(i)).name = names[i];
    mask_.reserve(static_cast<std::size_t>(max_entries));
    next_mask_.reserve(static_cast<std::size_t>(max_entries));
    further_fields_.reserve(static_cast<std::size_t>(fields.count()));
}

// ------------------------------------------------------------------------------------------------------------- a call

void GivenArrays::read_array(Array& array, const GivenArray& given) {
    array.given = given.array;
    array.frames = given.frames;
    array.dtype = given.array.dtype;
    array.mask = nullptr;
    array.are_flags = false;
    array.is_staged = array.is_given() && (are_in_host_memory_ || is_host_memory(array.name, given.array.data));
    if (array.is_staged) host_array_ = array.name;
}

// If values in host memory need a cast, the host makes it, provided that it can also read the masks, which tell what
// entries are given. Otherwise kernels cast.
void GivenArrays::read_values(Array& array, const GivenArray& given, int32_t dtype, bool is_next) {
    read_array(array, given);
    const Array& mask_array = number(mask);
    const Array& next_mask_array = number(next_mask);
    const bool has_mask = mask_array.is_given();
    const bool has_next_mask = is_next && next_mask_array.is_given();
    const bool sees_masks = (!has_mask || mask_array.is_staged) && (!has_next_mask || next_mask_array.is_staged);
    if (!array.is_staged || array.dtype == dtype || !sees_masks) return;
    array.dtype = dtype;
    if (has_mask || has_next_mask) array.mask = has_next_mask ? &next_mask_ : &mask_;
    casts_on_host_ = true;
}

// The host casts flags in host memory, provided that it can also read the mask. Otherwise kernels cast.
void GivenArrays::read_flags(Number which, const per_array& given) {
    Array& array = number(which);
    read_array(array, {given, 1});
    const Array& mask_array = number(mask);
    const bool is_masked = which != mask && mask_array.is_given();
    if (!array.is_staged || (is_masked && !mask_array.is_staged)) return;
    array.are_flags = true;
    array.dtype = PER_BOOL;
    if (is_masked) array.mask = &mask_;
    casts_on_host_ = true;
}

void GivenArrays::read(const ReplaySteps& steps) {
    const GivenArray none = {};
    host_array_ = {};
    casts_on_host_ = false;
    are_in_host_memory_ = steps.are_in_host_memory;
    read_flags(mask, steps.mask);
    read_flags(next_mask, steps.next_mask);
    read_flags(terminated, steps.terminated);
    read_flags(truncated, steps.truncated);
    for (int64_t i = 0; i < fields_.count(); ++i) {
        const bool has_next = steps.next_fields != nullptr && fields_[i].is_observation();
        read_values(arrays_[static_cast<std::size_t>(i)], steps.fields[i], fields_[i].dtype, false);
        read_values(next_of(i), has_next ? steps.next_fields[i] : none, fields_[i].dtype, true);
    }
    read_values(number(reward), {steps.reward, 1}, PER_FLOAT32, false);
    read_values(number(priorities), {steps.priorities, 1}, PER_FLOAT32, false);
    read_values(number(td_errors), {steps.td_errors, 1}, PER_FLOAT32, false);

    int64_t entry_bytes = 0;
    for (const Array& array : arrays_) entry_bytes += array.is_staged ? array.kept_bytes() : 0;
    const int64_t gaps = n_arrays(fields_.count(), n_numbers) * alignment;
    const int64_t room = static_cast<int64_t>(staging_.buffer_bytes()) - gaps;
    max_staged_ = entry_bytes > 0 ? room / entry_bytes : std::numeric_limits<int64_t>::max();
}

// ------------------------------------------------------------------------------------------------------------ a piece

// Reads the masks that casts on the host use.
void GivenArrays::read_masks(const StepPiece& piece) {
    const int64_t n = piece.length * piece.n_lanes;
    const auto read_mask = [&](const Array& array, std::vector<uint8_t>& flags) {
        if (!array.are_flags) return;
        flags.resize(static_cast<std::size_t>(n));
        cast_flags(array.name, array.given, flags.data(), size_of(array, piece));
    };
    read_mask(number(mask), mask_);
    read_mask(number(next_mask), next_mask_);
}

CastSize GivenArrays::size_of(const Array& array, const StepPiece& piece) {
    return {.entries = piece.length * piece.n_lanes,
            .elements = array.elements,
            .frames = array.frames,
            .mask = array.mask != nullptr ? array.mask->data() : nullptr,
            .first = piece.first_entry};
}

// Writes the arrays of the piece to the staging buffer, and returns the number of bytes.
std::size_t GivenArrays::fill(const StepPiece& piece) {
    if (host_array_.empty()) return 0;
    if (casts_on_host_) read_masks(piece);
    const int64_t n = piece.length * piece.n_lanes;
    std::byte* const buffer = staging_.host();
    int64_t end = 0;
    for (Array& array : arrays_) {
        if (!array.is_staged) continue;
        array.offset = static_cast<std::size_t>(end);
        if (array.are_flags)
            cast_flags(array.name, array.given, reinterpret_cast<uint8_t*>(buffer + end), size_of(array, piece));
        else
            cast(array.name, array.given, array.dtype, buffer + end, size_of(array, piece));
        end += (n * array.kept_bytes() + alignment - 1) / alignment * alignment;
    }
    return static_cast<std::size_t>(end);
}

// The place in device memory of the newest frame of the piece's first entry.
const std::byte* GivenArrays::kept(const Array& array, const StepPiece& piece) const {
    if (!array.is_given()) return nullptr;
    if (array.is_staged) return staging_.device() + array.offset;
    return static_cast<const std::byte*>(array.given.data) + piece.first_entry * array.given_bytes() +
           (array.frames - 1) * array.kept_bytes();
}

GivenNumbers GivenArrays::given_numbers(Number which, const StepPiece& piece) {
    const Array& array = number(which);
    return {kept(array, piece), array.dtype};
}

// If the array is not given, every entry gets the default; if that is NULL, there are no frames.
GivenFrames GivenArrays::given_frames(const Array& array, const StepPiece& piece, const Field& field,
                                      const std::byte* default_value, int64_t& n_units) const {
    GivenFrames frames = {kept(array, piece), 0, n_units, array.dtype, 0};
    if (array.is_given()) {
        frames.stride = array.is_staged ? array.kept_bytes() : array.given_bytes();
    } else {
        if (default_value == nullptr) return frames;
        frames.data = default_value;
        frames.dtype = field.dtype;
    }
    if (frames.dtype == field.dtype) frames.word_bytes = piece_bytes_of(frames.stride | field.bytes, frames.data);
    n_units += (field.bytes + unit_bytes - 1) / unit_bytes;
    return frames;
}

GivenSteps GivenArrays::stage(const StepPiece& piece, cudaStream_t stream) {
    if (const std::size_t n_bytes = fill(piece); n_bytes != 0) staging_.send(staging_.device(), n_bytes, stream);
    GivenSteps steps = {};
    steps.length = piece.length;
    steps.n_lanes = piece.n_lanes;
    steps.reward = given_numbers(reward, piece);
    steps.terminated = given_numbers(terminated, piece);
    steps.truncated = given_numbers(truncated, piece);
    steps.mask = given_numbers(mask, piece);
    steps.next_mask = given_numbers(next_mask, piece);
    steps.are_td_errors = number(td_errors).is_given();
    steps.priorities = given_numbers(steps.are_td_errors ? td_errors : priorities, piece);
    further_fields_.clear();
    for (int64_t i = 0; i < fields_.count(); ++i) {
        GivenField field;
        field.frames = given_frames(arrays_[static_cast<std::size_t>(i)], piece, fields_[i], memory_.default_value(i),
                                    steps.n_units);
        field.next = given_frames(next_of(i), piece, fields_[i], nullptr, steps.n_units);
        steps.has_next |= next_of(i).is_given();
        for (const GivenFrames& frames : {field.frames, field.next})
            steps.has_casts |= frames.data != nullptr && frames.word_bytes == 0;
        if (i < max_fields_by_value)
            steps.fields[i] = field;
        else
            further_fields_.push_back(field);
    }
    steps.by_units = Divisor(std::max<int64_t>(steps.n_units, 1));
    return steps;
}

}  // namespace per::cuda

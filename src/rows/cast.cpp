#include "rows/cast.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/arguments.h"
#include "rows/dtype.h"
#include "rows/element.h"
#include "rows/fields.h"
#include "rules/limits.h"

namespace per {

namespace {

// ---------------------------------------------------------------------------------------------------------- shapes

struct Shape {
    std::array<int64_t, max_field_ndim + 3> axes;
    size_t ndim = 0;

    void append(int64_t axis) { axes[ndim++] = axis; }
    bool operator==(std::span<const int64_t> other) const {
        return ndim == other.size() && std::equal(other.begin(), other.end(), axes.begin());
    }
    operator std::span<const int64_t>() const { return {axes.data(), ndim}; }
};

Shape shape_of(const Entries& entries, bool with_length, bool with_envs, int64_t frames) {
    Shape shape;
    if (with_length) shape.append(entries.length);
    if (with_envs) shape.append(entries.n_envs);
    if (frames > 1) shape.append(frames);
    for (int64_t axis : entries.shape) shape.append(axis);
    return shape;
}

// Calls visit(shape) for the shapes that entries with this number of frames may have, the shortest first, until visit()
// returns true. Returns false if it never does.
template <class Visit>
bool any_shape(const Entries& entries, int64_t frames, Visit&& visit) {
    for (bool with_length : {false, true}) {
        for (bool with_envs : {false, true}) {
            if (!with_length && entries.length != 1) continue;
            if (!with_envs && entries.n_envs != 1) continue;
            if (visit(shape_of(entries, with_length, with_envs, frames))) return true;
        }
    }
    return false;
}

// True if two shapes differ only in axes of 1.
bool same_but_for_ones(std::span<const int64_t> a, std::span<const int64_t> b) {
    const auto skip_ones = [](auto axes) {
        return std::find_if(axes.begin(), axes.end(), [](int64_t axis) { return axis != 1; });
    };
    while (true) {
        a = {skip_ones(a), a.end()};
        b = {skip_ones(b), b.end()};
        if (a.empty() || b.empty() || a.front() != b.front()) return a.empty() && b.empty();
        a = a.subspan(1);
        b = b.subspan(1);
    }
}

// True if an array has the axes of `shape` and further ones after them, as one-hot actions and stacks that end with the
// axis of frames have.
bool has_further_axes(std::span<const int64_t> given, std::span<const int64_t> shape) {
    return !shape.empty() && given.size() > shape.size() && std::equal(shape.begin(), shape.end(), given.begin());
}

// The allowed shape with this number of frames that an error names. It is the shortest one if the given array differs
// from that only in axes of 1, or has further axes. Otherwise it is one with as many axes as the array or, if there is
// none, again the shortest.
Shape expected_shape(const Entries& entries, int64_t frames, std::span<const int64_t> given) {
    Shape expected;
    bool first = true;
    any_shape(entries, frames, [&](const Shape& shape) {
        const bool is_like_shortest = first && (same_but_for_ones(shape, given) || has_further_axes(given, shape));
        const bool is_near = shape.ndim == given.size() || is_like_shortest;
        if (first || is_near) expected = shape;
        first = false;
        return is_near;
    });
    return expected;
}

// True if the shape would fit this number of steps and environments.
bool fits(Entries entries, int64_t length, int64_t n_envs, std::span<const int64_t> given) {
    entries.length = length;
    entries.n_envs = n_envs;
    const auto is_given = [&](const Shape& shape) { return shape == given; };
    return any_shape(entries, 1, is_given) || (entries.stack > 1 && any_shape(entries, entries.stack, is_given));
}

// The end of an error about a shape: the number of environments or steps that it would fit if that were another one.
std::string reason_of_shape(const Entries& entries, std::span<const int64_t> given) {
    if (entries.n_envs_from == nullptr) return "";
    const auto [length, n_envs] = std::pair(entries.length, entries.n_envs);
    const int64_t first = given.empty() ? 1 : given[0];
    const int64_t second = given.size() < 2 ? 1 : given[1];
    if (fits(entries, length, 1, given) || fits(entries, length, first, given) || fits(entries, length, second, given))
        return std::string(", as ") + entries.n_envs_from + " " + std::to_string(n_envs);
    if (!entries.are_steps) return "";
    if (length == 1 && fits(entries, first, n_envs, given)) return ", as one step is added";
    if (length != 1 && (fits(entries, 1, n_envs, given) || fits(entries, first, n_envs, given)))
        return ", as " + std::to_string(length) + " steps are added";
    return "";
}

// -------------------------------------------------------------------------------------------------------- elements

Kind kind_of_dtype(int32_t dtype) {
    return with_element_type(dtype, []<class Element>(std::type_identity<Element>) { return kind_of<Element>(); });
}

// Casts a run of elements. Returns the index of the first that does not fit, or -1.
template <class From, class To>
int64_t cast_run(const From* from, To* to, int64_t length) {
    bool all_fit = true;
    for (int64_t i = 0; i < length; ++i) all_fit &= store(number(from[i]), to[i]);
    if (all_fit) return -1;
    // If another thread has written to the array meanwhile, all may fit now.
    for (int64_t i = 0; i < length; ++i)
        if (!store(number(from[i]), to[i])) return i;
    return -1;
}

template <class Element>
using UnsignedOf =
    std::conditional_t<sizeof(Element) == 8, uint64_t, std::conditional_t<sizeof(Element) == 4, uint32_t, uint16_t>>;

// Returns the index of the first NaN in a run of floats, or -1.
template <class Element>
int64_t find_nan(const Element* elements, int64_t length) {
    // The flag is as wide as an element, so that the loop works on vectors, at 30 GB/s.
    UnsignedOf<Element> found = 0;
    for (int64_t i = 0; i < length; ++i) found |= static_cast<UnsignedOf<Element>>(is_nan(elements[i]));
    if (found == 0) return -1;
    // If another thread has written to the array meanwhile, the NaN may be gone.
    for (int64_t i = 0; i < length; ++i)
        if (is_nan(elements[i])) return i;
    return -1;
}

// Calls find(first, run, length) for each run of elements to be read. `first` is the run's first element in the array;
// entries without gaps between them are one run. Returns the first index that find returns, counted in the whole array,
// or -1.
template <class Find>
int64_t find_in_runs(const CastSize& size, const Find& find) {
    const bool one_run = size.mask == nullptr && size.frames == 1;
    const int64_t runs = one_run ? 1 : size.entries;
    const int64_t length = one_run ? size.entries * size.elements : size.elements;
    for (int64_t run = 0; run < runs; ++run) {
        if (size.mask && !size.mask[run]) continue;
        const int64_t first = ((size.first + run) * size.frames + size.frames - 1) * size.elements;
        const int64_t found = find(first, run, length);
        if (found >= 0) return first + found;
    }
    return -1;
}

void copy_elements(const per_array& array, int64_t entry_bytes, void* to, const CastSize& size) {
    const char* from = static_cast<const char*>(array.data) + size.first * size.frames * entry_bytes;
    if (size.mask == nullptr && size.frames == 1) {
        const auto bytes = static_cast<size_t>(size.entries * entry_bytes);
        if (bytes != 0) std::memcpy(to, from, bytes);
        return;
    }
    for (int64_t entry = 0; entry < size.entries; ++entry) {
        if (size.mask && !size.mask[entry]) continue;
        const int64_t newest = (entry * size.frames + size.frames - 1) * entry_bytes;
        std::memcpy(static_cast<char*>(to) + entry * entry_bytes, from + newest, static_cast<size_t>(entry_bytes));
    }
}

// ---------------------------------------------------------------------------------------------------------- errors

std::string joined(std::span<const int64_t> numbers) {
    std::string result;
    for (size_t i = 0; i < numbers.size(); ++i) result += (i ? ", " : "") + std::to_string(numbers[i]);
    return result;
}

// The shortest digits that identify the number.
template <class Element>
std::string text(Element element) {
    char buffer[40];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, number(element)).ptr;
    return std::string(buffer, end);
}

std::string range_text(int32_t dtype) {
    return with_element_type(dtype, []<class Element>(std::type_identity<Element>) -> std::string {
        using Limits = std::conditional_t<std::is_arithmetic_v<Element>, std::numeric_limits<Element>, Element>;
        return text(Limits::lowest()) + " .. " + text(Limits::max());
    });
}

// The index of an element as text: [i, j, ...] in the array's shape, or [its number] if the array has no shape.
std::string place_text(const per_array& array, int64_t element) {
    if (array.shape == nullptr) return std::string("[").append(std::to_string(element)).append("]");
    if (array.ndim == 0) return "";
    std::array<int64_t, max_array_ndim> index{};
    for (int32_t axis = array.ndim - 1; axis >= 0; --axis) {
        index[axis] = element % array.shape[axis];
        element /= array.shape[axis];
    }
    std::string text = "[";  // not "[" + ..., of which g++ 12 warns without reason
    return text.append(joined({index.data(), static_cast<size_t>(array.ndim)})).append("]");
}

[[noreturn]] void refuse_value(std::string_view argument, const per_array& array, int64_t element, int32_t to_dtype) {
    const std::string value = with_element_type(array.dtype, [&]<class From>(std::type_identity<From>) {
        return text(static_cast<const From*>(array.data)[element]);
    });
    refuse(std::string(argument) + place_text(array, element) + " is " + value + ": allowed are " +
           range_text(to_dtype) + " (" + dtype_name(to_dtype) + ")");
}

[[noreturn]] void refuse_flag(std::string_view argument, const per_array& array, int64_t element) {
    const std::string value = with_element_type(array.dtype, [&]<class From>(std::type_identity<From>) {
        const From flag = static_cast<const From*>(array.data)[element];
        if constexpr (std::is_same_v<From, Bool>)
            return text(flag.byte);
        else
            return text(flag);
    });
    refuse(std::string(argument) + place_text(array, element) + " is " + value +
           ": it is a flag, and allowed are booleans, 0 and 1");
}

void check_dtype(std::string_view argument, int32_t dtype) {
    if (!is_dtype(dtype)) throw_out_of_range((std::string(argument) + ".dtype").c_str(), dtype, PER_BOOL, PER_FLOAT64);
}

}  // namespace

std::string shape_text(std::span<const int64_t> shape) {
    std::string text = "(";
    return text.append(joined(shape)).append(shape.size() == 1 ? ",)" : ")");
}

namespace {

std::span<const int64_t> checked_axes(std::string_view argument, const per_array& array) {
    if (array.ndim < 0 || array.ndim > max_array_ndim)
        throw_out_of_range((std::string(argument) + ".ndim").c_str(), array.ndim, 0, max_array_ndim);
    if (reinterpret_cast<uintptr_t>(array.shape) % alignof(int64_t) != 0)  // builds the name only for an error
        check_aligned(std::string(argument) + ".shape", array.shape, alignof(int64_t));
    return {array.shape, static_cast<size_t>(array.ndim)};
}

}  // namespace

int64_t check_array(std::string_view argument, const per_array& array, const Entries& entries) {
    check_dtype(argument, array.dtype);
    check_aligned(argument, array.data, static_cast<size_t>(dtype_size(array.dtype)));
    if (array.offsets != nullptr)
        refuse(std::string(argument) + ".offsets is given: must be NULL, as all its rows have one length");
    if (array.shape == nullptr) return 1;
    const std::span<const int64_t> given = checked_axes(argument, array);
    const auto is_given = [&](const Shape& shape) { return shape == given; };
    if (any_shape(entries, 1, is_given)) return 1;
    if (entries.stack > 1 && any_shape(entries, entries.stack, is_given)) return entries.stack;
    const Shape shape = expected_shape(entries, 1, given);
    const bool is_reordered =
        std::is_permutation(given.begin(), given.end(), shape.axes.begin(), shape.axes.begin() + shape.ndim);
    std::string expected = shape_text(shape);
    if (entries.stack > 1) expected += ", or " + shape_text(expected_shape(entries, entries.stack, given)) + " stacked";
    refuse(std::string(argument) + " has shape " + shape_text(given) + ": expected is " + expected +
           (is_reordered ? "; its axes are in another order" : reason_of_shape(entries, given)));
}

void check_ragged_array(std::string_view argument, const per_array& array, const Field& field, int64_t n_rows) {
    check_dtype(argument, array.dtype);
    check_aligned(argument, array.data, static_cast<size_t>(dtype_size(array.dtype)));
    if (reinterpret_cast<uintptr_t>(array.offsets) % alignof(int64_t) != 0)
        check_aligned(std::string(argument) + ".offsets", array.offsets, alignof(int64_t));
    if (array.offsets == nullptr && n_rows != 1)
        refuse(std::string(argument) + ".offsets is NULL: must be given for " + std::to_string(n_rows) + " rows");
    if (array.shape == nullptr) {
        if (array.offsets == nullptr)
            refuse(std::string(argument) + ".shape is NULL: must tell the length of the row, as offsets is NULL");
        return;
    }
    const std::span<const int64_t> given = checked_axes(argument, array);
    const bool is_right =
        !given.empty() && given[0] >= 0 && std::ranges::equal(given.subspan(1), std::span<const int64_t>(field.shape));
    if (is_right) return;
    std::string expected = "(n";
    for (const int64_t axis : field.shape) expected += ", " + std::to_string(axis);
    refuse(std::string(argument) + " has shape " + shape_text(given) + ": expected is " + expected +
           (field.shape.empty() ? ",)" : ")") + ", for n values");
}

void copy_offsets(std::string_view argument, const per_array& array, const Field& field, int64_t n_rows,
                  const uint8_t* mask, std::vector<int64_t>& offsets_out) {
    const int64_t most = array.shape != nullptr ? array.shape[0] : max_count;
    if (array.offsets == nullptr)
        offsets_out = {0, most};
    else
        offsets_out.assign(array.offsets, array.offsets + n_rows + 1);
    int64_t before = 0;
    for (int64_t i = 0; i <= n_rows; ++i) {
        const int64_t offset = offsets_out[static_cast<size_t>(i)];
        if (offset < before || offset > most) {
            const std::string name = std::string(argument) + ".offsets";
            throw_out_of_range(name.c_str(), i, offset, before, most);
        }
        const bool is_read = i > 0 && (mask == nullptr || mask[i - 1] != 0);
        if (is_read && offset - before > field.max_length)
            refuse(std::string(argument) + ": row " + std::to_string(i - 1) + " has " +
                   std::to_string(offset - before) + " values: at most max_length, " +
                   std::to_string(field.max_length) + ", are allowed");
        before = offset;
    }
}

bool can_cast(int32_t from_dtype, int32_t to_dtype) {
    return kind_of_dtype(from_dtype) <= kind_of_dtype(to_dtype);
}

void check_cast(std::string_view argument, int32_t from_dtype, int32_t to_dtype) {
    check_dtype(argument, from_dtype);
    if (can_cast(from_dtype, to_dtype)) return;
    const Kind kind = kind_of_dtype(to_dtype);
    const char* const allowed = kind == Kind::boolean            ? "bool"
                                : kind == Kind::unsigned_integer ? "bool and unsigned integers"
                                                                 : "bool and integers";
    refuse(std::string(argument) + " has dtype " + dtype_name(from_dtype) + ": allowed are " + allowed +
           ", as the field is " + dtype_name(to_dtype) + "; convert the values, or declare the field as " +
           dtype_name(from_dtype));
}

void cast(std::string_view argument, const per_array& from, int32_t to_dtype, void* to, const CastSize& size) {
    check_cast(argument, from.dtype, to_dtype);
    if (from.dtype == to_dtype) return copy_elements(from, size.elements * dtype_size(to_dtype), to, size);
    const int64_t unfit = with_element_type(from.dtype, [&]<class From>(std::type_identity<From>) {
        return with_element_type(to_dtype, [&]<class To>(std::type_identity<To>) -> int64_t {
            if constexpr (kind_of<From>() <= kind_of<To>() && !std::is_same_v<From, To>) {
                return find_in_runs(size, [&](int64_t first, int64_t run, int64_t length) {
                    return cast_run(static_cast<const From*>(from.data) + first, static_cast<To*>(to) + run * length,
                                    length);
                });
            } else {
                return -1;  // excluded by check_cast() and by the copy above
            }
        });
    });
    if (unfit >= 0) refuse_value(argument, from, unfit, to_dtype);
}

void refuse_nan(std::string_view argument, const per_array& array, const CastSize& size) {
    const int64_t found = with_element_type(array.dtype, [&]<class Element>(std::type_identity<Element>) -> int64_t {
        if constexpr (kind_of<Element>() != Kind::floating) return -1;
        return find_in_runs(size, [&](int64_t first, int64_t, int64_t length) {
            return find_nan(static_cast<const Element*>(array.data) + first, length);
        });
    });
    if (found >= 0)
        refuse(std::string(argument) + place_text(array, found) +
               " is nan: must be a number (on_nan is PER_NAN_ERROR)");
}

void cast_flags(std::string_view argument, const per_array& from, uint8_t* to, const CastSize& size) {
    const int64_t unfit = with_element_type(from.dtype, [&]<class From>(std::type_identity<From>) {
        return find_in_runs(size, [&](int64_t first, int64_t run, int64_t length) {
            const From* const flags = static_cast<const From*>(from.data) + first;
            bool are_flags = true;
            for (int64_t i = 0; i < length; ++i) {
                const From flag = flags[i];
                to[run + i] = number(flag) != 0;
                are_flags &= is_flag(flag);
            }
            for (int64_t i = 0; i < length && !are_flags; ++i)
                if (!is_flag(flags[i])) return i;
            return int64_t{-1};
        });
    });
    if (unfit >= 0) refuse_flag(argument, from, unfit);
    for (int64_t i = 0; size.mask != nullptr && i < size.entries; ++i) to[i] &= size.mask[i];
}

}  // namespace per

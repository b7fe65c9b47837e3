// Conversion of elements between dtypes. Host and device run these same functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "rows/dtype.h"
#include "rules/host_device.h"

namespace per {

// The kinds of numpy, in its order: a cast goes to the same kind or to a later one.
enum class Kind { boolean, unsigned_integer, signed_integer, floating };

template <class Element>
PER_HOST_DEVICE constexpr Kind kind_of() {
    if constexpr (std::is_same_v<Element, Bool>) return Kind::boolean;
    if constexpr (std::is_unsigned_v<Element>) return Kind::unsigned_integer;
    if constexpr (std::is_integral_v<Element>) return Kind::signed_integer;
    return Kind::floating;
}

template <class Element>
PER_HOST_DEVICE auto number(Element element) {
    if constexpr (std::is_same_v<Element, Bool>) {
        return static_cast<uint8_t>(element.byte != 0);
    } else if constexpr (std::is_arithmetic_v<Element>) {
        return element;
    } else {
        return element.to_float();
    }
}

// True if an element is a flag: a boolean, or 0 or 1 of any other dtype.
template <class Element>
PER_HOST_DEVICE bool is_flag(Element element) {
    if constexpr (std::is_same_v<Element, Bool>)
        return element.byte <= 1;
    else
        return number(element) == 0 || number(element) == 1;
}

template <class Element>
PER_HOST_DEVICE bool is_nan(Element element) {
    if constexpr (kind_of<Element>() != Kind::floating)
        return false;
    else if constexpr (std::is_arithmetic_v<Element>)
        return element != element;
    else
        return (element.bits & ~Element::sign_bit) > Element::infinity;
}

PER_HOST_DEVICE bool is_finite(double value) {
    return __builtin_fabs(value) <= 0x1.fffffffffffffp1023;
}

// Converts a number to a float or double. A NaN keeps its sign and the upper bits of its fraction and becomes quiet.
// CPUs do that in hardware; GPUs have only one NaN.
template <class Element, class Number>
PER_HOST_DEVICE Element to_floating(Number value) {
    const Element converted = static_cast<Element>(value);
    if constexpr (std::is_same_v<Number, double> && std::is_same_v<Element, float>) {
        const uint64_t bits = bit_cast<uint64_t>(value);
        const uint32_t nan =
            static_cast<uint32_t>(bits >> 32 & 0x80000000) | 0x7fc00000 | static_cast<uint32_t>(bits >> 29 & 0x3fffff);
        return value == value ? converted : bit_cast<float>(nan);
    } else if constexpr (std::is_same_v<Number, float> && std::is_same_v<Element, double>) {
        const uint64_t bits = bit_cast<uint32_t>(value);
        const uint64_t nan = (bits & 0x80000000) << 32 | 0x7ff8000000000000 | (bits & 0x3fffff) << 29;
        return value == value ? converted : bit_cast<double>(nan);
    } else {
        return converted;
    }
}

// A double that rounds to any shorter format as the number itself does. Integers beyond 53 bits are rounded to odd:
// rounding the result to nearest then gives the same as rounding the integer.
template <class Number>
PER_HOST_DEVICE double double_to_round(Number value) {
    if constexpr (std::is_integral_v<Number> && sizeof(Number) == 8) {
        bool negative = false;
        if constexpr (std::is_signed_v<Number>) negative = value < 0;
        uint64_t magnitude = negative ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
        if (magnitude >> 53) magnitude = (magnitude & ~uint64_t{0x7ff}) | ((magnitude & 0x7ff) ? 0x800 : 0);
        return negative ? -static_cast<double>(magnitude) : static_cast<double>(magnitude);
    } else {
        return to_floating<double>(value);
    }
}

// True if the integer `element`, to which `value` was cast, is the same number.
template <class Element, class Number>
PER_HOST_DEVICE bool is_same_integer(Element element, Number value) {
    const bool same_bits = static_cast<Number>(element) == value;
    if constexpr (std::is_signed_v<Element> && std::is_unsigned_v<Number>)
        return same_bits && element >= 0;
    else
        return same_bits;  // casts do not go from signed to unsigned
}

// Stores `value` as an element of its kind or a later one. Returns false if the element cannot hold it.
template <class Number, class Element>
PER_HOST_DEVICE bool store(Number value, Element& element) {
    if constexpr (std::is_same_v<Element, Bool>) {
        element.byte = value;
        return true;
    } else if constexpr (std::is_integral_v<Element>) {
        element = static_cast<Element>(value);
        return is_same_integer(element, value);
    } else if constexpr (std::is_floating_point_v<Element>) {
        element = to_floating<Element>(value);
        if constexpr (sizeof(Element) >= sizeof(Number) || std::is_integral_v<Number>)
            return true;
        else
            return is_finite(static_cast<double>(element)) >= is_finite(static_cast<double>(value));
    } else {
        const double rounded = double_to_round(value);
        element = Element::from_double(rounded);
        return is_finite(static_cast<double>(element.to_float())) >= is_finite(rounded);
    }
}

// ---- elements whose dtype is known at run time only

// An element read as a flag. is_true means nothing if is_flag is false.
struct Flag {
    bool is_true;
    bool is_flag;
};

PER_HOST_DEVICE Flag flag_of(const std::byte* element, int32_t dtype) {
    return with_element_type(dtype, [&]<class Element>(std::type_identity<Element>) -> Flag {
        const Element flag = *reinterpret_cast<const Element*>(element);
        return {number(flag) != 0, is_flag(flag)};
    });
}

PER_HOST_DEVICE bool is_nan(const std::byte* element, int32_t dtype) {
    return with_element_type(dtype, [&]<class Element>(std::type_identity<Element>) {
        return is_nan(*reinterpret_cast<const Element*>(element));
    });
}

// True if two elements with these bits are the same observation. They compare as numbers, so -0 equals 0, but any NaN
// equals any other.
PER_HOST_DEVICE bool is_same_number(uint64_t a, uint64_t b, int32_t dtype) {
    if (a == b) return true;
    if (!is_floating(dtype)) return false;
    const uint64_t infinity = dtype == PER_FLOAT16    ? Float16::infinity
                              : dtype == PER_BFLOAT16 ? Bfloat16::infinity
                              : dtype == PER_FLOAT32  ? 0x7f800000
                                                      : 0x7ff0000000000000;
    const uint64_t magnitude = ~uint64_t{0} >> (65 - 8 * dtype_size(dtype));
    a &= magnitude;
    b &= magnitude;
    return (a | b) == 0 || (a > infinity && b > infinity);
}

PER_HOST_DEVICE bool is_same_number(const std::byte* a, const std::byte* b, int32_t dtype) {
    return with_element_type(dtype, [&]<class Element>(std::type_identity<Element>) {
        uint64_t bits[2] = {};
        __builtin_memcpy(&bits[0], a, sizeof(Element));
        __builtin_memcpy(&bits[1], b, sizeof(Element));
        return is_same_number(bits[0], bits[1], dtype);
    });
}

// The bits of an element that was cast. The upper bits of a shorter element are 0.
struct CastElement {
    uint64_t bits;
    bool fits;
};

template <class To, class From>
PER_HOST_DEVICE CastElement cast_element(const From& from) {
    To to = {};
    bool fits = true;
    if constexpr (std::is_same_v<From, To>)
        to = from;
    else
        fits = store(number(from), to);
    CastElement cast = {0, fits};
    __builtin_memcpy(&cast.bits, &to, sizeof to);
    return cast;
}

// The same for dtypes known at run time. If the order of kinds does not allow the cast, the element does not fit.
PER_HOST_DEVICE CastElement cast_element(const std::byte* from, int32_t from_dtype, int32_t to_dtype) {
    return with_element_type(from_dtype, [&]<class From>(std::type_identity<From>) {
        return with_element_type(to_dtype, [&]<class To>(std::type_identity<To>) -> CastElement {
            if constexpr (kind_of<From>() <= kind_of<To>())
                return cast_element<To>(*reinterpret_cast<const From*>(from));
            else
                return {0, false};
        });
    });
}

}  // namespace per

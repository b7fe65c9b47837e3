// Arrays given to calls: shapes are checked, elements cast by numpy's same_kind rule, values out of range refused.

#include "rows/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "rows/dtype.h"

namespace per {
namespace {

constexpr int32_t first_dtype = PER_BOOL;
constexpr int32_t last_dtype = PER_FLOAT64;
constexpr double infinity = std::numeric_limits<double>::infinity();

// The message of the InvalidArgument that a call throws, or "".
template <class Call>
std::string refusal(const Call& call) {
    try {
        call();
    } catch (const Error& error) {
        EXPECT_EQ(error.status(), PER_ERROR_INVALID_ARGUMENT);
        return error.what();
    }
    return "";
}

// One element of any dtype. It is filled and read by C++ types and conversions, or by small_float() where C++ has no
// such type, never by the code under test.
struct Element {
    alignas(8) unsigned char bytes[8] = {};

    template <class Number>
    static Element of(Number value) {
        Element element;
        std::memcpy(element.bytes, &value, sizeof value);
        return element;
    }
    template <class Number>
    Number as() const {
        Number value;
        std::memcpy(&value, bytes, sizeof value);
        return value;
    }
};

// The 16-bit float with `fraction` bits of fraction, by its definition.
double small_float(uint16_t bits, int fraction) {
    const int bias = (1 << (14 - fraction)) - 1;
    const int exponent = (bits & 0x7fff) >> fraction;
    const int significand = bits & ((1 << fraction) - 1);
    double value;
    if (exponent == 2 * bias + 1) {
        value = significand ? NAN : infinity;
    } else if (exponent == 0) {
        value = std::ldexp(significand, 1 - bias - fraction);
    } else {
        value = std::ldexp(significand + (1 << fraction), exponent - bias - fraction);
    }
    return bits & 0x8000 ? -value : value;
}

double value_of(int32_t dtype, const Element& element) {
    switch (dtype) {
        case PER_BOOL:
        case PER_UINT8:
            return element.as<uint8_t>();
        case PER_INT8:
            return element.as<int8_t>();
        case PER_UINT16:
            return element.as<uint16_t>();
        case PER_INT16:
            return element.as<int16_t>();
        case PER_UINT32:
            return element.as<uint32_t>();
        case PER_INT32:
            return element.as<int32_t>();
        case PER_UINT64:
            return static_cast<double>(element.as<uint64_t>());
        case PER_INT64:
            return static_cast<double>(element.as<int64_t>());
        case PER_FLOAT16:
            return small_float(element.as<uint16_t>(), 10);
        case PER_BFLOAT16:
            return small_float(element.as<uint16_t>(), 7);
        case PER_FLOAT32:
            return element.as<float>();
        default:
            return element.as<double>();
    }
}

// A few numbers that every pair of dtypes is tested with, as elements.
Element element_of(int32_t dtype, int value) {
    const auto unsigned_bits = [](int small, uint16_t zero, uint16_t one, uint16_t hundred, uint16_t minus_one) {
        return small == 0 ? zero : small == 1 ? one : small == 100 ? hundred : minus_one;
    };
    switch (dtype) {
        case PER_FLOAT16:  // 1 = 1.0 * 2^0, 100 = 1.5625 * 2^6: exponents 15 and 21
            return Element::of<uint16_t>(unsigned_bits(value, 0, 0x3c00, 0x5640, 0xbc00));
        case PER_BFLOAT16:  // exponents 127 and 133
            return Element::of<uint16_t>(unsigned_bits(value, 0, 0x3f80, 0x42c8, 0xbf80));
        case PER_FLOAT32:
            return Element::of<float>(static_cast<float>(value));
        case PER_FLOAT64:
            return Element::of<double>(value);
        default:
            return Element::of<int64_t>(value);  // little endian: a shorter integer is its first bytes
    }
}

void cast_all(int32_t from_dtype, const void* from, int32_t to_dtype, void* to, int64_t elements) {
    cast("x", per_array{from, nullptr, 0, from_dtype, nullptr}, to_dtype, to, {.entries = 1, .elements = elements});
}

template <class To, class From>
To cast_one(int32_t from_dtype, From value, int32_t to_dtype) {
    Element to;
    cast_all(from_dtype, &value, to_dtype, to.bytes, 1);
    return to.as<To>();
}

template <class From>
std::string refusal_of_one(int32_t from_dtype, From value, int32_t to_dtype) {
    return refusal([&] {
        Element to;
        cast_all(from_dtype, &value, to_dtype, to.bytes, 1);
    });
}

// -------------------------------------------------------------------------------------------------------- dtypes

TEST(Cast, the_same_kind_rule_is_numpys) {
    // numpy 2.3: for each pair of ?, u1, i1, u2, i2, u4, i4, u8, i8, f2, f4, f8: numpy.can_cast(from, to, "same_kind").
    // bfloat16, which numpy lacks, is inserted between f2 and f4, with the rules of a float.
    const char* const numpy[] = {
        "1111111111x11", "0111111111x11", "0010101011x11", "0111111111x11", "0010101011x11",
        "0111111111x11", "0010101011x11", "0111111111x11", "0010101011x11", "0000000001x11",
        "xxxxxxxxxxxxx", "0000000001x11", "0000000001x11",
    };
    for (int32_t from = first_dtype; from <= last_dtype; ++from) {
        for (int32_t to = first_dtype; to <= last_dtype; ++to) {
            const int32_t numpy_from = from == PER_BFLOAT16 ? static_cast<int32_t>(PER_FLOAT16) : from;
            const int32_t numpy_to = to == PER_BFLOAT16 ? static_cast<int32_t>(PER_FLOAT16) : to;
            const bool allowed = numpy[numpy_from][numpy_to] == '1';
            EXPECT_EQ(can_cast(from, to), allowed) << dtype_name(from) << " to " << dtype_name(to);
            EXPECT_EQ(refusal([&] { check_cast("x", from, to); }).empty(), allowed);
        }
    }
}

TEST(Cast, a_refused_pair_names_argument_and_dtypes) {
    EXPECT_EQ(refusal([] { check_cast("action", PER_FLOAT64, PER_INT64); }),
              "action has dtype float64: allowed are bool and integers, as the field is int64; convert the values, or "
              "declare the field as float64");
    EXPECT_EQ(
        refusal([] { check_cast("image", PER_INT8, PER_UINT8); }),
        "image has dtype int8: allowed are bool and unsigned integers, as the field is uint8; convert the values, "
        "or declare the field as int8");
    EXPECT_EQ(refusal([] { check_cast("flag", PER_UINT8, PER_BOOL); }),
              "flag has dtype uint8: allowed are bool, as the field is bool; convert the values, or declare the field "
              "as uint8");
    EXPECT_EQ(refusal([] { check_cast("action", 13, PER_INT64); }), "action.dtype is 13: allowed are 0 .. 12");
    EXPECT_EQ(refusal([] { check_cast("action", -1, PER_INT64); }), "action.dtype is -1: allowed are 0 .. 12");
}

TEST(Cast, names_and_sizes_are_numpys) {
    const std::vector<std::string> names = {"bool",   "uint8", "int8",    "uint16",   "int16",   "uint32", "int32",
                                            "uint64", "int64", "float16", "bfloat16", "float32", "float64"};
    const std::vector<int64_t> sizes = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};
    for (int32_t dtype = first_dtype; dtype <= last_dtype; ++dtype) {
        EXPECT_EQ(dtype_name(dtype), names[dtype]);
        EXPECT_EQ(dtype_size(dtype), sizes[dtype]);
    }
}

TEST(Cast, every_allowed_pair_keeps_values_that_both_have) {
    int pairs = 0;
    for (int32_t from = first_dtype; from <= last_dtype; ++from) {
        for (int32_t to = first_dtype; to <= last_dtype; ++to) {
            if (!can_cast(from, to)) continue;
            ++pairs;
            for (int value : {0, 1, 100, -1}) {
                const bool is_unsigned = (from & 1) == 1 && from <= PER_UINT64;
                if (from == PER_BOOL && (value < 0 || value > 1)) continue;
                if (is_unsigned && value < 0) continue;
                const Element source = element_of(from, value);
                Element target;
                cast_all(from, source.bytes, to, target.bytes, 1);
                EXPECT_EQ(value_of(to, target), value) << dtype_name(from) << " to " << dtype_name(to);
            }
        }
    }
    EXPECT_EQ(pairs, 13 + 4 * 12 + 4 * 8 + 4 * 4);
}

// ------------------------------------------------------------------------------------------------ range of integers

// Casts the limits of a dtype from the widest integers: they fit; values one beyond do not.
template <class To>
void expect_limits_are_kept(int32_t to_dtype) {
    constexpr auto least = std::numeric_limits<To>::min();
    constexpr auto most = std::numeric_limits<To>::max();
    const std::string range = std::to_string(least) + " .. " + std::to_string(most) + " (" + dtype_name(to_dtype) + ")";
    EXPECT_EQ((cast_one<To>(PER_UINT64, static_cast<uint64_t>(most), to_dtype)), most);
    if constexpr (sizeof(To) < 8 || std::is_signed_v<To>) {
        const uint64_t beyond = static_cast<uint64_t>(most) + 1;
        EXPECT_EQ(refusal_of_one(PER_UINT64, beyond, to_dtype),
                  "x[0] is " + std::to_string(beyond) + ": allowed are " + range);
    }
    if constexpr (std::is_signed_v<To>) {
        EXPECT_EQ((cast_one<To>(PER_INT64, static_cast<int64_t>(most), to_dtype)), most);
        EXPECT_EQ((cast_one<To>(PER_INT64, static_cast<int64_t>(least), to_dtype)), least);
        if constexpr (sizeof(To) < 8) {
            const int64_t beyond = static_cast<int64_t>(least) - 1;
            EXPECT_EQ(refusal_of_one(PER_INT64, beyond, to_dtype),
                      "x[0] is " + std::to_string(beyond) + ": allowed are " + range);
        }
    }
}

TEST(Cast, integers_out_of_range_are_refused) {
    expect_limits_are_kept<uint8_t>(PER_UINT8);
    expect_limits_are_kept<int8_t>(PER_INT8);
    expect_limits_are_kept<uint16_t>(PER_UINT16);
    expect_limits_are_kept<int16_t>(PER_INT16);
    expect_limits_are_kept<uint32_t>(PER_UINT32);
    expect_limits_are_kept<int32_t>(PER_INT32);
    expect_limits_are_kept<uint64_t>(PER_UINT64);
    expect_limits_are_kept<int64_t>(PER_INT64);
    // Same width, other signedness.
    EXPECT_EQ((cast_one<int8_t>(PER_UINT8, uint8_t{127}, PER_INT8)), 127);
    EXPECT_EQ(refusal_of_one(PER_UINT8, uint8_t{128}, PER_INT8), "x[0] is 128: allowed are -128 .. 127 (int8)");
}

// ---------------------------------------------------------------------------------------------------------- floats

TEST(Cast, float64_becomes_the_nearest_float32) {
    const double half = 0x1p-24;  // half a unit in the last place of 1
    EXPECT_EQ((cast_one<float>(PER_FLOAT64, 1.0 + half, PER_FLOAT32)), 1.0f);
    EXPECT_EQ((cast_one<float>(PER_FLOAT64, 1.0 + 3 * half, PER_FLOAT32)), 1.0f + 0x1p-22f);
    EXPECT_EQ((cast_one<float>(PER_FLOAT64, 1.0 + half + 0x1p-52, PER_FLOAT32)), 1.0f + 0x1p-23f);
    EXPECT_EQ((cast_one<float>(PER_FLOAT64, 0x1p-149, PER_FLOAT32)), 0x1p-149f);
    EXPECT_EQ((cast_one<float>(PER_FLOAT64, 0x1p-150, PER_FLOAT32)), 0.0f);
    EXPECT_TRUE(std::signbit(cast_one<float>(PER_FLOAT64, -0.0, PER_FLOAT32)));
}

TEST(Cast, a_finite_number_that_would_become_infinite_is_refused) {
    // The smallest value that rounds to infinity is half a unit in the last place above the largest float32.
    const double most = std::numeric_limits<float>::max();
    const double first_beyond = most + 0x1p103;
    EXPECT_EQ((cast_one<float>(PER_FLOAT64, std::nextafter(first_beyond, 0), PER_FLOAT32)), static_cast<float>(most));
    EXPECT_EQ(refusal_of_one(PER_FLOAT64, -1e300, PER_FLOAT32),
              "x[0] is -1e+300: allowed are -3.4028235e+38 .. 3.4028235e+38 (float32)");
    EXPECT_NE(refusal_of_one(PER_FLOAT64, first_beyond, PER_FLOAT32), "");
    // float16: the largest is 65504, its unit in the last place 32.
    EXPECT_EQ((cast_one<uint16_t>(PER_FLOAT32, 65519.996f, PER_FLOAT16)), 0x7bff);
    EXPECT_EQ(refusal_of_one(PER_FLOAT32, 65520.0f, PER_FLOAT16),
              "x[0] is 65520: allowed are -65504 .. 65504 (float16)");
    EXPECT_EQ(refusal_of_one(PER_INT32, int32_t{-65520}, PER_FLOAT16),
              "x[0] is -65520: allowed are -65504 .. 65504 (float16)");
    EXPECT_EQ((cast_one<uint16_t>(PER_INT32, int32_t{-65519}, PER_FLOAT16)), 0xfbff);
    // bfloat16: the largest is (2 - 2^-7) 2^127; half a unit in the last place more is (2 - 2^-8) 2^127.
    EXPECT_EQ((cast_one<uint16_t>(PER_FLOAT64, std::nextafter(0x1.ffp127, 0), PER_BFLOAT16)), 0x7f7f);
    EXPECT_EQ(refusal_of_one(PER_FLOAT64, 0x1.ffp127, PER_BFLOAT16).substr(0, 7), "x[0] is");
}

TEST(Cast, nan_and_infinities_are_values_of_every_float) {
    const int32_t floats[] = {PER_FLOAT16, PER_BFLOAT16, PER_FLOAT32, PER_FLOAT64};
    for (int32_t from : floats) {
        for (int32_t to : floats) {
            for (double value : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
                Element source, target;
                cast_all(PER_FLOAT64, &value, from, source.bytes, 1);
                cast_all(from, source.bytes, to, target.bytes, 1);
                const double result = value_of(to, target);
                EXPECT_TRUE(std::isnan(value) ? std::isnan(result) : result == value);
            }
        }
    }
}

// All finite numbers of a format are kept, and values between two of them round to the nearest, ties to even.
void expect_nearest_even(int32_t dtype, int fraction) {
    const uint16_t above_all = static_cast<uint16_t>(((1 << (15 - fraction)) - 1) << fraction);
    for (uint16_t bits = 0; bits < above_all; ++bits) {
        const double value = small_float(bits, fraction);
        ASSERT_EQ((cast_one<uint16_t>(PER_FLOAT64, value, dtype)), bits);
        ASSERT_EQ((cast_one<uint16_t>(PER_FLOAT64, -value, dtype)), bits | 0x8000);
        ASSERT_EQ((cast_one<double>(dtype, bits, PER_FLOAT64)), value);
        ASSERT_EQ((cast_one<float>(dtype, bits, PER_FLOAT32)), static_cast<float>(value));
        if (bits + 1 == above_all) break;
        const double middle = (value + small_float(static_cast<uint16_t>(bits + 1), fraction)) / 2;
        ASSERT_EQ((cast_one<uint16_t>(PER_FLOAT64, middle, dtype)), bits + (bits & 1));
        ASSERT_EQ((cast_one<uint16_t>(PER_FLOAT64, std::nextafter(middle, 0), dtype)), bits);
        ASSERT_EQ((cast_one<uint16_t>(PER_FLOAT64, std::nextafter(middle, infinity), dtype)), bits + 1);
        const float single = static_cast<float>(middle);  // exact
        ASSERT_EQ((cast_one<uint16_t>(PER_FLOAT32, single, dtype)), bits + (bits & 1));
    }
}

TEST(Cast, every_float16_and_every_middle_of_two_rounds_to_nearest_even) {
    expect_nearest_even(PER_FLOAT16, 10);
}

TEST(Cast, every_bfloat16_and_every_middle_of_two_rounds_to_nearest_even) {
    expect_nearest_even(PER_BFLOAT16, 7);
}

TEST(Cast, every_float16_survives_the_way_to_float32_and_back) {
    for (int bits = 0; bits <= 0xffff; ++bits) {
        const auto source = static_cast<uint16_t>(bits);
        const float wide = cast_one<float>(PER_FLOAT16, source, PER_FLOAT32);
        const uint16_t back = cast_one<uint16_t>(PER_FLOAT32, wide, PER_FLOAT16);
        if (std::isnan(wide)) {
            ASSERT_GT(bits & 0x7fff, 0x7c00);
            ASSERT_GT(back & 0x7fff, 0x7c00);
        } else {
            ASSERT_EQ(back, source);
        }
    }
}

TEST(Cast, integers_beyond_53_bits_round_once) {
    // bfloat16 has 8 bits: at 2^62 its unit in the last place is 2^55. A value just above the middle must round up,
    // though an intermediate float or double would make it a tie, rounded to even.
    const int64_t above_middle = (int64_t{1} << 62) + (int64_t{1} << 54) + 1;
    EXPECT_EQ(small_float(cast_one<uint16_t>(PER_INT64, above_middle, PER_BFLOAT16), 7), 0x1p62 + 0x1p55);
    EXPECT_EQ(small_float(cast_one<uint16_t>(PER_INT64, above_middle - 1, PER_BFLOAT16), 7), 0x1p62);
    EXPECT_EQ(small_float(cast_one<uint16_t>(PER_INT64, -above_middle, PER_BFLOAT16), 7), -0x1p62 - 0x1p55);
    EXPECT_EQ(small_float(cast_one<uint16_t>(PER_UINT64, ~uint64_t{0}, PER_BFLOAT16), 7), 0x1p64);
    // float32 has 24 bits: at 2^62 its unit in the last place is 2^39.
    const int64_t above_middle_32 = (int64_t{1} << 62) + (int64_t{1} << 38) + 1;
    EXPECT_EQ((cast_one<float>(PER_INT64, above_middle_32, PER_FLOAT32)), 0x1p62f + 0x1p39f);
    EXPECT_EQ((cast_one<float>(PER_INT64, above_middle_32 - 1, PER_FLOAT32)), 0x1p62f);
    EXPECT_EQ((cast_one<double>(PER_INT64, std::numeric_limits<int64_t>::min(), PER_FLOAT64)), -0x1p63);
}

// ----------------------------------------------------------------------------------------------------- whole arrays

TEST(Cast, a_bool_is_one_whatever_its_byte) {
    EXPECT_EQ((cast_one<int32_t>(PER_BOOL, uint8_t{255}, PER_INT32)), 1);
}

TEST(Cast, the_place_of_a_value_follows_the_shape) {
    const int32_t values[2][3] = {{1, 2, 3}, {4, 256, -1}};
    uint8_t to[6];
    const int64_t shape[] = {2, 3};
    const auto cast_all = [&](const int64_t* given_shape, int32_t ndim, int32_t dtype) {
        cast("observation", per_array{values, given_shape, ndim, dtype, nullptr}, PER_UINT8, to,
             {.entries = 2, .elements = 3});
    };
    EXPECT_EQ(refusal([&] { cast_all(shape, 2, PER_UINT32); }),
              "observation[1, 1] is 256: allowed are 0 .. 255 (uint8)");
    EXPECT_EQ(refusal([&] { cast_all(nullptr, 0, PER_UINT32); }),
              "observation[4] is 256: allowed are 0 .. 255 (uint8)");
    const double scalar = 1e39;
    EXPECT_EQ(refusal([&] {
                  float single;
                  cast("reward", per_array{&scalar, shape, 0, PER_FLOAT64, nullptr}, PER_FLOAT32, &single,
                       {.entries = 1, .elements = 1});
              }),
              "reward is 1e+39: allowed are -3.4028235e+38 .. 3.4028235e+38 (float32)");
}

// Casts to uint8, or copies elements of the same dtype. Elements that are not written remain 9.
template <class Number>
std::vector<int> written(const per_array& given, int32_t to_dtype, const CastSize& size) {
    std::vector<Number> to(static_cast<size_t>(size.entries * size.elements), 9);
    cast("x", given, to_dtype, to.data(), size);
    return {to.begin(), to.end()};
}

TEST(Cast, masked_entries_are_neither_read_nor_written) {
    const int32_t values[] = {1, 2, 1000, -5, 5, 6};
    const uint8_t mask[] = {1, 0, 1};
    const CastSize masked = {.entries = 3, .elements = 2, .mask = mask};
    const std::vector<int> expected = {1, 2, 9, 9, 5, 6};
    EXPECT_EQ(written<uint8_t>({values, nullptr, 0, PER_UINT32, nullptr}, PER_UINT8, masked), expected);
    EXPECT_EQ(written<int32_t>({values, nullptr, 0, PER_INT32, nullptr}, PER_INT32, masked), expected);
}

TEST(Cast, of_stacked_frames_the_newest_is_taken) {
    const uint16_t values[] = {1000, 1000, 1, 2, 1000, 1000, 3, 4};  // two entries of two frames of two elements
    const CastSize stacked = {.entries = 2, .elements = 2, .frames = 2};
    const std::vector<int> newest = {1, 2, 3, 4};
    EXPECT_EQ(written<uint8_t>({values, nullptr, 0, PER_UINT16, nullptr}, PER_UINT8, stacked), newest);
    EXPECT_EQ(written<uint16_t>({values, nullptr, 0, PER_UINT16, nullptr}, PER_UINT16, stacked), newest);
}

TEST(Cast, entries_may_begin_within_an_array) {
    const int32_t values[4][2] = {{300, 0}, {1, 2}, {3, 4}, {5, 600}};
    const int64_t shape[] = {4, 2};
    const uint8_t mask[] = {1, 1};
    const std::vector<int> second_and_third = {1, 2, 3, 4};
    const per_array given = {values, shape, 2, PER_UINT32, nullptr}, same = {values, shape, 2, PER_INT32, nullptr};
    const CastSize from_first = {.entries = 2, .elements = 2, .first = 1};
    EXPECT_EQ(written<uint8_t>(given, PER_UINT8, from_first), second_and_third);
    EXPECT_EQ(written<int32_t>(same, PER_INT32, from_first), second_and_third);
    EXPECT_EQ(written<uint8_t>(given, PER_UINT8, {.entries = 2, .elements = 2, .mask = mask, .first = 1}),
              second_and_third);
    const auto cast_from_second = [&] {
        written<uint8_t>(given, PER_UINT8, {.entries = 2, .elements = 2, .first = 2});
    };
    EXPECT_EQ(refusal(cast_from_second), "x[3, 1] is 600: allowed are 0 .. 255 (uint8)");
}

// The sign and the upper bits of the fraction stay, and the quiet bit is set.
TEST(Cast, a_nan_keeps_what_has_room) {
    EXPECT_EQ((cast_one<uint32_t>(PER_FLOAT64, uint64_t{0xfff2345678000000}, PER_FLOAT32)), 0xffd1a2b3u);
    EXPECT_EQ((cast_one<uint64_t>(PER_FLOAT32, uint32_t{0xff91a2b3}, PER_FLOAT64)), 0xfffa345660000000u);
}

TEST(Cast, same_dtype_keeps_every_bit) {
    const uint64_t signalling_nan = 0x7ff0000000000123;
    EXPECT_EQ((cast_one<uint64_t>(PER_FLOAT64, signalling_nan, PER_FLOAT64)), signalling_nan);
}

TEST(Cast, an_empty_array_may_be_null) {
    cast_all(PER_FLOAT64, nullptr, PER_FLOAT32, nullptr, 0);
    cast_all(PER_FLOAT64, nullptr, PER_FLOAT64, nullptr, 0);
    cast_flags("mask", per_array{nullptr, nullptr, 0, PER_FLOAT64, nullptr}, nullptr, {0, 1});
}

std::string flag_refusal(const void* data, int32_t dtype, int64_t entries) {
    uint8_t flags[8];
    return refusal([&] { cast_flags("terminated", {data, nullptr, 0, dtype, nullptr}, flags, {entries, 1}); });
}

TEST(CastFlags, zero_and_one_are_flags_in_every_dtype_and_nothing_else_is) {
    for (int32_t dtype = first_dtype; dtype <= last_dtype; ++dtype) {
        for (int value : {0, 1}) {
            const Element source = element_of(dtype, value);
            uint8_t flag = 9;
            cast_flags("mask", per_array{source.bytes, nullptr, 0, dtype, nullptr}, &flag, {1, 1});
            EXPECT_EQ(flag, value) << dtype_name(dtype);
        }
        if (dtype == PER_BOOL) continue;
        const Element source = element_of(dtype, 100);
        EXPECT_EQ(flag_refusal(source.bytes, dtype, 1),
                  "terminated[0] is 100: it is a flag, and allowed are booleans, 0 and 1");
    }
    const double odd[] = {0, -0.0, 1, 0.3, NAN, -1.5, 1e-300, infinity};
    EXPECT_EQ(flag_refusal(odd, PER_FLOAT64, 3), "");
    const std::string values[] = {"0.3", "nan", "-1.5", "1e-300", "inf"};
    for (int i = 3; i < 8; ++i)
        EXPECT_EQ(flag_refusal(odd + i, PER_FLOAT64, 1),
                  "terminated[0] is " + values[i - 3] + ": it is a flag, and allowed are booleans, 0 and 1");
    const uint8_t bytes[] = {0, 1, 2};
    EXPECT_EQ(flag_refusal(bytes, PER_BOOL, 3), "terminated[2] is 2: it is a flag, and allowed are booleans, 0 and 1");
    const int64_t high = int64_t{1} << 40;
    EXPECT_NE(flag_refusal(&high, PER_INT64, 1), "");
}

TEST(CastFlags, masked_flags_are_false_and_not_looked_at) {
    const uint8_t given[] = {1, 7, 0}, mask[] = {1, 0, 1};
    uint8_t flags[3] = {9, 9, 9};
    cast_flags("mask", per_array{given, nullptr, 0, PER_BOOL, nullptr}, flags, {3, 1, 1, mask});
    EXPECT_EQ(std::vector<int>(flags, flags + 3), (std::vector<int>{1, 0, 0}));
}

// ---------------------------------------------------------------------------------------------------------- shapes

using Axes = std::vector<int64_t>;

int64_t frames_of(const Axes& given, int64_t length, int64_t n_envs, const Axes& shape, int32_t stack = 1) {
    const Axes axes = given.empty() ? Axes{0} : given;  // data() of an empty vector may be NULL, which means trusted
    const per_array array{nullptr, axes.data(), static_cast<int32_t>(given.size()), PER_UINT8, nullptr};
    return check_array("observation", array, {length, n_envs, shape, stack});
}

std::string shape_refusal(const Axes& given, int64_t length, int64_t n_envs, const Axes& shape, int32_t stack = 1) {
    return refusal([&] { frames_of(given, length, n_envs, shape, stack); });
}

TEST(CheckArray, axes_of_one_may_be_left_out) {
    EXPECT_EQ(frames_of({5, 8, 84}, 5, 8, {84}), 1);
    EXPECT_EQ(frames_of({1, 8, 84}, 1, 8, {84}), 1);
    EXPECT_EQ(frames_of({8, 84}, 1, 8, {84}), 1);
    EXPECT_EQ(frames_of({5, 84}, 5, 1, {84}), 1);
    EXPECT_EQ(frames_of({5, 1, 84}, 5, 1, {84}), 1);
    EXPECT_EQ(frames_of({84}, 1, 1, {84}), 1);
    EXPECT_EQ(frames_of({}, 1, 1, {}), 1);
    EXPECT_EQ(frames_of({1}, 1, 1, {}), 1);
    EXPECT_EQ(frames_of({1, 1}, 1, 1, {}), 1);
    EXPECT_EQ(frames_of({0, 8, 84}, 0, 8, {84}), 1);
}

TEST(CheckArray, other_shapes_are_refused) {
    EXPECT_EQ(shape_refusal({4, 83, 84}, 1, 8, {84, 84}), "observation has shape (4, 83, 84): expected is (8, 84, 84)");
    EXPECT_EQ(shape_refusal({3, 84, 80}, 1, 1, {84, 80, 3}),
              "observation has shape (3, 84, 80): expected is (84, 80, 3); its axes are in another order");
    EXPECT_EQ(shape_refusal({84}, 1, 8, {84}), "observation has shape (84,): expected is (8, 84)");
    EXPECT_EQ(shape_refusal({84}, 5, 1, {84}), "observation has shape (84,): expected is (5, 84)");
    EXPECT_EQ(shape_refusal({8, 84}, 5, 8, {84}), "observation has shape (8, 84): expected is (5, 8, 84)");
    EXPECT_EQ(shape_refusal({5, 84}, 5, 8, {84}), "observation has shape (5, 84): expected is (5, 8, 84)");
    EXPECT_EQ(shape_refusal({2, 8, 84}, 1, 8, {84}), "observation has shape (2, 8, 84): expected is (1, 8, 84)");
    EXPECT_EQ(shape_refusal({3}, 1, 1, {}), "observation has shape (3,): expected is (1,)");
    EXPECT_EQ(shape_refusal({}, 1, 1, {84}), "observation has shape (): expected is (84,)");
    EXPECT_EQ(shape_refusal({84, 8}, 1, 8, {84}),
              "observation has shape (84, 8): expected is (8, 84); its axes are in another order");
    EXPECT_EQ(shape_refusal({-8, 84}, 1, 8, {84}), "observation has shape (-8, 84): expected is (8, 84)");
}

TEST(CheckArray, axes_of_one_that_are_too_many_are_not_expected) {
    EXPECT_EQ(shape_refusal({2, 1}, 1, 2, {}), "observation has shape (2, 1): expected is (2,)");
    EXPECT_EQ(shape_refusal({5, 2, 1}, 5, 2, {}), "observation has shape (5, 2, 1): expected is (5, 2)");
    EXPECT_EQ(shape_refusal({8, 1, 84}, 1, 8, {84}), "observation has shape (8, 1, 84): expected is (8, 84)");
    EXPECT_EQ(shape_refusal({84, 1}, 1, 1, {84}), "observation has shape (84, 1): expected is (84,)");
    // One-hot actions.
    EXPECT_EQ(shape_refusal({4, 3}, 1, 4, {}), "observation has shape (4, 3): expected is (4,)");
    EXPECT_EQ(shape_refusal({1}, 1, 2, {}), "observation has shape (1,): expected is (2,)");
}

TEST(CheckArray, another_number_of_environments_is_told_as_the_reason) {
    const auto refusal_of = [](const Axes& given, int64_t length, int64_t n_envs, const Axes& shape) {
        const per_array array{nullptr, given.data(), static_cast<int32_t>(given.size()), PER_UINT8, nullptr};
        return refusal([&] { check_array("x", array, {length, n_envs, shape, 1, "n_envs is"}); });
    };
    EXPECT_EQ(refusal_of({4, 84}, 1, 1, {84}), "x has shape (4, 84): expected is (1, 84), as n_envs is 1");
    EXPECT_EQ(refusal_of({4}, 1, 1, {}), "x has shape (4,): expected is (1,), as n_envs is 1");
    EXPECT_EQ(refusal_of({4}, 1, 3, {}), "x has shape (4,): expected is (3,), as n_envs is 3");
    EXPECT_EQ(refusal_of({5, 4, 84}, 5, 1, {84}), "x has shape (5, 4, 84): expected is (5, 1, 84), as n_envs is 1");
    EXPECT_EQ(refusal_of({1, 4, 84}, 1, 1, {84}), "x has shape (1, 4, 84): expected is (1, 1, 84), as n_envs is 1");
    EXPECT_EQ(refusal_of({84}, 1, 4, {84}), "x has shape (84,): expected is (4, 84), as n_envs is 4");
    EXPECT_EQ(refusal_of({5}, 5, 4, {}), "x has shape (5,): expected is (5, 4), as n_envs is 4");
    EXPECT_EQ(refusal_of({5, 84}, 5, 4, {84}), "x has shape (5, 84): expected is (5, 4, 84), as n_envs is 4");
    EXPECT_EQ(refusal_of({4, 84}, 5, 1, {84}), "x has shape (4, 84): expected is (5, 84), as 5 steps are added");
    EXPECT_EQ(refusal_of({2, 8, 84}, 1, 8, {84}),
              "x has shape (2, 8, 84): expected is (1, 8, 84), as one step is added");
    EXPECT_EQ(refusal_of({4, 84}, 5, 4, {84}), "x has shape (4, 84): expected is (5, 4, 84), as 5 steps are added");
    EXPECT_EQ(refusal_of({6, 4, 84}, 5, 4, {84}),
              "x has shape (6, 4, 84): expected is (5, 4, 84), as 5 steps are added");
    // n_envs is not the cause, so the message does not name it.
    EXPECT_EQ(refusal_of({4, 83}, 1, 1, {84}), "x has shape (4, 83): expected is (1, 84)");
    EXPECT_EQ(refusal_of({1, 83}, 1, 1, {84}), "x has shape (1, 83): expected is (1, 84)");
}

TEST(CheckArray, stacked_frames_are_told_from_single_ones) {
    EXPECT_EQ(frames_of({5, 8, 4, 84}, 5, 8, {84}, 4), 4);
    EXPECT_EQ(frames_of({8, 4, 84}, 1, 8, {84}, 4), 4);
    EXPECT_EQ(frames_of({4, 84}, 1, 1, {84}, 4), 4);
    EXPECT_EQ(frames_of({8, 84}, 1, 8, {84}, 4), 1);
    // All axes have the same length.
    EXPECT_EQ(frames_of({4, 4}, 1, 4, {4}, 4), 1);
    EXPECT_EQ(frames_of({4, 4, 4}, 1, 4, {4}, 4), 4);
    EXPECT_EQ(frames_of({4}, 1, 4, {}, 4), 1);
    EXPECT_EQ(frames_of({4}, 1, 1, {}, 4), 4);
    EXPECT_EQ(shape_refusal({8, 3, 84}, 1, 8, {84}, 4),
              "observation has shape (8, 3, 84): expected is (1, 8, 84), or (8, 4, 84) stacked");
    // Frames on the last axis.
    EXPECT_EQ(shape_refusal({84, 80, 4}, 1, 1, {84, 80}, 4),
              "observation has shape (84, 80, 4): expected is (84, 80), or (4, 84, 80) stacked");
    EXPECT_EQ(shape_refusal({8, 4, 84}, 1, 8, {84}), "observation has shape (8, 4, 84): expected is (1, 8, 84)");
}

TEST(CheckArray, a_missing_shape_is_trusted_and_a_bad_ndim_or_dtype_refused) {
    EXPECT_EQ(check_array("x", per_array{nullptr, nullptr, 99, PER_UINT8, nullptr}, {5, 8, {}, 4}), 1);
    const int64_t shape[17] = {};
    const auto refusal_of = [](const per_array& array) {
        return refusal([&] { check_array("x", array, {5, 8, {}, 4}); });
    };
    EXPECT_EQ(refusal_of({nullptr, shape, 17, PER_UINT8, nullptr}), "x.ndim is 17: allowed are 0 .. 16");
    EXPECT_EQ(refusal_of({nullptr, shape, -1, PER_UINT8, nullptr}), "x.ndim is -1: allowed are 0 .. 16");
    EXPECT_EQ(refusal_of({nullptr, nullptr, 0, 13, nullptr}), "x.dtype is 13: allowed are 0 .. 12");
}

}  // namespace
}  // namespace per

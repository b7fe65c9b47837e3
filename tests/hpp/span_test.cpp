// Construction of spans, arrays and dtypes of per.hpp.
#include <gtest/gtest.h>
#include <per.hpp>

#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#if defined(__cpp_lib_span)
#include <span>
#endif

namespace {

int64_t sum(per::Span<const int64_t> values) {
    int64_t result = 0;
    for (const int64_t value : values) result += value;
    return result;
}

TEST(Span, reads_every_contiguous_range) {
    const std::vector<int64_t> vector = {1, 2, 3};
    std::array<int64_t, 2> array = {4, 5};
    int64_t of_c[] = {6, 7};
    EXPECT_EQ(sum(vector), 6);
    EXPECT_EQ(sum(array), 9);
    EXPECT_EQ(sum(of_c), 13);
    EXPECT_EQ(sum({8, 9}), 17);
    EXPECT_EQ(sum(std::vector<int64_t>{10}), 10);
    EXPECT_EQ(sum(per::Span<int64_t>(of_c)), 13);
    EXPECT_EQ(sum({of_c, 1}), 6);
    EXPECT_EQ(sum({}), 0);
}

TEST(Span, writes_to_the_range) {
    std::vector<float> vector = {1, 2, 3};
    const per::Span<float> span = vector;
    span[1] = 5;
    EXPECT_EQ(vector, (std::vector<float>{1, 5, 3}));
    EXPECT_EQ(span.data(), vector.data());
    EXPECT_EQ(span.size(), 3U);
    EXPECT_FALSE(span.empty());
}

TEST(Span, names_the_type_of_its_elements) {
    std::vector<float> vector;
    const std::vector<float> constant;
    static_assert(std::is_same_v<decltype(per::Span(vector)), per::Span<float>>);
    static_assert(std::is_same_v<decltype(per::Span(constant)), per::Span<const float>>);
    static_assert(std::is_same_v<decltype(per::Span(vector.data(), 0)), per::Span<float>>);
}

TEST(Span, refuses_what_would_be_lost_or_written_to_in_vain) {
    static_assert(!std::is_constructible_v<per::Span<float>, const std::vector<float>&>);
    static_assert(!std::is_constructible_v<per::Span<float>, std::vector<float>>, "a temporary is written in vain");
    static_assert(!std::is_constructible_v<per::Span<const float>, std::vector<double>&>);
    static_assert(!std::is_constructible_v<per::Span<const bool>, std::vector<bool>&>, "bits are no bytes");
}

TEST(Array, is_no_view_of_a_temporary) {
    static_assert(std::is_constructible_v<per::Array, std::vector<float>&>);
    static_assert(std::is_constructible_v<per::Array, const std::array<int8_t, 2>&>);
    static_assert(std::is_constructible_v<per::Array, per::Span<float>>);
    static_assert(std::is_constructible_v<per::Array, per_array>);
    static_assert(!std::is_constructible_v<per::Array, std::vector<float>>);
    static_assert(!std::is_constructible_v<per::Array, std::vector<bool>&>);
    static_assert(std::is_constructible_v<per::Array, per::Span<float>, per::Span<int64_t>>);
}

TEST(Array, has_offsets_of_any_span) {
    std::vector<int32_t> values(5);
    std::vector<int64_t> offsets = {0, 2, 5};
    const per::Array array{per::Span(values), per::Span(offsets)};
    EXPECT_EQ(array.get(1).offsets, offsets.data());
}

TEST(Array, of_another_size_says_so) {
    std::vector<float> six(6);
    const per::Array array(six);
    EXPECT_EQ(array.get(2, 3).shape, nullptr);
    EXPECT_EQ(array.get(1, 2, 3).shape, nullptr);
    EXPECT_EQ(array.get(2, 3).data, six.data());
    EXPECT_EQ(array.get(2, 3).dtype, PER_FLOAT32);
    for (const per_array& other : {array.get(5), array.get(2, 4), array.get(1, 4), array.get(1, 1, 4), array.get(0, 6),
                                   array.get(-2, -3), array.get(INT64_MAX, INT64_MAX, INT64_MAX)}) {
        ASSERT_EQ(other.ndim, 1);
        EXPECT_EQ(other.shape[0], 6);
    }
    EXPECT_EQ(per::Array().get(3).data, nullptr);
    std::vector<float> none;
    EXPECT_NE(per::Array(none).get(0).data, nullptr) << "given, if without elements";
}

TEST(Dtype, of_every_arithmetic_type) {
    static_assert(per::Dtype<bool>::value == PER_BOOL);
    static_assert(per::Dtype<uint8_t>::value == PER_UINT8 && per::Dtype<int8_t>::value == PER_INT8);
    static_assert(per::Dtype<uint16_t>::value == PER_UINT16 && per::Dtype<int16_t>::value == PER_INT16);
    static_assert(per::Dtype<uint32_t>::value == PER_UINT32 && per::Dtype<int32_t>::value == PER_INT32);
    static_assert(per::Dtype<uint64_t>::value == PER_UINT64 && per::Dtype<int64_t>::value == PER_INT64);
    static_assert(per::Dtype<long>::value == PER_INT64 && per::Dtype<long long>::value == PER_INT64);
    static_assert(per::Dtype<float>::value == PER_FLOAT32 && per::Dtype<double>::value == PER_FLOAT64);
}

#if defined(__cpp_lib_span)
TEST(Span, is_made_of_a_std_span_and_the_other_way_round) {
    std::vector<int64_t> vector = {1, 2, 3};
    EXPECT_EQ(sum(std::span(vector)), 6);
    EXPECT_EQ(sum(std::span<const int64_t>(vector)), 6);
    const per::Span<int64_t> writable = std::span(vector);
    const std::span<int64_t> back = per::Span(writable);
    EXPECT_EQ(back.data(), vector.data());
    EXPECT_EQ(back.size(), 3U);
    static_assert(!std::is_constructible_v<per::Span<int64_t>, std::span<const int64_t>>);
}
#endif

}  // namespace

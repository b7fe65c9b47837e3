// A quotient by multiplication equals that of the division.
#include "rules/divisor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>

namespace per {
namespace {

constexpr int64_t largest = INT64_MAX;

void expect_division(int64_t x, int64_t value) {
    const Divisor divisor(value);
    ASSERT_EQ(divisor.quotient(x), x / value) << x << " / " << value;
    ASSERT_EQ(divisor.remainder(x), x % value) << x << " / " << value;
}

// Quotients change at multiples of the divisor, and the margin is smallest for the largest numbers.
void expect_divisions(int64_t value) {
    for (int64_t x : {int64_t{0}, int64_t{1}, value - 1, value, largest - 1, largest}) expect_division(x, value);
    if (value < largest) expect_division(value + 1, value);
    const int64_t last_multiple = largest / value * value;
    expect_division(last_multiple, value);
    expect_division(last_multiple - 1, value);
}

TEST(Divisor, agrees_with_division_around_powers_of_two) {
    for (int64_t value = 1; value <= 1000; ++value) expect_divisions(value);
    for (int bits = 10; bits < 63; ++bits)
        for (int64_t value = (int64_t{1} << bits) - 2; value <= (int64_t{1} << bits) + 2; ++value)
            expect_divisions(value);
    for (int64_t value = largest - 10; value < largest; ++value) expect_divisions(value);
    expect_divisions(largest);
}

TEST(Divisor, agrees_with_division_of_random_numbers) {
    std::mt19937_64 random(5);
    const auto number = [&] { return static_cast<int64_t>(random() >> (1 + random() % 62)); };
    for (int i = 0; i < 200'000; ++i) expect_division(number(), std::max<int64_t>(1, number()));
}

}  // namespace
}  // namespace per

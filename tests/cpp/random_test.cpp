#include "rules/draw.h"

#include <gtest/gtest.h>

namespace per {
namespace {

void expect_block(uint64_t key, uint64_t low, uint64_t high, const uint32_t (&expected)[4]) {
    const PhiloxBlock block = philox4x32(key, low, high);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(block.word[i], expected[i]);
}

// The known answers in the Random123 library of the authors, file kat_vectors.
TEST(Random, philox_gives_the_published_answers) {
    expect_block(0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    expect_block(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    expect_block(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e,
                 {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Random, a_block_gives_two_numbers) {
    EXPECT_EQ(random64(0, 0, 0), 0xe169c58d6627e8d5u);
    EXPECT_EQ(random64(0, 0, 1), 0x9b00dbd8bc57ac4cu);
    // Numbers 2 j and 2 j + 1 come from counter j.
    const PhiloxBlock block = philox4x32(5, 1000, 6);
    EXPECT_EQ(random64(5, 6, 2000), block.word[0] | static_cast<uint64_t>(block.word[1]) << 32);
    EXPECT_EQ(random64(5, 6, 2001), block.word[2] | static_cast<uint64_t>(block.word[3]) << 32);
}

TEST(Random, stratified_targets_lie_in_their_strata_and_below_the_total) {
    for (const int64_t batch_size : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{256}, int64_t{1} << 24}) {
        const uint64_t width = stratum_width(batch_size);
        for (const uint64_t total : {uint64_t{1}, uint64_t{7}, uint64_t{1} << 20, (uint64_t{1} << 62) - 1}) {
            uint64_t previous_largest = 0;
            for (int64_t i = 0; i < batch_size; i += 1 + batch_size / 50) {
                const uint64_t smallest = stratified_target(0, static_cast<uint64_t>(i), width, total);
                const uint64_t largest = stratified_target(~uint64_t{0}, static_cast<uint64_t>(i), width, total);
                // i total / B, rounded down. The target may be lower: by 1 as it is rounded down, and by i total / 2^64
                // as the width is.
                const auto exact = static_cast<uint64_t>(static_cast<unsigned __int128>(total) *
                                                         static_cast<uint64_t>(i) / static_cast<uint64_t>(batch_size));
                EXPECT_LE(smallest, exact);
                EXPECT_LE(exact - smallest, 1 + mulhi(static_cast<uint64_t>(i), total));
                EXPECT_LE(smallest, largest);
                EXPECT_LT(largest, total);
                EXPECT_LE(previous_largest, smallest);
                previous_largest = largest;
            }
        }
    }
}

// The number of random numbers out of 2^64 whose target is below `unit`. Bisection, as targets increase with the
// number.
template <class TargetOf>
unsigned __int128 numbers_below(uint64_t unit, const TargetOf& target_of) {
    uint64_t first = 0;  // the targets of all smaller numbers are below `unit`
    for (uint64_t step = uint64_t{1} << 63; step != 0; step /= 2)
        if (target_of(first + (step - 1)) < unit) first += step;
    return target_of(first) < unit ? static_cast<unsigned __int128>(first) + 1 : first;
}

// The bound in per.h for the probabilities of draws.
TEST(Random, probabilities_are_shares_of_the_total_to_within_their_bits) {
    const auto distance = [](unsigned __int128 a, unsigned __int128 b) { return a > b ? a - b : b - a; };
    for (const uint64_t total : {uint64_t{3}, uint64_t{1000003}, (uint64_t{1} << 50) - 27}) {
        for (const uint64_t n_parts : {3, 7, 100}) {
            for (uint64_t part = 0; part < n_parts && n_parts <= total; ++part) {
                const uint64_t begin = mulhi(~uint64_t{0} / n_parts * part, total);
                const uint64_t end = part + 1 == n_parts ? total : mulhi(~uint64_t{0} / n_parts * (part + 1), total);
                const unsigned __int128 share = static_cast<unsigned __int128>(end - begin) << 64;
                const auto independent = [&](uint64_t random) { return independent_target(random, total); };
                const unsigned __int128 n = numbers_below(end, independent) - numbers_below(begin, independent);
                EXPECT_TRUE(distance(n * total, share) <= total) << total << " " << part;
                for (const uint64_t batch_size : {1, 3, 8}) {
                    const uint64_t width = stratum_width(static_cast<int64_t>(batch_size));
                    unsigned __int128 sum = 0;
                    for (uint64_t i = 0; i < batch_size; ++i) {
                        const auto of_stratum = [&](uint64_t random) {
                            return stratified_target(random, i, width, total);
                        };
                        sum += numbers_below(end, of_stratum) - numbers_below(begin, of_stratum);
                    }
                    EXPECT_TRUE(distance(sum * total, share * batch_size) <= (batch_size + 2) * batch_size * total)
                        << total << " " << part << " " << batch_size;
                }
            }
        }
    }
}

TEST(Random, independent_targets_reach_both_ends_of_the_total) {
    EXPECT_EQ(independent_target(0, 1000), 0u);
    EXPECT_EQ(independent_target(~uint64_t{0}, 1000), 999u);
    EXPECT_EQ(independent_target(uint64_t{1} << 63, 1000), 500u);
}

}  // namespace
}  // namespace per

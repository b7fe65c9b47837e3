#include "rules/random.h"

#include <gtest/gtest.h>

namespace per {
namespace {

void expect_block(uint64_t key, uint64_t low, uint64_t high, const uint32_t (&expected)[4]) {
    const PhiloxBlock block = philox4x32(key, low, high);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(block.word[i], expected[i]);
}

// The known answers that come with the authors' Random123 library, file kat_vectors.
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
                // i total / B, rounded down. Both roundings take one more, that of the width i times.
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

TEST(Random, independent_targets_reach_both_ends_of_the_total) {
    EXPECT_EQ(independent_target(0, 1000), 0u);
    EXPECT_EQ(independent_target(~uint64_t{0}, 1000), 999u);
    EXPECT_EQ(independent_target(uint64_t{1} << 63, 1000), 500u);
}

}  // namespace
}  // namespace per

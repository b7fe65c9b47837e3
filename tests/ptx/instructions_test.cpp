// Instructions in ptx.h for which PTX differs from C++ or the manual needs care. Expected values are computed by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ptx.h"

namespace {

using namespace ptx;

constexpr F32 nan32 = std::numeric_limits<F32>::quiet_NaN();
constexpr F64 nan64 = std::numeric_limits<F64>::quiet_NaN();
constexpr F64 infinity64 = std::numeric_limits<F64>::infinity();

TEST(PtxInstructions, integers_wrap_around) {
    EXPECT_EQ(add<S32>(0x7FFFFFFF, 1), std::numeric_limits<S32>::min());
    EXPECT_EQ(sub<S64>(std::numeric_limits<S64>::min(), 1), std::numeric_limits<S64>::max());
    EXPECT_EQ(add<S16>(32767, 1), -32768);
    EXPECT_EQ(mul_lo<S64>(S64{1} << 62, 6), std::numeric_limits<S64>::min());
    EXPECT_EQ(abs<S32>(std::numeric_limits<S32>::min()), std::numeric_limits<S32>::min());
}

TEST(PtxInstructions, products_have_a_high_half) {
    EXPECT_EQ(mul_hi<U64>(~U64{0}, ~U64{0}), ~U64{0} - 1);
    EXPECT_EQ(mul_hi<S64>(-1, 1), -1);
    EXPECT_EQ(mul_hi<U32>(0x80000000u, 6), 3u);
    EXPECT_EQ(mul_wide<S32>(-3, 5), S64{-15});
    EXPECT_EQ(mul_wide<U32>(0xFFFFFFFFu, 2), U64{0x1FFFFFFFE});
}

TEST(PtxInstructions, differences_of_many_words_borrow) {
    // 2^64 - 1 = {0, 1, 0} - {1, 0, 0}, words of 32 bits from the lowest.
    Pred carry = false;
    EXPECT_EQ(sub_cc(carry, 0, 1), ~0u);
    EXPECT_FALSE(carry);
    EXPECT_EQ(subc_cc(carry, 0, 0), ~0u);
    EXPECT_FALSE(carry);
    EXPECT_EQ(subc(carry, 1, 0), 0u);
    EXPECT_EQ(sub_cc(carry, 5, 5), 0u);
    EXPECT_TRUE(carry);
}

TEST(PtxInstructions, sums_of_many_words_carry) {
    Pred carry = false;
    EXPECT_EQ(add_cc(carry, ~0u, 1), 0u);
    EXPECT_EQ(addc_cc(carry, ~0u, 0), 0u);
    EXPECT_EQ(addc(carry, 7, 0), 8u);
    EXPECT_EQ(mad_lo_cc(carry, 0x10000u, 0x10000u, 9), 9u);
    EXPECT_FALSE(carry);
    EXPECT_EQ(madc_hi(carry, 0x10000u, 0x10000u, 1), 2u);
}

TEST(PtxInstructions, shifts_beyond_all_bits_leave_none) {
    EXPECT_EQ(shl<B32>(1, 32), 0u);
    EXPECT_EQ(shl<B64>(1, 63), U64{1} << 63);
    EXPECT_EQ(shr<U64>(~U64{0}, 64), 0u);
    EXPECT_EQ(shr<S32>(-5, 200), -1);
    EXPECT_EQ(shf_l_wrap<B32>(0x80000000u, 1, 33), 3u);
    EXPECT_EQ(shf_l_wrap<B32>(0x80000000u, 1, 32), 1u);
}

TEST(PtxInstructions, fields_of_bits) {
    EXPECT_EQ(bfe<U32>(0xABCD1234u, 8, 8), 0x12u);
    EXPECT_EQ(bfe<U32>(0xABCD1234u, 0, 32), 0xABCD1234u);
    EXPECT_EQ(bfe<U32>(0xABCD1234u, 40, 8), 0u);
    EXPECT_EQ(bfi<B32>(0xFFu, 0, 4, 8), 0xFF0u);
    EXPECT_EQ(bfi<B64>(0x12345678u, 0xFFFFFFFFFFFFFFFFu, 32, 32), 0x12345678FFFFFFFFu);
    EXPECT_EQ(bfind_shiftamt<U32>(0), ~0u);
    EXPECT_EQ(bfind_shiftamt<U32>(1), 31u);
    EXPECT_EQ(brev<B32>(0x00000006u), 0x60000000u);
    EXPECT_EQ(clz<B32>(0), 32u);
}

TEST(PtxInstructions, bytes_are_chosen) {
    EXPECT_EQ(prmt<B32>(0x33221100u, 0x77665544u, 0x5410), 0x55441100u);
    EXPECT_EQ(prmt<B32>(0x33221100u, 0x77665544u, 0x7610), 0x77661100u);
    EXPECT_EQ(prmt<B32>(0x000000FFu, 0, 0x9898), 0x00FF00FFu);  // signs of bytes 1 and 0
}

TEST(PtxInstructions, comparisons_with_nan) {
    EXPECT_FALSE(setp_eq<F64>(nan64, nan64));
    EXPECT_FALSE(setp_ne<F64>(nan64, 1));
    EXPECT_TRUE(setp_neu<F64>(nan64, 1));
    EXPECT_TRUE(setp_equ<F64>(nan64, 1));
    EXPECT_TRUE(setp_ltu<F64>(nan64, 1));
    EXPECT_FALSE(setp_lt<F64>(nan64, 1));
    EXPECT_TRUE(setp_nan<F32>(nan32, 0));
    EXPECT_FALSE(setp_num<F32>(0, nan32));
    EXPECT_TRUE(setp_ne<S32>(-1, 1));
}

TEST(PtxInstructions, extremes_of_nan_and_zeros) {
    EXPECT_EQ(max<F64>(nan64, 2), 2);
    EXPECT_EQ(min<F64>(2, nan64), 2);
    EXPECT_FALSE(std::signbit(max<F32>(-0.0f, 0.0f)));
    EXPECT_TRUE(std::signbit(min<F32>(0.0f, -0.0f)));
    EXPECT_EQ(max<S64>(-1, 1), 1);
    EXPECT_EQ(max<U64>(~U64{0}, 1), ~U64{0});
}

TEST(PtxInstructions, conversions_to_integers_saturate) {
    EXPECT_EQ(cvt_rzi<S64>(nan64), 0);
    EXPECT_EQ(cvt_rzi<S64>(infinity64), std::numeric_limits<S64>::max());
    EXPECT_EQ(cvt_rzi<S64>(-1e30), std::numeric_limits<S64>::min());
    EXPECT_EQ(cvt_rzi<U64>(-3.0), 0u);
    EXPECT_EQ(cvt_rzi<U64>(18446744073709551616.0), ~U64{0});
    EXPECT_EQ(cvt_rzi<S64>(-2.9), -2);
}

TEST(PtxInstructions, registers_keep_bits) {
    B32 narrow = 0;
    B64 wide = 0;
    put(narrow, -1.0f);
    EXPECT_EQ(narrow, 0xBF800000u);
    put(wide, as<S8>(B16{0x1FF}));
    EXPECT_EQ(wide, ~U64{0});
    put(wide, as<U8>(B16{0x1FF}));
    EXPECT_EQ(wide, 0xFFu);
    EXPECT_EQ(pack<B64>(B32{1}, B32{2}), U64{2} << 32 | 1);
    unpack(U64{2} << 32 | 1, narrow, narrow);
    EXPECT_EQ(narrow, 2u);
}

}  // namespace

// Vectors of lanes in the compilers' own extensions: 8 of 64 bits with AVX-512, 4 with AVX2, 2 otherwise. The few
// operations that the extensions do not express are here, and only here, in intrinsics.
//
// All of this directory is compiled once for each instruction set. Nothing in it may have external linkage except the
// table of kernels: an inline function or a template of the standard library would become a weak symbol, and the linker
// could keep the copy with AVX-512 for everybody.
#pragma once

#include <stdint.h>

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns about deliberately undefined vectors in its own header.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "rules/host_device.h"

namespace per::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int lanes = 8;
#elif defined(__AVX2__)
constexpr int lanes = 4;
#else
constexpr int lanes = 2;
#endif

// SSE2 has no instruction that compares lanes of 64 bits. Without one, drawing in lanes is slower than one draw after
// the other.
#if defined(__SSE4_2__) || defined(__aarch64__)
constexpr bool compares_lanes = true;
#else
constexpr bool compares_lanes = false;
#endif

// True if masks have registers (AVX-512), so that a select is free. Elsewhere a mask is a vector.
constexpr bool has_mask_registers = lanes == 8;

typedef uint64_t Bits __attribute__((vector_size(8 * lanes)));
typedef int64_t Whole __attribute__((vector_size(8 * lanes)));
typedef double Real __attribute__((vector_size(8 * lanes)));
typedef float Floats __attribute__((vector_size(4 * lanes)));
typedef int32_t FloatMask __attribute__((vector_size(4 * lanes)));

#define PER_INLINE [[gnu::always_inline]] inline

template <class Vector>
PER_INLINE Vector load(const void* from) {
    Vector vector;
    __builtin_memcpy(&vector, from, sizeof vector);
    return vector;
}

// To read single lanes, store the vector first: GCC keeps a vector with a computed subscript in memory.
template <class Vector>
PER_INLINE void store(void* to, Vector vector) {
    __builtin_memcpy(to, &vector, sizeof vector);
}

// A vector of of(0), of(1), .., called in this order. It is assembled in registers: if its lanes were stored to memory
// one by one, loading the vector would stall until all of them are in the cache.
template <class Of>
PER_INLINE Floats each_float(const Of& of) {
    if constexpr (lanes == 2) return Floats{of(0), of(1)};
    if constexpr (lanes == 4) return Floats{of(0), of(1), of(2), of(3)};
    if constexpr (lanes == 8) return Floats{of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7)};
}

// Lanes chosen from two vectors; those of b count from `lanes`.
template <int... from, class Vector>
PER_INLINE Vector shuffle(Vector a, Vector b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, from...);
#else
    if constexpr (sizeof(a[0]) == 8)
        return __builtin_shuffle(a, b, Whole{from...});
    else
        return __builtin_shuffle(a, b, FloatMask{from...});
#endif
}

// Rows to columns: lane l of x[k] becomes lane k of x[l]. Uses only shuffles that are one instruction: those that
// interleave two vectors within 128 bits, and those that move whole 128 bits.
PER_INLINE void transpose(Whole* x) {
    if constexpr (lanes == 2) {
        const Whole a = shuffle<0, 2>(x[0], x[1]);
        x[1] = shuffle<1, 3>(x[0], x[1]);
        x[0] = a;
    } else if constexpr (lanes == 4) {
        const Whole a = shuffle<0, 4, 2, 6>(x[0], x[1]);
        const Whole b = shuffle<1, 5, 3, 7>(x[0], x[1]);
        const Whole c = shuffle<0, 4, 2, 6>(x[2], x[3]);
        const Whole d = shuffle<1, 5, 3, 7>(x[2], x[3]);
        x[0] = shuffle<0, 1, 4, 5>(a, c);
        x[1] = shuffle<0, 1, 4, 5>(b, d);
        x[2] = shuffle<2, 3, 6, 7>(a, c);
        x[3] = shuffle<2, 3, 6, 7>(b, d);
    } else {
        for (int i = 0; i < 8; i += 2) {
            const Whole even = shuffle<0, 8, 2, 10, 4, 12, 6, 14>(x[i], x[i + 1]);
            x[i + 1] = shuffle<1, 9, 3, 11, 5, 13, 7, 15>(x[i], x[i + 1]);
            x[i] = even;
        }
        // x[i] has columns 0, 2, 4, 6 of rows i and i + 1 in its four pairs of lanes; x[i + 1] has 1, 3, 5, 7.
        for (int i = 0; i < 2; ++i) {
            const Whole a = shuffle<0, 1, 4, 5, 8, 9, 12, 13>(x[i], x[i + 2]);
            const Whole b = shuffle<2, 3, 6, 7, 10, 11, 14, 15>(x[i], x[i + 2]);
            const Whole c = shuffle<0, 1, 4, 5, 8, 9, 12, 13>(x[i + 4], x[i + 6]);
            const Whole d = shuffle<2, 3, 6, 7, 10, 11, 14, 15>(x[i + 4], x[i + 6]);
            x[i] = shuffle<0, 1, 4, 5, 8, 9, 12, 13>(a, c);
            x[i + 2] = shuffle<0, 1, 4, 5, 8, 9, 12, 13>(b, d);
            x[i + 4] = shuffle<2, 3, 6, 7, 10, 11, 14, 15>(a, c);
            x[i + 6] = shuffle<2, 3, 6, 7, 10, 11, 14, 15>(b, d);
        }
    }
}

PER_INLINE void transpose(Floats* x) {
    if constexpr (lanes == 2) {
        const Floats a = shuffle<0, 2>(x[0], x[1]);
        x[1] = shuffle<1, 3>(x[0], x[1]);
        x[0] = a;
    } else if constexpr (lanes == 4) {
        const Floats a = shuffle<0, 4, 1, 5>(x[0], x[1]);
        const Floats b = shuffle<2, 6, 3, 7>(x[0], x[1]);
        const Floats c = shuffle<0, 4, 1, 5>(x[2], x[3]);
        const Floats d = shuffle<2, 6, 3, 7>(x[2], x[3]);
        x[0] = shuffle<0, 1, 4, 5>(a, c);
        x[1] = shuffle<2, 3, 6, 7>(a, c);
        x[2] = shuffle<0, 1, 4, 5>(b, d);
        x[3] = shuffle<2, 3, 6, 7>(b, d);
    } else {
        // Within four rows first: x[i + k] then has columns k and k + 4 of rows i .. i + 3.
        for (int i = 0; i < 8; i += 4) {
            const Floats a = shuffle<0, 8, 1, 9, 4, 12, 5, 13>(x[i], x[i + 1]);
            const Floats b = shuffle<2, 10, 3, 11, 6, 14, 7, 15>(x[i], x[i + 1]);
            const Floats c = shuffle<0, 8, 1, 9, 4, 12, 5, 13>(x[i + 2], x[i + 3]);
            const Floats d = shuffle<2, 10, 3, 11, 6, 14, 7, 15>(x[i + 2], x[i + 3]);
            x[i] = shuffle<0, 1, 8, 9, 4, 5, 12, 13>(a, c);
            x[i + 1] = shuffle<2, 3, 10, 11, 6, 7, 14, 15>(a, c);
            x[i + 2] = shuffle<0, 1, 8, 9, 4, 5, 12, 13>(b, d);
            x[i + 3] = shuffle<2, 3, 10, 11, 6, 7, 14, 15>(b, d);
        }
        for (int k = 0; k < 4; ++k) {
            const Floats upper = x[k];
            x[k] = shuffle<0, 1, 2, 3, 8, 9, 10, 11>(upper, x[k + 4]);
            x[k + 4] = shuffle<4, 5, 6, 7, 12, 13, 14, 15>(upper, x[k + 4]);
        }
    }
}

// The same bits, signed: numbers below 2^63 compare faster so.
PER_INLINE Whole as_whole(Bits x) {
    return bit_cast<Whole>(x);
}

// a + b where the mask is set, a elsewhere.
PER_INLINE Whole add_where(Whole mask, Whole a, Whole b) {
    if constexpr (has_mask_registers) return mask ? a + b : a;
    return a + (b & mask);
}

PER_INLINE Bits each_lane(uint64_t value) {
    return Bits{} + value;
}

// 0, 1, 2, ..
PER_INLINE Bits lane_numbers() {
    Bits numbers;
    for (int l = 0; l < lanes; ++l) numbers[l] = static_cast<uint64_t>(l);
    return numbers;
}

PER_INLINE bool any_negative(Whole x) {
#if defined(__AVX512DQ__)
    return _mm512_movepi64_mask(reinterpret_cast<__m512i>(x)) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_pd(reinterpret_cast<__m256d>(x)) != 0;
#else
    return (x[0] | x[1]) < 0;
#endif
}

// The products of the lower 32 bits.
PER_INLINE Bits multiply_low_halves(Bits a, Bits b) {
#if defined(__AVX512F__)
    return reinterpret_cast<Bits>(_mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
    return reinterpret_cast<Bits>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
    return reinterpret_cast<Bits>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#elif defined(__aarch64__)
    return reinterpret_cast<Bits>(
        vmull_u32(vmovn_u64(reinterpret_cast<uint64x2_t>(a)), vmovn_u64(reinterpret_cast<uint64x2_t>(b))));
#else
    return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

// ceil(x) of 0 <= x < 2^52.
PER_INLINE Bits ceiling(Real x) {
#if defined(__AVX512DQ__)
    return reinterpret_cast<Bits>(
        _mm512_cvt_roundpd_epu64(reinterpret_cast<__m512d>(x), _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC));
#elif defined(__aarch64__)
    return reinterpret_cast<Bits>(vcvtpq_u64_f64(reinterpret_cast<float64x2_t>(x)));
#else
    // Adding 2^52 rounds to a whole number and leaves it in the low bits.
#if defined(__AVX2__)
    const Real up = reinterpret_cast<Real>(_mm256_ceil_pd(reinterpret_cast<__m256d>(x)));
#else
    const Real nearest = (x + 0x1p52) - 0x1p52;
    const Real up = nearest < x ? nearest + 1.0 : nearest;
#endif
    return bit_cast<Bits>(up + 0x1p52) ^ bit_cast<Bits>(Real{} + 0x1p52);
#endif
}

// GCC compiles __builtin_convertvector() to two conversions of half the width and an insertion.
PER_INLINE Real to_real(Floats x) {
#if defined(__AVX512F__)
    return reinterpret_cast<Real>(_mm512_cvtps_pd(reinterpret_cast<__m256>(x)));
#elif defined(__AVX2__)
    return reinterpret_cast<Real>(_mm256_cvtps_pd(reinterpret_cast<__m128>(x)));
#else
    return __builtin_convertvector(x, Real);
#endif
}

PER_INLINE Floats to_floats(Real x) {
#if defined(__AVX512F__)
    return reinterpret_cast<Floats>(_mm512_cvtpd_ps(reinterpret_cast<__m512d>(x)));
#elif defined(__AVX2__)
    return reinterpret_cast<Floats>(_mm256_cvtpd_ps(reinterpret_cast<__m256d>(x)));
#else
    return __builtin_convertvector(x, Floats);
#endif
}

// From begin_rounding_up() to end_rounding_up(), sums and products of doubles round up on AVX2, as scaled_ceiling()
// requires. Pass the result of the first to the second, and compute nothing else that rounds in between. These are two
// functions and not a class, because a destructor would bring exception tables, which are weak symbols.
PER_INLINE unsigned begin_rounding_up() {
#if defined(__AVX2__) && !defined(__AVX512DQ__)
    const unsigned before = _mm_getcsr();
    _mm_setcsr((before & ~static_cast<unsigned>(_MM_ROUND_MASK)) | _MM_ROUND_UP);
    __asm__ volatile("" ::: "memory");
    return before;
#else
    return 0;
#endif
}

PER_INLINE void end_rounding_up([[maybe_unused]] unsigned before) {
#if defined(__AVX2__) && !defined(__AVX512DQ__)
    __asm__ volatile("" ::: "memory");
    _mm_setcsr(before);
#endif
}

// ceil(x * factor) for 0 <= x * factor < 2^52 and a factor that is a power of two. Call it only between
// begin_rounding_up() and end_rounding_up().
PER_INLINE Bits scaled_ceiling(Floats x, double factor) {
#if defined(__AVX2__) && !defined(__AVX512DQ__)
    const Real offset = Real{} + 0x1p52;
    return bit_cast<Bits>(to_real(x) * factor + offset) ^ bit_cast<Bits>(offset);
#else
    return ceiling(to_real(x) * factor);
#endif
}

// mass_of() of each priority; the tree's scale keeps masses below 2^52.
PER_INLINE Bits masses_of(Floats priorities, double factor) {
    return ceiling(to_real(priorities) * factor);
}
PER_INLINE Bits masses_of(const float* priorities, double factor) {
    return masses_of(load<Floats>(priorities), factor);
}

// Converts numbers below 2^52 to doubles, exactly.
PER_INLINE Real small_to_real(Bits x) {
    return bit_cast<Real>(x | bit_cast<Bits>(Real{} + 0x1p52)) - 0x1p52;
}

}  // namespace
}  // namespace per::cpu

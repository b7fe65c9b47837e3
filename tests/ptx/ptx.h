// The meaning of PTX's instructions, for the C++ that translate.py makes of it. A function has the name and the type of
// an instruction, so that NVIDIA's manual ("PTX ISA") describes it. A register is its bits; the type of an instruction
// says how it reads them.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "translation.h"

namespace ptx {

// The types of PTX, in capitals, as registers have names such as f32.
using U8 = uint8_t;
using U16 = uint16_t;
using U32 = uint32_t;
using U64 = uint64_t;
using S8 = int8_t;
using S16 = int16_t;
using S32 = int32_t;
using S64 = int64_t;
using B8 = uint8_t;
using B16 = uint16_t;
using B32 = uint32_t;
using B64 = uint64_t;
using F32 = float;
using F64 = double;
using Pred = bool;
__extension__ typedef unsigned __int128 U128;
__extension__ typedef __int128 S128;

// Set when the library is loaded, before a kernel runs.
extern const simulator::GridFunctions* grid;

[[noreturn]] void fail(const char* what, U64 address, unsigned n_bytes);

struct Registered {
    Registered(int architecture, const simulator::TranslatedKernel& kernel);
};

inline const simulator::Place& place() {
    return grid->place();
}

// ---------------------------------------------------------------------------------------------------- registers
// The value of a register that nothing has written.
struct Unset {
    template <class Register>
    operator Register() const {
        return static_cast<Register>(0xDEADBEEFDEADBEEFu);
    }
};
inline constexpr Unset unset;

template <class T, class Bits>
T as(Bits bits) {
    if constexpr (std::is_floating_point_v<T>)
        return std::bit_cast<T>(bits);
    else
        return static_cast<T>(bits);
}

// A signed value is extended by its sign, any other by zeros.
template <class Register, class T>
void put(Register& to, T value) {
    if constexpr (std::is_floating_point_v<T>)
        to = std::bit_cast<Register>(value);
    else
        to = static_cast<Register>(value);
}

// The first part has the lowest bits.
template <class Whole, class... Parts>
Whole pack(Parts... parts) {
    constexpr unsigned n_bits = 8 * sizeof(Whole) / sizeof...(parts);
    static_assert(((8 * sizeof(parts) == n_bits) && ...));
    Whole whole = 0;
    unsigned at = 0;
    ((whole |= static_cast<Whole>(parts) << at, at += n_bits), ...);
    return whole;
}

template <class Whole, class... Parts>
void unpack(Whole whole, Parts&... parts) {
    constexpr unsigned n_bits = 8 * sizeof(Whole) / sizeof...(parts);
    static_assert(((8 * sizeof(parts) == n_bits) && ...));
    unsigned at = 0;
    ((parts = static_cast<Parts>(whole >> at), at += n_bits), ...);
}

// ------------------------------------------------------------------------------------------------------- memory
// The shared memory of the block, whose addresses begin at 0.
struct Shared {
    unsigned char* memory;
    unsigned n_bytes;
};

inline Shared shared_of_block(const void* key, unsigned n_bytes) {
    return {static_cast<unsigned char*>(grid->shared_memory(key, n_bytes)), n_bytes};
}

inline unsigned char* in_memory(U64 address, unsigned n_bytes) {
    if (address % n_bytes != 0) fail("misaligned", address, n_bytes);
    return reinterpret_cast<unsigned char*>(address);
}

inline unsigned char* in_shared(const Shared& shared, U64 address, unsigned n_bytes) {
    if (address % n_bytes != 0) fail("misaligned in shared memory", address, n_bytes);
    if (address > shared.n_bytes || n_bytes > shared.n_bytes - address)
        fail("outside of shared memory", address, n_bytes);
    return shared.memory + address;
}

inline U64 address_of(const Shared& shared, U64 place) {
    return reinterpret_cast<U64>(shared.memory) + place;
}

inline U64 place_in(const Shared& shared, U64 address) {
    return address - reinterpret_cast<U64>(shared.memory);
}

inline U64 memory_of_block(U64 address, U32 rank) {
    return reinterpret_cast<U64>(grid->memory_of_block(reinterpret_cast<const void*>(address), rank));
}

// Memory of any type, whose accesses a sanitizer sees as those of the kernel.
template <class T>
using InMemory [[gnu::may_alias]] = T;

template <class T>
T load(const unsigned char* at) {
    return *reinterpret_cast<const InMemory<T>*>(at);
}

template <class T>
void store(unsigned char* at, T value) {
    *reinterpret_cast<InMemory<T>*>(at) = value;
}

template <class T>
T volatile_load(const unsigned char* at) {
    return *reinterpret_cast<const volatile InMemory<T>*>(at);
}

template <class T>
void volatile_store(unsigned char* at, T value) {
    *reinterpret_cast<volatile InMemory<T>*>(at) = value;
}

// A thread that reads so waits for another block.
template <class T>
T acquire_load(const unsigned char* at) {
    grid->wait_for_others();
    return __atomic_load_n(reinterpret_cast<const InMemory<T>*>(at), __ATOMIC_ACQUIRE);
}

// Atomics order no other memory unless they say so.
template <class T, class Combine>
T update(unsigned char* at, std::memory_order order, Combine combine) {
    auto* const memory = reinterpret_cast<InMemory<T>*>(at);
    T old = __atomic_load_n(memory, __ATOMIC_RELAXED);
    if (order == std::memory_order_relaxed) {
        while (!__atomic_compare_exchange_n(memory, &old, combine(old), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        }
    } else {
        while (!__atomic_compare_exchange_n(memory, &old, combine(old), false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        }
    }
    return old;
}

template <class T>
T atom_add(unsigned char* at, std::memory_order order, T value) {
    return update<T>(at, order, [=](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atom_exch(unsigned char* at, std::memory_order order, T value) {
    return update<T>(at, order, [=](T) { return value; });
}
template <class T>
T atom_max(unsigned char* at, std::memory_order order, T value) {
    return update<T>(at, order, [=](T old) { return std::max(old, value); });
}
template <class T>
T atom_min(unsigned char* at, std::memory_order order, T value) {
    return update<T>(at, order, [=](T old) { return std::min(old, value); });
}
template <class T>
T atom_and(unsigned char* at, std::memory_order order, T value) {
    return update<T>(at, order, [=](T old) { return static_cast<T>(old & value); });
}
template <class T>
T atom_or(unsigned char* at, std::memory_order order, T value) {
    return update<T>(at, order, [=](T old) { return static_cast<T>(old | value); });
}
template <class T>
T atom_cas(unsigned char* at, std::memory_order order, T expected, T value) {
    return update<T>(at, order, [=](T old) { return old == expected ? value : old; });
}

// ------------------------------------------------------------------------------------- threads, warps, clusters
inline void block_barrier() {
    grid->block_barrier(simulator::Count::sum, 0);
}
inline void cluster_arrive() {
    grid->arrive_in_cluster(simulator::Order::release);
}
inline void cluster_arrive_relaxed() {
    grid->arrive_in_cluster(simulator::Order::relaxed);
}
inline void cluster_wait() {
    grid->await_cluster();
}
inline void wait_for_work_before() {
    grid->wait_for_work_before();
}

inline void warp_barrier(U32 mask) {
    U64 values[32];
    grid->exchange("bar.warp.sync", mask, 0, values);
}

struct Shuffled {
    U32 value;
    bool is_in_range;
};

// A lane outside of the segment is not read: the calling lane gets its own value.
inline Shuffled shuffled(const char* kind, U32 value, U32 mask, unsigned from, bool is_in_range) {
    U64 values[32];
    grid->exchange(kind, mask, value, values);
    if (!is_in_range) from = place().lane;
    if ((mask >> from & 1) == 0) fail("shfl from a lane that is not in the mask", from, 0);
    return {static_cast<U32>(values[from]), is_in_range};
}

// The last lane of the calling lane's segment that may be read; for shfl.up the first one.
inline unsigned last_lane(U32 clamp) {
    const unsigned segment_mask = clamp >> 8 & 31;
    return (place().lane & segment_mask) | (clamp & 31 & ~segment_mask);
}

inline Shuffled shfl_bfly(U32 value, U32 bits, U32 clamp, U32 mask) {
    const unsigned from = place().lane ^ (bits & 31);
    return shuffled("shfl.bfly", value, mask, from, from <= last_lane(clamp));
}
inline Shuffled shfl_up(U32 value, U32 distance, U32 clamp, U32 mask) {
    const int from = static_cast<int>(place().lane) - static_cast<int>(distance & 31);
    return shuffled("shfl.up", value, mask, static_cast<unsigned>(from), from >= static_cast<int>(last_lane(clamp)));
}
inline Shuffled shfl_idx(U32 value, U32 lane, U32 clamp, U32 mask) {
    const unsigned segment_mask = clamp >> 8 & 31;
    const unsigned from = (place().lane & segment_mask) | (lane & 31 & ~segment_mask);
    return shuffled("shfl.idx", value, mask, from, from <= last_lane(clamp));
}

inline U32 ballot(Pred predicate, U32 mask) {
    U64 values[32];
    grid->exchange("vote.ballot", mask, predicate, values);
    U32 found = 0;
    for (unsigned i = 0; i < 32; ++i)
        if ((mask >> i & 1) != 0 && values[i] != 0) found |= 1u << i;
    return found;
}

template <class Combine>
U32 redux(const char* kind, U32 value, U32 mask, Combine combine) {
    U64 values[32];
    grid->exchange(kind, mask, value, values);
    U32 reduced = value;
    for (unsigned i = 0; i < 32; ++i)
        if ((mask >> i & 1) != 0 && i != place().lane) reduced = combine(reduced, static_cast<U32>(values[i]));
    return reduced;
}
inline U32 redux_add(U32 value, U32 mask) {
    return redux("redux.add", value, mask, [](U32 a, U32 b) { return a + b; });
}
inline U32 redux_max(U32 value, U32 mask) {
    return redux("redux.max", value, mask, [](U32 a, U32 b) { return std::max(a, b); });
}
inline U32 redux_min(U32 value, U32 mask) {
    return redux("redux.min", value, mask, [](U32 a, U32 b) { return std::min(a, b); });
}

// --------------------------------------------------------------------------------------------------- arithmetic
// Integers wrap around, signed ones too.
template <class T>
constexpr auto wrapping(T value) {
    if constexpr (std::is_floating_point_v<T>)
        return value;
    else if constexpr (sizeof(T) < 4)
        return static_cast<U32>(value);
    else
        return static_cast<std::make_unsigned_t<T>>(value);
}

template <class T>
T add(T a, T b) {
    return static_cast<T>(wrapping(a) + wrapping(b));
}
template <class T>
T sub(T a, T b) {
    return static_cast<T>(wrapping(a) - wrapping(b));
}
template <class T>
T mul(T a, T b) {
    static_assert(std::is_floating_point_v<T>);
    return a * b;
}
template <class T>
T neg(T a) {
    if constexpr (std::is_floating_point_v<T>)
        return -a;
    else
        return sub<T>(0, a);
}
template <class T>
T abs(T a) {
    if constexpr (std::is_floating_point_v<T>)
        return std::fabs(a);
    else
        return a < 0 ? neg(a) : a;
}

// Twice as wide as T, and as signed.
template <class T>
using Wide = std::conditional_t<sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, S128, U128>,
                                std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, S64, U64>,
                                                   std::conditional_t<std::is_signed_v<T>, S32, U32>>>;

template <class T>
Wide<T> mul_wide(T a, T b) {
    return static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b);
}
template <class T>
T mul_lo(T a, T b) {
    return static_cast<T>(wrapping(a) * wrapping(b));
}
template <class T>
T mul_hi(T a, T b) {
    return static_cast<T>(mul_wide(a, b) >> 8 * sizeof(T));
}
template <class T>
T mad_lo(T a, T b, T c) {
    return add(mul_lo(a, b), c);
}
template <class T>
T mad_hi(T a, T b, T c) {
    return add(mul_hi(a, b), c);
}

// The result of a division by 0 is not specified; here it ends the program.
template <class T>
T div(T a, T b) {
    return static_cast<T>(a / b);
}
template <class T>
T rem(T a, T b) {
    return static_cast<T>(a % b);
}

// A NaN is no operand; -0 is less than +0.
template <class T>
T min(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(a)) return b;
        if (std::isnan(b)) return a;
        if (a == b) return std::signbit(a) ? a : b;
    }
    return a < b ? a : b;
}
template <class T>
T max(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(a)) return b;
        if (std::isnan(b)) return a;
        if (a == b) return std::signbit(a) ? b : a;
    }
    return a < b ? b : a;
}

// rcp.approx is exact to 1 ulp only. Half of the results are off by that much here, which their users must bear.
template <class T>
T rcp(T a) {
    static_assert(std::is_same_v<T, F32>);
    const F32 nearest = 1.0f / a;
    const bool is_off = std::isnormal(nearest) && (std::bit_cast<U32>(a) & 1) != 0;
    return is_off ? std::bit_cast<F32>(std::bit_cast<U32>(nearest) - 1) : nearest;
}

// The carry of a difference is that of a + ~b + 1: it is 1 where nothing is borrowed. The manual has it the other
// way round; nvcc's code is for this one, as the hardware's.
inline U32 with_carry(Pred& carry_out, U64 sum) {
    carry_out = sum >> 32 != 0;
    return static_cast<U32>(sum);
}
inline U32 add_cc(Pred& carry, U32 a, U32 b) {
    return with_carry(carry, U64{a} + b);
}
inline U32 addc(Pred& carry, U32 a, U32 b) {
    return a + b + carry;
}
inline U32 addc_cc(Pred& carry, U32 a, U32 b) {
    return with_carry(carry, U64{a} + b + carry);
}
inline U32 sub_cc(Pred& carry, U32 a, U32 b) {
    return with_carry(carry, U64{a} + static_cast<U32>(~b) + 1);
}
inline U32 subc(Pred& carry, U32 a, U32 b) {
    return a + ~b + carry;
}
inline U32 subc_cc(Pred& carry, U32 a, U32 b) {
    return with_carry(carry, U64{a} + static_cast<U32>(~b) + carry);
}
inline U32 mad_lo_cc(Pred& carry, U32 a, U32 b, U32 c) {
    return add_cc(carry, mul_lo(a, b), c);
}
inline U32 mad_hi_cc(Pred& carry, U32 a, U32 b, U32 c) {
    return add_cc(carry, mul_hi(a, b), c);
}
inline U32 madc_lo(Pred& carry, U32 a, U32 b, U32 c) {
    return addc(carry, mul_lo(a, b), c);
}
inline U32 madc_hi(Pred& carry, U32 a, U32 b, U32 c) {
    return addc(carry, mul_hi(a, b), c);
}
inline U32 madc_lo_cc(Pred& carry, U32 a, U32 b, U32 c) {
    return addc_cc(carry, mul_lo(a, b), c);
}
inline U32 madc_hi_cc(Pred& carry, U32 a, U32 b, U32 c) {
    return addc_cc(carry, mul_hi(a, b), c);
}

// --------------------------------------------------------------------------------------------------------- bits
template <class T>
T and_(T a, T b) {
    return static_cast<T>(a & b);
}
template <class T>
T or_(T a, T b) {
    return static_cast<T>(a | b);
}
template <class T>
T xor_(T a, T b) {
    return static_cast<T>(a ^ b);
}
template <class T>
T not_(T a) {
    if constexpr (std::is_same_v<T, Pred>)
        return !a;
    else
        return static_cast<T>(~a);
}

// A shift by more than all bits is one by all.
template <class T>
T shl(T a, U32 n) {
    return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(wrapping(a) << n);
}
template <class T>
T shr(T a, U32 n) {
    constexpr U32 n_bits = 8 * sizeof(T);
    if constexpr (std::is_signed_v<T>)
        return static_cast<T>(a >> std::min(n, n_bits - 1));
    else
        return n >= n_bits ? T{0} : static_cast<T>(a >> n);
}
template <class T>
T shf_l_wrap(T low, T high, U32 n) {
    n %= 32;
    return n == 0 ? high : high << n | low >> (32 - n);
}

template <class T>
U32 popc(T a) {
    return static_cast<U32>(std::popcount(a));
}
template <class T>
U32 clz(T a) {
    return static_cast<U32>(std::countl_zero(a));
}
template <class T>
T brev(T a) {
    T reversed = 0;
    for (unsigned i = 0; i < 8 * sizeof(T); ++i) reversed |= (a >> i & 1) << (8 * sizeof(T) - 1 - i);
    return reversed;
}
// The shift to the left that moves the highest set bit to the top; all ones for 0.
template <class T>
U32 bfind_shiftamt(T a) {
    static_assert(std::is_unsigned_v<T>);
    return a == 0 ? ~0u : clz(a);
}
template <class T>
T low_bits(U32 n) {
    return n >= 8 * sizeof(T) ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << n) - 1);
}
template <class T>
T bfe(T a, U32 from, U32 n) {
    static_assert(std::is_unsigned_v<T>);
    return and_(shr(a, from & 255), low_bits<T>(n & 255));
}
template <class T>
T bfi(T field, T into, U32 from, U32 n) {
    const T mask = shl(low_bits<T>(n & 255), from & 255);
    return static_cast<T>((into & ~mask) | (shl(field, from & 255) & mask));
}
// Each of four bytes is chosen from the eight of b and a by four bits, the highest of which replicates the byte's sign.
template <class T>
T prmt(T a, T b, T selectors) {
    const U64 bytes = pack<U64>(a, b);
    T chosen = 0;
    for (unsigned i = 0; i < 4; ++i) {
        const unsigned selector = selectors >> 4 * i & 15;
        U32 byte = bytes >> 8 * (selector & 7) & 255;
        if ((selector & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;
        chosen |= byte << 8 * i;
    }
    return chosen;
}

// -------------------------------------------------------------------------------------- comparison, conversion
template <class T>
T selp(T a, T b, Pred is_first) {
    return is_first ? a : b;
}

template <class T>
Pred setp_nan(T a, T b) {
    return std::isnan(a) || std::isnan(b);
}
template <class T>
Pred setp_num(T a, T b) {
    return !setp_nan(a, b);
}
template <class T>
Pred setp_eq(T a, T b) {
    return a == b;
}
template <class T>
Pred setp_ne(T a, T b) {  // false with a NaN, unlike in C++
    return a < b || a > b;
}
template <class T>
Pred setp_lt(T a, T b) {
    return a < b;
}
template <class T>
Pred setp_le(T a, T b) {
    return a <= b;
}
template <class T>
Pred setp_gt(T a, T b) {
    return a > b;
}
template <class T>
Pred setp_ge(T a, T b) {
    return a >= b;
}
template <class T>
Pred setp_equ(T a, T b) {
    return !setp_ne(a, b);
}
template <class T>
Pred setp_neu(T a, T b) {
    return a != b;
}
template <class T>
Pred setp_ltu(T a, T b) {
    return !(a >= b);
}
template <class T>
Pred setp_leu(T a, T b) {
    return !(a > b);
}
template <class T>
Pred setp_gtu(T a, T b) {
    return !(a <= b);
}
template <class T>
Pred setp_geu(T a, T b) {
    return !(a < b);
}

template <class T>
T mov(T a) {
    return a;
}

template <class To, class From>
To cvt(From a) {
    static_assert(std::is_floating_point_v<To> || std::is_integral_v<From>, "to an integer it must be rounded");
    return static_cast<To>(a);
}
// Rounds towards zero. Values out of range saturate; NaN becomes 0.
template <class To, class From>
To cvt_rzi(From a) {
    constexpr To least = std::numeric_limits<To>::min();
    constexpr To most = std::numeric_limits<To>::max();
    if (std::isnan(a)) return 0;
    if (a <= static_cast<From>(least)) return least;
    if (a >= std::ldexp(From{1}, std::numeric_limits<To>::digits)) return most;
    return static_cast<To>(a);
}

}  // namespace ptx

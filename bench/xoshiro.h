#ifndef PER_BENCH_XOSHIRO_H
#define PER_BENCH_XOSHIRO_H

#include <bit>
#include <cstdint>

namespace bench {

/* xoshiro256+ (Blackman and Vigna 2018): about a nanosecond per number, a good choice for a scalar program. */
class Xoshiro {
 public:
    using result_type = uint64_t;

    explicit Xoshiro(uint64_t seed) {
        for (uint64_t& word : state_) {  // splitmix64, as its authors seed it
            seed += 0x9e3779b97f4a7c15;
            uint64_t z = seed;
            z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
            z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
            word = z ^ (z >> 31);
        }
    }

    static constexpr uint64_t min() { return 0; }
    static constexpr uint64_t max() { return UINT64_MAX; }

    uint64_t operator()() {
        const uint64_t result = state_[0] + state_[3];
        const uint64_t shifted = state_[1] << 17;
        state_[2] ^= state_[0];
        state_[3] ^= state_[1];
        state_[1] ^= state_[2];
        state_[0] ^= state_[3];
        state_[2] ^= shifted;
        state_[3] = std::rotl(state_[3], 45);
        return result;
    }

    double uniform() { return static_cast<double>((*this)() >> 11) * 0x1p-53; }  // [0, 1)

    int64_t below(int64_t bound) {
        return static_cast<int64_t>((static_cast<unsigned __int128>((*this)()) * static_cast<uint64_t>(bound)) >> 64);
    }

 private:
    uint64_t state_[4];
};

}  // namespace bench

#endif

// The only source that includes xxHash. Its functions are compiled in here, and none is exported.
#include "file/checksum.h"

#include <new>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace per {

struct Checksum::State : XXH3_state_t {};

// XXH3_createState() aligns the memory as XXH3 requires.
Checksum::Checksum() : state_(static_cast<State*>(XXH3_createState())) {
    if (state_ == nullptr) throw std::bad_alloc();
    reset();
}

void Checksum::Free::operator()(State* state) const {
    XXH3_freeState(state);
}

void Checksum::add(const void* data, std::size_t size) {
    XXH3_64bits_update(state_.get(), data, size);
}

uint64_t Checksum::value() const {
    return XXH3_64bits_digest(state_.get());
}

void Checksum::reset() {
    XXH3_64bits_reset(state_.get());
}

Hash128 hash_of(const void* data, std::size_t size) {
    const XXH128_hash_t hash = XXH3_128bits(data, size);
    return {hash.low64, hash.high64};
}

}  // namespace per

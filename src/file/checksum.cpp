// The only source that sees xxHash: its functions are compiled in here, and none is exported.
#include "file/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace per {

struct Checksum::State {
    XXH64_state_t xxh64;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
    XXH64_reset(&state_->xxh64, 0);
}

Checksum::~Checksum() = default;

void Checksum::add(const void* data, std::size_t size) {
    XXH64_update(&state_->xxh64, data, size);
}

uint64_t Checksum::value() const {
    return XXH64_digest(&state_->xxh64);
}

}  // namespace per

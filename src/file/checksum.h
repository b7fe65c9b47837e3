// The checksums of files (Collet, "xxHash fast digest algorithm"), with seed 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace per {

// XXH3-64 of all bytes added, however they were divided among calls of add().
class Checksum {
 public:
    Checksum();

    void add(const void* data, std::size_t size);
    uint64_t value() const;
    // Forgets all bytes.
    void reset();

 private:
    struct State;
    struct Free {
        void operator()(State* state) const;
    };
    std::unique_ptr<State, Free> state_;
};

// XXH3-128.
struct Hash128 {
    uint64_t low;
    uint64_t high;

    bool operator==(const Hash128&) const = default;
};

Hash128 hash_of(const void* data, std::size_t size);

// For tables of hashes.
struct HashOfHash {
    std::size_t operator()(const Hash128& hash) const { return hash.low; }
};

}  // namespace per

// The checksum of files: XXH64 with seed 0 (Collet, "xxHash fast digest algorithm").
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace per {

// The checksum of the bytes added so far, in whatever pieces.
class Checksum {
 public:
    Checksum();
    ~Checksum();

    void add(const void* data, std::size_t size);
    uint64_t value() const;

 private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace per

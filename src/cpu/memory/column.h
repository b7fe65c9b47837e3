// Where the values of one kind lie: one for each slot, a fixed number of bytes apart.
#pragma once

#include <cstddef>
#include <cstdint>

namespace per::cpu {

// The value of slot i lies i * stride bytes after that of slot 0. A column whose stride is the size of its values is an
// array; otherwise values of other columns lie in between. Frames of any size are a column of std::byte.
template <class Value>
struct Column {
    std::byte* first = nullptr;
    int64_t stride = 0;

    Value* at(int64_t slot) const { return reinterpret_cast<Value*>(first + slot * stride); }
    Value& operator[](int64_t slot) const { return *at(slot); }
    Column<std::byte> as_bytes() const { return {first, stride}; }
};

}  // namespace per::cpu

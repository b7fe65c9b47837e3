// The layout of arrays in a block of device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/tree/live_set.h"
#include "cuda/tree/maximum_tree.h"
#include "cuda/tree/sum_tree.h"

namespace per::cuda {

// Cuts arrays from a block of memory. Without a block it only counts their bytes.
class Layout {
 public:
    explicit Layout(std::byte* block) : block_(block) {}

    // Throws Error with OUT_OF_MEMORY if the number of bytes does not fit.
    template <class Element>
    Element* array(int64_t n) {
        return reinterpret_cast<Element*>(bytes(n, sizeof(Element)));
    }
    std::byte* bytes(int64_t n, int64_t bytes_each);

    std::size_t n_bytes() const { return n_bytes_; }

 private:
    std::byte* block_;
    std::size_t n_bytes_ = 0;
};

// The bytes that lay_out(layout) takes.
template <class LayOut>
std::size_t bytes_of_layout(const LayOut& lay_out) {
    Layout counted(nullptr);
    lay_out(counted);
    return counted.n_bytes();
}

// Calls lay_out(layout) twice: first to count bytes, then to place arrays in the block that allocate(n_bytes) returns.
template <class Allocate, class LayOut>
void lay_out_twice(const Allocate& allocate, const LayOut& lay_out) {
    Layout layout(allocate(bytes_of_layout(lay_out)));
    lay_out(layout);
}

// The arrays must be zeroed before use. A tree has separate claims unless it shares those of another tree over the same
// slots.
DeviceTree lay_out_tree(int64_t capacity, Layout& layout, uint32_t* claims = nullptr);
DeviceLive lay_out_live(int64_t capacity, Layout& layout);
DeviceMaximum lay_out_maximum(int64_t capacity, Layout& layout);

}  // namespace per::cuda

// Memory for the duration of one call, kept from call to call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "cpu/memory/memory.h"

namespace per::cpu {

// Lends a block of memory to each running call. It allocates only if more calls run concurrently than ever before, or
// if a larger block is needed. It is lock-free, so that it works in a forked child.
class ScratchPool {
 public:
    struct Block {
        Memory memory;
        std::size_t bytes = 0;
    };

    // Holds a block while it lives; a small block is part of the object. Throws Error with OUT_OF_MEMORY.
    class Loan {
     public:
        Loan(ScratchPool& pool, std::size_t bytes) : pool_(pool), data_(small_) {
            if (bytes <= sizeof small_) return;
            block_ = pool.take(bytes);
            data_ = block_->memory.data();
        }
        ~Loan() {
            if (block_ != nullptr) pool_.give_back(std::move(block_));
        }
        Loan(const Loan&) = delete;
        Loan& operator=(const Loan&) = delete;

        std::byte* data() const { return data_; }

     private:
        ScratchPool& pool_;
        std::unique_ptr<Block> block_;
        std::byte* data_;
        alignas(64) std::byte small_[4096];
    };

    ScratchPool() = default;
    ~ScratchPool();
    ScratchPool(const ScratchPool&) = delete;
    ScratchPool& operator=(const ScratchPool&) = delete;

 private:
    std::unique_ptr<Block> take(std::size_t bytes);
    void give_back(std::unique_ptr<Block> block) noexcept;

    static constexpr int n_slots = 16;
    std::atomic<Block*> slots_[n_slots] = {};
};

// Cuts arrays from a block. Each array begins at a cache line.
class ScratchLayout {
 public:
    explicit ScratchLayout(std::byte* next) : next_(next) {}

    template <class Element>
    Element* array(int64_t n) {
        Element* const elements = reinterpret_cast<Element*>(next_);
        next_ += bytes_of<Element>(n);
        return elements;
    }

    template <class Element>
    static std::size_t bytes_of(int64_t n) {
        return (static_cast<std::size_t>(n) * sizeof(Element) + 63) / 64 * 64;
    }

 private:
    std::byte* next_;
};

}  // namespace per::cpu

#include "cpu/memory/scratch.h"

namespace per::cpu {

ScratchPool::~ScratchPool() {
    for (std::atomic<Block*>& slot : slots_) delete slot.load();
}

std::unique_ptr<ScratchPool::Block> ScratchPool::take(std::size_t bytes) {
    std::unique_ptr<Block> block;
    for (std::atomic<Block*>& slot : slots_) {
        // The load comes first, since an exchange takes the line from the other threads' caches.
        if (slot.load(std::memory_order_relaxed) == nullptr) continue;
        block.reset(slot.exchange(nullptr, std::memory_order_acquire));
        if (block != nullptr) break;
    }
    if (block == nullptr) block = std::make_unique<Block>();
    if (block->bytes < bytes) {
        block->memory = Memory(bytes);
        block->bytes = bytes;
    }
    return block;
}

void ScratchPool::give_back(std::unique_ptr<Block> block) noexcept {
    for (std::atomic<Block*>& slot : slots_) {
        Block* empty = nullptr;
        if (slot.load(std::memory_order_relaxed) != nullptr) continue;
        if (slot.compare_exchange_strong(empty, block.get(), std::memory_order_release)) {
            block.release();
            return;
        }
    }
}

}  // namespace per::cpu

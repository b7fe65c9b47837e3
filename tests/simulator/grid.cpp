// Never instrumented by ThreadSanitizer, which is informed through its fiber interface: it checks only kernels.
#include "grid.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#if defined(SIMULATOR_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(SIMULATOR_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace simulator {

thread_local const Place* place = nullptr;

namespace {

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

constexpr std::size_t stack_bytes = std::size_t{64} << 10;
constexpr unsigned warp_size = 32;
constexpr int max_collectives = 16;
constexpr std::size_t max_shared_variables = 16;
#if defined(SIMULATOR_TSAN)
// A fiber gets one of this many stacks at random: threads of two kernels that share a stack would hide their races.
constexpr uint32_t min_free_stacks = 64;
#else
constexpr uint32_t min_free_stacks = 1;
#endif

// `acquire` of a clock is ordered after all earlier `release`s of it.
void acquire([[maybe_unused]] void* clock) {
#if defined(SIMULATOR_TSAN)
    if (clock != nullptr) __tsan_acquire(clock);
#endif
}

void release([[maybe_unused]] void* clock) {
#if defined(SIMULATOR_TSAN)
    if (clock != nullptr) __tsan_release(clock);
#endif
}

// The stack of a fiber. Later fibers reuse it; for TSan each is ordered after the previous user.
struct Stack {
    char* memory = nullptr;
    void* tsan_fiber = nullptr;  // kept, as creating and destroying one each time would take most of TSan's time
};

std::atomic<uint64_t> mapped_stacks = 0;
std::atomic<uint64_t> n_grids = 0;

// The stacks of this host thread, until it ends. A pointer, because destructors at exit may still run kernels.
thread_local std::vector<Stack>* stacks_of_thread = nullptr;

struct EndOfThread {
    ~EndOfThread() {
        for (const Stack& stack : *stacks_of_thread) {
#if defined(SIMULATOR_ASAN)
            __asan_unpoison_memory_region(stack.memory, stack_bytes);
#endif
#if defined(SIMULATOR_TSAN)
            __tsan_destroy_fiber(stack.tsan_fiber);
#endif
            munmap(stack.memory, stack_bytes);
        }
        mapped_stacks -= stacks_of_thread->size();
        delete std::exchange(stacks_of_thread, nullptr);
    }
};

std::vector<Stack>& free_stacks() {
    if (stacks_of_thread == nullptr) {
        stacks_of_thread = new std::vector<Stack>;
        static thread_local const EndOfThread end;
    }
    return *stacks_of_thread;
}

struct Block;

enum class State { ready, at_barrier, in_exchange, done };

struct Fiber {
    Place place;
    Block* block = nullptr;
    State state = State::ready;
    fcontext_t context = nullptr;
    Stack stack;
    const void* stack_bottom = nullptr;
    std::size_t stack_size = 0;
    void* fake_stack = nullptr;  // ASan's
};

// Lanes of a warp that call an intrinsic with the same mask. Keeps values of two generations, as fast lanes may be in
// the next one before slow lanes have read the first.
struct Collective {
    unsigned mask = 0;
    unsigned arrived = 0;
    uint64_t generation = 0;
    const char* kind = nullptr;
    uint64_t values[2][warp_size];
    Fiber* waiting[warp_size];
    char clocks[2];
};

struct Warp {
    bool is_slow = false;
    unsigned members = 0;
    unsigned exited = 0;
    int n_collectives = 0;
    Collective collectives[max_collectives];
};

struct SharedVariable {
    const void* key;
    void* memory;
    std::size_t bytes;
};

struct Block {
    unsigned n_threads = 0;
    unsigned n_at_barrier = 0;
    unsigned n_done = 0;
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::unique_ptr<Warp[]> warps;
    std::vector<SharedVariable> shared;
    // Used in turn by the barriers: a thread that continues late must not be ordered after writes that others make
    // before the next barrier.
    char clocks[2];
    uint64_t n_barriers = 0;
};

#if defined(SIMULATOR_TSAN)
// The allocator of shared memory: TSan attributes memory from malloc to the fiber that called it.
class Arena {
 public:
    Arena()
        : memory_(static_cast<char*>(
              mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {}
    ~Arena() { munmap(memory_, size); }

    void* take(std::size_t bytes) {
        bytes = (bytes + 15) / 16 * 16;
        if (used_ + bytes > size) fail("too much shared memory for one grid");
        void* const taken = memory_ + used_;
        used_ += bytes;
        return taken;
    }

 private:
    static constexpr std::size_t size = std::size_t{32} << 20;
    char* const memory_;
    std::size_t used_ = 0;
};
#endif

struct Scheduler {
    const std::function<void()>* kernel = nullptr;
    const GridOptions* options = nullptr;
    const uint64_t number = ++n_grids;
    uint64_t random = 0;
    // In every second grid some warps are slow: they continue once for each 64 times that others could. If all warps
    // were equally fast, none would fall far behind, and a missing barrier between them might never matter.
    bool has_slow_warps = false;
    std::size_t n_alive = 0;
    std::vector<Fiber*> ready;
    char made = 0;  // a clock, after which threads are ordered: the host has made them
    // A second clock, for work that follows the grid. With options->clock, threads that start later would appear to
    // follow threads that have ended. It lies on the heap, as TSan forgets the clocks of freed memory there.
    std::unique_ptr<char> ended = std::make_unique<char>();
    Fiber main;
    Fiber* running = &main;
#if defined(SIMULATOR_TSAN)
    Arena arena;
#endif

    uint64_t next_random() {  // xorshift64
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        return random;
    }

    uint32_t random_below(uint32_t n) {
        return static_cast<uint32_t>((next_random() >> 32) * n >> 32);
    }
};

thread_local Scheduler* scheduler = nullptr;

// Called first in a fiber that is switched to.
void arrive(transfer_t transfer) {
    Fiber* const from = static_cast<Fiber*>(transfer.data);
    from->context = transfer.fctx;
#if defined(SIMULATOR_ASAN)
    const void* bottom;
    std::size_t size;
    __sanitizer_finish_switch_fiber(scheduler->running->fake_stack, &bottom, &size);
    if (from == &scheduler->main) {
        from->stack_bottom = bottom;
        from->stack_size = size;
    }
#endif
}

void switch_to(Fiber& to) {
    Fiber& from = *scheduler->running;
    if (&from == &to) return;
    scheduler->running = &to;
    place = &to == &scheduler->main ? nullptr : &to.place;
#if defined(SIMULATOR_ASAN)
    const bool ends = from.state == State::done;
    __sanitizer_start_switch_fiber(ends ? nullptr : &from.fake_stack, to.stack_bottom, to.stack_size);
#endif
#if defined(SIMULATOR_TSAN)
    __tsan_switch_to_fiber(to.stack.tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
    arrive(jump_fcontext(to.context, &from));
}

void make_ready(Fiber* fiber) {
    fiber->state = State::ready;
    scheduler->ready.push_back(fiber);
}

bool is_slow(const Fiber& fiber) {
    return fiber.block->warps[fiber.place.warp].is_slow;
}

void switch_to_any() {
    Scheduler& s = *scheduler;
    if (s.n_alive == 0) {
        switch_to(s.main);
        return;
    }
    if (s.ready.empty()) fail("deadlock: every thread left waits at a barrier or in a warp intrinsic");
    const auto random_thread = [&] { return s.random_below(static_cast<uint32_t>(s.ready.size())); };
    std::size_t i = random_thread();
    for (int n = 0; n < 16 && is_slow(*s.ready[i]) && s.random_below(64) != 0; ++n) i = random_thread();
    Fiber* const next = s.ready[i];
    s.ready[i] = s.ready.back();
    s.ready.pop_back();
    switch_to(*next);
}

Fiber& running_thread() {
    if (scheduler == nullptr || scheduler->running == &scheduler->main) fail("called outside of a kernel");
    return *scheduler->running;
}

void run_fiber(transfer_t transfer) {
    arrive(transfer);
    Fiber& fiber = *scheduler->running;
    acquire(&scheduler->made);
    acquire(scheduler->options->clock);
    acquire(scheduler->options->after);
    (*scheduler->kernel)();
    Block& block = *fiber.block;
    fiber.state = State::done;
    block.n_done++;
    block.warps[fiber.place.warp].exited |= 1u << fiber.place.lane;
    if (block.n_at_barrier != 0) fail("returned while others of its block wait at __syncthreads()");
    release(scheduler->ended.get());
    --scheduler->n_alive;
    switch_to_any();
}

Stack take_stack() {
    std::vector<Stack>& stacks = free_stacks();
    if (stacks.size() >= min_free_stacks) {
#if defined(SIMULATOR_TSAN)
        std::swap(stacks.back(),
                  stacks.end()[-1 - static_cast<std::ptrdiff_t>(scheduler->random_below(min_free_stacks))]);
#endif
        const Stack stack = stacks.back();
        stacks.pop_back();
#if defined(SIMULATOR_ASAN)
        __asan_unpoison_memory_region(stack.memory, stack_bytes);
#endif
        return stack;
    }
    void* const memory =
        mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("no memory for stacks");
    ++mapped_stacks;
    Stack stack = {static_cast<char*>(memory), nullptr};
#if defined(SIMULATOR_TSAN)
    stack.tsan_fiber = __tsan_create_fiber(0);
#endif
    return stack;
}

dim3 coordinates(unsigned i, dim3 size) {
    return dim3(i % size.x, i / size.x % size.y, i / size.x / size.y);
}

std::unique_ptr<Block> make_block(unsigned block_number, dim3 grid_size, dim3 block_size) {
    auto block = std::make_unique<Block>();
    block->n_threads = block_size.x * block_size.y * block_size.z;
    // The warps are not cleared, which would cost more than a small kernel.
    block->warps = std::make_unique_for_overwrite<Warp[]>((block->n_threads + warp_size - 1) / warp_size);
    block->shared.reserve(max_shared_variables);
    for (unsigned i = 0; i < block->n_threads; ++i) {
        auto fiber = std::make_unique<Fiber>();
        fiber->place = {coordinates(i, block_size),
                        coordinates(block_number, grid_size),
                        block_size,
                        grid_size,
                        i % warp_size,
                        i / warp_size,
                        scheduler->number};
        fiber->block = block.get();
        fiber->stack = take_stack();
        fiber->stack_bottom = fiber->stack.memory;
        fiber->stack_size = stack_bytes;
        // Stacks with the same offset from a page would share a few cache lines.
        const std::size_t used = stack_bytes - i % 64 * 320;
        fiber->context = make_fcontext(fiber->stack.memory + used, used, &run_fiber);
        Warp& warp = block->warps[i / warp_size];
        if (i % warp_size == 0) warp.is_slow = scheduler->has_slow_warps && scheduler->random_below(4) == 0;
        warp.members |= 1u << i % warp_size;
        scheduler->ready.push_back(fiber.get());
        ++scheduler->n_alive;
        block->fibers.push_back(std::move(fiber));
    }
    return block;
}

void end_block(Block& block) {
    for (const auto& fiber : block.fibers) free_stacks().push_back(fiber->stack);
#if !defined(SIMULATOR_TSAN)
    for (const SharedVariable& variable : block.shared) std::free(variable.memory);
#endif
}

Collective& collective_for(Warp& warp, unsigned mask) {
    Collective* idle = nullptr;
    for (int i = 0; i < warp.n_collectives; ++i) {
        Collective& collective = warp.collectives[i];
        if (collective.mask == mask) return collective;
        if (collective.arrived == 0) idle = &collective;
    }
    if (warp.n_collectives < max_collectives) idle = &warp.collectives[warp.n_collectives++];
    if (idle == nullptr) fail("too many different masks in one warp");
    idle->mask = mask;
    return *idle;
}

}  // namespace

void fail(const char* what) {
    if (place == nullptr)
        std::fprintf(stderr, "simulator: %s\n", what);
    else
        std::fprintf(stderr, "simulator: %s: block (%u, %u, %u), thread (%u, %u, %u)\n", what, place->block.x,
                     place->block.y, place->block.z, place->thread.x, place->thread.y, place->thread.z);
    std::abort();
}

uint64_t n_stacks() {
    return mapped_stacks;
}

void yield() {
    make_ready(&running_thread());
    switch_to_any();
}

std::function<void()> meanwhile;

void wait_for_others() {
    if (meanwhile) {
        Scheduler* const own = std::exchange(scheduler, nullptr);
        const Place* const own_place = std::exchange(place, nullptr);
        const std::function<void()> call = meanwhile;  // it may set another one
        call();
        scheduler = own;
        place = own_place;
    }
    yield();
}

void block_barrier() {
    Fiber& self = running_thread();
    Block& block = *self.block;
    if (block.n_done != 0) fail("__syncthreads() after a thread of the block returned");
    char* const clock = &block.clocks[block.n_barriers % 2];
    release(clock);
    if (++block.n_at_barrier == block.n_threads) {
        block.n_at_barrier = 0;
        ++block.n_barriers;
        self.state = State::at_barrier;
        for (const auto& fiber : block.fibers)
            if (fiber->state == State::at_barrier) make_ready(fiber.get());
    } else {
        self.state = State::at_barrier;
    }
    switch_to_any();
    acquire(clock);
    ++self.place.n_barriers;
}

void exchange(const char* kind, unsigned mask, uint64_t value, uint64_t (&values_out)[32]) {
    Fiber& self = running_thread();
    Warp& warp = self.block->warps[self.place.warp];
    const unsigned lane = self.place.lane;
    mask &= warp.members;  // a GPU ignores the lanes that a short last warp does not have
    if ((mask >> lane & 1) == 0) fail("warp intrinsic: the calling lane is not in its own mask");
    if ((mask & warp.exited) != 0) fail("warp intrinsic: the mask names a lane that has returned");
    Collective& collective = collective_for(warp, mask);
    if (collective.arrived == 0) collective.kind = kind;
    if (std::strcmp(collective.kind, kind) != 0) fail("warp intrinsic: lanes of one mask call different ones");
    const int side = static_cast<int>(collective.generation & 1);
    collective.values[side][lane] = value;
    collective.arrived |= 1u << lane;
    release(&collective.clocks[side]);
    if (collective.arrived == mask) {
        collective.arrived = 0;
        ++collective.generation;
        collective.waiting[lane] = &self;
        for (unsigned i = 0; i < warp_size; ++i)
            if (mask >> i & 1) make_ready(collective.waiting[i]);
    } else {
        collective.waiting[lane] = &self;
        self.state = State::in_exchange;
    }
    switch_to_any();
    acquire(&collective.clocks[side]);
    ++self.place.n_exchanges;
    // A loop, as TSan also sees calls of memcpy() from here.
    for (unsigned i = 0; i < warp_size; ++i) values_out[i] = collective.values[side][i];
}

void* shared_memory(const void* key, std::size_t bytes) {
    Block& block = *running_thread().block;
    for (const SharedVariable& variable : block.shared)
        if (variable.key == key) return variable.memory;
    if (block.shared.size() == max_shared_variables) fail("too many shared variables in one kernel");
#if defined(SIMULATOR_TSAN)
    void* const memory = scheduler->arena.take(bytes);
#else
    void* const memory = std::malloc(bytes);
#endif
    for (std::size_t i = 0; i < bytes; ++i) static_cast<unsigned char*>(memory)[i] = 0xCB;
    block.shared.push_back({key, memory, bytes});
    return memory;
}

bool is_shared_memory(const void* memory) {
    if (place == nullptr) return false;
    const auto address = reinterpret_cast<uintptr_t>(memory);
    return std::ranges::any_of(running_thread().block->shared, [address](const SharedVariable& variable) {
        return address - reinterpret_cast<uintptr_t>(variable.memory) < variable.bytes;
    });
}

void run_after([[maybe_unused]] void* clock, const std::function<void()>& call) {
#if defined(SIMULATOR_TSAN)
    void* const host = __tsan_get_current_fiber();
    void* const other = __tsan_create_fiber(0);
    __tsan_switch_to_fiber(other, __tsan_switch_to_fiber_no_sync);
    acquire(clock);
    call();
    __tsan_switch_to_fiber(host, __tsan_switch_to_fiber_no_sync);
    __tsan_destroy_fiber(other);
#else
    call();
#endif
}

void run_grid(dim3 grid_size, dim3 block_size, const std::function<void()>& kernel, const GridOptions& options) {
    if (scheduler != nullptr) fail("a kernel launches a kernel");
    Scheduler s;
    s.kernel = &kernel;
    s.options = &options;
    s.random = (options.seed + 1) * 0x9E3779B97F4A7C15u | 1;
    s.has_slow_warps = s.random_below(2) == 0;
#if defined(SIMULATOR_TSAN)
    s.main.stack.tsan_fiber = __tsan_get_current_fiber();
#endif
    scheduler = &s;
    const unsigned n_blocks = grid_size.x * grid_size.y * grid_size.z;
    std::vector<unsigned> order(n_blocks);
    for (unsigned i = 0; i < n_blocks; ++i) order[i] = i;
    for (unsigned i = n_blocks; i > 1; --i) std::swap(order[i - 1], order[s.random_below(i)]);
    const unsigned n_together = options.all_blocks_resident ? n_blocks : 1;
    // TSan would attribute memory that a fiber allocates to that fiber, so no container may grow in one.
    s.ready.reserve(std::size_t{n_together} * block_size.x * block_size.y * block_size.z);
    std::vector<std::unique_ptr<Block>> blocks;
    for (unsigned first = 0; first < n_blocks; first += n_together) {
        const std::size_t n_ended = blocks.size();
        for (unsigned i = first; i < first + n_together; ++i)
            blocks.push_back(make_block(order[i], grid_size, block_size));
        release(&s.made);
        switch_to_any();
        for (std::size_t i = n_ended; i < blocks.size(); ++i) end_block(*blocks[i]);
    }
    scheduler = nullptr;
    run_after(s.ended.get(), [&] {
        release(options.clock);
        blocks.clear();
    });
}

}  // namespace simulator

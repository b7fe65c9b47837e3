// The simulated GPU behaves like CUDA, in many orders of work, and detects behaviour that CUDA leaves undefined.
#include "simulator.h"
#include "graph.h"
#include "run_length.h"
#include "steered_simulator.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZED 1
#endif
// Skips tests with deliberate races.
#if defined(THREAD_SANITIZED)
#include <sanitizer/tsan_interface.h>
#define SKIP_RACES() GTEST_SKIP() << "ThreadSanitizer sees the race"
#else
#define SKIP_RACES()
#endif

namespace {

using per::test::Graph;

constexpr unsigned all_lanes = ~0u;

template <class Kernel>
void run(dim3 grid, dim3 block, uint64_t seed, const Kernel& kernel) {
    static char clock;
    simulator::run_grid(grid, block, kernel,
                        {.seed = seed, .all_blocks_resident = false, .clock = &clock, .after = nullptr});
#if defined(THREAD_SANITIZED)
    __tsan_acquire(&clock);
#endif
}

// ---- threads

TEST(Grid, runs_each_thread_of_each_block_once) {
    std::vector<int> runs(3 * 5 * 70);
    run(dim3(3, 5), dim3(35, 2), 1, [&] {
        const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
        const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
        ++runs[block * 70 + thread];
    });
    EXPECT_EQ(runs, std::vector<int>(3 * 5 * 70, 1));
}

TEST(Grid, stacks_go_with_the_thread_of_the_host_that_ran_it) {
    const uint64_t before = simulator::n_stacks();
    uint64_t while_it_lives = 0;
    std::thread([&] {
        run(1, 64, 1, [] {});
        run(1, 64, 2, [] {});
        while_it_lives = simulator::n_stacks();
    }).join();
    EXPECT_GE(while_it_lives, before + 64);
    EXPECT_EQ(simulator::n_stacks(), before);
}

TEST(Grid, a_seed_is_a_schedule) {
    SKIP_RACES();
    const auto order = [](uint64_t seed) {
        std::vector<unsigned> threads;
        run(2, 64, seed, [&] { threads.push_back(blockIdx.x * 64 + threadIdx.x); });
        return threads;
    };
    EXPECT_EQ(order(3), order(3));
    std::set<std::vector<unsigned>> orders;
    for (uint64_t seed = 0; seed < 20; ++seed) orders.insert(order(seed));
    EXPECT_EQ(orders.size(), 20u);
}

TEST(Grid, nobody_passes_a_barrier_before_all_are_there) {
    SKIP_RACES();
    for (uint64_t seed = 0; seed < 20; ++seed) {
        unsigned n_before[3] = {};
        run(1, 100, seed, [&] {
            for (unsigned& n : n_before) {
                ++n;
                __syncthreads();
                if (n != 100) simulator::fail("too early");
            }
        });
    }
}

TEST(Grid, intrinsics_of_a_warp_do_what_cuda_says) {
    run(1, 64, 5, [] {
        const unsigned lane = threadIdx.x % 32;
        const auto expect = [](bool so) {
            if (!so) simulator::fail("wrong value");
        };
        expect(__shfl_sync(all_lanes, lane * 3, 7) == 21);
        expect(__shfl_up_sync(all_lanes, lane, 3u) == (lane < 3 ? lane : lane - 3));
        expect(__ballot_sync(all_lanes, lane % 2) == 0xaaaaaaaa);
        expect(__reduce_max_sync(all_lanes, lane ^ 9) == 31 && __reduce_min_sync(all_lanes, lane + 4) == 4);
        expect(__reduce_add_sync(all_lanes, lane) == 496);
        // Halves of a warp run separately.
        const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
        expect(__reduce_add_sync(half, 1) == 16);
        __syncwarp(half);
    });
}

TEST(Grid, shared_memory_is_one_for_the_block_and_garbage_at_first) {
    struct Row {
        unsigned at[40];
    };
    run(3, 40, 1, [] {
        PER_SHARED(Row, row);
        if (row.at[threadIdx.x] != 0xCBCBCBCB) simulator::fail("not garbage");
        __syncthreads();
        row.at[threadIdx.x] = threadIdx.x;
        __syncthreads();
        if (row.at[39 - threadIdx.x] != 39 - threadIdx.x) simulator::fail("not shared");
    });
}

TEST(Grid, atomics_lose_nothing) {
    uint64_t sum = 0;
    unsigned largest = 0;
    run(4, 64, 1, [&] {
        atomicAdd(&sum, threadIdx.x);
        atomicMax(&largest, blockIdx.x * 64 + threadIdx.x);
        simulator::yield();
    });
    EXPECT_EQ(sum, 4u * 2016);
    EXPECT_EQ(largest, 255u);
    EXPECT_EQ(atomicCAS(&largest, 255u, 3u), 255u);
    EXPECT_EQ(atomicExch(&largest, 4u), 3u);
    EXPECT_EQ(atomicMin(&largest, 2u), 4u);
}

// ---- undefined behaviour of CUDA

TEST(GridDeath, a_full_mask_after_an_early_return) {
    const auto kernel = [] {
        if (threadIdx.x >= 31) return;
        __reduce_max_sync(all_lanes, 1);
    };
    for (uint64_t seed = 0; seed < 5; ++seed)
        EXPECT_DEATH(run(1, 32, seed, kernel), "a lane that has returned|every thread left waits");
}

TEST(MemoryDeath, freed_by_the_function_for_memory_of_another_kind) {
    void *device = nullptr, *pinned = nullptr;
    ASSERT_EQ(cudaMalloc(&device, 1), cudaSuccess);
    ASSERT_EQ(cudaMallocHost(&pinned, 1), cudaSuccess);
    EXPECT_DEATH(cudaFreeHost(device), "of another kind");
    EXPECT_DEATH(cudaFree(pinned), "of another kind");
    EXPECT_EQ(cudaFree(device), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST(GridDeath, a_barrier_that_part_of_the_block_reaches) {
    EXPECT_DEATH(run(1, 64, 1,
                     [] {
                         if (threadIdx.x < 32) __syncthreads();
                     }),
                 "__syncthreads");
    EXPECT_DEATH(run(1, 64, 1,
                     [] {
                         if (threadIdx.x < 32)
                             __syncthreads();
                         else
                             __syncwarp(1u << threadIdx.x % 32);
                     }),
                 "__syncthreads");
}

TEST(GridDeath, a_mask_without_its_caller_and_a_shuffle_from_outside) {
    EXPECT_DEATH(run(1, 32, 1, [] { __syncwarp(1); }), "not in its own mask");
    EXPECT_DEATH(run(1, 32, 1,
                     [] {
                         if (threadIdx.x < 16) __shfl_sync(0xffffu, 1, 20);
                     }),
                 "not in the mask");
}

TEST(GridDeath, masks_that_do_not_agree) {
    EXPECT_DEATH(run(1, 32, 1, [] { __syncwarp(threadIdx.x < 16 ? all_lanes : 0xffff0000u); }),
                 "waits|a lane that has returned");
    EXPECT_DEATH(run(1, 32, 1,
                     [] {
                         if (threadIdx.x < 16)
                             __syncwarp();
                         else
                             __ballot_sync(all_lanes, 1);
                     }),
                 "call different ones");
}

// ---- faults that sanitizers detect

#if defined(ADDRESS_SANITIZED)
TEST(GridDeath, asan_sees_beyond_the_end_of_shared_memory) {
    struct Row {
        unsigned at[40];
    };
    EXPECT_DEATH(run(1, 64, 1,
                     [] {
                         PER_SHARED(Row, row);
                         row.at[threadIdx.x] = 1;
                     }),
                 "heap-buffer-overflow");
}
#endif

#if defined(THREAD_SANITIZED)
// Exit status of a process in which TSan reported a race. The process must be a new one: after a fork of a process that
// has fibers, TSan detects nothing.
constexpr int exit_of_races = 66;

class OwnProcess {
 public:
    OwnProcess() : before_(testing::GTEST_FLAG(death_test_style)) {
        testing::GTEST_FLAG(death_test_style) = "threadsafe";
    }
    ~OwnProcess() { testing::GTEST_FLAG(death_test_style) = before_; }

 private:
    const std::string before_;
};

void neighbours(bool with_barrier) {
    static unsigned row[64];
    run(1, 64, 1, [with_barrier] {
        row[threadIdx.x] = threadIdx.x;
        if (with_barrier) __syncthreads();
        if (row[63 - threadIdx.x] == 64) simulator::fail("not a thread's number");
    });
    std::exit(0);
}

TEST(GridDeath, tsan_sees_a_missing_barrier) {
    const OwnProcess own_process;
    EXPECT_EXIT(neighbours(false), testing::ExitedWithCode(exit_of_races), "data race");
    EXPECT_EXIT(neighbours(true), testing::ExitedWithCode(0), "");
}
#endif

// ---- streams

class Streams : public per::test::SteeredSimulator {
 protected:
    void SetUp() override {
        simulator::options().seed = 1;
        cudaStreamCreateWithFlags(&a_, cudaStreamNonBlocking);
        cudaStreamCreateWithFlags(&b_, cudaStreamNonBlocking);
        cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    }
    void TearDown() override {
        cudaDeviceSynchronize();
        cudaEventDestroy(event_);
        cudaStreamDestroy(a_);
        cudaStreamDestroy(b_);
        SteeredSimulator::TearDown();
    }

    static void set(cudaStream_t stream, int* at, int value) {
        const cudaLaunchConfig_t config = {1, 1, 0, stream, nullptr, 0};
        const auto kernel = +[](int* to, int number) { *to = number; };
        ASSERT_EQ(cudaLaunchKernelEx(&config, kernel, at, value), cudaSuccess);
    }
    static void copy(cudaStream_t stream, int* to, const int* from) {
        ASSERT_EQ(cudaMemcpyAsync(to, from, sizeof(int), cudaMemcpyDeviceToDevice, stream), cudaSuccess);
    }

    cudaStream_t a_, b_;
    cudaEvent_t event_;
};

TEST_F(Streams, without_an_event_both_orders_happen_with_one_only_the_right_one) {
    SKIP_RACES();
    int n_early = 0;
    int n_early_with_event = 0;
    for (uint64_t seed = 1; seed <= 200; ++seed) {
        simulator::options().seed = seed;
        for (const bool waits : {false, true}) {
            int written = 0;
            int read = -1;
            set(a_, &written, 1);
            cudaEventRecord(event_, a_);
            if (waits) cudaStreamWaitEvent(b_, event_);
            copy(b_, &read, &written);
            cudaDeviceSynchronize();
            (waits ? n_early_with_event : n_early) += read == 0;
        }
    }
    EXPECT_GT(n_early, 20);
    EXPECT_LT(n_early, 180);
    EXPECT_EQ(n_early_with_event, 0);
}

#if defined(THREAD_SANITIZED)
TEST_F(Streams, tsan_sees_a_missing_event) {
    const OwnProcess own_process;
    for (const bool waits : {false, true}) {
        const auto write_and_copy = [&] {
            static int written, read;
            set(a_, &written, 1);
            cudaEventRecord(event_, a_);
            if (waits) cudaStreamWaitEvent(b_, event_);
            copy(b_, &read, &written);
            cudaDeviceSynchronize();
            std::exit(0);
        };
        EXPECT_EXIT(write_and_copy(), testing::ExitedWithCode(waits ? 0 : exit_of_races), waits ? "" : "data race");
    }
}
#endif

TEST_F(Streams, a_slot_ring_needs_its_release_fence) {
    SKIP_RACES();
    int n_corrupt[2] = {};
    for (uint64_t seed = 1; seed <= 100; ++seed) {
        simulator::options().seed = seed;
        for (const bool waits : {false, true}) {
            int slots[2] = {};
            int read[12];
            cudaEvent_t ready, released[2];
            cudaEventCreateWithFlags(&ready, 0);
            for (cudaEvent_t& event : released) cudaEventCreateWithFlags(&event, 0);
            for (int k = 0; k < 12; ++k) {
                if (waits) cudaStreamWaitEvent(a_, released[k % 2]);
                set(a_, &slots[k % 2], k);
                cudaEventRecord(ready, a_);
                cudaStreamWaitEvent(b_, ready);
                copy(b_, &read[k], &slots[k % 2]);
                cudaEventRecord(released[k % 2], b_);
            }
            cudaDeviceSynchronize();
            for (int k = 0; k < 12; ++k)
                if (read[k] != k) {
                    ++n_corrupt[waits];
                    break;
                }
            cudaEventDestroy(ready);
            for (const cudaEvent_t event : released) cudaEventDestroy(event);
        }
    }
    EXPECT_GT(n_corrupt[0], 50);
    EXPECT_EQ(n_corrupt[1], 0);
}

TEST_F(Streams, the_legacy_stream_waits_for_blocking_streams_and_they_for_it) {
    cudaStream_t blocking;
    cudaStreamCreateWithFlags(&blocking, cudaStreamDefault);
    for (uint64_t seed = 1; seed <= 50; ++seed) {
        simulator::options().seed = seed;
        int first = 0, second = 0, third = 0;
        set(blocking, &first, 1);
        copy(nullptr, &second, &first);
        copy(blocking, &third, &second);
        cudaStreamSynchronize(blocking);
        EXPECT_EQ(third, 1);
    }
    cudaStreamDestroy(blocking);
}

TEST_F(Streams, a_handle_is_used_again_for_another_stream_while_the_work_of_the_first_goes_on) {
    SKIP_RACES();
    simulator::options().destroying_waits = false;
    int n_early = 0;
    for (uint64_t seed = 1; seed <= 100; ++seed) {
        simulator::options().seed = seed;
        int written = 0, read = -1;
        cudaStream_t first, second;
        unsigned long long ids[2];
        cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
        cudaStreamGetId(first, &ids[0]);
        set(first, &written, 1);
        cudaStreamDestroy(first);
        cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
        cudaStreamGetId(second, &ids[1]);
        EXPECT_EQ(first, second);
        EXPECT_NE(ids[0], ids[1]);
        copy(second, &read, &written);
        cudaStreamDestroy(second);
        cudaDeviceSynchronize();
        EXPECT_EQ(written, 1);
        n_early += read == 0;
    }
    EXPECT_GT(n_early, 10);
    EXPECT_LT(n_early, 90);
}

TEST_F(Streams, a_device_has_a_context_once_a_call_needs_one_or_it_is_set) {
    simulator::options().n_devices = 4;
    simulator::forget_contexts();
    std::thread([] {
        int device = -1;
        cudaGetDevice(&device);
        EXPECT_EQ(device, 0);
        EXPECT_FALSE(simulator::has_context(0));
        CUcontext of_two, popped;
        cuDevicePrimaryCtxRetain(&of_two, 2);
        cuCtxPushCurrent(of_two);
        cudaGetDevice(&device);
        EXPECT_EQ(device, 2);
        cudaEvent_t event;
        cudaEventCreateWithFlags(&event, 0);
        cudaEventDestroy(event);
        cuCtxPopCurrent(&popped);
        EXPECT_EQ(popped, of_two);
        EXPECT_FALSE(simulator::has_context(0));
        cudaSetDevice(3);
        EXPECT_TRUE(simulator::has_context(3));
        cudaSetDevice(0);
        EXPECT_TRUE(simulator::has_context(0));
        EXPECT_FALSE(simulator::has_context(1));
    }).join();
}

TEST_F(Streams, a_copy_of_another_kind_than_its_arrays_is_refused) {
    void *device, *pinned;
    cudaMalloc(&device, 8);
    cudaMallocHost(&pinned, 8);
    const auto copied = [&](void* to, const void* from, cudaMemcpyKind kind) {
        return cudaMemcpyAsync(to, from, 8, kind, a_);
    };
    EXPECT_EQ(copied(pinned, device, cudaMemcpyDeviceToDevice), cudaErrorInvalidMemcpyDirection);
    EXPECT_EQ(copied(device, pinned, cudaMemcpyDeviceToHost), cudaErrorInvalidMemcpyDirection);
    EXPECT_EQ(copied(pinned, device, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(copied(device, pinned, cudaMemcpyDefault), cudaSuccess);
    cudaDeviceSynchronize();
    cudaFree(device);
    cudaFreeHost(pinned);
}

TEST_F(Streams, a_copy_of_memory_that_is_not_pinned_spoils_captures_and_one_that_is_does_not) {
    void *device, *pinned;
    uint64_t pageable = 0;
    cudaMalloc(&device, 8);
    cudaMallocHost(&pinned, 8);
    for (void* const host : {pinned, static_cast<void*>(&pageable)}) {
        const bool is_spoilt = host != pinned;
        cudaGraph_t graph;
        ASSERT_EQ(cudaStreamBeginCapture(a_, cudaStreamCaptureModeGlobal), cudaSuccess);
        EXPECT_EQ(cudaMemcpyAsync(host, device, 8, cudaMemcpyDeviceToHost, b_),
                  is_spoilt ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
        EXPECT_EQ(cudaStreamEndCapture(a_, &graph), is_spoilt ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
        if (graph != nullptr) cudaGraphDestroy(graph);
    }
    cudaDeviceSynchronize();
    cudaFree(device);
    cudaFreeHost(pinned);
}

TEST_F(Streams, waits_for_an_event_that_lets_threads_sleep_do_not_spin_and_each_record_interrupts_the_host) {
    cudaEvent_t sleeping;
    cudaEventCreateWithFlags(&sleeping, cudaEventDisableTiming | cudaEventBlockingSync);
    simulator::reset_counters();
    cudaEventSynchronize(sleeping);
    EXPECT_EQ(simulator::counters().spins, 0u);
    cudaEventSynchronize(event_);
    cudaStreamSynchronize(a_);
    EXPECT_EQ(simulator::counters().spins, 2u);
    EXPECT_EQ(simulator::counters().host_waits, 3u);
    EXPECT_EQ(simulator::counters().interrupts, 0u);
    for (const cudaEvent_t event : {sleeping, event_, sleeping}) cudaEventRecord(event, a_);
    EXPECT_EQ(simulator::counters().interrupts, 2u);
    cudaEventDestroy(sleeping);
}

TEST_F(Streams, a_graph_runs_when_it_is_launched_and_each_time_again) {
    int number = 0;
    const cudaLaunchConfig_t config = {1, 1, 0, a_, nullptr, 0};
    const Graph graph(a_, [&] {
        cudaLaunchKernelEx(
            &config, +[](int* at) { ++*at; }, &number);
        cudaLaunchKernelEx(
            &config, +[](int* at) { *at *= 10; }, &number);
    });
    cudaStreamSynchronize(a_);
    EXPECT_EQ(number, 0);
    for (int i = 0; i < 3; ++i) graph.launch(b_);
    cudaStreamSynchronize(b_);
    EXPECT_EQ(number, 1110);
}

TEST_F(Streams, what_a_capture_forbids_is_refused) {
    void* memory;
    cudaGraph_t graph;
    cudaEventRecord(event_, b_);
    const auto captured = [&](const auto& call, cudaError_t expected, cudaError_t end) {
        ASSERT_EQ(cudaStreamBeginCapture(a_, cudaStreamCaptureModeGlobal), cudaSuccess);
        EXPECT_EQ(call(), expected);
        EXPECT_EQ(cudaStreamEndCapture(a_, &graph), end);
        if (graph != nullptr) cudaGraphDestroy(graph);
    };
    captured([&] { return cudaMalloc(&memory, 8); }, cudaErrorStreamCaptureUnsupported,
             cudaErrorStreamCaptureInvalidated);
    cudaFuncAttributes attributes;
    void (*const kernel)() = [] {};
    captured([&] { return cudaFuncGetAttributes(&attributes, kernel); }, cudaErrorStreamCaptureUnsupported,
             cudaErrorStreamCaptureInvalidated);
    captured([&] { return cudaStreamSynchronize(a_); }, cudaErrorStreamCaptureUnsupported,
             cudaErrorStreamCaptureInvalidated);
    captured([&] { return cudaStreamWaitEvent(a_, event_); }, cudaErrorStreamCaptureIsolation,
             cudaErrorStreamCaptureInvalidated);
    captured([&] { return cudaMemsetAsync(&memory, 0, 8, nullptr); }, cudaErrorStreamCaptureImplicit, cudaSuccess);
    captured([&] { return cudaStreamSynchronize(b_); }, cudaErrorStreamCaptureUnsupported,
             cudaErrorStreamCaptureInvalidated);
    captured([&] { return cudaEventRecord(event_, a_), cudaStreamWaitEvent(b_, event_); }, cudaSuccess, cudaSuccess);
    EXPECT_EQ(cudaEventSynchronize(event_), cudaErrorCapturedEvent);
}

// A thread that waits while another one captures invalidates the capture, unless it has exchanged its own capture mode.
TEST_F(Streams, a_wait_of_another_thread_spoils_a_capture_unless_that_thread_says_otherwise) {
    cudaGraph_t graph;
    for (const cudaStreamCaptureMode mode :
         {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
        const bool is_spoilt = mode == cudaStreamCaptureModeGlobal;
        ASSERT_EQ(cudaStreamBeginCapture(a_, cudaStreamCaptureModeGlobal), cudaSuccess);
        cudaError_t error = cudaSuccess;
        std::thread other([&] {
            cudaStreamCaptureMode own = mode;
            cudaThreadExchangeStreamCaptureMode(&own);
            error = cudaEventSynchronize(event_);
        });
        other.join();
        EXPECT_EQ(error, is_spoilt ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
        EXPECT_EQ(cudaStreamEndCapture(a_, &graph), is_spoilt ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
        if (graph != nullptr) cudaGraphDestroy(graph);
    }
}

TEST_F(Streams, waits_are_counted_for_each_thread_too) {
    simulator::reset_counters();
    std::thread other([&] {
        cudaStreamSynchronize(b_);
        cudaEventSynchronize(event_);
        EXPECT_EQ(simulator::counters_of_thread().host_waits, 2u);
    });
    other.join();
    cudaStreamSynchronize(a_);
    EXPECT_EQ(simulator::counters_of_thread().host_waits, 1u);
    EXPECT_EQ(simulator::counters().host_waits, 3u);
}

TEST_F(Streams, after_a_sticky_error_what_waits_in_streams_is_never_done) {
    std::vector<int> numbers(50, 7);
    for (int& number : numbers) set(a_, &number, 0);
    simulator::stick(cudaErrorIllegalAddress);
    simulator::stick(0);
    EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
    EXPECT_GT(std::count(numbers.begin(), numbers.end(), 7), 0);
}

TEST_F(Streams, waits_and_allocations_are_counted) {
    void* memory;
    simulator::reset_counters();
    cudaMalloc(&memory, 8);
    cudaMemsetAsync(memory, 0, 8, a_);
    cudaStreamSynchronize(a_);
    cudaFree(memory);
    EXPECT_EQ(simulator::counters().allocations, 2u);
    EXPECT_EQ(simulator::counters().host_waits, 1u);
}

TEST_F(Streams, memory_ends_where_the_options_say) {
    const simulator::Held before = simulator::held();
    simulator::options().memory_bytes = 1000;
    void *first, *second, *pinned;
    EXPECT_EQ(cudaMalloc(&first, 600), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&second, 401), cudaErrorMemoryAllocation);
    EXPECT_EQ(cudaMalloc(&second, SIZE_MAX), cudaErrorMemoryAllocation);
    EXPECT_EQ(cudaMalloc(&second, 400), cudaSuccess);
    EXPECT_EQ(cudaMallocHost(&pinned, 2000), cudaSuccess);
    EXPECT_EQ(simulator::held().bytes, before.bytes + 3000);
    cudaFree(first);
    cudaFree(second);
    cudaFreeHost(pinned);
    EXPECT_EQ(simulator::held(), before);
}

TEST_F(Streams, errors_come_when_they_are_told_to) {
    int device;
    simulator::fail_call(1, cudaErrorInvalidValue);
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(cudaGetDevice(&device), cudaErrorInvalidValue);
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    simulator::stick(cudaErrorIllegalAddress);
    EXPECT_EQ(cudaGetDevice(&device), cudaErrorIllegalAddress);
    EXPECT_EQ(cudaStreamSynchronize(a_), cudaErrorIllegalAddress);
    simulator::stick(0);
    const cudaLaunchConfig_t too_large = {1, 2048, 0, a_, nullptr, 0};
    EXPECT_EQ(cudaLaunchKernelEx(
                  &too_large, +[] {}),
              cudaErrorInvalidConfiguration);
}

}  // namespace

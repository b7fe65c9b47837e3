// A loader does not allocate memory for a batch; the C interface cannot show this.
#include "loader/loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "../c/check.h"
#include "backend/batch.h"
#include "replay_call.h"

namespace {

std::atomic<int64_t> allocations = 0;

}  // namespace

#ifndef SANITIZED  // a sanitizer defines these operators
void* operator new(std::size_t size) {
    ++allocations;
    if (void* memory = std::malloc(size)) return memory;
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}
#endif

namespace per::test {
namespace {

// Takes and releases batches of 64 and changes the buffer in between. The test itself does not allocate here.
void run(per_replay* replay, per_loader* loader, int n_batches) {
    static float td_errors[64];
    for (int i = 0; i < n_batches; ++i) {
        per_batch batch;
        int64_t slot = -1;
        per_batch_init(&batch, sizeof batch);
        ASSERT_EQ(per_loader_next(loader, -1, &batch, &slot, nullptr), PER_OK);
        for (int64_t j = 0; j < 64; ++j) td_errors[j] = static_cast<float>((batch.ids[j] + i) % 10);
        ASSERT_EQ(write_td_errors(replay, 64, batch.ids, 1, td_errors, nullptr), PER_OK);
        ASSERT_EQ(per_loader_release(loader, slot, nullptr), PER_OK);
    }
}

TEST(Loader, a_batch_allocates_nothing) {
    for (int32_t scheme : {PER_STRATIFIED, PER_INDEPENDENT, PER_WITHOUT_REPLACEMENT}) {
        per_replay_options options = Buffer::options(1000, 3);
        options.frame_stack = 2;
        options.scheme = scheme;
        Buffer buffer(options);
        for (int i = 0; i < 500; ++i) {
            const auto serial = static_cast<float>(i);
            GivenStep step;
            step.observation = {0, serial};
            step.next = {0, serial + 1};
            buffer.step(step);
        }
        per_loader_options loader_options = initialized(per_loader_options_init);
        loader_options.batch_size = 64;
        per_loader* loader = nullptr;
        ASSERT_EQ(per_loader_create(buffer.get(), &loader_options, &loader), PER_OK);
        run(buffer.get(), loader, 20);  // arrays that are kept between calls reach their final size
        const int64_t before = allocations;
        run(buffer.get(), loader, 200);
        EXPECT_EQ(allocations, before) << "scheme " << scheme;
        per_loader_free(loader);
    }
}

struct Array {
    void* first;
    std::size_t bytes;
};

void expect_apart(const std::vector<Array>& arrays) {
    unsigned char value = 0;
    for (const Array& array : arrays) std::memset(array.first, ++value, array.bytes);
    value = 0;
    for (const Array& array : arrays) {
        ++value;
        EXPECT_EQ(reinterpret_cast<uintptr_t>(array.first) % 64, host_batch_offset);
        for (std::size_t i = 0; i < array.bytes; ++i)
            EXPECT_EQ(static_cast<unsigned char*>(array.first)[i], value) << "array " << int{value};
    }
}

Fields declared_fields() {
    per_field declared[3] = {};
    const int64_t shape[] = {3};
    declared[0].name = "observation";
    declared[0].shape = shape;
    declared[0].ndim = 1;
    declared[0].dtype = PER_UINT8;
    declared[0].stack = 2;
    declared[1].name = "action";
    declared[1].dtype = PER_INT64;
    declared[2].name = "state";
    declared[2].dtype = PER_FLOAT64;
    declared[2].role = PER_ROLE_RECURRENT_STATE;
    per_replay_options options = Buffer::options(10);
    options.fields = declared;
    options.n_fields = 3;
    options.field_size = sizeof(per_field);
    return Fields(options);
}

// The pointers into a batch's memory stay valid when it moves, and no two arrays overlap.
TEST(BatchMemory, arrays_lie_apart) {
    const Fields fields = declared_fields();
    BatchMemory made(fields, {5, 0, 2});
    const BatchMemory memory = std::move(made);
    const per_batch& batch = memory.batch();
    expect_apart({{batch.fields[0], 5 * 2 * 3},
                  {batch.next_fields[0], 5 * 2 * 3},
                  {batch.fields[1], 5 * 8},
                  {batch.fields[2], 5 * 8},
                  {batch.reward, 5 * 4},
                  {batch.discount, 5 * 4},
                  {batch.n_steps, 5 * 4},
                  {batch.terminated, 5},
                  {batch.truncated, 5},
                  {batch.weights, 5 * 4},
                  {batch.ids, 5 * 8},
                  {batch.priorities, 5 * 4},
                  {batch.probabilities, 5 * 4},
                  {batch.gamma_m, 5 * 4}});
    EXPECT_EQ(batch.next_fields[1], nullptr);
    EXPECT_EQ(batch.mask, nullptr);
}

TEST(BatchMemory, arrays_of_sequences_lie_apart) {
    const Fields fields = declared_fields();
    const BatchMemory memory(fields, {5, 7, 2});
    const per_batch& batch = memory.batch();
    expect_apart({{batch.fields[0], 5 * (7 + 2) * 2 * 3},
                  {batch.fields[1], 5 * 7 * 8},
                  {batch.fields[2], 5 * 8},
                  {batch.reward, 5 * 7 * 4},
                  {batch.discount, 5 * 7 * 4},
                  {batch.n_steps, 5 * 7 * 4},
                  {batch.terminated, 5 * 7},
                  {batch.truncated, 5 * 7},
                  {batch.mask, 5 * 7},
                  {batch.weights, 5 * 4},
                  {batch.ids, 5 * 8},
                  {batch.priorities, 5 * 4},
                  {batch.probabilities, 5 * 4},
                  {batch.gamma_m, 5 * 7 * 4}});
    EXPECT_EQ(batch.next_fields[0], nullptr);
}

}  // namespace
}  // namespace per::test

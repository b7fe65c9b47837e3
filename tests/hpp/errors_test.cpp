// Every status is an exception with the library's message, whatever the call.
#include <gtest/gtest.h>
#include <per.hpp>

#include <chrono>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "buffers.h"

namespace {

template <class Expected>
void expect_thrown(per_status status) {
    per_tree_options_init(nullptr, 0);
    const std::string message = per_last_error();
    ASSERT_NE(message, "");
    try {
        per::check(status);
        FAIL() << "nothing was thrown";
    } catch (const Expected& error) {
        EXPECT_EQ(error.status(), status);
        EXPECT_STREQ(error.status_name(), per_status_name(status));
        EXPECT_EQ(error.what(), message);
    }
}

TEST(Error, has_the_type_of_its_status) {
    expect_thrown<per::InvalidArgument>(PER_ERROR_INVALID_ARGUMENT);
    expect_thrown<per::OutOfMemory>(PER_ERROR_OUT_OF_MEMORY);
    expect_thrown<per::Empty>(PER_ERROR_EMPTY);
    expect_thrown<per::Full>(PER_ERROR_FULL);
    expect_thrown<per::Busy>(PER_ERROR_BUSY);
    expect_thrown<per::Unsupported>(PER_ERROR_UNSUPPORTED);
    expect_thrown<per::NoDevice>(PER_ERROR_NO_DEVICE);
    expect_thrown<per::CudaError>(PER_ERROR_CUDA);
    expect_thrown<per::IoError>(PER_ERROR_IO);
    expect_thrown<per::CorruptFile>(PER_ERROR_CORRUPT_FILE);
    expect_thrown<per::InternalError>(PER_ERROR_INTERNAL);
    expect_thrown<per::CallbackError>(PER_ERROR_CALLBACK);
    EXPECT_NO_THROW(per::check(PER_OK));
}

TEST(Error, of_a_status_that_only_a_newer_library_has) {
    try {
        per::check(static_cast<per_status>(13));
        FAIL() << "nothing was thrown";
    } catch (const per::Error& error) {
        EXPECT_EQ(error.status(), 13);
        EXPECT_EQ(typeid(error), typeid(per::Error));
    }
    static_assert(std::is_base_of_v<std::runtime_error, per::Error>);
}

TEST(Error, of_a_call_names_the_argument) {
    per::TreeOptions options;
    options.capacity = -3;
    EXPECT_ERROR(per::SumTree{options}, InvalidArgument, "capacity is -3");
    EXPECT_ERROR(per::ReplayBuffer::load("/no/such/folder/buffer"), IoError, "/no/such/folder/buffer");
    const std::string with_nul("/tmp/per\0other", 14);
    EXPECT_ERROR(per::ReplayBuffer::load(with_nul), InvalidArgument, "path has a NUL");
    EXPECT_ERROR(per::Writer writer(with_nul), InvalidArgument, "path has a NUL");
    per::ReplayBuffer buffer = small_buffer();
    EXPECT_ERROR(buffer.sample(4), Empty, "");
    EXPECT_ERROR(buffer.sample(0), InvalidArgument, "batch_size is 0");
    EXPECT_ERROR(buffer.sample(-1), InvalidArgument, "batch_size is -1");
    const int64_t enormous = int64_t{1} << 60;
    EXPECT_ERROR(buffer.sample(enormous), InvalidArgument,
                 "batch_size is 1152921504606846976: allowed are 1 .. 16777216");
    EXPECT_ERROR((void)buffer.batch(enormous), InvalidArgument, "batch_size is 1152921504606846976");
}

// Handles on PER_CPU refuse a stream, which shows that each method passes it on.
TEST(Error, streams_reach_the_library) {
    int anything = 0;
    void* const stream = &anything;
    std::vector<int64_t> ids = {0};
    std::vector<float> values = {1};
    std::vector<double> sums = {0};
    std::vector<uint64_t> units = {0};
    per_batch none;
    per::check(per_batch_init(&none, sizeof none));

    per::SumTree tree = small_tree();
    tree.update(ids, values);
    EXPECT_ERROR(tree.update(ids, values, stream), InvalidArgument, "stream");
    EXPECT_ERROR(tree.sample(PER_STRATIFIED, 0, ids, {}, {}, stream), InvalidArgument, "stream");
    EXPECT_ERROR(tree.find(sums, ids, stream), InvalidArgument, "stream");
    EXPECT_ERROR(tree.find_mass(units, ids, stream), InvalidArgument, "stream");
    EXPECT_ERROR(tree.priorities(ids, values, stream), InvalidArgument, "stream");
    std::vector<float> all(4);
    EXPECT_ERROR(tree.priorities(all, stream), InvalidArgument, "stream");
    EXPECT_ERROR(tree.reset(stream), InvalidArgument, "stream");
    EXPECT_ERROR(tree.synchronize(stream), InvalidArgument, "stream");

    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 4);
    const per::Hindsight hindsight = buffer.hindsight<float>("observation", "goal", [](auto, auto, auto, auto) {});
    EXPECT_ERROR(buffer.add(buffer.steps(), {}, stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.cut(stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.cut(ids, stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.sample(1, none, nullptr, nullptr, stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.sample(1, none, nullptr, &hindsight, stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.update_priorities(ids, values, 1, stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.update_sequences(ids, 1, values, 1, stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.set_priorities(ids, values, stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.priorities(ids, values, stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.get(ids, none, stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.set(ids, buffer.field_arrays(), stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.clear(stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.set_alpha(1, stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.set_beta(1, stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.set_gamma(1, stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.set_n_step(1, stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.synchronize(stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.epochs(1, 1, false, stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.epochs(1, 1).next(none, stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.bootstraps(0, nullptr, stream), InvalidArgument, "stream");
    EXPECT_ERROR(buffer.advantages("value", "advantage", "", 1, {}, {}, stream), InvalidArgument, "stream");
    per::LoaderOptions options;
    options.batch_size = 1;
    per::Loader loader = buffer.loader(options);
    EXPECT_ERROR(loader.take(stream), InvalidArgument, "stream");
    EXPECT_ERROR(loader.take(std::chrono::milliseconds(0), stream), InvalidArgument, "stream");
    per::Slot slot = loader.take();
    EXPECT_ERROR(slot.release(stream), InvalidArgument, "stream");
}

TEST(Library, tells_its_version) {
    EXPECT_EQ(per::version(), per_version());
    EXPECT_EQ(per::abi_version(), PER_ABI_VERSION);
}

}  // namespace

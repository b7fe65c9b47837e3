// libper built without zstd: the linker replaces has_zstd() by the function here.
#include <gtest/gtest.h>

#include <string>

#include "per.h"
#include "replay_call.h"

extern "C" bool __wrap__ZN3per8has_zstdEv() {
    return false;
}

namespace per::test {
namespace {

TEST(WithoutZstd, compression_is_unsupported) {
    per_replay_options options = Buffer::options(20);
    Buffer buffer(options);
    EXPECT_EQ(change_save_compression(buffer.get(), 3), PER_ERROR_UNSUPPORTED);
    EXPECT_EQ(std::string(per_last_error()), "save_compression is 3: this libper was built without zstd");
    EXPECT_OK(change_save_compression(buffer.get(), 0));
    EXPECT_EQ(change_save_compression(buffer.get(), 20), PER_ERROR_INVALID_ARGUMENT);
    ASSERT_OK(per_replay_describe(buffer.get(), &options));
    options.save_compression = 1;
    per_replay* replay = nullptr;
    EXPECT_EQ(per_replay_create(&options, &replay), PER_ERROR_UNSUPPORTED);
    EXPECT_EQ(replay, nullptr);
}

TEST(WithoutZstd, compressed_file_is_unsupported_and_says_why) {
    per_replay* replay = nullptr;
    EXPECT_EQ(per_replay_load(PER_GOLDEN_COMPRESSED, nullptr, &replay), PER_ERROR_UNSUPPORTED);
    EXPECT_EQ(replay, nullptr);
    const std::string message = per_last_error();
    EXPECT_TRUE(message.ends_with(
        "/buffer_compressed.per cannot be loaded: save_compression is 3: this libper was built without zstd"))
        << message;
}

}  // namespace
}  // namespace per::test

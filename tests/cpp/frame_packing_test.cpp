// A packed frame is restored exactly, packing writes nowhere else, and its output has the format of frame_packing.h.
#include "rows/frame_packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace per::cpu {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr uint8_t guard = 0xa5;
constexpr size_t n_guards = 64;

std::byte* at(Bytes& bytes) {
    return reinterpret_cast<std::byte*>(bytes.data());
}
const std::byte* at(const Bytes& bytes) {
    return reinterpret_cast<const std::byte*>(bytes.data());
}

// Packs a frame. Returns nothing if it does not fit. Checks that the bytes after the output are unchanged.
std::optional<Bytes> packed(const FrameShape& shape, const Bytes& frame, const Bytes& key) {
    const size_t room = static_cast<size_t>(most_packed_bytes(shape));
    Bytes out(room + n_guards, guard);
    const int64_t n = pack_frame(shape, at(frame), at(key), at(out));
    EXPECT_EQ(std::count(out.begin() + static_cast<std::ptrdiff_t>(room), out.end(), guard), n_guards);
    if (n < 0) return {};
    EXPECT_LE(n, most_packed_bytes(shape));
    return Bytes(out.begin(), out.begin() + n);
}

Bytes unpacked(const FrameShape& shape, const Bytes& pack, const Bytes& key) {
    Bytes out(static_cast<size_t>(shape.bytes) + 2 * n_guards, guard);
    unpack_frame(shape, at(pack), static_cast<int64_t>(pack.size()), at(key), at(out) + n_guards);
    EXPECT_EQ(std::count(out.begin(), out.begin() + n_guards, guard), n_guards);
    EXPECT_EQ(std::count(out.end() - n_guards, out.end(), guard), n_guards);
    return Bytes(out.begin() + n_guards, out.end() - n_guards);
}

// Each kind of step, by hand: 300 bytes of the key; four literal bytes; six of the previous pixel; eight of the line
// above.
TEST(FramePacking, steps_are_as_they_are_described) {
    const FrameShape shape = {600, 1, 20};
    Bytes key(600);
    for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(i * i / 7 + 3 * i);
    Bytes frame = key;
    for (size_t i = 0; i < 4; ++i) frame[300 + i] = static_cast<uint8_t>(~key[300 + i]);
    std::fill(frame.begin() + 304, frame.begin() + 310, frame[303]);
    for (size_t i = 500; i < 508; ++i) frame[i] = frame[i - 20];
    const Bytes expected = {255,        0,          45, 4,           frame[300], frame[301],
                            frame[302], frame[303], 0,  128 + 6 - 4, 190,        192 + 8 - 4};
    EXPECT_EQ(packed(shape, frame, key), expected);
    EXPECT_EQ(unpacked(shape, expected, key), frame);
}

TEST(FramePacking, the_key_itself_takes_no_bytes) {
    const FrameShape shape = {100, 1, 10};
    const Bytes key(100, 7);
    EXPECT_EQ(packed(shape, key, key), Bytes());
    EXPECT_EQ(unpacked(shape, {}, key), key);
}

TEST(FramePacking, noise_is_not_packed) {
    std::mt19937 random(1);
    for (const int64_t bytes : {8, 100, 7056}) {
        const FrameShape shape = {bytes, 1, 84};
        Bytes frame(static_cast<size_t>(bytes)), key(frame.size());
        for (size_t i = 0; i < frame.size(); ++i) {
            key[i] = static_cast<uint8_t>(random());
            frame[i] = static_cast<uint8_t>(key[i] + 1 + random() % 255);
        }
        EXPECT_EQ(packed(shape, frame, key), std::nullopt) << bytes;
    }
}

// The bytes before the frame equal those in it.
TEST(FramePacking, what_lies_before_a_frame_does_not_count) {
    const FrameShape shape = {100, 1, 20};
    const Bytes memory(200, 9), key(100, 7), frame(100, 9);
    Bytes out(static_cast<size_t>(most_packed_bytes(shape)));
    const int64_t n = pack_frame(shape, at(memory) + 100, at(key), at(out));
    ASSERT_GT(n, 0);
    out.resize(static_cast<size_t>(n));
    EXPECT_EQ(unpacked(shape, out, key), frame);
}

// Random frames of differences from the key, of runs, of copies of the line above and of noise.
Bytes random_frame(const FrameShape& shape, const Bytes& key, std::mt19937& random) {
    Bytes frame = key;
    for (uint32_t n = random() % 12; n > 0; --n) {
        const size_t first = random() % frame.size();
        const size_t end = std::min(frame.size(), first + 1 + random() % (random() % 4 == 0 ? 400 : 12));
        const uint8_t value = static_cast<uint8_t>(random());
        const size_t distance = static_cast<size_t>(random() % 2 == 0 ? shape.pixel_bytes : shape.line_bytes);
        const uint32_t kind = random() % 4;
        for (size_t i = first; i < end; ++i) {
            if (kind == 0) frame[i] = static_cast<uint8_t>(random());
            if (kind == 1) frame[i] = value;
            if (kind >= 2 && i >= distance) frame[i] = frame[i - distance];
        }
    }
    return frame;
}

TEST(FramePacking, frames_come_out_as_they_went_in) {
    std::mt19937 random(2);
    const FrameShape shapes[] = {{8, 1, 8},     {9, 2, 4},       {64, 4, 64},    {255, 1, 5},
                                 {300, 3, 30},  {1000, 8, 40},   {7056, 1, 84},  {21168, 3, 252},
                                 {4096, 4, 64}, {1001, 32, 960}, {70000, 2, 800}};
    for (const FrameShape& shape : shapes) {
        int n_packed = 0;
        for (int i = 0; i < 400; ++i) {
            Bytes key(static_cast<size_t>(shape.bytes), static_cast<uint8_t>(random()));
            if (i % 3 != 0) key = random_frame(shape, key, random);
            const Bytes frame = random_frame(shape, key, random);
            const std::optional<Bytes> pack = packed(shape, frame, key);
            if (!pack) continue;
            ++n_packed;
            ASSERT_EQ(unpacked(shape, *pack, key), frame) << shape.bytes << " bytes, number " << i;
        }
        EXPECT_GT(n_packed, 100) << shape.bytes;
    }
}

#ifndef __SANITIZE_THREAD__
// A frame may change while it is packed. The steps in the output must still end within the frame.
TEST(FramePacking, frames_that_change_meanwhile_are_frames) {
    const FrameShape shape = {64, 1, 16};
    const Bytes key(64, 7);
    Bytes frame(64, 9);
    const std::jthread writer([&](const std::stop_token& stop) {
        volatile uint8_t* const bytes = frame.data();
        for (size_t i = 0; !stop.stop_requested(); i = (i + 7) % 64) bytes[i] = static_cast<uint8_t>(9 - bytes[i] % 2);
    });
    for (int i = 0; i < 300000; ++i) {
        const std::optional<Bytes> pack = packed(shape, frame, key);
        if (!pack) continue;
        int64_t at = 0;
        for (size_t k = 0; k < pack->size();) {
            ASSERT_LE(k + 2, pack->size());
            const int64_t step = (*pack)[k + 1];
            at += (*pack)[k] + (step < 128 ? step : step % 64 + 4);
            k += 2 + static_cast<size_t>(step < 128 ? step : 0);
            ASSERT_LE(k, pack->size());
        }
        ASSERT_LE(at, shape.bytes);
    }
}
#endif

TEST(FramePacking, pixels_and_lines_are_those_of_the_last_axes) {
    const auto shape_of = [](std::vector<int64_t> axes, int32_t dtype, int64_t bytes) {
        Field field = {};
        field.shape = std::move(axes);
        field.dtype = dtype;
        field.bytes = bytes;
        const FrameShape shape = shape_of_frame(field);
        EXPECT_EQ(shape.bytes, bytes);
        return std::pair(shape.pixel_bytes, shape.line_bytes);
    };
    EXPECT_EQ(shape_of({84, 80}, PER_UINT8, 6720), std::pair(int64_t{1}, int64_t{80}));
    EXPECT_EQ(shape_of({64, 60, 3}, PER_UINT8, 11520), std::pair(int64_t{3}, int64_t{180}));
    EXPECT_EQ(shape_of({3, 64, 60}, PER_FLOAT32, 46080), std::pair(int64_t{4}, int64_t{240}));
    EXPECT_EQ(shape_of({100}, PER_INT16, 200), std::pair(int64_t{2}, int64_t{200}));
    EXPECT_EQ(shape_of({4}, PER_FLOAT64, 32), std::pair(int64_t{8}, int64_t{32}));
    EXPECT_EQ(shape_of({}, PER_INT64, 8), std::pair(int64_t{8}, int64_t{8}));
}

}  // namespace
}  // namespace per::cpu

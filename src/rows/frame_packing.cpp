#include "rows/frame_packing.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "rows/dtype.h"

namespace per {
namespace {

constexpr int64_t most_pixel_elements = 4;
constexpr int64_t most_skipped = 255;  // by one step
constexpr int64_t most_given = 127;
constexpr int64_t least_repeated = 4;  // a shorter repetition is given as bytes
constexpr int64_t most_repeated = least_repeated + 63;
constexpr int64_t least_skipped = 3;  // fewer equal bytes between given ones are given, too: a step costs two bytes
constexpr unsigned repeats_pixel = 128;
constexpr unsigned repeats_line = 192;

template <class Word>
Word load(const std::byte* from) {
    Word word;
    std::memcpy(&word, from, sizeof word);
    return word;
}

// Returns the number of equal bytes in front, at most n.
int64_t n_same(const std::byte* a, const std::byte* b, int64_t n) {
    int64_t i = 0;
    if constexpr (std::endian::native == std::endian::little)
        for (; i + 8 <= n; i += 8)
            if (const uint64_t differs = load<uint64_t>(a + i) ^ load<uint64_t>(b + i); differs != 0)
                return i + std::countr_zero(differs) / 8;
    while (i < n && a[i] == b[i]) ++i;
    return i;
}

// Packs one frame. If another thread writes to the frame meanwhile, the result is still a valid packed frame.
class FramePacker {
 public:
    FramePacker(const FrameShape& shape, const std::byte* frame, const std::byte* key, std::byte* out)
        : shape_(shape), frame_(frame), key_(key), out_(out), end_(out + most_packed_bytes(shape)) {}

    // Returns false if the result does not fit.
    bool pack() {
        int64_t done = 0;
        int64_t at = 0;
        for (;;) {
            at += n_same(frame_ + at, key_ + at, shape_.bytes - at);
            if (at == shape_.bytes) return true;
            if (!skip(at - done)) return false;
            const bool is_packed = repeats(at) ? repeat(at) : give(at);
            if (!is_packed) return false;
            done = at;
        }
    }

    int64_t n_written(const std::byte* first) const { return out_ - first; }

 private:
    int64_t n_left(int64_t at) const { return shape_.bytes - at; }

    // True if the next bytes repeat those at this distance before them for long enough to be worth a step.
    bool repeats(int64_t at, int64_t distance) const {
        return at >= distance && load<uint32_t>(frame_ + at) == load<uint32_t>(frame_ + at - distance);
    }
    bool repeats(int64_t at) const {
        return n_left(at) >= least_repeated && (repeats(at, shape_.pixel_bytes) || repeats(at, shape_.line_bytes));
    }
    // True if the next bytes are equal to the key's for long enough to end a run of given bytes.
    bool is_of_key(int64_t at) const {
        const int64_t n = std::min(n_left(at), least_skipped);
        return n_same(frame_ + at, key_ + at, n) == n;
    }
    int64_t n_repeated(int64_t at, int64_t distance) const {
        if (at < distance) return 0;
        return n_same(frame_ + at, frame_ + at - distance, std::min(n_left(at), most_repeated));
    }

    bool write(int64_t number) {
        if (out_ == end_) return false;
        *out_++ = static_cast<std::byte>(number);
        return true;
    }

    // Writes the first byte of a step, which skips n bytes. If one byte cannot count them, steps that only skip come
    // first.
    bool skip(int64_t n) {
        for (; n > most_skipped; n -= most_skipped)
            if (!write(most_skipped) || !write(0)) return false;
        return write(n);
    }

    bool repeat(int64_t& at) {
        const int64_t of_pixel = n_repeated(at, shape_.pixel_bytes);
        const int64_t of_line = n_repeated(at, shape_.line_bytes);
        const bool is_of_line = of_line > of_pixel;
        const int64_t n = std::max(of_pixel, of_line);
        if (n < least_repeated) return give(at);  // changed by another thread since repeats()
        at += n;
        return write((is_of_line ? repeats_line : repeats_pixel) + n - least_repeated);
    }

    // Gives bytes of the frame up to the next repetition, or up to the next bytes that are equal to the key's.
    bool give(int64_t& at) {
        const int64_t most = std::min(most_given, n_left(at));
        int64_t n = 1;
        while (n < most && !repeats(at + n) && !(frame_[at + n] == key_[at + n] && is_of_key(at + n))) ++n;
        if (end_ - out_ < n + 1) return false;
        write(n);
        std::memcpy(out_, frame_ + at, static_cast<size_t>(n));
        out_ += n;
        at += n;
        return true;
    }

    const FrameShape& shape_;
    const std::byte* const frame_;
    const std::byte* const key_;
    std::byte* out_;
    std::byte* const end_;
};

// Writes n bytes, each a copy of the one at this distance before it. The two ranges may overlap.
void repeat(std::byte* out, int64_t distance, int64_t n) {
    if (distance == 1) {
        std::memset(out, static_cast<int>(out[-1]), static_cast<size_t>(n));
    } else if (distance >= n) {
        std::memcpy(out, out - distance, static_cast<size_t>(n));
    } else {
        for (int64_t i = 0; i < n; ++i) out[i] = out[i - distance];
    }
}

}  // namespace

FrameShape shape_of_frame(const Field& field) {
    const auto axis = [&](size_t from_end) {
        return field.shape.size() >= from_end ? field.shape[field.shape.size() - from_end] : 1;
    };
    const int64_t element_bytes = dtype_size(field.dtype);
    if (field.shape.size() > 1 && axis(1) <= most_pixel_elements)
        return {field.bytes, axis(1) * element_bytes, axis(2) * axis(1) * element_bytes};
    return {field.bytes, element_bytes, axis(1) * element_bytes};
}

int64_t pack_frame(const FrameShape& shape, const std::byte* frame, const std::byte* key, std::byte* out) {
    FramePacker packer(shape, frame, key, out);
    return packer.pack() ? packer.n_written(out) : -1;
}

void unpack_frame(const FrameShape& shape, const std::byte* packed, int64_t packed_bytes, const std::byte* key,
                  std::byte* frame_out) {
    std::memcpy(frame_out, key, static_cast<size_t>(shape.bytes));
    for (const std::byte* const end = packed + packed_bytes; packed < end;) {
        frame_out += static_cast<int64_t>(packed[0]);
        const unsigned step = static_cast<unsigned>(packed[1]);
        packed += 2;
        int64_t n = step;
        if (step < repeats_pixel) {
            std::memcpy(frame_out, packed, step);
            packed += step;
        } else {
            n = (step & 63) + least_repeated;
            repeat(frame_out, step < repeats_line ? shape.pixel_bytes : shape.line_bytes, n);
        }
        frame_out += n;
    }
}

}  // namespace per

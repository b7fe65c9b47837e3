// Checkpoints of any content with valid checksums: they are refused, or the loaded buffer works like any other.
#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "../c/checkpoints.h"
#include "../cpp/replay_user.h"
#include "file/checkpoint_file.h"
#include "file/checksum.h"
#include "file/compression.h"
#include "fuzz.h"

namespace per::test {
namespace {

template <class Number>
Number number_at(const std::vector<uint8_t>& bytes, std::size_t at) {
    Number number;
    std::memcpy(&number, bytes.data() + at, sizeof number);
    return number;
}

uint64_t checksum_of(const uint8_t* data, std::size_t size) {
    Checksum checksum;
    checksum.add(data, size);
    return checksum.value();
}

// Concatenated bytes.
void append(std::vector<uint8_t>& bytes, const void* data, std::size_t size) {
    const uint8_t* const first = static_cast<const uint8_t*>(data);
    bytes.insert(bytes.end(), first, first + size);
}

// The processing of a section's content, selected by the encoding in the input.
constexpr uint32_t is_compressed_here = 1;    // it is compressed
constexpr uint32_t is_compressed_before = 2;  // it already consists of pieces, which the fuzzer may have changed
constexpr uint32_t as_zstd = 1;               // the encoding stated in the file in both cases

void append_compressed(std::vector<uint8_t>& bytes, const uint8_t* content, std::size_t size) {
    static Compression compression(max_piece_bytes, 1);
    static std::vector<char> packed(compression.max_packed());
    for (std::size_t done = 0; done < size;) {
        const std::size_t n = std::min(size - done, max_piece_bytes);
        const uint32_t n_packed = static_cast<uint32_t>(compression.pack(packed.data(), content + done, n));
        append(bytes, &n_packed, sizeof n_packed);
        append(bytes, packed.data(), n_packed);
        done += n;
    }
}

// Lengths of the pieces of a content of `size` bytes, at most `left`.
std::size_t bytes_of_pieces(const std::vector<uint8_t>& bytes, std::size_t at, uint64_t size, std::size_t left) {
    std::size_t n = 0;
    for (uint64_t done = 0; done < size && left - n >= 4; done += max_piece_bytes)
        n += std::min<std::size_t>(left - n, std::size_t{4} + number_at<uint32_t>(bytes, at + n));
    return n;
}

// The checkpoint with the right checksum in each section (docs/format.md).
std::vector<uint8_t> resealed(const std::vector<uint8_t>& bytes) {
    constexpr std::size_t header = 16;  // magic, version, 0
    std::vector<uint8_t> sealed(bytes.begin(), bytes.begin() + header);
    Checksum of_seals;
    std::size_t at = header;
    while (bytes.size() - at >= 4) {
        const auto name = static_cast<std::size_t>(number_at<uint32_t>(bytes, at));
        std::size_t left = bytes.size() - at;
        if (left < 24 || name > left - 24) break;  // lengths of the name and of the content, encoding, checksum
        const uint32_t encoding = number_at<uint32_t>(bytes, at + 4 + name);
        const uint64_t size = number_at<uint64_t>(bytes, at + 8 + name);
        const std::size_t content = at + 16 + name;
        left -= 24 + name;
        const bool has_pieces = encoding == is_compressed_before;
        if (size > left && !has_pieces) break;
        const std::size_t n = has_pieces ? bytes_of_pieces(bytes, content, size, left) : size;
        const std::size_t begin = sealed.size();
        append(sealed, bytes.data() + at, content - at);
        if (has_pieces) std::memcpy(sealed.data() + begin + 4 + name, &as_zstd, sizeof as_zstd);
        const bool is_end = name == 3 && size == 8 && std::memcmp(bytes.data() + at + 4, "end", 3) == 0;
        const uint64_t seals = of_seals.value();
        if (is_end)
            append(sealed, &seals, sizeof seals);
        else if (encoding == is_compressed_here)
            append_compressed(sealed, bytes.data() + content, n);
        else
            append(sealed, bytes.data() + content, n);
        const uint64_t seal = checksum_of(sealed.data() + begin, sealed.size() - begin);
        append(sealed, &seal, sizeof seal);
        of_seals.add(&seal, sizeof seal);
        at = content + n + 8;
    }
    append(sealed, bytes.data() + at, bytes.size() - at);
    return sealed;
}

// The bytes that per_replay_load() requests.
int64_t next_bytes(void* context, void* bytes_out, int64_t size) {
    auto& rest = *static_cast<std::span<const uint8_t>*>(context);
    const std::size_t n = std::min(rest.size(), static_cast<std::size_t>(size));
    std::memcpy(bytes_out, rest.data(), n);
    rest = rest.subspan(n);
    return static_cast<int64_t>(n);
}

// The buffer loaded from the checkpoint in these bytes, or NULL.
per_replay* load(std::span<const uint8_t> bytes) {
    per_replay* replay = nullptr;
    const per_status status = load_from(next_bytes, &bytes, PER_CPU, 0, &replay);
    if ((status == PER_OK) != (replay != nullptr)) std::abort();
    return replay;
}

// True if the buffer has the fields of create() (replay_user.h), which a User writes and reads.
bool has_known_fields(const per_replay_options& options) {
    if (options.n_fields < 4) return false;
    for (int64_t i = 0; i < options.n_fields; ++i) {
        const per_field& field = options.fields[i];
        const bool is_wide = i < 2;
        if (field.dtype != PER_FLOAT32 || field.max_length != 0 || field.ndim != (is_wide ? 1 : 0) ||
            (is_wide && field.shape[0] != 2) ||
            (i > 0 && field.role != (i < 4 ? PER_ROLE_PLAIN : PER_ROLE_RECURRENT_STATE)))
            return false;
    }
    return true;
}

}  // namespace
}  // namespace per::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace per::test;
    if (size < 16) return 0;
    per_replay* const replay = load(resealed({data, data + size}));
    if (replay == nullptr) return 0;
    const Replay loaded(replay);
    // Ranks and statistics of a large capacity take long, however short the file.
    constexpr int64_t max_used_capacity = 20000;
    const per_replay_options options = described(replay);
    if (options.capacity > max_used_capacity || !has_known_fields(options)) return 0;
    return fuzz(data, size, [&](const Choices&) { User(size).use(replay, 20); });
}

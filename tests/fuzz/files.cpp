// Checkpoints of any content whose checksums are right: they are refused, or what is loaded works like any buffer.
#include <algorithm>
#include <cstring>
#include <vector>

#include "../cpp/replay_user.h"
#include "file/checksum.h"
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

// The checkpoint with the checksum that belongs to each section (docs/format.md), as far as it has sections.
std::vector<uint8_t> resealed(std::vector<uint8_t> bytes) {
    constexpr std::size_t header = 16;  // magic, version, 0
    Checksum of_seals;
    for (std::size_t at = header; bytes.size() - at >= 4;) {
        const auto name = static_cast<std::size_t>(number_at<uint32_t>(bytes, at));
        std::size_t left = bytes.size() - at;
        if (left < 24 || name > left - 24) break;  // lengths of the name and of the content, encoding, checksum
        const uint64_t size = number_at<uint64_t>(bytes, at + 8 + name);
        left -= 24 + name;
        if (size > left) break;
        const std::size_t content = at + 16 + name;
        const bool is_end = std::memcmp(bytes.data() + at + 4, "end", std::min<std::size_t>(name, 3)) == 0;
        if (is_end && name == 3 && size == 8) {
            const uint64_t seals = of_seals.value();
            std::memcpy(bytes.data() + content, &seals, sizeof seals);
        }
        const uint64_t seal = checksum_of(bytes.data() + at, content + size - at);
        std::memcpy(bytes.data() + content + size, &seal, sizeof seal);
        of_seals.add(&seal, sizeof seal);
        at = content + size + 8;
    }
    return bytes;
}

// The bytes that per_replay_load_from() asks for.
int64_t next_bytes(void* context, void* bytes_out, int64_t size) {
    auto& rest = *static_cast<std::span<const uint8_t>*>(context);
    const std::size_t n = std::min(rest.size(), static_cast<std::size_t>(size));
    std::memcpy(bytes_out, rest.data(), n);
    rest = rest.subspan(n);
    return static_cast<int64_t>(n);
}

}  // namespace
}  // namespace per::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace per::test;
    if (size < 16) return 0;
    const std::vector<uint8_t> bytes = resealed({data, data + size});
    std::span<const uint8_t> rest = bytes;
    per_replay* replay = nullptr;
    const per_status status = per_replay_load_from(next_bytes, &rest, PER_CPU, 0, &replay);
    if (status != PER_OK) return replay == nullptr ? 0 : (std::abort(), 0);
    const Replay loaded(replay);
    // Ranks and statistics of a large capacity take their time, however little the file holds.
    constexpr int64_t max_used_capacity = 20000;
    if (described(replay).capacity > max_used_capacity) return 0;
    return fuzz(data, size, [&](const Choices&) { User(size).use(replay, 20); });
}

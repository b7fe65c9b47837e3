// The sections of an uncompressed file that a buffer was saved to, by docs/format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace per::test {

// The offsets of its header, its content and its checksum, and of its end.
struct Section {
    std::string name;
    size_t header, content, seal, end;
};

inline std::vector<Section> sections_of(const std::string& file) {
    const auto number_at = [&](size_t place, size_t size) {
        uint64_t number = 0;
        std::memcpy(&number, file.data() + place, size);
        return number;
    };
    std::vector<Section> sections;
    for (size_t at = 16; at < file.size(); at = sections.back().end) {
        const size_t name_size = number_at(at, 4);
        const size_t content = at + 4 + name_size + 4 + 8;
        const size_t seal = content + number_at(content - 8, 8);
        sections.push_back({file.substr(at + 4, name_size), at, content, seal, seal + 8});
    }
    return sections;
}

}  // namespace per::test

// UTF-8.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace per {

// True if a character of UTF-8 begins with this byte.
constexpr bool begins_character(char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
}

// Number of bytes of the first character of a text; 0 if that is not valid UTF-8 (RFC 3629).
constexpr std::size_t character_bytes(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    if (text.empty()) return 0;
    const std::size_t size = byte(0) < 0x80   ? 1
                             : byte(0) < 0xc2 ? 0  // no first byte, or that of an encoding longer than needed
                             : byte(0) < 0xe0 ? 2
                             : byte(0) < 0xf0 ? 3
                             : byte(0) < 0xf5 ? 4
                                              : 0;
    if (text.size() < size) return 0;
    for (std::size_t i = 1; i < size; ++i)
        if (begins_character(text[i])) return 0;
    const bool is_overlong = (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xf0 && byte(1) < 0x90);
    const bool is_surrogate = byte(0) == 0xed && byte(1) >= 0xa0;
    const bool is_too_large = byte(0) == 0xf4 && byte(1) >= 0x90;
    return is_overlong || is_surrogate || is_too_large ? 0 : size;
}

// True if a character is a control character: U+0000 to U+001F and U+007F to U+009F.
constexpr bool is_control(std::string_view character) {
    const unsigned char first = static_cast<unsigned char>(character[0]);
    if (character.size() == 1) return first < 0x20 || first == 0x7f;
    return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

// The largest size, up to `most`, at which a text can be cut without splitting a character.
constexpr std::size_t whole_characters(std::string_view text, std::size_t most) {
    if (text.size() <= most) return text.size();
    while (most > 0 && !begins_character(text[most])) --most;
    return most;
}

}  // namespace per

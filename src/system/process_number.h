// Numbers that tell processes and memories apart.
#pragma once

#include <cstdint>

namespace per {

// The system's number of this process.
uint32_t process_number() noexcept;

// Throws Error with OUT_OF_MEMORY if the system has no random number for a thing that errors call `noun`.
uint64_t random_number(const char* noun);

}  // namespace per

// The number of a process.
#pragma once

#include <cstdint>

namespace per {

// The system's number of this process.
uint32_t process_number() noexcept;

}  // namespace per

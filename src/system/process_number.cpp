#include "system/process_number.h"

#include <unistd.h>

namespace per {

uint32_t process_number() noexcept {
    return static_cast<uint32_t>(getpid());
}

}  // namespace per

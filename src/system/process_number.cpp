#include "system/process_number.h"

#include <sys/random.h>
#include <unistd.h>

#include "base/error.h"

namespace per {

uint32_t process_number() noexcept {
    return static_cast<uint32_t>(getpid());
}

uint64_t random_number(const char* noun) {
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        throw Error(PER_ERROR_OUT_OF_MEMORY, "no random number for a %s", noun);
    return number;
}

}  // namespace per

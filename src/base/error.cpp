#include "base/error.h"

#include <cinttypes>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <iterator>

#include "base/utf8.h"

namespace per {
namespace {

// An array needs no allocation, and no destructor that would be registered for the thread.
thread_local char last_error_message[max_message_bytes];

}  // namespace

Error::Error(per_status status, const char* format, ...) noexcept : status_(status) {
    va_list arguments;
    va_start(arguments, format);
    const int length = std::vsnprintf(message_, sizeof message_, format, arguments);
    va_end(arguments);
    constexpr std::size_t most = sizeof message_ - 1;
    // If the message was cut within a character, the rest of that character is dropped as well.
    if (length > static_cast<int>(most)) message_[whole_characters({message_, most}, most - 1)] = '\0';
}

void throw_out_of_memory(uint64_t bytes) {
    char gigabytes[32] = "";
    if (bytes >= 1'000'000'000)
        std::snprintf(gigabytes, sizeof gigabytes, " (%.1f GB)", static_cast<double>(bytes) * 1e-9);
    throw Error(PER_ERROR_OUT_OF_MEMORY, "out of memory: %" PRIu64 " bytes%s were asked for", bytes, gigabytes);
}

const char* last_error() noexcept {
    return last_error_message;
}

per_status record_error(per_status status, const char* message) noexcept {
    std::snprintf(last_error_message, sizeof last_error_message, "%s", message);
    return status;
}

const char* status_name(int status) noexcept {
    static constexpr const char* names[] = {"PER_OK",
                                            "PER_ERROR_INVALID_ARGUMENT",
                                            "PER_ERROR_OUT_OF_MEMORY",
                                            "PER_ERROR_EMPTY",
                                            "PER_ERROR_FULL",
                                            "PER_ERROR_BUSY",
                                            "PER_ERROR_UNSUPPORTED",
                                            "PER_ERROR_NO_DEVICE",
                                            "PER_ERROR_CUDA",
                                            "PER_ERROR_IO",
                                            "PER_ERROR_CORRUPT_FILE",
                                            "PER_ERROR_INTERNAL",
                                            "PER_ERROR_CALLBACK"};
    static_assert(std::size(names) == PER_ERROR_CALLBACK + 1);
    return status >= 0 && status <= PER_ERROR_CALLBACK ? names[status] : "unknown status";
}

}  // namespace per

// Errors inside the library are thrown as Error. guarded() turns them into a status and a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>

#include "per.h"

namespace per {

// Bytes of a message with the NUL at its end. A message with two names of fields fits.
inline constexpr std::size_t max_message_bytes = 1024;

// Every exception that the library throws. The message is one line, impersonal, and names the argument, its value and
// the allowed values. The object contains it, so that throwing allocates only the exception, for which the C++ runtime
// has a reserve.
class Error : public std::exception {
 public:
    // Formats like printf, and truncates the message if it does not fit.
    [[gnu::format(printf, 3, 4)]] Error(per_status status, const char* format, ...) noexcept;

    per_status status() const noexcept { return status_; }
    const char* what() const noexcept override { return message_; }

 private:
    per_status status_;
    char message_[max_message_bytes];
};

// Throws the Error for an allocation of that size that failed.
[[noreturn]] void throw_out_of_memory(uint64_t bytes);

// The message that per_last_error() returns on this thread.
const char* last_error() noexcept;

// Stores the message for last_error() and returns the status.
per_status record_error(per_status status, const char* message) noexcept;

// "PER_OK", ...; "unknown status" for any other number.
const char* status_name(int status) noexcept;

}  // namespace per

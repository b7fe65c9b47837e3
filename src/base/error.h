// Failures inside the library: they are thrown as Error, and guarded() turns them into a status and a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>

#include "per.h"

namespace per {

// Bytes of a message with the NUL at its end. A message with two names of fields fits.
inline constexpr std::size_t max_message_bytes = 1024;

// Every exception that is thrown on purpose. The message is one line, impersonal, and names the argument, its value and
// what is allowed. The object holds it, so that throwing needs no memory but the exception's own, which the C++ runtime
// has a reserve for.
class Error : public std::exception {
 public:
    // Formats like printf, and cuts off the characters that do not fit.
    [[gnu::format(printf, 3, 4)]] Error(per_status status, const char* format, ...) noexcept;

    per_status status() const noexcept { return status_; }
    const char* what() const noexcept override { return message_; }

 private:
    per_status status_;
    char message_[max_message_bytes];
};

// Throws the Error that says that so many bytes cannot be had.
[[noreturn]] void throw_out_of_memory(uint64_t bytes);

// The message that per_last_error() returns on this thread.
const char* last_error() noexcept;

// Remembers the message for last_error() and returns the status.
per_status record_error(per_status status, const char* message) noexcept;

// "PER_OK", ...; "unknown status" for a number that is none.
const char* status_name(int status) noexcept;

}  // namespace per

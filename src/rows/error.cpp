#include "rows/error.h"

#include <cinttypes>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <iterator>

#include "rows/utf8.h"

namespace per {
namespace {

// A plain array, so that recording an error neither allocates nor registers a destructor for the thread.
thread_local char last_error_message[max_message_bytes];

// How many bytes operator new was asked for when it last threw; 0: it has not thrown yet.
thread_local std::size_t refused_bytes = 0;

#define PER_OUT_OF_MEMORY "out of memory: %" PRIu64 " bytes were asked for"

}  // namespace

Error::Error(per_status status, const char* format, ...) noexcept : status_(status) {
    va_list arguments;
    va_start(arguments, format);
    const int length = std::vsnprintf(message_, sizeof message_, format, arguments);
    va_end(arguments);
    constexpr std::size_t most = sizeof message_ - 1;
    // The cut may lie within the last character, which is dropped, too.
    if (length > static_cast<int>(most)) message_[whole_characters({message_, most}, most - 1)] = '\0';
}

void throw_out_of_memory(uint64_t bytes) {
    throw Error(PER_ERROR_OUT_OF_MEMORY, PER_OUT_OF_MEMORY, bytes);
}

const char* last_error() noexcept {
    return last_error_message;
}

per_status record_error(per_status status, const char* message) noexcept {
    std::snprintf(last_error_message, sizeof last_error_message, "%s", message);
    return status;
}

void note_refused_allocation(std::size_t bytes) noexcept {
    refused_bytes = bytes;
}

per_status record_bad_alloc() noexcept {
    if (refused_bytes == 0) return record_error(PER_ERROR_OUT_OF_MEMORY, "out of memory");
    const Error error(PER_ERROR_OUT_OF_MEMORY, PER_OUT_OF_MEMORY, static_cast<uint64_t>(refused_bytes));
    return record_error(error.status(), error.what());
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

#include "file/caller_stream.h"

#include <algorithm>
#include <cinttypes>

#include "base/error.h"
#include "per.h"
#include "system/thread.h"

namespace per {
namespace {

constexpr std::size_t max_piece = std::size_t{1} << 20;

// Calls a function of the caller with the next piece and returns its result.
template <class Function, class Bytes>
std::size_t pass_piece(const char* name, Function function, void* context, Bytes* bytes, std::size_t size, int least) {
    const int64_t given = static_cast<int64_t>(std::min(size, max_piece));
    prepare_for_thread_exit();
    const int64_t n = function(context, bytes, given);
    if (n < least || n > given)
        throw Error(PER_ERROR_CALLBACK, "%s returned %" PRId64 ": allowed are %d .. %" PRId64, name, n, least, given);
    return static_cast<std::size_t>(n);
}

}  // namespace

void WriteFunction::write(const void* data, std::size_t size) const {
    const char* const bytes = static_cast<const char*>(data);
    for (std::size_t done = 0; done < size;)
        done += pass_piece("write", function, context, bytes + done, size - done, 1);
}

std::size_t ReadFunction::read(void* data, std::size_t size) const {
    char* const bytes = static_cast<char*>(data);
    std::size_t done = 0;
    while (done < size) {
        const std::size_t n = pass_piece("read", function, context, bytes + done, size - done, 0);
        if (n == 0) break;
        done += n;
    }
    return done;
}

}  // namespace per

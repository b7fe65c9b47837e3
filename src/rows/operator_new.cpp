// A std::bad_alloc does not say how many bytes were asked for. The linker (--wrap) makes calls of operator new call
// __wrap__Znwm, and __real__Znwm is operator new itself. Only the shared libraries have this source, so that programs
// which link the objects, as tests do, may have an operator new of their own.
#include <cstddef>
#include <new>

#include "rows/error.h"

extern "C" void* __real__Znwm(std::size_t bytes);

extern "C" void* __wrap__Znwm(std::size_t bytes) {
    try {
        return __real__Znwm(bytes);
    } catch (const std::bad_alloc&) {
        per::note_refused_allocation(bytes);
        throw;
    }
}

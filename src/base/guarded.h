// The one place where exceptions end: every function of per.h that can fail runs its body through guarded().
#pragma once

#include <cxxabi.h>

#include <cfenv>
#include <new>
#include <stdexcept>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "base/error.h"

namespace per {

// While an object of this class lives, arithmetic rounds to nearest, keeps subnormals and does not trap. Its destructor
// restores the caller's settings. So programs that flush subnormals to zero (an option of Julia and PyTorch, a side
// effect of -ffast-math) draw the same indices as others.
class DefaultFloatingPoint {
 public:
    DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
    DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;
#if defined(__SSE2__)
    // All arithmetic uses SSE or later, so its control register is enough. <cfenv> would also save the state of the
    // x87, which takes 40 ns.
    DefaultFloatingPoint() noexcept : saved_(_mm_getcsr()) {
        _mm_setcsr(0x1f80);
    }
    ~DefaultFloatingPoint() {
        _mm_setcsr(saved_);
    }

 private:
    unsigned saved_;
#else
    DefaultFloatingPoint() noexcept {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~DefaultFloatingPoint() {
        std::fesetenv(&saved_);
    }

 private:
    std::fenv_t saved_;
#endif
};

// Runs `call` and turns an exception into a status and the thread's message, without allocating. Only one exception
// passes: the end of the thread, if a function of the caller calls pthread_exit().
template <class Call>
per_status guarded(const Call& call) {
    const DefaultFloatingPoint floating_point;
    try {
        call();
        return PER_OK;
    } catch (const Error& error) {
        return record_error(error.status(), error.what());
    } catch (const std::bad_alloc&) {
        return record_error(PER_ERROR_OUT_OF_MEMORY, "out of memory");
    } catch (const std::length_error&) {
        return record_error(PER_ERROR_OUT_OF_MEMORY, "out of memory: more was asked for than any array may have");
    } catch (const std::exception& error) {
        return record_error(PER_ERROR_INTERNAL, error.what());
    } catch (const abi::__forced_unwind&) {
        throw;
    } catch (...) {
        return record_error(PER_ERROR_INTERNAL, "unknown exception");
    }
}

}  // namespace per

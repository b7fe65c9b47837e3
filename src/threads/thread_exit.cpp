#include "threads/thread_exit.h"

#include <unwind.h>

namespace per {

void prepare_for_thread_exit() {
    static const _Unwind_Reason_Code ready =
        _Unwind_Backtrace([](_Unwind_Context*, void*) { return _URC_NORMAL_STOP; }, nullptr);
    static_cast<void>(ready);
}

}  // namespace per

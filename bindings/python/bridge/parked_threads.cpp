/*
 * While the interpreter finalizes, a thread cannot reacquire the GIL. Python 3.14 and later let it hang. Earlier
 * versions end it by pthread_exit(), which unwinds its stack: destructors would touch objects without the GIL, and
 * std::terminate() would be called at the first noexcept frame. This can happen at any call of Python here, even in a
 * destructor. Therefore such a thread hangs in all versions, and none of its frames is unwound.
 *
 * The unwinder calls the personality routine of each frame that has cleanups. The linker replaces that of this module's
 * C++ frames by the one below (--wrap in setup.py).
 */
#include <unistd.h>
#include <unwind.h>

extern "C" {

_Unwind_Reason_Code __real___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                                                _Unwind_Exception* exception, _Unwind_Context* context);

_Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                                                _Unwind_Exception* exception, _Unwind_Context* context) {
    if ((actions & _UA_FORCE_UNWIND) != 0) {  // pthread_exit(); exceptions do not force
        while (true) pause();
    }
    return __real___gxx_personality_v0(version, actions, kind, exception, context);
}
}

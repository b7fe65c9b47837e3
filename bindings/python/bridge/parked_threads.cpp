/*
 * While the interpreter finalizes, a thread that wants Python's lock back does not get it. From version 3.14 on Python
 * lets it hang. Before, it ends it by pthread_exit(), which unwinds its stack: destructors would touch objects without
 * the lock, and std::terminate() would meet the first one that may not be left so. That happens at any call of Python
 * here, also at those of a destructor. So such a thread hangs in all versions, and none of its frames is unwound.
 *
 * The unwinder asks for each frame that has something to do a personality routine. The linker takes this one for that of
 * C++ in the frames of this module (--wrap in setup.py).
 */
#include <unistd.h>
#include <unwind.h>

extern "C" {

_Unwind_Reason_Code __real___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                                                _Unwind_Exception* exception, _Unwind_Context* context);

_Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                                                _Unwind_Exception* exception, _Unwind_Context* context) {
    if ((actions & _UA_FORCE_UNWIND) != 0) {  // of pthread_exit(); exceptions do not force
        while (true) pause();
    }
    return __real___gxx_personality_v0(version, actions, kind, exception, context);
}
}

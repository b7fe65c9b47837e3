// Calls the handlers for CUDA from programs that XLA runs on the CPU. They get the default stream.
#include "xla/ffi/api/c_api.h"

namespace {

XLA_FFI_Error* default_stream(XLA_FFI_Stream_Get_Args* args) {
    args->stream = nullptr;
    return nullptr;
}

XLA_FFI_Error* call(XLA_FFI_Handler* handler, XLA_FFI_CallFrame* given) {
    XLA_FFI_Api api = *given->api;
    api.XLA_FFI_Stream_Get = default_stream;
    XLA_FFI_CallFrame frame = *given;
    frame.api = &api;
    return handler(&frame);
}

}  // namespace

#define CALL_BY_XLA(name)                                     \
    extern "C" {                                              \
    XLA_FFI_Handler* handler_of_##name = nullptr;             \
    XLA_FFI_Error* per_xla_##name(XLA_FFI_CallFrame* given) { \
        return call(handler_of_##name, given);                \
    }                                                         \
    }

CALL_BY_XLA(init)
CALL_BY_XLA(add)
CALL_BY_XLA(sample)
CALL_BY_XLA(set_priorities)

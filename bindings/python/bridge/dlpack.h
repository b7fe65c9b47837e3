/*
 * The part of DLPack 1 (https://dmlc.github.io/dlpack, version 1.3) that reads and makes tensors through the C
 * functions which a library offers as __dlpack_c_exchange_api__ of its tensor type. Names and layouts are the
 * standard's.
 */
#ifndef PER_BRIDGE_DLPACK_H
#define PER_BRIDGE_DLPACK_H

#include <cstdint>

extern "C" {

enum DLDeviceType : int32_t { kDLCPU = 1, kDLCUDA = 2 };

struct DLDevice {
    DLDeviceType device_type;
    int32_t device_id;
};

enum DLDataTypeCode { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLBool = 6 };

struct DLDataType {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
};

struct DLTensor {
    void* data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t* shape;
    int64_t* strides; /* in elements; NULL: C-contiguous */
    uint64_t byte_offset;
};

struct DLPackVersion {
    uint32_t major;
    uint32_t minor;
};

struct DLManagedTensorVersioned {
    DLPackVersion version;
    void* manager_ctx;
    void (*deleter)(DLManagedTensorVersioned* self);
    uint64_t flags;
    DLTensor dl_tensor;
};

struct DLPackExchangeAPIHeader {
    DLPackVersion version;
    DLPackExchangeAPIHeader* prev_api;
};

struct DLPackExchangeAPI {
    DLPackExchangeAPIHeader header;
    int (*managed_tensor_allocator)(DLTensor* prototype, DLManagedTensorVersioned** out, void* error_ctx,
                                    void (*SetError)(void* error_ctx, const char* kind, const char* message));
    int (*managed_tensor_from_py_object_no_sync)(void* py_object, DLManagedTensorVersioned** out);
    int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned* tensor, void** out_py_object);
    int (*dltensor_from_py_object_no_sync)(void* py_object, DLTensor* out); /* may be NULL */
    int (*current_work_stream)(DLDeviceType device_type, int32_t device_id, void** out_current_stream);
};
}

#endif /* PER_BRIDGE_DLPACK_H */

// Keeps the calls of a handle in order, whatever streams they are queued on.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/runtime/device.h"
#include "cuda/runtime/dialect.h"

namespace per::cuda {

// Identifies a stream by a number that is never reused. Its handle is not enough: if a stream is destroyed while it has
// work left, a new stream may get its handle. And if a thread ends while its default stream has work left, a new thread
// may get the id of the ended one.
struct StreamIdentity {
    cudaStream_t handle;
    uint64_t number;

    bool operator==(const StreamIdentity&) const = default;
};

// If the previous call was on another stream, a call waits on the device for the event that the previous call recorded.
//
// Captured work runs whenever its graph is launched, and the library does not learn of that. So a captured call waits
// for nothing outside of the capture, and records no event. The caller must order launches with other calls; see
// require_ordered(). All calls within one capture must use one stream, as nothing would order them when the graph runs.
class StreamOrder {
 public:
    explicit StreamOrder(int device);
    StreamOrder(const StreamOrder&) = delete;
    StreamOrder& operator=(const StreamOrder&) = delete;

    // Made for the time of one call. As long as it lives the handle's device is current, and the call's work is queued
    // behind all earlier calls.
    class Call {
     public:
        // Throws Error with INVALID_ARGUMENT if an earlier call was captured together with this one, on another stream.
        Call(StreamOrder& order, void* stream);
        Call(const Call&) = delete;
        Call& operator=(const Call&) = delete;

        cudaStream_t stream() const { return stream_; }
        bool is_captured() const { return is_captured_; }
        // True if this call or an earlier one was captured, and may run again.
        bool has_captures() const { return order_.has_captures_; }
        // Must be called last. If it is not called, since something threw before, the next call still waits for the
        // queued work.
        void finish();
        ~Call();

     private:
        // Records the event that calls on other streams wait for.
        cudaError_t record();

        StreamOrder& order_;
        CurrentDevice device_;
        cudaStream_t stream_;
        StreamIdentity identity_ = {};
        bool is_captured_ = false;
        unsigned long long capture_ = 0;
        bool is_finished_ = false;
    };

    // A stream of the handle, for calls that take none. It has no work of the caller.
    cudaStream_t own_stream() const { return own_stream_.get(); }

 private:
    friend class Call;

    // Throws Error with NO_DEVICE in a forked child, where CUDA cannot be used.
    int own_device() const;

    int device_;
    uint32_t process_;
    Stream own_stream_;
    Event event_;  // after the last call that was not captured
    StreamIdentity last_stream_ = {};
    bool has_last_ = false;
    bool has_captures_ = false;
    unsigned long long last_capture_ = 0;  // of calls that finished
    StreamIdentity capture_stream_ = {};
};

// Throws the Error of a call that would have to wait for a stream that is being captured.
[[noreturn]] void refuse_capture(void* stream);

// Throws Error with INVALID_ARGUMENT if the meeting is broken: two kernels of a handle used it at the same time.
// `meeting` is the host's copy.
void require_ordered(const Meeting& meeting);

}  // namespace per::cuda

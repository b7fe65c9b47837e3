#include "cuda/runtime/stream_order.h"

#include <atomic>

#include "base/error.h"
#include "cuda/runtime/device.h"
#include "system/process_number.h"

namespace per::cuda {

namespace {

// A number that only the calling thread ever gets. The system may give a thread the id of a thread that has ended, even
// while the default stream of the ended thread has work left.
uint64_t number_of_thread() {
    static std::atomic<uint64_t> n_threads = 0;
    thread_local const uint64_t number = ++n_threads;
    return number;
}

// CUDA does not tell the id of a captured stream. Such a stream lives as long as the capture, so that its handle
// identifies it.
StreamIdentity identity_of(cudaStream_t stream, bool is_captured) {
    if (stream == nullptr || stream == cudaStreamLegacy) return {cudaStreamLegacy, 0};
    if (stream == cudaStreamPerThread) return {stream, number_of_thread()};
    if (is_captured) return {stream, 0};
    unsigned long long id = 0;
    check(cudaStreamGetId(stream, &id), "asking for the id of the stream");
    return {stream, id};
}

}  // namespace

StreamOrder::StreamOrder(int device)
    : device_(device), process_(process_number()), own_stream_(new_stream()), event_(new_event()) {}

int StreamOrder::own_device() const {
    if (process_number() == process_) return device_;
    throw Error(PER_ERROR_NO_DEVICE, "a handle on PER_CUDA cannot be used in a forked child, only freed");
}

StreamOrder::Call::Call(StreamOrder& order, void* stream)
    : order_(order), device_(order.own_device()), stream_(static_cast<cudaStream_t>(stream)) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamGetCaptureInfo(stream_, &status, &capture_), "asking whether the stream is captured");
    if (status == cudaStreamCaptureStatusInvalidated)
        throw Error(PER_ERROR_CUDA, "stream is %p: its capture is invalid since an earlier error, and must be ended",
                    static_cast<void*>(stream_));
    is_captured_ = status != cudaStreamCaptureStatusNone;
    identity_ = identity_of(stream_, is_captured_);
    if (is_captured_) {
        if (capture_ == order_.last_capture_ && order_.capture_stream_ != identity_)
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "stream is %p: within one capture all calls of a handle share a stream",
                        static_cast<void*>(stream_));
        order_.has_captures_ = true;  // even if the call fails: it may have queued work by then
    } else if (order_.has_last_ && order_.last_stream_ != identity_) {
        check(cudaStreamWaitEvent(stream_, order_.event_.get(), 0), "waiting for the stream of the last call");
    }
}

cudaError_t StreamOrder::Call::record() {
    const cudaError_t error = cudaEventRecord(order_.event_.get(), stream_);
    if (error != cudaSuccess) return error;
    order_.last_stream_ = identity_;
    order_.has_last_ = true;
    is_finished_ = true;
    return error;
}

void StreamOrder::Call::finish() {
    if (is_captured_) {
        order_.last_capture_ = capture_;
        order_.capture_stream_ = identity_;
        return;
    }
    // If that fails, the destructor tries again: the work is queued.
    check(record(), "recording an event");
}

void refuse_capture(void* stream) {
    throw Error(PER_ERROR_INVALID_ARGUMENT, "stream is %p: it is being captured, and cannot be waited for", stream);
}

void require_ordered(const Meeting& meeting) {
    if (meeting.is_broken())
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "several kernels used the handle at the same time: launches of CUDA graphs must be ordered with "
                    "each other and with other calls. The handle's contents are undefined, and it can only be freed");
}

StreamOrder::Call::~Call() {
    if (!is_finished_ && !is_captured_) static_cast<void>(record());
}

}  // namespace per::cuda

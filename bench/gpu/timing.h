// Times calls that enqueue work on a stream: alone and in bursts, called directly and from a CUDA graph.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "conditions.h"

#define REQUIRE_CUDA(call)                                                                                  \
    do {                                                                                                    \
        const cudaError_t required = (call);                                                                \
        if (required != cudaSuccess) {                                                                      \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(required)); \
            std::exit(1);                                                                                   \
        }                                                                                                   \
    } while (0)

// Medians in microseconds; -1 if not measured.
struct Timing {
    double call = -1;        // from the call until its work is done, by the host's clock
    double in_burst = -1;    // device time per call of consecutive calls, by events
    double graph_call = -1;  // the same for launches of a graph of the call
    double graph_in_burst = -1;
    double kernel = -1;  // device time of a call enqueued earlier, by events: its kernels alone
    double cold = -1;    // the same with cold caches
};

class Stopwatch {
 public:
    // With 0 seconds each call is made only a few times, to check that it works.
    Stopwatch(cudaStream_t stream, double seconds)
        : stream_(stream),
          seconds_(seconds),
          n_warm_up_(seconds > 0 ? 3 : 1),
          n_in_burst_(seconds > 0 ? 20 : 2),
          n_least_(seconds > 0 ? 3 : 1),
          conditions_(stream) {
        for (cudaEvent_t& event : events_) REQUIRE_CUDA(cudaEventCreateWithFlags(&event, cudaEventDefault));
    }
    ~Stopwatch() {
        for (const cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
    }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;

    // Times a call that cannot be captured.
    template <class Call>
    Timing time_uncaptured(const Call& call) {
        Timing timing;
        for (int i = 0; i < n_warm_up_; ++i) call();
        wait();
        timing.call = median_until_done(call);
        timing.in_burst = median_in_burst(call);
        return timing;
    }

    template <class Call>
    Timing time(const Call& call) {
        Timing timing = time_uncaptured(call);
        timing.kernel = median_after([&] { conditions_.busy(); }, call);
        timing.cold = median_after([&] { conditions_.cold(); }, call);

        cudaGraph_t graph;
        cudaGraphExec_t executable;
        REQUIRE_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
        call();
        REQUIRE_CUDA(cudaStreamEndCapture(stream_, &graph));
        REQUIRE_CUDA(cudaGraphInstantiate(&executable, graph, 0));
        const auto launch = [&] { REQUIRE_CUDA(cudaGraphLaunch(executable, stream_)); };
        for (int i = 0; i < n_warm_up_; ++i) launch();
        wait();
        timing.graph_call = median_until_done(launch);
        timing.graph_in_burst = median_in_burst(launch);
        REQUIRE_CUDA(cudaGraphExecDestroy(executable));
        REQUIRE_CUDA(cudaGraphDestroy(graph));
        return timing;
    }

 private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::size_t n_most = 3000;

    void wait() { REQUIRE_CUDA(cudaStreamSynchronize(stream_)); }

    // Takes samples for a sixth of the time, and at least a minimum number.
    template <class Sample>
    double median_of(const Sample& sample) {
        const Clock::time_point start = Clock::now();
        const auto is_over = [&] { return std::chrono::duration<double>(Clock::now() - start).count() > seconds_ / 6; };
        std::vector<double> samples;
        while (samples.size() < n_least_ || (samples.size() < n_most && !is_over())) samples.push_back(sample());
        std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2),
                         samples.end());
        return samples[samples.size() / 2];
    }

    template <class Call>
    double median_until_done(const Call& call) {
        return median_of([&] {
            const Clock::time_point start = Clock::now();
            call();
            wait();
            return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
        });
    }

    template <class Call>
    double median_in_burst(const Call& call) {
        return median_of([&] {
            REQUIRE_CUDA(cudaEventRecord(events_[0], stream_));
            for (int i = 0; i < n_in_burst_; ++i) call();
            return microseconds_since_first_event() / n_in_burst_;
        });
    }

    template <class Condition, class Call>
    double median_after(const Condition& condition, const Call& call) {
        return median_of([&] {
            condition();
            REQUIRE_CUDA(cudaEventRecord(events_[0], stream_));
            call();
            return microseconds_since_first_event();
        });
    }

    double microseconds_since_first_event() {
        REQUIRE_CUDA(cudaEventRecord(events_[1], stream_));
        REQUIRE_CUDA(cudaEventSynchronize(events_[1]));
        float milliseconds = 0;
        REQUIRE_CUDA(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]));
        return 1000.0 * static_cast<double>(milliseconds);
    }

    cudaStream_t stream_;
    double seconds_;
    int n_warm_up_;  // untimed warm-up calls
    int n_in_burst_;
    std::size_t n_least_;  // minimum number of samples of a median
    cudaEvent_t events_[2];
    Conditions conditions_;
};

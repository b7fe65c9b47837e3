// How long a call takes that queues work on a stream: alone and in bursts, made one by one and from a CUDA graph.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define REQUIRE_CUDA(call)                                                                                  \
    do {                                                                                                    \
        const cudaError_t required = (call);                                                                \
        if (required != cudaSuccess) {                                                                      \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(required)); \
            std::exit(1);                                                                                   \
        }                                                                                                   \
    } while (0)

// Medians, in microseconds.
struct Timing {
    double call = 0;        // from the call until its work is done, by the clock of the host
    double in_burst = 0;    // of the device's time for calls that follow each other, by events
    double graph_call = 0;  // the same of launches of a graph of the call
    double graph_in_burst = 0;
};

class Stopwatch {
 public:
    Stopwatch(cudaStream_t stream, double seconds) : stream_(stream), seconds_(seconds) {
        for (cudaEvent_t& event : events_) REQUIRE_CUDA(cudaEventCreateWithFlags(&event, cudaEventDefault));
    }
    ~Stopwatch() {
        for (const cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
    }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;

    template <class Call>
    Timing time(const Call& call) {
        Timing timing;
        for (int i = 0; i < n_warm_up; ++i) call();
        wait();
        timing.call = median_until_done(call);
        timing.in_burst = median_in_burst(call);

        cudaGraph_t graph;
        cudaGraphExec_t executable;
        REQUIRE_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
        call();
        REQUIRE_CUDA(cudaStreamEndCapture(stream_, &graph));
        REQUIRE_CUDA(cudaGraphInstantiate(&executable, graph, 0));
        const auto launch = [&] { REQUIRE_CUDA(cudaGraphLaunch(executable, stream_)); };
        for (int i = 0; i < n_warm_up; ++i) launch();
        wait();
        timing.graph_call = median_until_done(launch);
        timing.graph_in_burst = median_in_burst(launch);
        REQUIRE_CUDA(cudaGraphExecDestroy(executable));
        REQUIRE_CUDA(cudaGraphDestroy(graph));
        return timing;
    }

 private:
    using Clock = std::chrono::steady_clock;
    static constexpr int n_warm_up = 3;
    static constexpr int n_in_burst = 20;
    static constexpr std::size_t n_least = 3;
    static constexpr std::size_t n_most = 3000;

    void wait() { REQUIRE_CUDA(cudaStreamSynchronize(stream_)); }

    // Takes samples for a quarter of the time, but some at least.
    template <class Sample>
    double median_of(const Sample& sample) {
        const Clock::time_point start = Clock::now();
        const auto is_over = [&] { return std::chrono::duration<double>(Clock::now() - start).count() > seconds_ / 4; };
        std::vector<double> samples;
        while (samples.size() < n_least || (samples.size() < n_most && !is_over())) samples.push_back(sample());
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
            for (int i = 0; i < n_in_burst; ++i) call();
            REQUIRE_CUDA(cudaEventRecord(events_[1], stream_));
            REQUIRE_CUDA(cudaEventSynchronize(events_[1]));
            float milliseconds = 0;
            REQUIRE_CUDA(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]));
            return 1000.0 * static_cast<double>(milliseconds) / n_in_burst;
        });
    }

    cudaStream_t stream_;
    double seconds_;
    cudaEvent_t events_[2];
};

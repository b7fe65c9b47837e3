// Captures of work enqueued on a stream.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

namespace per::test {

// Returns the graph of the work that `queue` enqueues while the stream is captured. It must not spoil the capture.
template <class Queue>
cudaGraph_t captured_graph(cudaStream_t stream, const Queue& queue,
                           cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream, mode), cudaSuccess);
    queue();
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    return graph;
}

// Captures calls and discards the graph.
template <class Calls>
void while_captured(cudaStream_t stream, const Calls& calls, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    cudaGraphDestroy(captured_graph(stream, calls, mode));
}

class Graph {
 public:
    template <class Queue>
    Graph(cudaStream_t stream, const Queue& queue) : stream_(stream), graph_(captured_graph(stream, queue)) {
        EXPECT_EQ(cudaGraphInstantiate(&executable_, graph_), cudaSuccess);
    }
    ~Graph() {
        cudaGraphDestroy(graph_);
        cudaGraphExecDestroy(executable_);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;

    void launch() const { launch(stream_); }
    void launch(cudaStream_t stream) const { EXPECT_EQ(cudaGraphLaunch(executable_, stream), cudaSuccess); }

 private:
    cudaStream_t stream_;
    cudaGraph_t graph_;
    cudaGraphExec_t executable_ = nullptr;
};

}  // namespace per::test

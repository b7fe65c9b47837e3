// Batches of a buffer on CUDA from the viewpoint of a user of the device: their waits, allocations and launches, and
// captured graphs.
#include <cinttypes>

#include "both_buffers.h"
#include "graph.h"

namespace per::test {
namespace {

BufferShape small_rows() {
    BufferShape shape;
    shape.image_bytes = 16;
    return shape;
}

BufferShape large_rows() {
    BufferShape shape;
    shape.image_bytes = 4096;
    return shape;
}

void expect_error(const char* text, const std::function<void()>& call) {
    try {
        call();
        ADD_FAILURE() << "no error: " << text;
    } catch (const Error& error) {
        EXPECT_EQ(error.status(), PER_ERROR_INVALID_ARGUMENT);
        EXPECT_NE(std::strstr(error.what(), text), nullptr) << error.what();
    }
}

// Arrays on device and CPU for the same draws, in turn.
class Draws {
 public:
    Draws(BothBuffers& buffers, const ReplaySample& sample) : buffers_(buffers), on_cpu_(sample), on_device_(sample) {
        on_cpu_.batch = expected_.batch;
        on_device_.batch = drawn_.batch;
    }

    const ReplaySample& on_device() const { return on_device_; }
    void expect_next_of_cpu() {
        cudaStreamSynchronize(buffers_.stream());
        buffers_.cpu().sample(on_cpu_, nullptr);
        drawn_.expect_same_as(expected_);
    }

 private:
    BothBuffers& buffers_;
    ReplaySample on_cpu_;
    ReplaySample on_device_;
    BatchArrays expected_{buffers_.fields(), on_cpu_.batch_size, buffers_.steps(), on_cpu_.n_step, 0, 0};
    BatchArrays drawn_{buffers_.fields(), on_cpu_.batch_size, buffers_.steps(), on_cpu_.n_step, 0, 0};
};

// A graph of calls on the buffer.
Graph graph_of(BothBuffers& buffers, const std::function<void(const cuda::StreamOrder::Call&)>& work) {
    return Graph(buffers.stream(), [&] {
        cuda::StreamOrder::Call call(buffers.order(), buffers.stream());
        work(call);
        call.finish();
    });
}

uint64_t launches_of(BothBuffers& buffers, const ReplaySample& sample) {
    Draws draws(buffers, sample);
    simulator::reset_counters();
    cuda::StreamOrder::Call call(buffers.order(), buffers.stream());
    buffers.queue().sample(draws.on_device(), call);
    call.finish();
    const uint64_t launches = simulator::counters().launches;
    EXPECT_EQ(simulator::counters().allocations, 0u);
    EXPECT_EQ(simulator::counters().host_waits, 0u);
    EXPECT_EQ(simulator::counters().interrupts, 0u);
    draws.expect_next_of_cpu();
    return launches;
}

TEST(CudaSampleCalls, a_batch_of_small_rows_is_one_launch) {
    for (const int64_t sequence_length : {0, 2}) {
        BufferShape shape = small_rows();
        shape.sequence_length = sequence_length;
        BothBuffers buffers(shape, 1);
        buffers.fill(60, 0.1);
        ReplaySample sample = buffers.sample_of(33);
        EXPECT_EQ(launches_of(buffers, sample), 1u);
        sample.scheme = PER_WITHOUT_REPLACEMENT;
        EXPECT_EQ(launches_of(buffers, sample), 2u);
        sample = buffers.sample_of(1024);
        EXPECT_EQ(launches_of(buffers, sample), 1u);
        sample = buffers.sample_of(1025);
        EXPECT_EQ(launches_of(buffers, sample), 2u);
    }
    BothBuffers buffers(large_rows(), 2);
    buffers.fill(60, 0.1);
    EXPECT_EQ(launches_of(buffers, buffers.sample_of(64)), 2u);
}

TEST(CudaSampleCalls, rows_by_id_wait_for_nothing_and_allocate_nothing) {
    BothBuffers buffers(small_rows(), 3);
    buffers.fill(60, 0.1);
    const std::vector<int64_t> ids = buffers.cpu().live_ids(nullptr);
    const int64_t n = static_cast<int64_t>(ids.size());
    BatchArrays batch(buffers.fields(), n, 0, 1, 0, 0);
    per_batch plain = batch.batch;
    plain.weights = plain.probabilities = nullptr;
    ReplaySample windows = buffers.sample_of(n);
    windows.rows = RowsOfIds{ids.data(), PER_INVALID_ERROR};
    windows.batch = batch.batch;
    const std::vector<int64_t> actions(ids.size());
    std::vector<per_array> fields(static_cast<std::size_t>(buffers.fields().count()));
    fields[3] = {actions.data(), nullptr, 0, PER_INT64, nullptr};
    simulator::reset_counters();
    {
        cuda::StreamOrder::Call call(buffers.order(), buffers.stream());
        buffers.queue().get(n, ids.data(), plain, call);
        buffers.queue().sample(windows, call);
        buffers.queue().set(n, ids.data(), fields.data(), call);
        call.finish();
    }
    EXPECT_EQ(simulator::counters().allocations, 0u);
    EXPECT_EQ(simulator::counters().host_waits, 0u);
    cudaStreamSynchronize(buffers.stream());
}

TEST(CudaSampleCalls, a_graph_draws_the_next_batches_of_the_cpu) {
    for (const int32_t scheme : {PER_STRATIFIED, PER_WITHOUT_REPLACEMENT})
        for (const BufferShape& shape : {small_rows(), large_rows()}) {
            BothBuffers buffers(shape, 5);
            buffers.fill(60, 0.1);
            ReplaySample sample = buffers.sample_of(33);
            sample.scheme = scheme;
            Draws draws(buffers, sample);
            const Graph graph = graph_of(
                buffers, [&](const cuda::StreamOrder::Call& call) { buffers.queue().sample(draws.on_device(), call); });
            for (int i = 0; i < 3; ++i) {
                graph.launch();
                draws.expect_next_of_cpu();
            }
        }
}

// The first batch larger than 4096 rows and than all before it allocates, so it cannot be captured.
TEST(CudaSampleCalls, larger_batches_need_a_call_before_they_are_captured) {
    BothBuffers buffers(small_rows(), 7);
    buffers.fill(60, 0.1);
    const ReplaySample sample = buffers.sample_of(4097);
    Draws draws(buffers, sample);
    while_captured(buffers.stream(), [&] {
        cuda::StreamOrder::Call call(buffers.order(), buffers.stream());
        expect_error("make one such call before", [&] { buffers.queue().sample(draws.on_device(), call); });
    });

    ReplaySample small = buffers.sample_of(31);
    Draws small_draws(buffers, small);
    const Graph before = graph_of(
        buffers, [&](const cuda::StreamOrder::Call& call) { buffers.queue().sample(small_draws.on_device(), call); });
    const std::size_t n_bytes = simulator::held().bytes;
    buffers.on_device([&](const cuda::StreamOrder::Call& call) { buffers.queue().sample(draws.on_device(), call); });
    draws.expect_next_of_cpu();
    EXPECT_GT(simulator::held().bytes, n_bytes);
    EXPECT_EQ(launches_of(buffers, sample), 2u);
    const Graph after = graph_of(
        buffers, [&](const cuda::StreamOrder::Call& call) { buffers.queue().sample(draws.on_device(), call); });
    after.launch();
    draws.expect_next_of_cpu();
    // A graph captured earlier keeps the memory of its capture.
    before.launch();
    small_draws.expect_next_of_cpu();
    per_replay_statistics statistics = {};
    buffers.cpu().statistics(statistics);
    buffers.on_device([&](const cuda::StreamOrder::Call& call) {
        const BatchFigures figures = buffers.queue().last_batch(buffers.device_state().last, call).figures();
        EXPECT_EQ(figures.size, 31);
        EXPECT_EQ(figures.effective_size, statistics.last_effective_size);
    });
}

TEST(CudaSampleCalls, more_fields_than_a_launch_takes) {
    BufferShape shape = small_rows();
    shape.n_more_fields = 19;
    BothBuffers buffers(shape, 9);
    buffers.fill(60, 0.1);
    EXPECT_EQ(launches_of(buffers, buffers.sample_of(33)), 2u);

    const std::vector<int64_t> ids = buffers.cpu().live_ids(nullptr);
    std::vector<std::vector<int32_t>> values;
    std::vector<per_array> fields(static_cast<std::size_t>(buffers.fields().count()));
    for (std::size_t f = 6; f < fields.size(); ++f) {
        values.emplace_back(ids.size(), static_cast<int32_t>(f));
        fields[f] = {values.back().data(), nullptr, 0, PER_INT32, nullptr};
    }
    const int64_t n = static_cast<int64_t>(ids.size());
    buffers.cpu().set(n, ids.data(), fields.data(), nullptr);
    buffers.on_device(
        [&](const cuda::StreamOrder::Call& call) { buffers.queue().set(n, ids.data(), fields.data(), call); });
    EXPECT_EQ(launches_of(buffers, buffers.sample_of(33)), 2u);
}

}  // namespace
}  // namespace per::test

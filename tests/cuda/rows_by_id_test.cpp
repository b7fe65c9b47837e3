// Rows of a buffer on CUDA, by id: read in epochs, read as they were added, and written.
#include <algorithm>

#include "both_buffers.h"

namespace per::test {
namespace {

constexpr uint64_t no_weights =
    uint64_t{1} << BatchArrays::weights | uint64_t{1} << BatchArrays::probabilities | uint64_t{1} << BatchArrays::mask;

std::vector<BufferShape> shapes() {
    BufferShape plain;
    plain.n_step = 3;
    BufferShape stacked;
    stacked.stack = 4;
    stacked.stores_next = true;
    stacked.image_bytes = 5000;
    BufferShape sequences;
    sequences.sequence_length = 4;
    sequences.stride = 2;
    sequences.burn_in = 1;
    sequences.n_step = 2;
    return {plain, stacked, sequences};
}

// All ids issued so far, some that were never issued, and -1; unordered, some more than once.
std::vector<int64_t> any_ids(BothBuffers& buffers) {
    std::vector<int64_t> ids = {-1, -2, INT64_MIN, INT64_MAX};
    int64_t largest = 0;
    for (const Lane& lane : buffers.cpu().state().lanes) largest = std::max(largest, lane.head);
    for (int64_t id = 0; id < (largest + 2) * buffers.shape().n_envs; ++id)
        if (buffers.chance(0.7)) ids.push_back(id);
    for (int i = 0; i < 20; ++i) ids.push_back(ids[buffers.random()() % ids.size()]);
    std::shuffle(ids.begin(), ids.end(), buffers.random());
    return ids;
}

void expect_rows(const BatchArrays& on_device, std::size_t i, bool is_there, BatchArrays& expected) {
    if (!is_there) expected.expect_nothing();
    EXPECT_TRUE(on_device.row(i) == expected.row(0)) << "row " << i << (is_there ? "" : ", which is not there");
}

// A minibatch of an epoch over 8 transitions.
ReplaySample of_walk(BothBuffers& buffers, int64_t n, const int64_t* ids, const per_batch& batch) {
    ReplaySample sample = buffers.sample_of(n);
    sample.beta = 0.0;
    sample.prioritization = PER_UNIFORM;
    sample.normalize_weights = PER_NONE;
    sample.rows = RowsOfEpoch{ids, 8};
    sample.batch = batch;
    return sample;
}

class CudaRows : public testing::TestWithParam<std::size_t> {};

TEST_P(CudaRows, are_read_as_they_were_added) {
    BothBuffers buffers(shapes()[GetParam()], GetParam() + 1);
    buffers.fill(60);
    const std::vector<int64_t> ids = any_ids(buffers);
    const int64_t n = static_cast<int64_t>(ids.size());
    for (const bool wants_next : {true, false}) {
        const uint64_t skips = no_weights | (wants_next ? 0 : uint64_t{0xff} << 32);
        BatchArrays read(buffers.fields(), n, 0, -1, skips, GetParam());
        const uint64_t n_bad_before = buffers.device_state().errors.n_bad_ids;
        buffers.on_device(
            [&](const cuda::StreamOrder::Call& call) { buffers.queue().get(n, ids.data(), read.batch, call); });
        uint64_t n_bad = 0;
        for (std::size_t i = 0; i < ids.size(); ++i) {
            BatchArrays expected(buffers.fields(), 1, 0, -1, skips, GetParam());
            bool is_there = true;
            try {
                buffers.cpu().get(1, &ids[i], expected.batch, nullptr);
            } catch (const Error&) {
                is_there = false;
                ++n_bad;
            }
            expect_rows(read, i, is_there, expected);
        }
        EXPECT_GT(n_bad, 4u);
        EXPECT_LT(n_bad, ids.size());
        EXPECT_EQ(buffers.device_state().errors.n_bad_ids - n_bad_before, n_bad);
    }
}

TEST_P(CudaRows, are_walked_through_as_they_are_drawn) {
    BothBuffers buffers(shapes()[GetParam()], GetParam() + 11);
    buffers.fill(60);
    const std::vector<int64_t> ids = any_ids(buffers);
    const int64_t n = static_cast<int64_t>(ids.size());
    const int64_t n_step = buffers.shape().n_step;
    BatchArrays taken(buffers.fields(), n, buffers.steps(), n_step, 0, 0);
    buffers.on_device([&](const cuda::StreamOrder::Call& call) {
        // The caller may reuse the ids after the call.
        std::vector<int64_t> given = ids;
        buffers.queue().sample(of_walk(buffers, n, given.data(), taken.batch), call);
        std::fill(given.begin(), given.end(), 0);
    });
    uint64_t n_bad = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        BatchArrays expected(buffers.fields(), 1, buffers.steps(), n_step, 0, 0);
        bool is_there = true;
        try {
            buffers.cpu().sample(of_walk(buffers, 1, &ids[i], expected.batch), nullptr);
            EXPECT_EQ(*expected.batch.probabilities, 0.125f);
            EXPECT_EQ(*expected.batch.weights, 1.0f);
        } catch (const Error&) {
            is_there = false;
            ++n_bad;
        }
        expect_rows(taken, i, is_there, expected);
    }
    EXPECT_LT(n_bad, ids.size());
    EXPECT_EQ(buffers.device_state().errors.n_bad_ids, n_bad);
}

// Reads the windows of these ids on both. CUDA skips dead ids in any case, and counts them on request.
void expect_same_windows(BothBuffers& buffers, ReplaySample sample, const std::vector<int64_t>& ids) {
    const uint64_t skips = buffers.chance(0.3) ? buffers.random()() & buffers.random()() : 0;
    BatchArrays expected(buffers.fields(), sample.batch_size, buffers.steps(), sample.n_step, skips, 0);
    BatchArrays written(buffers.fields(), sample.batch_size, buffers.steps(), sample.n_step, skips, 0);
    sample.scheme = PER_INDEPENDENT;
    sample.n_newest = 0;
    sample.n_step_min = 0;  // with a range of n_step the backend would count a batch, and the queue none
    sample.rows = RowsOfIds{ids.data(), PER_INVALID_SKIP};
    sample.batch = expected.batch;
    const int64_t batches = static_cast<int64_t>(buffers.device_state().batches);
    const int64_t beta_step = buffers.device_state().beta.step;
    const uint64_t n_bad = buffers.device_state().errors.n_bad_ids;
    buffers.cpu().sample(sample, nullptr);
    const bool skips_dead = buffers.chance(0.5);
    sample.rows = RowsOfIds{ids.data(), skips_dead ? PER_INVALID_SKIP : PER_INVALID_ERROR};
    sample.batch = written.batch;
    buffers.on_device([&](const cuda::StreamOrder::Call& call) { buffers.queue().sample(sample, call); });
    written.expect_same_as(expected);
    uint64_t n_dead = 0;
    for (const int64_t id : ids) {
        BatchArrays one(buffers.fields(), 1, buffers.steps(), sample.n_step, 0, 0);
        ReplaySample single = sample;
        single.batch_size = 1;
        single.rows = RowsOfIds{&id, PER_INVALID_SKIP};
        single.batch = one.batch;
        buffers.cpu().sample(single, nullptr);
        n_dead += *one.batch.ids != id || id == -1;
    }
    EXPECT_EQ(buffers.device_state().errors.n_bad_ids - n_bad, skips_dead ? 0 : n_dead);
    per_replay_statistics statistics = {};
    buffers.cpu().statistics(statistics);
    EXPECT_EQ(statistics.samples, batches);
    EXPECT_EQ(statistics.beta_step, beta_step);
    EXPECT_EQ(static_cast<int64_t>(buffers.device_state().batches), batches);
    EXPECT_EQ(buffers.device_state().beta.step, beta_step);
}

TEST_P(CudaRows, are_given_by_id_as_they_are_drawn) {
    BothBuffers buffers(shapes()[GetParam()], GetParam() + 41);
    buffers.fill(60);
    for (const double p_zero : {0.3, 0.0, 1.0}) {
        cudaDeviceSynchronize();
        buffers.set_priorities(p_zero);
        buffers.take_over();
        for (int round = 0; round < 6; ++round) {
            std::vector<int64_t> ids = any_ids(buffers);
            if (round == 0) ids.assign(3, -1);
            const int64_t n = static_cast<int64_t>(ids.size());
            // A row without a priority cannot be drawn in proportion to priorities.
            expect_same_windows(buffers, round == 1 ? buffers.sample_of(n) : buffers.any_sample(n), ids);
            // The next draw depends on the ranks of this one.
            ReplaySample sample = buffers.any_sample(20);
            BatchArrays expected(buffers.fields(), 20, buffers.steps(), sample.n_step, 0, 0);
            BatchArrays drawn(buffers.fields(), 20, buffers.steps(), sample.n_step, 0, 0);
            sample.scheme = PER_STRATIFIED;
            sample.batch = expected.batch;
            buffers.cpu().sample(sample, nullptr);
            sample.batch = drawn.batch;
            buffers.on_device([&](const cuda::StreamOrder::Call& call) { buffers.queue().sample(sample, call); });
            drawn.expect_same_as(expected);
        }
    }
}

void expect_same_frames(BothBuffers& buffers) {
    const cuda::DeviceReplay& device = buffers.memory().device();
    for (int64_t f = 0; f < device.n_fields; ++f)
        for (int64_t slot = 0; slot < device.capacity; ++slot)
            EXPECT_EQ(std::memcmp(device.fields[f].frames + slot * device.fields[f].bytes,
                                  buffers.cpu().state().rows.field(f).at(slot),
                                  static_cast<std::size_t>(device.fields[f].bytes)),
                      0)
                << "field " << f << ", slot " << slot;
    for (int64_t slot = 0; slot < device.capacity; ++slot) EXPECT_EQ(device.priorities.tree.claims[slot], 0u);
}

// Fields except observations, by field.
std::vector<std::vector<std::byte>> any_values(BothBuffers& buffers, std::size_t n) {
    std::vector<std::vector<std::byte>> values;
    for (const Field& field : buffers.fields()) {
        values.emplace_back(field.is_observation() ? 0 : n * static_cast<std::size_t>(field.bytes));
        for (std::byte& byte : values.back()) byte = static_cast<std::byte>(buffers.random()());
    }
    return values;
}

TEST_P(CudaRows, of_equal_ids_the_last_value_is_written) {
    BothBuffers buffers(shapes()[GetParam()], GetParam() + 21);
    buffers.fill(60);
    std::vector<int64_t> ids = any_ids(buffers);
    // The CPU refuses ids that were never issued; the device skips them.
    const auto was_issued = [&](int64_t id) {
        const Ring& ring = buffers.cpu().state().ring();
        return id == -1 || (id >= 0 && ring.row_of_id(id) < buffers.cpu().state().lane(ring.env_of_id(id)).head);
    };
    const std::vector<std::vector<std::byte>> values = any_values(buffers, ids.size());
    std::vector<int64_t> issued;
    std::vector<std::vector<std::byte>> values_of_issued(values.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (!was_issued(ids[i])) continue;
        issued.push_back(ids[i]);
        for (std::size_t f = 0; f < values.size(); ++f) {
            const std::size_t bytes = values[f].size() / ids.size();
            const auto first = values[f].begin() + static_cast<std::ptrdiff_t>(i * bytes);
            values_of_issued[f].insert(values_of_issued[f].end(), first, first + static_cast<std::ptrdiff_t>(bytes));
        }
    }
    const auto arrays_of = [&](const std::vector<std::vector<std::byte>>& given) {
        std::vector<per_array> arrays;
        for (std::size_t f = 0; f < given.size(); ++f)
            arrays.push_back({given[f].empty() ? nullptr : given[f].data(), nullptr, 0,
                              buffers.fields()[static_cast<int64_t>(f)].dtype, nullptr});
        return arrays;
    };
    const int64_t n = static_cast<int64_t>(ids.size());
    buffers.cpu().set(static_cast<int64_t>(issued.size()), issued.data(), arrays_of(values_of_issued).data(), nullptr);
    const std::vector<per_array> arrays = arrays_of(values);
    buffers.on_device(
        [&](const cuda::StreamOrder::Call& call) { buffers.queue().set(n, ids.data(), arrays.data(), call); });

    expect_same_frames(buffers);
    EXPECT_EQ(buffers.device_state().counters.stale_updates, buffers.cpu().state().counters.stale_updates);
    EXPECT_GT(buffers.device_state().counters.stale_updates, 0);
    EXPECT_EQ(buffers.device_state().errors.n_bad_ids, ids.size() - issued.size());
}

// An entry that its field cannot represent is not written at all.
TEST(CudaRowsOfOtherTypes, are_cast_as_they_are_added) {
    BothBuffers buffers({}, 31);
    buffers.fill(20);
    const std::vector<int64_t> ids = buffers.cpu().live_ids(nullptr);
    const std::size_t n = ids.size();
    std::vector<int32_t> actions(n);
    std::vector<float> states(2 * n);
    std::vector<int64_t> hints(5 * n);
    for (std::size_t i = 0; i < n; ++i) actions[i] = static_cast<int32_t>(buffers.random()());
    for (float& state : states) state = std::normal_distribution<float>()(buffers.random());
    for (int64_t& hint : hints) hint = static_cast<int16_t>(buffers.random()());
    const auto arrays_from = [&](std::size_t first) {
        std::vector<per_array> arrays(6);
        arrays[3] = {actions.data() + first, nullptr, 0, PER_INT32, nullptr};
        arrays[4] = {states.data() + 2 * first, nullptr, 0, PER_FLOAT32, nullptr};
        arrays[5] = {hints.data() + 5 * first, nullptr, 0, PER_INT64, nullptr};
        return arrays;
    };
    const std::vector<std::size_t> unfit = {0, 7, n - 1};
    for (const std::size_t i : unfit) hints[5 * i + i % 5] = i == 7 ? INT64_MIN : 32768;
    for (std::size_t i = 0; i < n; ++i) {
        const bool fits = std::find(unfit.begin(), unfit.end(), i) == unfit.end();
        if (fits) buffers.cpu().set(1, &ids[i], arrays_from(i).data(), nullptr);
    }
    buffers.on_device([&](const cuda::StreamOrder::Call& call) {
        buffers.queue().set(static_cast<int64_t>(n), ids.data(), arrays_from(0).data(), call);
    });
    expect_same_frames(buffers);
    EXPECT_EQ(buffers.device_state().errors.n_bad_values, unfit.size());
    EXPECT_EQ(buffers.device_state().counters.rejected_updates, static_cast<int64_t>(unfit.size()));
}

INSTANTIATE_TEST_SUITE_P(shapes, CudaRows, testing::Range(std::size_t{0}, shapes().size()));

}  // namespace
}  // namespace per::test

// Walks of replay_walk.h with all pairs of options.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../c/checkpoints.h"
#include "replay_walk.h"

namespace per::test {
namespace {

std::vector<size_t> n_values() {
    std::vector<size_t> n;
    for (const VariedOption& option : varied_options()) n.push_back(option.values.size());
    return n;
}

TEST(ReplayModel, random_use_agrees_with_the_model_after_every_call) {
    const std::vector<ChosenValues> rows = covering_rows(n_values());
    const uint64_t n_walks = on_cuda() ? rows.size() : std::max<uint64_t>(300, rows.size());
    for (uint64_t seed = 0; seed < n_walks && !HasFailure(); ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        // On a simulated GPU calls are slow.
        RandomUse(rows[seed % rows.size()], seed, Choices(seed)).run(on_cuda() ? 12 : 60, on_cuda() ? 4 : 1);
    }
}

void expect_agreement(const char* storage, int32_t compression) {
    const std::vector<ChosenValues> rows = covering_rows(n_values());
    for (uint64_t seed = 0; seed < rows.size() && !::testing::Test::HasFailure(); ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        RandomUse(rows[seed], seed, Choices(seed), storage, compression).run(60, 2);
    }
}

TEST(ReplayModel, rows_in_a_file_agree_with_the_model_after_every_call) {
    if (on_cuda()) GTEST_SKIP() << "rows lie in the memory of the device";
    expect_agreement(OwnFolder().path(), PER_COMPRESSION_NONE);
}

TEST(ReplayModel, compressed_fields_agree_with_the_model_after_every_call) {
    if (on_cuda()) GTEST_SKIP() << "the device keeps frames uncompressed";
    expect_agreement(nullptr, PER_COMPRESSION_DELTA);
}

// A channel of a buffer and its writer, both in this process.
class OwnChannel {
 public:
    explicit OwnChannel(const Buffer& buffer) {
        per_channel_options options = initialized(per_channel_options_init);
        options.moved_by = PER_MOVED_BY_CALLS;
        EXPECT_OK(per_channel_create(buffer.get(), &options, &channel_));
        const char* path = nullptr;
        EXPECT_OK(per_channel_get_address(channel_, &path, nullptr));
        EXPECT_OK(per_writer_attach(path, 0, nullptr, 0, 0, &writer_));
    }
    ~OwnChannel() {
        per_writer_free(writer_);
        per_channel_free(channel_);
    }
    OwnChannel(const OwnChannel&) = delete;
    OwnChannel& operator=(const OwnChannel&) = delete;

    // Writes a piece of at most max_piece steps, and moves at most max_moved of the waiting steps.
    static constexpr int64_t max_piece = 8;
    per_status add(const GivenCall& piece, int64_t max_moved) {
        const per_status status =
            Buffer::give(piece, [this](const per_steps& steps) { return per_writer_add(writer_, &steps, -1); });
        int64_t n_moved = 0;
        return status != PER_OK ? status : per_channel_move(channel_, max_moved, &n_moved);
    }
    per_status flush() { return per_channel_flush(channel_, -1); }

 private:
    per_channel* channel_ = nullptr;
    per_writer* writer_ = nullptr;
};

std::string saved(const Buffer& buffer) {
    std::string bytes;
    const auto append = [](void* context, const void* data, int64_t size) {
        static_cast<std::string*>(context)->append(static_cast<const char*>(data), static_cast<size_t>(size));
        return size;
    };
    EXPECT_OK(save_to(buffer.get(), append, &bytes));
    return bytes;
}

// Makes the same random calls on several buffers, one for each way to add steps: in one call, one by one, in pieces of
// one to three, and through a channel that moves a few steps at a time.
void expect_same_files(const ChosenValues& row, uint64_t seed, int n_calls) {
    const per_replay_options options = options_of(row, seed, nullptr);
    Choices random(seed);
    Environments environments(random, options);
    std::vector<Buffer> buffers;
    for (int i = 0; i < (on_cuda() ? 3 : 4); ++i) buffers.emplace_back(options, padding_of(row));
    const std::unique_ptr<OwnChannel> channel = on_cuda() ? nullptr : std::make_unique<OwnChannel>(buffers[3]);
    int64_t most_issued = 0;

    const auto add = [&] {
        const GivenCall call = environments.call(3 * (options.capacity / options.n_envs));
        std::vector<int64_t> ids, single_ids;
        if (buffers[0].add(call, &ids) != PER_OK) return false;
        for (const int64_t id : ids) most_issued = std::max(most_issued, id + 1);
        EXPECT_OK(add_singly(buffers[1], call, options.n_envs, single_ids));
        const int64_t longest = environments.number(1, 3);
        EXPECT_OK(take_in_pieces(call, options.n_envs, longest,
                                 [&](const GivenCall& piece) { return buffers[2].add(piece); }));
        if (!channel) return true;
        const auto write = [&](const GivenCall& piece) { return channel->add(piece, environments.number(0, 12)); };
        EXPECT_OK(take_in_pieces(call, options.n_envs, OwnChannel::max_piece, write));
        EXPECT_OK(channel->flush());
        return true;
    };
    const auto update = [&] {
        if (most_issued == 0) return;
        const int64_t id = environments.number(std::max<int64_t>(0, most_issued - options.capacity), most_issued - 1);
        const float priority =
            std::ldexp(static_cast<float>(environments.number(0, 3)), static_cast<int>(environments.number(-40, 40)));
        for (Buffer& buffer : buffers) buffer.set_priority(id, priority);
    };
    const auto draw = [&] {
        for (Buffer& buffer : buffers) {
            int64_t ids[4];
            per_batch batch = initialized(per_batch_init);
            batch.ids = ids;
            const per_status status = per_replay_sample(buffer.get(), nullptr, 4, &batch, nullptr);
            EXPECT_TRUE(status == PER_OK || status == PER_ERROR_EMPTY) << per_last_error();
        }
    };
    for (int i = 0; i < n_calls && !::testing::Test::HasFailure(); ++i) {
        const int64_t kind = environments.number(0, 9);
        if (kind < 6 && !add()) return;  // a gap or a full lane: the other ways add a part
        if (kind == 6) update();
        if (kind == 7 || kind == 8) draw();
        const int64_t env = environments.number(0, options.n_envs - 1);
        for (Buffer& buffer : buffers) {
            if (kind != 9) break;
            const per_status status =
                i % 3 == 0 ? per_replay_clear(buffer.get(), nullptr) : per_replay_cut(buffer.get(), 1, &env, nullptr);
            EXPECT_OK(status);
        }
        const std::string first = saved(buffers[0]);
        for (size_t way = 1; way < buffers.size(); ++way)
            EXPECT_TRUE(saved(buffers[way]) == first) << "way " << way << " after call " << i << " of kind " << kind;
    }
}

TEST(ReplayModel, every_way_to_bring_the_same_steps_leaves_the_same_file) {
    const std::vector<ChosenValues> rows = covering_rows(n_values());
    const uint64_t n_walks = on_cuda() ? rows.size() : 10 * rows.size();
    for (uint64_t seed = 0; seed < n_walks && !HasFailure(); ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        expect_same_files(rows[seed % rows.size()], seed, on_cuda() ? 10 : 40);
    }
}

}  // namespace
}  // namespace per::test

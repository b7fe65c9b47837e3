// A buffer saved on one device continues bit-identically on another, and no damaged file is accepted on CUDA.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "../c/checkpoints.h"
#include "../cpp/sections.h"
#include "file/checksum.h"
#include "replay_twins.h"
#include "simulator.h"

namespace per::test {
namespace {

namespace fs = std::filesystem;

class CudaCheckpoint : public testing::Test {
 protected:
    void SetUp() override {
        std::string name = (fs::temp_directory_path() / "per_cuda_checkpoint_XXXXXX").string();
        ASSERT_NE(mkdtemp(name.data()), nullptr);
        folder_ = name;
    }
    void TearDown() override { fs::remove_all(folder_); }

    std::string path(const char* name = "buffer.per") const { return (folder_ / name).string(); }

    static std::string contents(const std::string& path) {
        std::ifstream file(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    static void write(const std::string& path, const std::string& bytes) {
        std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }

    static per_status save(per_replay* replay, const std::string& path) {
        return per_replay_save(replay, path.c_str(), nullptr);
    }
    static ReplayHandle load(const std::string& path, int32_t device) {
        per_replay* replay = nullptr;
        EXPECT_EQ(load_on(path.c_str(), device, 0, &replay), PER_OK) << per_last_error();
        return ReplayHandle(replay);
    }

    // Each loads the file of the other.
    void exchange_files(Twins& twins) const {
        ASSERT_EQ(save(twins.cpu.get(), path("cpu")), PER_OK) << per_last_error();
        ASSERT_EQ(save(twins.gpu.get(), path("gpu")), PER_OK) << per_last_error();
        twins.gpu = load(path("cpu"), PER_CUDA);
        twins.cpu = load(path("gpu"), PER_CPU);
    }

    fs::path folder_;
};

// Each loads the file of the other, and both continue alike.
TEST_F(CudaCheckpoint, each_device_goes_on_from_the_others_file) {
    for (const int32_t max_priority : {PER_MAX_EVER, PER_MAX_NOW}) {
        for (const int n_before : {0, 1, 12, 60}) {
            per_replay_options options = twin_options();
            options.max_priority = max_priority;
            if (n_before % 2 == 0) options.autoreset = PER_AUTORESET_NEXT_STEP;
            Twins twins(options);
            TwinWalk walk(static_cast<uint64_t>(n_before));
            twins.use(walk, n_before);
            ASSERT_NO_FATAL_FAILURE(exchange_files(twins));
            twins.expect_same();
            twins.use(walk, 20);
            twins.expect_same();
            if (HasFailure()) return;
        }
    }
}

// With every kind of age, and leaves that are rebased between adds and within them.
TEST_F(CudaCheckpoint, freshness_goes_on_too) {
    const per_freshness kinds[] = {{6, -1, PER_AGE_STEPS, 0},      {0.4, -1, PER_AGE_STEPS, 0},
                                   {0.03, 10, PER_AGE_STEPS, 0},   {0, 12, PER_AGE_STEPS, 0},
                                   {0.5, -1, PER_AGE_VERSIONS, 0}, {0.02, 3, PER_AGE_VERSIONS, 0},
                                   {0, 1, PER_AGE_VERSIONS, 0}};
    for (const per_freshness& freshness : kinds) {
        for (const int32_t normalize_weights : {PER_BATCH_MAX, PER_BUFFER_MAX}) {
            per_replay_options options = twin_options();
            options.freshness = freshness;
            options.normalize_weights = normalize_weights;
            options.max_priority = normalize_weights == PER_BATCH_MAX ? PER_MAX_EVER : PER_MAX_NOW;
            Twins twins(options);
            TwinWalk walk(5);
            int64_t version = 0;
            for (int i = 0; i < 24 && !HasFailure(); ++i) {
                SCOPED_TRACE(testing::Message() << "half-life " << freshness.half_life << ", call " << i);
                twins.use(walk, 2);
                version += i % 7;
                twins.both([&](per_replay* replay, void* on) {
                    if (i % 8 == 3) return per_replay_cut(replay, 0, nullptr, on);
                    if (i % 8 == 4) return change_n_step(replay, 1 + i / 8, on);
                    if (i == 14) return change_alpha(replay, 0.3, on);
                    if (i == 18) return per_replay_clear(replay, on);
                    if (freshness.age == PER_AGE_STEPS) return PER_OK;
                    return change_version(replay, version, on);
                });
                twins.synchronize();
                if (i % 6 != 5) continue;
                ASSERT_NO_FATAL_FAILURE(exchange_files(twins));
                EXPECT_TRUE(contents(path("cpu")) == contents(path("gpu"))) << freshness.half_life;
                twins.expect_same();
            }
            if (HasFailure()) return;
        }
    }
}

// A background save writes the state at its start, including work that was enqueued and has not run yet.
TEST_F(CudaCheckpoint, a_save_in_the_background_is_that_of_its_start) {
    for (const int32_t max_priority : {PER_MAX_EVER, PER_MAX_NOW}) {
        per_replay_options options = twin_options();
        options.max_priority = max_priority;
        Twins twins(options);
        TwinWalk walk(11);
        for (const int n : {0, 1, 30}) {
            twins.use(walk, n);
            twins.sample(16);
            ASSERT_EQ(save(twins.cpu.get(), path("expected")), PER_OK) << per_last_error();
            per_save* background = nullptr;
            ASSERT_EQ(per_replay_save_start(twins.gpu.get(), path("gpu").c_str(), nullptr, &background), PER_OK)
                << per_last_error();
            per_save* other = nullptr;
            ASSERT_EQ(per_replay_save_start(twins.cpu.get(), path("cpu").c_str(), nullptr, &other), PER_OK);
            twins.use(walk, 7);
            int64_t written = -1, total = -1;
            EXPECT_EQ(per_save_wait(background, -1, &written, &total), PER_OK) << per_last_error();
            EXPECT_EQ(written, total);
            EXPECT_EQ(per_save_wait(other, -1, nullptr, nullptr), PER_OK) << per_last_error();
            per_save_free(background);
            per_save_free(other);
            EXPECT_TRUE(contents(path("gpu")) == contents(path("expected")));
            EXPECT_TRUE(contents(path("cpu")) == contents(path("expected")));
        }
    }
}

TEST_F(CudaCheckpoint, ranks_and_smallest_leaves_go_on_too) {
    for (const bool by_options : {true, false}) {
        for (const int32_t prioritization : {PER_RANK, PER_PROPORTIONAL}) {
            per_replay_options options = twin_options();
            const per_sample_options sample = sample_options(prioritization, PER_BUFFER_MAX);
            if (by_options) {
                options.normalize_weights = PER_BUFFER_MAX;
                options.prioritization = prioritization;
            }
            Twins twins(options);
            TwinWalk walk = twins.begin(9, 20);
            const std::vector<int64_t> ids = twins.sample(16, &sample);
            twins.update({ids[0]}, {3e4f});  // after ranks were computed
            ASSERT_NO_FATAL_FAILURE(exchange_files(twins));
            for (int i = 0; i < 10; ++i) {
                twins.sample(16, &sample);
                twins.use(walk, 1);
            }
            twins.expect_same();
            if (HasFailure()) return;
        }
    }
}

TEST_F(CudaCheckpoint, a_cleared_buffer_goes_on_too) {
    Twins twins(twin_options());
    TwinWalk walk = twins.begin(6, 20);
    twins.both([](per_replay* replay, void*) { return per_replay_clear(replay, nullptr); });
    ASSERT_NO_FATAL_FAILURE(exchange_files(twins));
    ASSERT_FALSE(HasFailure());
    twins.expect_same();
    twins.use(walk, 20);
    twins.expect_same();
}

// After a rescale the scale cannot be computed from the priorities alone.
TEST_F(CudaCheckpoint, masses_keep_their_scale) {
    Twins twins(twin_options());
    twins.begin(4, 20);
    const int64_t id = live_ids_of(twins.cpu.get())[0];
    twins.update({id}, {1e30f});
    twins.update({id}, {1e24f});
    ASSERT_NO_FATAL_FAILURE(exchange_files(twins));
    for (float error = 1e20f; error > 1e-20f; error /= 100) {
        twins.update({id}, {error});
        twins.expect_same();
        twins.sample(16);
    }
}

TEST_F(CudaCheckpoint, settings_and_stored_next_observations_come_back) {
    per_replay_options options = twin_options();
    options.store_next_observation = 1;
    options.n_step = 3;
    Twins twins(options);
    TwinWalk walk(5, true);
    twins.use(walk, 15);
    for (per_replay* const replay : {twins.cpu.get(), twins.gpu.get()}) {
        EXPECT_EQ(change_alpha(replay, 0.25, nullptr), PER_OK) << per_last_error();
        EXPECT_EQ(change_gamma(replay, 1.0, nullptr), PER_OK) << per_last_error();
        EXPECT_EQ(change_n_step(replay, 2, nullptr), PER_OK) << per_last_error();
        EXPECT_EQ(change_beta(replay, 0.75, nullptr), PER_OK) << per_last_error();
        EXPECT_EQ(per_replay_clear(replay, nullptr), PER_OK) << per_last_error();
    }
    ASSERT_EQ(save(twins.gpu.get(), path()), PER_OK);
    twins.gpu = load(path(), PER_CUDA);
    twins.expect_same();
    twins.use(walk, 10);
    twins.expect_same();
}

TEST_F(CudaCheckpoint, every_damaged_byte_is_seen) {
    per_replay_options options = twin_options();
    options.capacity = 18;
    options.frame_stack = 1;
    options.n_step = 1;
    const ReplayHandle replay = create_replay(options, PER_CUDA);
    TwinWalk walk(3);
    for (int i = 0; i < 8; ++i) {
        TwinSteps steps = walk.next();
        ASSERT_EQ(steps.add(replay.get(), nullptr), PER_OK) << per_last_error();
        ASSERT_EQ(per_replay_synchronize(replay.get(), nullptr), PER_OK) << per_last_error();
    }
    ASSERT_EQ(save(replay.get(), path()), PER_OK) << per_last_error();
    const std::string good = contents(path());
    const auto status_of_loading = [&](const std::string& bytes) {
        write(path(), bytes);
        per_replay* loaded = nullptr;
        const per_status status = load_on(path().c_str(), PER_CUDA, 0, &loaded);
        EXPECT_EQ(loaded != nullptr, status == PER_OK);
        per_replay_free(loaded);
        return status;
    };
    for (std::size_t i = 12; i < good.size(); i += 3) {  // the version precedes these
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ (1 << i % 8));
        EXPECT_EQ(status_of_loading(bad), PER_ERROR_CORRUPT_FILE) << "byte " << i << ": " << per_last_error();
    }
    for (std::size_t size = 0; size < good.size(); size += 7)
        EXPECT_EQ(status_of_loading(good.substr(0, size)), PER_ERROR_CORRUPT_FILE) << size;
    EXPECT_EQ(status_of_loading(good + '\0'), PER_ERROR_CORRUPT_FILE);
    EXPECT_EQ(status_of_loading(good), PER_OK);
}

// The bytes with valid checksums.
std::string resealed(std::string bytes, const std::vector<Section>& sections) {
    const auto seal = [&](const Section& section) {
        Checksum checksum;
        checksum.add(&bytes[section.header], section.seal - section.header);
        const uint64_t value = checksum.value();
        std::memcpy(&bytes[section.seal], &value, sizeof value);
    };
    Checksum of_seals;
    for (const Section& section : sections) {
        if (section.name == "end") {
            const uint64_t value = of_seals.value();
            std::memcpy(&bytes[section.seal - sizeof value], &value, sizeof value);
        }
        seal(section);
        of_seals.add(&bytes[section.seal], sizeof(uint64_t));
    }
    return bytes;
}

// Inconsistent flags and invalid priorities are checked in one place for all devices.
TEST_F(CudaCheckpoint, damage_with_right_checksums_is_judged_alike_on_both_devices) {
    for (const int32_t prioritization : {PER_PROPORTIONAL, PER_RANK}) {
        per_replay_options options = twin_options();
        options.capacity = 18;
        options.n_step = 1;
        options.frame_stack = 2;
        options.prioritization = prioritization;
        const ReplayHandle replay = create_replay(options, PER_CPU);
        TwinWalk walk(3);
        for (int i = 0; i < 8; ++i) {
            TwinSteps steps = walk.next();
            ASSERT_EQ(steps.add(replay.get(), nullptr), PER_OK) << per_last_error();
        }
        ASSERT_EQ(save(replay.get(), path()), PER_OK) << per_last_error();
        const std::string good = contents(path());
        const std::vector<Section> sections = sections_of(good);
        ASSERT_EQ(sections[1].name, "counters");
        ASSERT_EQ(sections[sections.size() - 2].name, "ranks");
        ASSERT_EQ(resealed(good, sections), good);
        int n_refused = 0, n_loaded = 0;
        for (std::size_t i = sections[1].header; i < sections[sections.size() - 2].header; i += 7) {
            std::string bad = good;
            bad[i] = static_cast<char>(bad[i] ^ (1 << i % 8));
            write(path(), resealed(bad, sections));
            per_replay* loaded[2] = {nullptr, nullptr};
            const per_status status = per_replay_load(path().c_str(), nullptr, &loaded[0]);
            const ReplayHandle cpu(loaded[0]);
            ASSERT_EQ(load_on(path().c_str(), PER_CUDA, 0, &loaded[1]), status) << "byte " << i;
            const ReplayHandle gpu(loaded[1]);
            ++(status == PER_OK ? n_loaded : n_refused);
            if (status != PER_OK) continue;
            EXPECT_EQ(live_ids_of(cpu.get()), live_ids_of(gpu.get())) << "byte " << i;
        }
        EXPECT_GT(n_loaded, 5);
        EXPECT_GT(n_refused, 5);
    }
}

}  // namespace
}  // namespace per::test

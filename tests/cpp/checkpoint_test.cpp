// Saving and loading: a loaded buffer continues bit-identically, and no damaged file is accepted.
#include "file/checkpoint_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>

#include "../c/checkpoints.h"
#include "error_of.h"
#include "file/checkpoint_options.h"
#include "file/checksum.h"
#include "file/compression.h"
#include "own_folder.h"
#include "replay_call.h"
#include "sections.h"

namespace per::test {
namespace {

namespace fs = std::filesystem;

class Checkpoint : public FolderTest {
 protected:
    void save(const Buffer& buffer) const { EXPECT_OK(per_replay_save(buffer.get(), path().c_str(), nullptr)); }
    Buffer saved_and_loaded(const Buffer& buffer, int64_t frame_stack = 1) const {
        save(buffer);
        return Buffer::load(path(), frame_stack);
    }
    std::string saved_bytes(const Buffer& buffer) const {
        save(buffer);
        return contents(path());
    }

    per_status load() const {
        per_replay* replay = nullptr;
        const per_status status = per_replay_load(path().c_str(), nullptr, &replay);
        EXPECT_EQ(replay != nullptr, status == PER_OK);
        per_replay_free(replay);
        return status;
    }
    per_status load(const std::string& bytes) const {
        write_file(path(), bytes);
        return load();
    }
};

// Random steps of two environments with ends of all kinds, gaps, masks and given priorities.
class Walk {
 public:
    explicit Walk(uint64_t seed) : random_(seed) {}

    GivenCall next() {
        GivenCall call;
        call.with_mask = true;
        call.with_next_mask = true;
        call.with_priorities = random_() % 4 == 0;
        for (int env = 0; env < 2; ++env) {
            GivenStep step;
            step.given = random_() % 8 != 0;
            step.observation = {static_cast<float>(env), random_() % 16 == 0 ? -1.0f : serial_[env]};
            if (step.given) serial_[env] += 1;
            step.next = {static_cast<float>(env), serial_[env]};
            step.terminated = random_() % 16 == 0;
            step.truncated = random_() % 16 == 0;
            step.has_next = random_() % 3 != 0;
            step.reward = static_cast<float>(random_() % 10);
            step.priority = static_cast<float>(random_() % 100) * 0.37f;
            step.action = static_cast<int64_t>(random_() % 1000);
            call.steps.push_back(step);
        }
        return call;
    }

    // The same use of two buffers, which must give the same results.
    void use(Buffer& first, Buffer& second, int n_calls) {
        for (int i = 0; i < n_calls; ++i) {
            const GivenCall call = next();
            std::vector<int64_t> ids, other_ids;
            ASSERT_OK(first.add(call, &ids));
            ASSERT_OK(second.add(call, &other_ids));
            ASSERT_EQ(ids, other_ids);
            if (first.statistics().live == 0) continue;
            std::vector<Row> rows, other_rows;
            ASSERT_OK(first.sample(8, rows));
            ASSERT_OK(second.sample(8, other_rows));
            ASSERT_EQ(rows, other_rows);
            const float priority = static_cast<float>(random_() % 1000) * 0.01f;
            ASSERT_OK(first.set_priority(rows[0].id, priority));
            ASSERT_OK(second.set_priority(rows[0].id, priority));
        }
    }

 private:
    std::mt19937_64 random_;
    float serial_[2] = {0, 0};
};

// Options for tests that load a file once for each of its bytes.
per_replay_options small_options() {
    per_replay_options options = Buffer::options(12, 1, 2);
    options.seed = 12;
    return options;
}

per_replay_options walk_options() {
    per_replay_options options = Buffer::options(60, 3, 2);
    options.frame_stack = 2;
    options.beta_steps = 50;
    options.seed = 11;
    options.gamma = 0.5;
    options.critics = PER_CRITICS_MAX;
    options.gather_threads = 4;
    options.on_nan = PER_NAN_ERROR;
    return options;
}

bool same_statistics(Buffer& first, Buffer& second) {
    const per_replay_statistics a = first.statistics();
    const per_replay_statistics b = second.statistics();
    return std::memcmp(&a, &b, sizeof a) == 0;
}

// A buffer after n_calls calls of a random walk.
Buffer walked(const per_replay_options& options, Walk& walk, int n_calls) {
    Buffer buffer(options), twin(options);
    walk.use(buffer, twin, n_calls);
    return buffer;
}
Buffer walked(const per_replay_options& options, uint64_t seed, int n_calls) {
    Walk walk(seed);
    return walked(options, walk, n_calls);
}

// Adds steps to the environments in turn. Their next observations are `distance` ahead.
void add_steps(Buffer& buffer, int n_steps, int n_envs = 1, int distance = 1) {
    for (int i = 0; i < n_steps; ++i)
        buffer.step({.observation = {0, static_cast<float>(i)}, .next = {0, static_cast<float>(i + distance)}},
                    i % n_envs);
}

void expect_same_draw(Buffer& first, Buffer& second, int64_t batch_size, const per_sample_options* options = nullptr) {
    std::vector<Row> rows, other_rows;
    ASSERT_OK(first.sample(batch_size, rows, options));
    ASSERT_OK(second.sample(batch_size, other_rows, options));
    ASSERT_EQ(rows, other_rows);
}

per_replay_options described(const Buffer& buffer) {
    per_replay_options options = initialized(per_replay_options_init);
    EXPECT_OK(per_replay_describe(buffer.get(), &options));
    return options;
}

// Settings changed while the buffer runs are included.
void change_settings(Buffer& buffer) {
    ASSERT_OK(change_alpha(buffer.get(), 0.25, nullptr));
    ASSERT_OK(change_gamma(buffer.get(), 1.0, nullptr));
    ASSERT_OK(change_n_step(buffer.get(), 2, nullptr));
    ASSERT_OK(change_beta(buffer.get(), 0.75, nullptr));
}

TEST_F(Checkpoint, loaded_buffer_goes_on_bit_for_bit) {
    for (int32_t max_priority : {PER_MAX_EVER, PER_MAX_NOW}) {
        for (int n_before : {0, 1, 5, 40, 200}) {
            per_replay_options options = walk_options();
            options.max_priority = max_priority;
            options.autoreset = n_before % 2 ? PER_AUTORESET_NEXT_STEP : PER_AUTORESET_DISABLED;
            Walk walk(static_cast<uint64_t>(n_before));
            Buffer saved = walked(options, walk, n_before);
            if (n_before == 40) change_settings(saved);
            if (n_before == 5) {
                ASSERT_OK(per_replay_clear(saved.get(), nullptr));
            }
            if (n_before == 200) {
                ASSERT_OK(saved.set_priority(0, 1));  // it was overwritten
                EXPECT_EQ(saved.statistics().stale_updates, 1);
            }
            Buffer loaded = saved_and_loaded(saved, options.frame_stack);
            EXPECT_TRUE(same_statistics(saved, loaded));
            EXPECT_EQ(saved.live_rows(), loaded.live_rows());
            walk.use(saved, loaded, 100);
            EXPECT_TRUE(same_statistics(saved, loaded));
            if (HasFatalFailure()) return;
        }
    }
}

// A section has several compressed pieces, so that reads end within pieces and at their borders.
TEST_F(Checkpoint, compressed_buffer_goes_on_bit_for_bit) {
    if (!has_zstd()) GTEST_SKIP() << "libper was built without zstd";
    per_replay_options options = walk_options();
    options.capacity = 300000;
    Walk walk(8);
    Buffer saved = walked(options, walk, 100);
    add_steps(saved, 140000, 2);
    const size_t size = saved_bytes(saved).size();
    for (const int32_t level : {1, 9, 3}) {
        ASSERT_OK(change_save_compression(saved.get(), level));
        EXPECT_LT(saved_bytes(saved).size(), size / 2) << level;
    }
    Buffer loaded = Buffer::load(path(), options.frame_stack);
    EXPECT_EQ(described(loaded).save_compression, 3);
    const std::string before = contents(path());
    EXPECT_TRUE(saved_bytes(loaded) == before);
    EXPECT_TRUE(same_statistics(saved, loaded));
    EXPECT_EQ(saved.live_ids(), loaded.live_ids());
    walk.use(saved, loaded, 50);
}

// More rows than are read or written at a time, in lanes that have wrapped around: the oldest row of a lane is in the
// middle of its slots.
TEST_F(Checkpoint, buffer_of_many_rows_goes_on_bit_for_bit) {
    per_replay_options options = Buffer::options(80000, 1, 2);
    options.store_next_observation = 1;
    Buffer saved(options);
    add_steps(saved, 100000, 2, 2);
    const std::string before = saved_bytes(saved);
    Buffer loaded = Buffer::load(path(), 1);
    EXPECT_TRUE(saved_bytes(loaded) == before);
    EXPECT_EQ(saved.live_ids(), loaded.live_ids());
    expect_same_draw(saved, loaded, 4096);
}

// There are too many lanes to read arrays together, so each array is read separately, although the source is a file.
TEST_F(Checkpoint, buffer_of_many_short_lanes_goes_on_bit_for_bit) {
    Buffer saved(Buffer::options(1000, 1, 200));
    add_steps(saved, 1800, 200);
    const std::string before = saved_bytes(saved);
    Buffer loaded = Buffer::load(path(), 1);
    EXPECT_TRUE(same_statistics(saved, loaded));
    EXPECT_TRUE(saved_bytes(loaded) == before);
    EXPECT_EQ(saved.live_rows(), loaded.live_rows());
    expect_same_draw(saved, loaded, 64);
}

// The save does not change the buffer's option, which is saved with the others.
TEST_F(Checkpoint, a_save_may_be_compressed_in_another_way_than_its_buffer) {
    if (!has_zstd()) GTEST_SKIP() << "libper was built without zstd";
    const per_replay_options options = walk_options();
    Buffer saved = walked(options, 3, 60);
    std::array<size_t, 2> sizes;
    for (const int32_t of_buffer : {0, 3}) {
        ASSERT_OK(change_save_compression(saved.get(), of_buffer));
        for (const int32_t level : {0, 1}) {
            per_save_options given = initialized(per_save_options_init);
            given.compression = level;
            ASSERT_OK(per_replay_save(saved.get(), path().c_str(), &given));
            const std::string file = contents(path());
            sizes[static_cast<size_t>(level)] = file.size();
            per_save* save = nullptr;
            ASSERT_OK(per_replay_save_start(saved.get(), path().c_str(), &given, &save));
            EXPECT_OK(per_save_wait(save, -1, nullptr, nullptr));
            per_save_free(save);
            EXPECT_TRUE(contents(path()) == file);
            Buffer loaded = Buffer::load(path(), options.frame_stack);
            EXPECT_EQ(described(loaded).save_compression, of_buffer);
            EXPECT_TRUE(same_statistics(saved, loaded));
            EXPECT_EQ(saved.live_ids(), loaded.live_ids());
        }
        EXPECT_LT(sizes[1], sizes[0]);
    }
}

TEST_F(Checkpoint, compression_that_there_is_not_is_refused) {
    Buffer buffer(walk_options());
    per_save_options given = initialized(per_save_options_init);
    for (const int32_t level : {-2, 20}) {
        given.compression = level;
        EXPECT_EQ(per_replay_save(buffer.get(), path().c_str(), &given), PER_ERROR_INVALID_ARGUMENT) << level;
        EXPECT_EQ(std::string(per_last_error()), "compression is " + std::to_string(level) + ": allowed are 0 .. 19");
    }
}

// The scale of the masses is part of the state: after a rescale it cannot be computed from the priorities alone.
TEST_F(Checkpoint, masses_keep_their_scale) {
    Buffer saved(Buffer::options(20));
    add_steps(saved, 15);
    ASSERT_OK(saved.set_priority(3, 1e30f));
    ASSERT_OK(saved.set_priority(3, 1e24f));
    Buffer loaded = saved_and_loaded(saved);
    for (int i = 0; i < 20; ++i) {
        ASSERT_OK(saved.set_priority(3, std::pow(10.0f, static_cast<float>(20 - 2 * i))));
        ASSERT_OK(loaded.set_priority(3, std::pow(10.0f, static_cast<float>(20 - 2 * i))));
        EXPECT_TRUE(same_statistics(saved, loaded)) << i;
        expect_same_draw(saved, loaded, 64);
    }
}

TEST_F(Checkpoint, ranks_and_the_smallest_mass_go_on_too) {
    for (bool by_options : {true, false}) {
        per_replay_options options = walk_options();
        per_sample_options sample = initialized(per_sample_options_init);
        sample.normalize_weights = PER_BUFFER_MAX;
        for (int32_t prioritization : {PER_RANK, PER_PROPORTIONAL}) {
            sample.prioritization = prioritization;
            if (by_options) {
                options.normalize_weights = PER_BUFFER_MAX;
                options.prioritization = prioritization;
            }
            Walk walk(9);
            Buffer saved = walked(options, walk, 30);
            std::vector<Row> rows;
            ASSERT_OK(saved.sample(16, rows, &sample));
            ASSERT_OK(saved.set_priority(rows[0].id, 3e4f));  // after ranks were computed
            Buffer loaded = saved_and_loaded(saved, options.frame_stack);
            for (int i = 0; i < 10; ++i) {
                expect_same_draw(saved, loaded, 16, &sample);
                walk.use(saved, loaded, 2);
            }
        }
    }
}

TEST_F(Checkpoint, describe_gives_the_n_step_and_fields_that_were_saved) {
    Buffer saved(walk_options(), PER_PADDING_ZERO);
    ASSERT_OK(change_n_step(saved.get(), 2, nullptr));
    Buffer loaded = saved_and_loaded(saved, 2);
    const per_replay_options options = described(loaded);
    EXPECT_EQ(options.n_step, 2);
    ASSERT_EQ(options.n_fields, 2);
    EXPECT_STREQ(options.fields[0].name, "observation");
    EXPECT_EQ(options.fields[0].shape[0], 2);
    EXPECT_EQ(options.fields[0].stack, 2);
    EXPECT_EQ(options.fields[0].padding, PER_PADDING_ZERO);
    EXPECT_EQ(options.fields[0].default_value, nullptr);
    EXPECT_EQ(options.fields[1].dtype, PER_INT64);
    EXPECT_EQ(options.fields[1].padding, PER_PADDING_REPEAT);
    ASSERT_NE(options.fields[1].default_value, nullptr);
    EXPECT_EQ(options.fields[1].default_value->dtype, PER_INT64);
    EXPECT_EQ(*static_cast<const int64_t*>(options.fields[1].default_value->data), 77);
}

TEST_F(Checkpoint, every_option_comes_back) {
    per_replay_options given = Buffer::options(240, 2, 2);
    given.seed = 11;
    given.frame_stack = 2;
    given.sequence_length = 4;
    given.burn_in = 1;
    given.sequence_stride = 2;
    given.beta_steps = 5;
    given.gamma = 0.5;
    given.alpha = 0.25;
    given.beta = 0.375;
    given.beta_final = 0.875;
    given.epsilon = 0.125;
    given.sequence_eta = 0.5;
    given.uniform_fraction = 0.75;
    given.prioritization = PER_RANK;
    given.scheme = PER_INDEPENDENT;
    given.normalize_weights = PER_NONE;
    given.max_priority = PER_MAX_NOW;
    given.on_invalid = PER_INVALID_SKIP;
    given.on_gap = PER_GAP_ERROR;
    given.autoreset = PER_AUTORESET_NEXT_STEP;
    given.store_next_observation = 1;
    given.overwrite = 0;
    given.critics = PER_CRITICS_MAX;
    given.gather_threads = 2;
    given.on_nan = PER_NAN_ERROR;
    given.save_compression = has_zstd() ? 2 : 0;
    per_replay_options counting = given;
    counting.scheme = PER_WITHOUT_REPLACEMENT;
    counting.uniform_fraction = 0;
    counting.rate_limit.samples_per_insert = 1.5;
    counting.rate_limit.samples_tolerance = 70;
    counting.rate_limit.min_size_to_sample = 30;
    counting.keep_times_sampled = 1;
    counting.max_times_sampled = 3;
    for (per_replay_options options : {given, counting}) {
        const Buffer saved(options);
        const Buffer loaded = saved_and_loaded(saved, 2);
        const per_replay_options found = described(loaded);
        options.fields = found.fields;
        options.n_fields = found.n_fields;
        options.field_size = sizeof(per_field);
        EXPECT_EQ(std::memcmp(&found, &options, sizeof options), 0);
    }
}

TEST_F(Checkpoint, every_damaged_byte_is_seen) {
    for (const int32_t level : {0, has_zstd() ? 3 : 0}) {
        Buffer saved = walked(small_options(), 3, 20);
        ASSERT_OK(change_save_compression(saved.get(), level));
        const std::string good = saved_bytes(saved);
        for (size_t i = 0; i < good.size(); ++i) {
            std::string bad = good;
            bad[i] = static_cast<char>(bad[i] ^ (1 << i % 8));
            // Bytes 8 to 11 are the version: a larger one is that of a newer library.
            const per_status status = load(bad);
            EXPECT_TRUE(status == PER_ERROR_CORRUPT_FILE || (status == PER_ERROR_UNSUPPORTED && i >= 8 && i < 12))
                << "byte " << i << ": " << per_status_name(status) << ", " << per_last_error();
        }
        EXPECT_EQ(load(good), PER_OK);
    }
}

// A stream in memory whose functions take a random number of bytes.
struct Stream {
    std::string bytes = {};
    std::size_t at = 0;
    std::mt19937_64 random{5};

    int64_t next(int64_t size) {
        return random() % 2 == 0 ? size : static_cast<int64_t>(random() % static_cast<uint64_t>(size)) + 1;
    }
    static int64_t write(void* context, const void* bytes, int64_t size) {
        Stream& stream = *static_cast<Stream*>(context);
        const int64_t n = stream.next(size);
        if (n > 0) stream.bytes.append(static_cast<const char*>(bytes), static_cast<std::size_t>(n));
        return n;
    }
    static int64_t read(void* context, void* bytes_out, int64_t size) {
        Stream& stream = *static_cast<Stream*>(context);
        const int64_t n = stream.next(size);
        if (n <= 0) return n;
        const std::size_t left = std::min(static_cast<std::size_t>(n), stream.bytes.size() - stream.at);
        std::memcpy(bytes_out, stream.bytes.data() + stream.at, left);
        stream.at += left;
        return static_cast<int64_t>(left);
    }
    per_status load(per_replay** replay_out) { return load_from(read, this, PER_CPU, 0, replay_out); }
};

TEST_F(Checkpoint, stream_of_short_writes_and_reads_is_the_file) {
    Buffer saved = walked(walk_options(), 4, 30);
    for (const int32_t level : {has_zstd() ? 2 : 0, 0}) {
        Stream stream;
        ASSERT_OK(change_save_compression(saved.get(), level));
        ASSERT_OK(save_to(saved.get(), Stream::write, &stream));
        EXPECT_EQ(stream.bytes, saved_bytes(saved));
        per_replay* replay = nullptr;
        ASSERT_OK(stream.load(&replay));
        per_replay_free(replay);
        EXPECT_EQ(stream.at, stream.bytes.size());
    }
}

TEST_F(Checkpoint, every_damaged_byte_of_a_stream_is_seen) {
    Buffer saved = walked(small_options(), 3, 20);
    Stream good;
    ASSERT_OK(save_to(saved.get(), Stream::write, &good));
    for (std::size_t i = 0; i < good.bytes.size(); ++i) {
        Stream bad{.bytes = good.bytes};
        bad.bytes[i] = static_cast<char>(bad.bytes[i] ^ (1 << i % 8));
        per_replay* replay = nullptr;
        const per_status status = bad.load(&replay);
        EXPECT_FAILS(
            status,
            i >= 8 && i < 12 && status != PER_ERROR_CORRUPT_FILE ? PER_ERROR_UNSUPPORTED : PER_ERROR_CORRUPT_FILE,
            "the stream ")
            << i;
        EXPECT_EQ(replay, nullptr);
    }
}

// The second half of a file is from a later save. Each section alone is valid.
TEST_F(Checkpoint, sections_of_two_saves_are_no_checkpoint) {
    Buffer saved = walked(small_options(), 3, 40);
    const std::string before = saved_bytes(saved);
    const int64_t id = saved.live_ids()[0];
    ASSERT_OK(saved.set_priority(id, 0.125f));
    const std::string after = saved_bytes(saved);
    ASSERT_EQ(before.size(), after.size());
    const size_t rewards = after.find("rewards");
    ASSERT_NE(before.substr(0, rewards), after.substr(0, rewards));
    ASSERT_NE(before.substr(rewards), after.substr(rewards));
    EXPECT_FAILS(load(before.substr(0, rewards) + after.substr(rewards)), PER_ERROR_CORRUPT_FILE,
                 "in the section 'end': sections of another file");
}

// The file contains neither cleared nor overwritten rows.
TEST_F(Checkpoint, file_holds_the_rows_that_are_there) {
    per_replay_options options = Buffer::options(2000);
    Buffer saved(options);
    const auto size_with = [&](int n) {
        add_steps(saved, n);
        return static_cast<int64_t>(saved_bytes(saved).size());
    };
    const int64_t empty = size_with(0);
    constexpr int64_t row_bytes = 1 + 4 + 4 + 8 + 8;  // flags, reward, priority, observation, action
    EXPECT_EQ(size_with(3), empty + (3 + 1) * row_bytes);
    EXPECT_EQ(size_with(2500), empty + 2000 * row_bytes);
    ASSERT_OK(per_replay_clear(saved.get(), nullptr));
    EXPECT_EQ(size_with(0), empty);
    EXPECT_EQ(size_with(5), empty + (5 + 1) * row_bytes);
}

// After a clear, a reset step is still recognised by the previous final observation.
TEST_F(Checkpoint, final_observation_outlives_a_clear) {
    per_replay_options options = Buffer::options(8);
    options.autoreset = PER_AUTORESET_NEXT_STEP;
    Buffer saved(options);
    ASSERT_EQ(saved.step({.observation = {0, 1}, .next = {0, 2}, .terminated = true}), 0);
    ASSERT_OK(per_replay_clear(saved.get(), nullptr));
    Buffer loaded = saved_and_loaded(saved);
    for (Buffer* const buffer : {&saved, &loaded}) {
        EXPECT_EQ(buffer->step({.observation = {0, 2}, .next = {0, 7}}), -1);
        EXPECT_EQ(buffer->step({.observation = {0, 7}, .next = {0, 8}}), 2);
    }
    EXPECT_TRUE(same_statistics(saved, loaded));
}

// The arrays are read in several parts, and the lanes begin in the middle of their slots.
TEST_F(Checkpoint, damaged_section_is_named_wherever_a_file_of_many_rows_is_damaged) {
    per_replay_options options = Buffer::options(80000, 1, 2);
    options.store_next_observation = 1;
    options.keep_times_sampled = 1;
    Buffer saved(options);
    add_steps(saved, 100000, 2, 2);
    const std::string good = saved_bytes(saved);
    const std::vector<Section> sections = sections_of(good);
    ASSERT_EQ(sections.size(), 12u);
    const auto names = [&](const std::string& bytes, const Section& section, const char* reason) {
        EXPECT_FAILS(load(bytes), PER_ERROR_CORRUPT_FILE, "damaged in the section '" + section.name + "': " + reason);
    };
    for (size_t i = 0; i < sections.size(); ++i) {
        const Section& section = sections[i];
        const auto flipped = [&](size_t place) {
            std::string bad = good;
            bad[place] = static_cast<char>(bad[place] ^ 1);
            return bad;
        };
        const bool is_array = section.seal - section.content >= 80000;
        ASSERT_EQ(is_array, i >= 3 && i <= 9) << section.name;
        for (const size_t place : {section.content, (section.content + section.seal) / 2, section.seal - 1})
            if (is_array) names(flipped(place), section, "the checksum is wrong");
        names(flipped(section.seal), section, "the checksum is wrong");
        names(flipped(section.header + 4), section, "its header is damaged, or is that of another section");
        if (is_array) names(flipped(section.content - 8), section, "its size is wrong");
        for (const size_t end :
             {section.header, section.content, (section.content + section.seal) / 2, section.seal, section.end - 1})
            names(good.substr(0, end), section, "it ends early");
    }
}

// Sections that are deferred and read part by part have their content, and errors name the section.
TEST_F(Checkpoint, sections_are_read_in_turns) {
    const std::string one = "12345", many(200000, 'm'), last = "the last";
    {
        CheckpointWriter writer(path().c_str());
        for (const std::string& content : {one, std::string(), many, last}) {
            writer.begin("of " + std::to_string(content.size()), content.size());
            writer.bytes(content.data(), content.size());
            writer.end();
        }
        writer.commit();
    }
    const auto begin = [&](CheckpointReader& reader) {
        ASSERT_TRUE(reader.takes_turns());
        for (const size_t size : {one.size(), size_t{0}, many.size()}) {
            reader.begin("of " + std::to_string(size), size);
            reader.put_off();
        }
    };
    const auto read = [](CheckpointReader& reader, size_t size) {
        std::string bytes(size, '\0');
        reader.bytes(bytes.data(), size);
        return bytes;
    };
    {
        CheckpointReader reader(path().c_str());
        begin(reader);
        reader.take_up(2);
        EXPECT_EQ(read(reader, 150000), many.substr(0, 150000));
        reader.take_up(0);
        EXPECT_EQ(read(reader, 2), "12");
        reader.take_up(2);
        EXPECT_EQ(read(reader, 50000), many.substr(0, 50000));
        reader.take_up(0);
        EXPECT_EQ(read(reader, 3), "345");
        EXPECT_THROWS(read(reader, 1), PER_ERROR_CORRUPT_FILE, "'of 5': it is too short");
        for (const size_t t : {0, 1, 2}) {
            reader.take_up(t);
            reader.end();
        }
        reader.begin("of 8", last.size());
        EXPECT_EQ(read(reader, last.size()), last);
        reader.end();
        reader.finish();
    }
    {
        CheckpointReader reader(path().c_str());
        begin(reader);
        reader.take_up(0);
        EXPECT_EQ(read(reader, 4), "1234");
        EXPECT_THROWS(reader.end(), PER_ERROR_CORRUPT_FILE, "'of 5': it is too long");
    }
    // Another process shortens the file while it is read.
    CheckpointReader reader(path().c_str());
    begin(reader);
    fs::resize_file(path(), 1000);
    reader.take_up(2);
    EXPECT_THROWS(read(reader, 150000), PER_ERROR_CORRUPT_FILE, "'of 200000': it ends early");
    // Streams are read in order, and so are compressed sections.
    const std::string good = contents(path());
    size_t at = 0;
    const CheckpointReader stream([&](void* out, size_t size) {
        const size_t n = good.copy(static_cast<char*>(out), size, at);
        at += n;
        return n;
    });
    EXPECT_FALSE(stream.takes_turns());
    if (!has_zstd()) return;
    {
        CheckpointWriter writer(path().c_str(), 1);
        writer.begin("one", one.size());
        writer.bytes(one.data(), one.size());
        writer.end();
        writer.commit();
    }
    CheckpointReader of_compressed(path().c_str());
    of_compressed.begin("one", one.size());
    EXPECT_FALSE(of_compressed.takes_turns());
}

TEST_F(Checkpoint, file_that_ends_early_or_goes_on_is_damaged) {
    for (const int32_t level : {0, 1}) {
        per_replay_options options = small_options();
        options.save_compression = has_zstd() ? level : 0;
        Buffer saved = walked(options, 3, 20);
        const std::string good = saved_bytes(saved);
        for (size_t size = 0; size < good.size(); ++size)
            EXPECT_EQ(load(good.substr(0, size)), PER_ERROR_CORRUPT_FILE) << size;
        EXPECT_FAILS(load(good + '\0'), PER_ERROR_CORRUPT_FILE, "/buffer.per is damaged: it goes on after its end");
        // The file ends before the last byte of the rewards.
        const size_t next = good.find("priorities") - sizeof(uint32_t);
        EXPECT_FAILS(load(good.substr(0, next - 1)), PER_ERROR_CORRUPT_FILE,
                     "is damaged in the section 'rewards': it ends early");
    }
}

// The formats are invented. A file of an unknown format is refused, whatever follows.
TEST_F(Checkpoint, newer_format_is_unsupported) {
    Buffer saved(walk_options());
    const std::string good = saved_bytes(saved);
    const auto with_format = [&](uint32_t format, size_t size) {
        std::string bytes = good.substr(0, size);
        std::memcpy(&bytes[8], &format, sizeof format);
        return bytes;
    };
    for (const uint32_t format : {checkpoint_version + 1, 77u, UINT32_MAX}) {
        const std::string reason =
            " has format " + std::to_string(format) + ": this libper reads up to " + std::to_string(checkpoint_version);
        for (const size_t size : {good.size(), size_t{12}}) {
            EXPECT_EQ(load(with_format(format, size)), PER_ERROR_UNSUPPORTED);
            EXPECT_EQ(std::string(per_last_error()), "path " + path() + reason);
            Stream stream{.bytes = with_format(format, size)};
            per_replay* replay = nullptr;
            EXPECT_EQ(stream.load(&replay), PER_ERROR_UNSUPPORTED);
            EXPECT_EQ(replay, nullptr);
            EXPECT_EQ(std::string(per_last_error()), "the stream" + reason);
        }
    }
    EXPECT_FAILS(load(with_format(0, good.size())), PER_ERROR_CORRUPT_FILE, "is damaged: its format is 0");
}

TEST_F(Checkpoint, options_that_cannot_be_are_refused_though_the_checksum_is_right) {
    Buffer saved(walk_options());
    const per_replay_options options = described(saved);
    const auto expect_refused = [&](const per_replay_options& bad, const char* reason) {
        {
            CheckpointWriter writer(path().c_str());
            write_options(writer, bad);
            writer.commit();
        }
        EXPECT_FAILS(load(), PER_ERROR_CORRUPT_FILE, reason);
    };
    per_replay_options bad = options;
    bad.n_envs = 0;
    expect_refused(bad, "n_envs is 0");
    bad = options;
    bad.n_step = 64;
    expect_refused(bad, "a lane has 30 rows");
    std::vector<per_field> fields(options.fields, options.fields + options.n_fields);
    fields[1].name = fields[0].name;
    bad = options;
    bad.fields = fields.data();
    expect_refused(bad, "fields[0] has that name");
}

// A write beyond the limit raises a signal, which would end this process.
TEST_F(Checkpoint, file_longer_than_the_process_may_write_is_an_error_and_no_signal) {
    Buffer saved(Buffer::options(10000, 1, 2));
    add_steps(saved, 12000, 2);
    const std::string folder = (folder_ / "folder").string();
    save(saved);
    ASSERT_OK(per_replay_checkpoint(saved.get(), folder.c_str(), nullptr, nullptr));
    const std::string before = contents(path());
    saved.step({.observation = {0, 12000}, .next = {0, 12001}}, 0);
    rlimit old_limit;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
    for (const size_t most_bytes : {size_t{0}, size_t{100}, before.size() / 2, before.size() - 1}) {
        rlimit limit = old_limit;
        limit.rlim_cur = most_bytes;
        ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
        const auto expect_too_large = [](per_status status, per_status expected) {
            EXPECT_FAILS(status, expected, "File too large");
        };
        expect_too_large(per_replay_save(saved.get(), path().c_str(), nullptr), PER_ERROR_IO);
        // A further checkpoint in `folder` writes few bytes, and fails only under the lower limits.
        if (most_bytes <= 100)
            expect_too_large(per_replay_checkpoint(saved.get(), folder.c_str(), nullptr, nullptr), PER_ERROR_IO);
        expect_too_large(per_replay_checkpoint(saved.get(), (folder_ / "other").c_str(), nullptr, nullptr),
                         PER_ERROR_IO);
        per_save* save = nullptr;
        EXPECT_OK(per_replay_save_start(saved.get(), path().c_str(), nullptr, &save));
        expect_too_large(per_save_wait(save, -1, nullptr, nullptr), PER_ERROR_IO);
        per_save_free(save);
        // The ring of a channel is a file in memory, to which the limit applies.
        per_channel_options options = initialized(per_channel_options_init);
        options.slots = 100000;
        per_channel* channel = nullptr;
        expect_too_large(per_channel_create(saved.get(), &options, &channel), PER_ERROR_OUT_OF_MEMORY);
        ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
    }
    EXPECT_TRUE(contents(path()) == before);
    Buffer::load(folder, 1);
    EXPECT_OK(per_replay_save(saved.get(), path().c_str(), nullptr));
    EXPECT_OK(per_replay_checkpoint(saved.get(), folder.c_str(), nullptr, nullptr));
}

// Values of the reference implementation.
TEST(Checksum, is_xxh3) {
    Checksum checksum;
    EXPECT_EQ(checksum.value(), 0x2D06800538D394C2u);
    checksum.add("a", 1);
    EXPECT_EQ(checksum.value(), 0xE6C632B61E964E1Fu);
    checksum.add("bc", 2);
    EXPECT_EQ(checksum.value(), 0x78AF5F94892F3950u);
    checksum.reset();
    EXPECT_EQ(checksum.value(), 0x2D06800538D394C2u);
}

}  // namespace
}  // namespace per::test

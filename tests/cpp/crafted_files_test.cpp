// Crafted files with valid checksums are refused, or the loaded buffer works like any other. Loading touches memory
// only for the rows of the file, whatever capacity it names.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/replay_options.h"
#include "core/checks.h"
#include "file/checkpoint_file.h"
#include "file/checkpoint_options.h"
#include "file/checkpoint_state.h"
#include "file/compression.h"
#include "own_folder.h"
#include "per.h"
#include "replay_user.h"

// No file of these tests must survive a power failure.
extern "C" int fsync(int) {
    return 0;
}
extern "C" int fdatasync(int) {
    return 0;
}

namespace per::test {
namespace {

namespace fs = std::filesystem;

bool has_versions(const per_replay_options& options) {
    return options.freshness.age == PER_AGE_VERSIONS;
}

// A file in its parts, as the backends write them.
struct Parts {
    explicit Parts(const std::string& path) {
        CheckpointReader reader(path.c_str());
        options = std::make_unique<CheckpointOptions>(reader);
        const per_replay_options given = options->options(default_load_options);
        fields = std::make_unique<Fields>(given);
        rules = window_rules(resolve_replay_options(given, *fields), *fields);
        CheckpointState state(reader,
                              {rules, given.alpha, given.max_times_sampled, freshness_of(given), has_versions(given),
                               has_max_age(given, PER_AGE_VERSIONS) ? given.freshness.max_age : -1});
        numbers = state.numbers();
        lanes = state.lanes();
        for (const SlotArray& array : slot_arrays(*fields, rules, given.keep_times_sampled != 0, has_versions(given))) {
            std::vector<std::byte>& bytes = arrays.emplace_back();
            bytes.reserve(1);  // ensures a non-NULL address
            state.begin(array);
            state.for_each_part([&](int64_t, int64_t n) {
                bytes.resize(bytes.size() + static_cast<size_t>(n * array.bytes));
                state.read(array, bytes.data() + bytes.size() - n * array.bytes, static_cast<size_t>(n * array.bytes));
            });
            state.end(array);
        }
        ranks = state.read_ranks(given.prioritization == PER_RANK);
        edited = given;
    }

    // The arrays get the lengths that the edited lanes need.
    void write(const std::string& path) const {
        CheckpointWriter writer(path.c_str(), edited.save_compression);
        write_options(writer, edited);
        write_numbers(writer, numbers, lanes);
        size_t i = 0;
        for (const SlotArray& array :
             slot_arrays(*fields, rules, edited.keep_times_sampled != 0, has_versions(edited))) {
            int64_t n_rows = 0;
            for (const Lane& lane : lanes) {
                if (lane.head < 0 || lane.head == std::numeric_limits<int64_t>::max()) continue;
                const RowRange saved = saved_rows(lane, rules);
                if (saved.first < saved.end) n_rows += std::min<int64_t>(saved.end - saved.first, 10000);
            }
            std::vector<std::byte> bytes = arrays[i++];
            bytes.reserve(1);
            bytes.resize(static_cast<size_t>(std::min<int64_t>(n_rows, 10000) * array.bytes));
            writer.begin(array.name, bytes.size());
            writer.bytes(bytes.data(), bytes.size());
            writer.end();
        }
        write_ranks(writer, ranks ? &*ranks : nullptr);
        writer.commit();
    }

    float* priorities() { return reinterpret_cast<float*>(arrays[2].data()); }
    // Exists with keep_times_sampled only.
    int32_t* times_sampled() { return reinterpret_cast<int32_t*>(arrays[3].data()); }

    std::unique_ptr<CheckpointOptions> options;  // edited points into them
    std::unique_ptr<Fields> fields;
    WindowRules rules;
    per_replay_options edited;
    CheckpointNumbers numbers;
    std::vector<Lane> lanes;
    std::vector<std::vector<std::byte>> arrays;
    std::optional<CheckpointRanks> ranks;
};

// The bytes followed by their checksum.
std::string sealed(const std::string& bytes) {
    Checksum checksum;
    checksum.add(bytes.data(), bytes.size());
    const uint64_t seal = checksum.value();
    return bytes + std::string(reinterpret_cast<const char*>(&seal), sizeof seal);
}

class CraftedFile : public FolderTest {
 protected:
    void save(per_replay* replay) const { ASSERT_OK(per_replay_save(replay, path().c_str(), nullptr)); }
    per_status load(Replay& replay_out, const std::string& name = "buffer.per") const {
        per_replay* replay = nullptr;
        const per_status status = per_replay_load(path(name).c_str(), nullptr, &replay);
        EXPECT_EQ(replay != nullptr, status == PER_OK);
        replay_out.reset(replay);
        return status;
    }
    per_status status_of_loading() const {
        Replay replay;
        return load(replay);
    }

    // Loads a copy of the saved file with its parts edited.
    template <class Edit>
    per_status load_edited(const Edit& edit, Replay& replay_out) const {
        Parts parts(path());
        edit(parts);
        parts.write(path("edited.per"));
        return load(replay_out, "edited.per");
    }
    template <class Edit>
    per_status status_of_edited(const Edit& edit) const {
        Replay replay;
        return load_edited(edit, replay);
    }
};

// Adds steps of zeros in one environment, none of which ends an episode.
void add_zeros(per_replay* replay, int64_t length, bool with_next = false) {
    const std::vector<float> zeros(static_cast<size_t>(2 * length));
    const std::vector<uint8_t> no(static_cast<size_t>(length));
    const auto array = [](const auto& values, int32_t dtype) {
        return per_array{values.data(), nullptr, 0, dtype, nullptr};
    };
    const std::vector<per_array> fields(5, array(zeros, PER_FLOAT32));
    per_steps steps = initialized(per_steps_init);
    steps.length = length;
    steps.fields = fields.data();
    if (with_next) steps.next_fields = fields.data();
    steps.reward = array(zeros, PER_FLOAT32);
    steps.terminated = steps.truncated = array(no, PER_BOOL);
    ASSERT_OK(per_replay_add(replay, &steps, nullptr, nullptr));
}

// If no row starts an episode, a search for the start must not read beyond the first row.
TEST_F(CraftedFile, episodes_that_never_start_are_refused) {
    for (const bool has_sequences : {false, true}) {
        per_replay_options options = options_of(20);
        options.frame_stack = 4;
        if (has_sequences) options.sequence_length = 2;
        const Replay saved = create(options);
        User(1).add(saved.get(), 12);
        save(saved.get());
        const auto clear_starts = [](Parts& parts) {
            for (std::byte& flags : parts.arrays[0]) flags &= static_cast<std::byte>(~row_starts_episode);
        };
        EXPECT_EQ(status_of_edited(clear_starts), PER_ERROR_CORRUPT_FILE);
    }
}

// Once its row became live, an infinite priority would be counted in a bucket beyond the last one.
TEST_F(CraftedFile, infinite_priority_of_a_row_that_is_not_live_yet_is_refused) {
    per_replay_options options = options_of(20);
    options.prioritization = PER_RANK;
    options.n_step = 4;
    const Replay saved = create(options);
    add_zeros(saved.get(), 1);
    save(saved.get());
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), -2.0f}) {
        const auto with_priority = [&](Parts& parts) {
            ASSERT_EQ(parts.priorities()[0], -1.0f);
            parts.priorities()[0] = bad;
        };
        EXPECT_EQ(status_of_edited(with_priority), PER_ERROR_CORRUPT_FILE) << bad;
    }
    EXPECT_OK(status_of_loading());
}

// The rows of a lane of single steps, which hold their own next observations; each row has its own flags.
class LongFile : public CraftedFile {
 protected:
    static constexpr int64_t n_rows = 2500;

    void SetUp() override {
        CraftedFile::SetUp();
        per_replay_options options = options_of(n_rows);
        options.store_next_observation = 1;
        const Replay saved = create(options);
        add_zeros(saved.get(), n_rows, true);
        save(saved.get());
    }

    // The status of loading the file after an edit, and the live rows of the loaded buffer.
    template <class Edit>
    per_status edited(const Edit& edit) {
        Replay loaded;
        const per_status status = load_edited(edit, loaded);
        live_.clear();
        if (loaded) live_ = live_ids(loaded.get());
        total_ = loaded ? statistics_of(loaded.get()).total : 0.0;
        return status;
    }

    std::vector<int64_t> live_;
    double total_ = 0.0;
};

// The end of an episode is found at any position among plain steps.
TEST_F(LongFile, flags_among_those_of_plain_steps_are_seen) {
    for (int64_t row = 1; row < n_rows - 1; row = row < 40 ? row + 1 : row * 7 / 4) {
        const auto with_flags = [&](int flags, int flags_after) {
            return edited([&](Parts& parts) {
                ASSERT_EQ(parts.arrays[0].size(), static_cast<size_t>(n_rows));
                parts.arrays[0][static_cast<size_t>(row)] = static_cast<std::byte>(flags);
                parts.arrays[0][static_cast<size_t>(row + 1)] = static_cast<std::byte>(flags_after);
                if (flags_after & row_starts_episode) parts.lanes[0].episode = row + 1;
            });
        };
        const int start = row_is_step | row_starts_episode;
        const int last = row_is_step | row_truncated;
        std::vector<int64_t> all(n_rows);
        std::iota(all.begin(), all.end(), 0);
        EXPECT_OK(with_flags(row_is_step, row_is_step));
        EXPECT_EQ(live_, all);
        EXPECT_EQ(with_flags(last, start), PER_OK) << row << per_last_error();
        EXPECT_EQ(live_, all) << row;
        EXPECT_EQ(with_flags(last | row_final_unknown, start), PER_OK) << row << per_last_error();
        all.erase(all.begin() + row);
        EXPECT_EQ(live_, all) << row;
        for (const auto& [flags, flags_after] :
             {std::pair(start, int{row_is_step}), {last, row_is_step}, {0, row_is_step}, {row_is_step, start}}) {
            EXPECT_FAILS(with_flags(flags, flags_after), PER_ERROR_CORRUPT_FILE,
                         "'flags': flags in it cannot follow each other")
                << row;
        }
        for (const int flags : {row_is_step | 128, row_is_step | row_final_unknown, 2}) {
            EXPECT_FAILS(with_flags(flags, row_is_step), PER_ERROR_CORRUPT_FILE,
                         "'flags': a row in it has flags that no row has")
                << row;
        }
    }
}

// Priorities and masses of live rows are checked; other rows may lack a priority. The rows are at both ends of each
// block of rows that is checked together.
TEST_F(LongFile, priorities_that_cannot_be_are_refused_at_any_row) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    for (const size_t row : {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{1023}, size_t{1024}, size_t{2047},
                             size_t{2048}, size_t{n_rows - 2}, size_t{n_rows - 1}}) {
        const auto with_priority = [&](float priority, bool is_live) {
            return edited([&](Parts& parts) {
                parts.numbers.tree_scale = 20;
                parts.priorities()[row] = priority;
                if (is_live) return;
                const int64_t next = static_cast<int64_t>(row) + 1;  // starts an episode
                const auto last = static_cast<std::byte>(row_is_step | row_truncated | row_final_unknown);
                parts.arrays[0][row] |= last;
                if (next < n_rows)
                    parts.arrays[0][row + 1] |= static_cast<std::byte>(row_starts_episode);
                else
                    parts.lanes[0].state = LaneState::idle;
                parts.lanes[0].episode = std::min(next, n_rows - 1);
            });
        };
        for (const float bad : {nan, infinity, -infinity, -1.0f, -0.5f, -1e-45f}) {
            EXPECT_FAILS(with_priority(bad, true), PER_ERROR_CORRUPT_FILE, "'priorities': a priority in it cannot be")
                << row << " " << bad;
        }
        EXPECT_FAILS(with_priority(1e30f, true), PER_ERROR_CORRUPT_FILE, "'priorities': its priorities cannot be")
            << row;
        for (const float bad : {nan, infinity, -0.5f, -2.0f})
            EXPECT_EQ(with_priority(bad, false), PER_ERROR_CORRUPT_FILE) << row << " " << bad;
        for (const float good : {-1.0f, 0.0f, 1e30f}) {
            EXPECT_EQ(with_priority(good, false), PER_OK) << row << " " << good << per_last_error();
            EXPECT_EQ(live_.size(), size_t{n_rows - 1});
            EXPECT_EQ(total_, static_cast<double>(n_rows - 1));
        }
    }
}

// With alpha 0 the mass of every live row is 1, and that of every other row is 0.
TEST_F(LongFile, rows_that_are_not_live_weigh_nothing_at_any_alpha) {
    for (const double alpha : {0.0, 0.5, 1.0}) {
        const per_status status = edited([&](Parts& parts) {
            parts.edited.alpha = alpha;
            parts.numbers.tree_scale = 20;
            for (size_t row = 0; row < n_rows - 1; row += 3) {
                parts.arrays[0][row] = static_cast<std::byte>(row_is_step | row_truncated | row_final_unknown |
                                                              (row == 0 ? row_starts_episode : 0));
                parts.arrays[0][row + 1] |= static_cast<std::byte>(row_starts_episode);
                parts.lanes[0].episode = static_cast<int64_t>(row) + 1;
            }
        });
        ASSERT_OK(status);
        std::vector<int64_t> live;
        for (int64_t row = 0; row < n_rows; ++row)
            if (row % 3 != 0 || row == n_rows - 1) live.push_back(row);
        EXPECT_EQ(live_, live);
        EXPECT_EQ(total_, static_cast<double>(live.size()));
    }
}

// At this scale the total of 2048 leaves of 1 is too large. There are more rows, but only one is live.
TEST_F(LongFile, rows_that_are_not_live_have_no_rank) {
    const auto with_one_live = [&](float priority_of_live) {
        return edited([&](Parts& parts) {
            parts.edited.prioritization = PER_RANK;
            constexpr auto lone = row_is_step | row_starts_episode | row_truncated | row_final_unknown;
            std::fill(parts.arrays[0].begin(), parts.arrays[0].end(), static_cast<std::byte>(lone));
            std::fill_n(parts.priorities(), n_rows, 0.0f);
            parts.arrays[0].back() = static_cast<std::byte>(row_is_step | row_starts_episode);
            parts.priorities()[n_rows - 1] = priority_of_live;
            parts.lanes[0].episode = n_rows - 1;
            parts.ranks.emplace();
            parts.ranks->n_changes = 0;
            parts.ranks->tree_scale = 51;
            parts.ranks->tree_rescales_below = 0;
            std::fill_n(parts.ranks->weights, n_rank_buckets, 1.0f);
        });
    };
    for (const float priority : {0.0f, 1.0f}) {
        EXPECT_OK(with_one_live(priority));
        EXPECT_EQ(live_, std::vector<int64_t>{n_rows - 1});
    }
}

// A row is used up exactly when it was drawn max_times_sampled times.
TEST_F(CraftedFile, rows_drawn_as_often_as_they_cannot_have_been_are_refused) {
    for (const int32_t most : {0, 1, 2}) {
        per_replay_options options = options_of(20);
        options.keep_times_sampled = 1;
        options.max_times_sampled = most;
        options.scheme = PER_WITHOUT_REPLACEMENT;
        const Replay saved = create(options);
        User(1).add(saved.get(), 12);
        Arrays drawn(described(saved.get()), 1, false);
        for (int i = 0; i < 6; ++i) ASSERT_OK(per_replay_sample(saved.get(), nullptr, 1, &drawn.batch, nullptr));
        save(saved.get());
        ASSERT_OK(status_of_loading());
        constexpr int32_t large = std::numeric_limits<int32_t>::max();
        EXPECT_EQ(status_of_edited([&](Parts& parts) { parts.times_sampled()[0] = -1; }), PER_ERROR_CORRUPT_FILE);
        EXPECT_EQ(status_of_edited([&](Parts& parts) { parts.times_sampled()[0] = large; }),
                  most == 0 ? PER_OK : PER_ERROR_CORRUPT_FILE);
        EXPECT_FAILS(
            status_of_edited([](Parts& parts) { parts.arrays[0][0] ^= static_cast<std::byte>(row_is_used_up); }),
            PER_ERROR_CORRUPT_FILE,
            most == 0 ? "in the section 'flags': a row in it has flags"
                      : "in the section 'times sampled': a row in it was");
        if (most == 0) continue;
        EXPECT_EQ(
            status_of_edited([](Parts& parts) { parts.times_sampled()[0] = parts.times_sampled()[0] == 2 ? 0 : 2; }),
            PER_ERROR_CORRUPT_FILE);
    }
}

// A tree never chooses a scale at which the sum of all leaves reaches 2^62 or a leaf reaches 2^52. Leaves by rank are
// at most 1.
// Versions grow up to that of the buffer, live rows are young enough, rows below the tail are marked as too old, and the
// reference of the leaves fits the births.
TEST_F(CraftedFile, versions_and_references_that_cannot_be_are_refused) {
    per_replay_options options = options_of(40);
    options.freshness = {3.0, 2, PER_AGE_VERSIONS, 0};
    const Replay replay = create(options);
    for (int64_t version = 0; version < 5; ++version) {
        ASSERT_OK(change_version(replay.get(), version, nullptr));
        add_zeros(replay.get(), 4);
    }
    save(replay.get());
    const auto with_version = [&](size_t row, int32_t version) {
        return status_of_edited(
            [=](Parts& parts) { reinterpret_cast<int32_t*>(parts.arrays[1].data())[row] = version; });
    };
    EXPECT_EQ(status_of_edited([](Parts&) {}), PER_OK);
    EXPECT_EQ(with_version(19, 4), PER_OK);
    EXPECT_EQ(with_version(19, 5), PER_ERROR_CORRUPT_FILE);
    EXPECT_EQ(with_version(0, -1), PER_ERROR_CORRUPT_FILE);
    EXPECT_EQ(with_version(14, 1), PER_ERROR_CORRUPT_FILE);
    const auto unmark = [](Parts& parts) { parts.arrays[0][2] &= ~std::byte{row_is_used_up}; };
    EXPECT_EQ(status_of_edited(unmark), PER_ERROR_CORRUPT_FILE);
    for (const int64_t reference : {0, 4, 35, 37})
        EXPECT_EQ(status_of_edited([=](Parts& parts) { parts.numbers.reference = reference; }), PER_ERROR_CORRUPT_FILE);
    EXPECT_EQ(status_of_edited([](Parts& parts) { parts.numbers.reference = 68; }), PER_OK);
}

TEST_F(CraftedFile, scales_that_cannot_be_are_refused) {
    per_replay_options options = options_of(20);
    options.prioritization = PER_RANK;
    options.alpha = 1;
    const Replay saved = create(options);
    User(1).add(saved.get(), 12);
    const std::vector<int64_t> ids = live_ids(saved.get());
    const std::vector<float> ones(ids.size(), 1.0f);
    const auto n_live = static_cast<int64_t>(ids.size());
    ASSERT_OK(write_priorities(saved.get(), n_live, ids.data(), ones.data(), nullptr));
    Arrays drawn(options, 4, false);
    ASSERT_OK(per_replay_sample(saved.get(), nullptr, 4, &drawn.batch, nullptr));
    save(saved.get());
    ASSERT_TRUE(Parts(path()).ranks);
    constexpr int32_t least = std::numeric_limits<int32_t>::min(), most = std::numeric_limits<int32_t>::max();
    for (const bool is_of_ranks : {false, true}) {
        const auto with_scale = [&](int32_t scale, Replay& replay_out) {
            const auto set_scale = [&](Parts& parts) {
                (is_of_ranks ? parts.ranks->tree_scale : parts.numbers.tree_scale) = scale;
            };
            return load_edited(set_scale, replay_out);
        };
        // Leaves of 1 have a mass of 2^scale. At 1023 the factor would be infinite, and beyond that negative.
        for (const int32_t scale : {least, -1023, -121, is_of_ranks ? 60 : 52, 60, 201, 1023, 1024, most}) {
            Replay replay;
            EXPECT_EQ(with_scale(scale, replay), PER_ERROR_CORRUPT_FILE) << is_of_ranks << " " << scale;
        }
        for (const int32_t scale : {-120, 0, 51}) {  // coarse, but valid
            Replay replay;
            ASSERT_OK(with_scale(scale, replay));
            EXPECT_EQ(live_ids(replay.get()), ids);
            ASSERT_OK(per_replay_sample(replay.get(), nullptr, 4, &drawn.batch, nullptr));
            User(2).use(replay.get(), 20);
        }
    }
}

// The ring holds only the end of the episode. Its sequences start at every third step, counted from the overwritten
// first step.
TEST_F(CraftedFile, sequences_that_start_between_those_of_their_episode_are_refused) {
    per_replay_options options = options_of(12);
    options.sequence_length = 4;
    options.sequence_stride = 3;
    const Replay saved = create(options);
    for (int i = 0; i < 40; ++i) add_zeros(saved.get(), 1);
    save(saved.get());
    for (const int64_t after : {0, 1, 2}) {
        const auto move_starts = [&](Parts& parts) {
            const Lane& lane = parts.lanes[0];
            const RowRange rows = saved_rows(lane, parts.rules);
            ASSERT_TRUE(lane.in_episode() && lane.episode < rows.first);
            for (int64_t row = rows.first; row < lane.head; ++row) {
                std::byte& flags = parts.arrays[0][static_cast<size_t>(row - rows.first)];
                flags &= static_cast<std::byte>(~row_starts_sequence);
                if ((row - lane.episode) % 3 == after) flags |= static_cast<std::byte>(row_starts_sequence);
            }
        };
        if (after == 0) {
            EXPECT_OK(status_of_edited(move_starts));
        } else {
            EXPECT_FAILS(status_of_edited(move_starts), PER_ERROR_CORRUPT_FILE, "flags in it cannot follow each other");
        }
    }
}

// The ranks are restored in several blocks.
TEST_F(CraftedFile, ranks_of_thousands_of_rows_are_restored) {
    per_replay_options options = options_of(5000);
    options.prioritization = PER_RANK;
    options.seed = 3;
    const Replay saved = create(options);
    User user(1);
    for (int i = 0; i < 100; ++i) user.add(saved.get(), 40);
    Arrays drawn(options, 64, false), again(options, 64, false);
    ASSERT_OK(per_replay_sample(saved.get(), nullptr, 64, &drawn.batch, nullptr));
    ASSERT_GT(statistics_of(saved.get()).live, 2500);
    save(saved.get());
    Replay loaded;
    ASSERT_OK(load(loaded));
    for (int i = 0; i < 10; ++i) {
        ASSERT_OK(per_replay_sample(saved.get(), nullptr, 64, &drawn.batch, nullptr));
        ASSERT_OK(per_replay_sample(loaded.get(), nullptr, 64, &again.batch, nullptr));
        for (int k = 0; k < 64; ++k) EXPECT_EQ(drawn.batch.ids[k], again.batch.ids[k]) << i << " " << k;
    }
}

// A buffer increments its counters, and computes ids as k * n_envs + environment.
TEST_F(CraftedFile, counters_near_the_end_of_their_type_are_refused) {
    const Replay saved = create(options_of(40, 3));
    User(2).add(saved.get(), 9);
    save(saved.get());
    constexpr int64_t end = std::numeric_limits<int64_t>::max();
    const std::function<void(Parts&)> edits[] = {
        [](Parts& parts) { parts.numbers.beta_step = end; },
        [](Parts& parts) { parts.numbers.batches = end; },
        [](Parts& parts) { parts.numbers.counters.added = end - 5; },
        [](Parts& parts) { parts.numbers.counters.dropped = end; },
        [](Parts& parts) { parts.numbers.counters.episodes = end; },
        [](Parts& parts) { parts.numbers.counters.cuts = end; },
        [](Parts& parts) { parts.numbers.counters.updates = end; },
        [](Parts& parts) { parts.numbers.counters.stale_updates = end; },
        [](Parts& parts) { parts.numbers.counters.rejected_updates = end; },
        // A cleared lane, whose rows are all gone: only its numbers show that it is invalid.
        [](Parts& parts) {
            parts.lanes[0] = {end / 3 - 9, end / 3 - 9, end / 3 - 9, 0, LaneState::idle};
        },
    };
    for (const auto& edit : edits) EXPECT_EQ(status_of_edited(edit), PER_ERROR_CORRUPT_FILE) << (&edit - edits);
    EXPECT_OK(status_of_loading());
}

// Bytes of this process that are resident.
int64_t resident_bytes() {
    std::ifstream file("/proc/self/statm");
    int64_t size = 0, resident = 0;
    file >> size >> resident;
    return resident * sysconf(_SC_PAGESIZE);
}

// Memory that is never touched costs nothing. If all of it were touched, the priorities of 2^28 rows alone would take
// 1.2 GB; a few huge pages of 2 MiB for each array take a tenth of that.
constexpr int64_t sparse_capacity = int64_t{1} << 28;
constexpr int64_t most_touched = int64_t{200} << 20;

Replay create_sparse(int32_t prioritization) {
    per_replay_options options = options_of(sparse_capacity);
    options.prioritization = prioritization;
    options.normalize_weights = PER_BUFFER_MAX;
    options.max_priority = PER_MAX_NOW;
    return create(options);
}

TEST_F(CraftedFile, loading_touches_what_is_in_the_file) {
    for (const int32_t prioritization : {PER_PROPORTIONAL, PER_RANK}) {
        const Replay saved = create_sparse(prioritization);
        User(3).add(saved.get(), 6);
        save(saved.get());
        EXPECT_LT(fs::file_size(path()), prioritization == PER_RANK ? 40000u : 2000u);
        const int64_t before = resident_bytes();
        Replay loaded;
        ASSERT_OK(load(loaded));
        EXPECT_LT(resident_bytes() - before, most_touched);
        EXPECT_EQ(live_ids(loaded.get()), live_ids(saved.get()));
    }
}

TEST_F(CraftedFile, clearing_touches_what_is_live) {
    for (const int32_t prioritization : {PER_PROPORTIONAL, PER_RANK}) {
        const Replay replay = create_sparse(prioritization);
        User user(4);
        user.add(replay.get(), 50);
        const int64_t before = resident_bytes();
        ASSERT_OK(per_replay_clear(replay.get(), nullptr));
        EXPECT_LT(resident_bytes() - before, most_touched);
        EXPECT_EQ(statistics_of(replay.get()).total, 0.0);
        EXPECT_TRUE(live_ids(replay.get()).empty());
    }
}

// The checksums are right. Missing numbers are not read from the next section.
TEST_F(CraftedFile, sections_that_are_too_short_are_refused_by_name) {
    const Replay saved = create(options_of(20));
    CheckpointWriter writer(path().c_str());
    write_options(writer, described(saved.get()));
    SectionContent counters;
    counters.number(int64_t{0});
    writer.write("counters", counters);
    writer.write("lanes", counters);
    writer.commit();
    EXPECT_FAILS(status_of_loading(), PER_ERROR_CORRUPT_FILE, "in the section 'counters': it is too short");
}

TEST_F(CraftedFile, memory_that_no_machine_has_is_out_of_memory) {
    const Replay saved = create(options_of(20));
    save(saved.get());
    per_replay_options options = described(saved.get());
    std::vector<per_field> fields(options.fields, options.fields + options.n_fields);
    const int64_t shape[] = {int64_t{1} << 20};
    fields[0].shape = shape;
    options.fields = fields.data();
    options.capacity = int64_t{1} << 40;
    CheckpointWriter writer(path().c_str());
    write_options(writer, options);
    writer.commit();
    EXPECT_EQ(status_of_loading(), PER_ERROR_OUT_OF_MEMORY);
}

// The pieces are truncated, have another size, or are not frames of zstd.
TEST_F(CraftedFile, compressed_pieces_that_cannot_be_are_refused) {
    if (!has_zstd()) GTEST_SKIP() << "libper was built without zstd";
    per_replay_options options = options_of(20);
    options.save_compression = 3;
    const Replay saved = create(options);
    User(1).add(saved.get(), 12);
    save(saved.get());
    const std::string good = contents(path());
    const size_t begin = good.find("flags") - 4;
    const size_t piece = begin + 4 + 5 + 4 + 8;
    uint32_t n_packed = 0;
    std::memcpy(&n_packed, &good[piece], sizeof n_packed);
    uint64_t size = 0;
    std::memcpy(&size, &good[piece - 8], sizeof size);
    std::vector<char> other(1000);
    Compression compression(other.size(), 3);
    const std::string contents(size + 1, '\1');
    const auto packed = [&](size_t n) {
        return std::string(other.data(), compression.pack(other.data(), contents.data(), n));
    };
    const std::string frame = good.substr(piece + 4, n_packed);
    const std::string pieces[] = {"",
                                  frame.substr(0, n_packed - 1),
                                  frame + frame,
                                  frame + "x",
                                  packed(size - 1),
                                  packed(size + 1),
                                  std::string(n_packed, 'x')};
    for (const std::string& bad : pieces) {
        std::string section = good.substr(begin, piece - begin);
        const uint32_t n = static_cast<uint32_t>(bad.size());
        section.append(reinterpret_cast<const char*>(&n), sizeof n).append(bad);
        section = sealed(section);
        write_file(path(), good.substr(0, begin) + section + good.substr(piece + 4 + n_packed + sizeof(uint64_t)));
        EXPECT_FAILS(status_of_loading(), PER_ERROR_CORRUPT_FILE, "in the section 'flags': it cannot be decompressed")
            << (&bad - pieces);
    }
}

// Makes small and large random changes to parts.
void mutate(Parts& parts, User& user) {
    const auto change = [&](int64_t& number) {
        constexpr int64_t odd[] = {0,
                                   -1,
                                   1,
                                   int64_t{1} << 31,
                                   int64_t{1} << 40,
                                   int64_t{1} << 61,
                                   std::numeric_limits<int64_t>::max(),
                                   std::numeric_limits<int64_t>::min()};
        number = user.chance(3) ? odd[user.below(8)]
                                : static_cast<int64_t>(static_cast<uint64_t>(number) + user.below(9) - 4);
    };
    constexpr float odd_numbers[] = {std::numeric_limits<float>::infinity(),  -1.0f, -0.0f, 0.0f, 1e-45f, 3e38f,
                                     std::numeric_limits<float>::quiet_NaN(), -7.0f, 5.0f};
    for (uint64_t n = 1 + user.below(3); n > 0; --n) {
        Lane& lane = parts.lanes[user.below(parts.lanes.size())];
        int64_t* const of_lane[] = {&lane.head, &lane.first, &lane.tail, &lane.episode};
        std::vector<std::byte>& flags = parts.arrays[0];
        switch (user.below(9)) {
            case 0:
                change(*of_lane[user.below(4)]);
                break;
            case 1:
                lane.state = static_cast<LaneState>(user.below(4));
                break;
            case 2:
            case 3:
                if (!flags.empty()) flags[user.below(flags.size())] ^= static_cast<std::byte>(1u << user.below(7));
                break;
            case 4:
                if (!flags.empty()) flags[user.below(flags.size())] = static_cast<std::byte>(user.below(128));
                break;
            case 5:
                if (!flags.empty()) parts.priorities()[user.below(flags.size())] = odd_numbers[user.below(9)];
                break;
            case 6:
                parts.numbers.tree_scale += static_cast<int32_t>(user.below(200)) - 100;
                parts.numbers.tree_rescales_below = user.below(2) * ~uint64_t{0};
                break;
            case 7:
                if (parts.ranks) {
                    parts.ranks->weights[user.below(n_rank_buckets)] = odd_numbers[user.below(9)];
                    if (user.chance(2)) parts.ranks->tree_scale += static_cast<int32_t>(user.below(100)) - 50;
                    if (user.chance(2)) change(parts.ranks->n_changes);
                } else {
                    change(parts.numbers.batches);
                }
                break;
            default: {
                int64_t* const of_options[] = {&parts.edited.n_step, &parts.edited.sequence_length,
                                               &parts.edited.burn_in, &parts.edited.sequence_stride,
                                               &parts.edited.frame_stack};
                int32_t* const choices[] = {&parts.edited.prioritization, &parts.edited.autoreset,
                                            &parts.edited.max_priority, &parts.edited.normalize_weights,
                                            &parts.edited.overwrite};
                if (user.chance(2))
                    change(*of_options[user.below(5)]);
                else
                    *choices[user.below(5)] = static_cast<int32_t>(user.below(3));
            }
        }
    }
}

std::vector<per_replay_options> option_sets() {
    std::vector<per_replay_options> sets(8, options_of(24));
    sets[0].frame_stack = 3;
    sets[0].n_step = 2;
    sets[1] = options_of(54, 3);
    sets[1].sequence_length = 3;
    sets[1].burn_in = 2;
    sets[1].sequence_stride = 2;
    sets[1].frame_stack = 2;
    sets[2].prioritization = PER_RANK;
    sets[2].max_priority = PER_MAX_NOW;
    sets[3] = options_of(40, 2);
    sets[3].autoreset = PER_AUTORESET_NEXT_STEP;
    sets[3].normalize_weights = PER_BUFFER_MAX;
    sets[4].save_compression = has_zstd() ? 1 : 0;
    sets[4].store_next_observation = 1;
    sets[4].autoreset = PER_AUTORESET_NEXT_STEP;
    sets[4].n_step = 3;
    sets[5] = options_of(60, 2);
    sets[5].sequence_length = 4;
    sets[5].prioritization = PER_RANK;
    sets[5].autoreset = PER_AUTORESET_NEXT_STEP;
    sets[6].overwrite = 0;
    sets[6].capacity = 60;
    sets[6].keep_times_sampled = 1;
    sets[7].max_times_sampled = 2;
    sets[7].scheme = PER_WITHOUT_REPLACEMENT;
    sets[7].sequence_length = 2;
    sets[7].sequence_stride = 1;
    return sets;
}

// A saved buffer is loaded, saves the same bytes, and works. A changed file is refused, or its buffer works.
TEST_F(CraftedFile, what_is_loaded_can_be_used) {
    const std::vector<per_replay_options> sets = option_sets();
    int n_loaded = 0, n_refused = 0;
    for (uint64_t seed = 0; seed < 140; ++seed) {
        User user(seed);
        const Replay saved = create(sets[seed % sets.size()]);
        user.use(saved.get(), static_cast<int>(user.below(60)));
        save(saved.get());
        const std::string bytes = contents(path());
        Replay whole;
        ASSERT_EQ(load(whole), PER_OK) << "seed " << seed << ": " << per_last_error();
        save(whole.get());
        ASSERT_EQ(contents(path()), bytes) << "seed " << seed;
        for (int i = 0; i < 12; ++i) {
            Replay loaded;
            const per_status status = load_edited([&](Parts& parts) { mutate(parts, user); }, loaded);
            ASSERT_TRUE(status == PER_OK || status == PER_ERROR_CORRUPT_FILE || status == PER_ERROR_OUT_OF_MEMORY)
                << per_status_name(status) << ": " << per_last_error();
            ++(status == PER_OK ? n_loaded : n_refused);
            if (status != PER_OK) continue;
            user.use(loaded.get(), 12);
            user.sample(loaded.get());
            user.read(loaded.get());
            // The state of the buffer is still valid.
            ASSERT_OK(per_replay_save(loaded.get(), path("again.per").c_str(), nullptr));
            Replay again;
            ASSERT_EQ(load(again, "again.per"), PER_OK)
                << "seed " << seed << ", file " << i << ": " << per_last_error();
            if (HasFailure()) FAIL() << "seed " << seed << ", file " << i;
        }
    }
    EXPECT_GT(n_loaded, 100);
    EXPECT_GT(n_refused, 500);
}

// ---- checkpoints that leave rows in their file

// A checkpoint of three environments with few rows each, in two pieces of the file.
class CraftedTable : public CraftedFile {
 protected:
    void SetUp() override {
        CraftedFile::SetUp();
        storage_ = path("storage");
        fs::create_directory(storage_);
        per_replay_options options = options_of(60'000, 3);
        options.memory.storage = storage_.c_str();
        const Replay replay = create(options);
        User(1).add(replay.get(), 12);
        ASSERT_OK(per_replay_checkpoint(replay.get(), storage_.c_str(), nullptr, nullptr));
        save(replay.get());
        rows_ = contents(path());
        good_ = contents(manifest());
        fs::copy(storage_, path("kept"));
    }

    std::string manifest() const { return storage_ + "/manifest.per"; }
    // The offset of a number of the table in the manifest.
    std::size_t place_of(std::size_t number) const {
        constexpr std::size_t n_numbers = 4 + 1 + 5 + 1 + 2 * 3 + 1;
        return good_.size() - (n_numbers - number) * sizeof(uint64_t);
    }
    uint64_t number_at(std::size_t number) const {
        uint64_t value = 0;
        std::memcpy(&value, &good_[place_of(number)], sizeof value);
        return value;
    }
    void forge(std::size_t number, uint64_t value) const {
        std::string bytes = good_.substr(0, good_.size() - sizeof(uint64_t));
        std::memcpy(&bytes[place_of(number)], &value, sizeof value);
        write_file(manifest(), sealed(bytes));
    }
    // If `stays` is false, the rows are copied into memory; otherwise they stay in their file.
    per_status load_to(bool stays, Replay& replay_out) const {
        per_load_options place = initialized(per_load_options_init);
        if (stays) place.memory.storage = storage_.c_str();
        per_replay* replay = nullptr;
        const per_status status = per_replay_load(storage_.c_str(), &place, &replay);
        EXPECT_EQ(replay != nullptr, status == PER_OK);
        replay_out.reset(replay);
        return status;
    }
    void expect_whole() const {
        write_file(manifest(), good_);
        for (const bool stays : {false, true}) {
            Replay replay;
            ASSERT_OK(load_to(stays, replay));
            save(replay.get());
            EXPECT_EQ(contents(path()), rows_);
        }
    }

    std::string storage_;
    std::string rows_;  // the bytes of a save
    std::string good_;  // the manifest
};

constexpr std::size_t first_array = 5, n_pieces = 10, first_piece = 11;  // numbers of the table

TEST_F(CraftedTable, numbers_that_cannot_be_are_refused_and_change_nothing) {
    constexpr uint64_t huge = uint64_t{1} << 60;
    const uint64_t first_blocks = number_at(first_piece + 1), second_blocks = number_at(first_piece + 4);
    ASSERT_EQ(std::popcount(first_blocks), 2);
    ASSERT_EQ(std::popcount(second_blocks), 1);
    constexpr per_status corrupt = PER_ERROR_CORRUPT_FILE, io = PER_ERROR_IO;
    const struct {
        std::size_t number;
        uint64_t value;
        per_status when_copied, when_adopted;
        const char* reason;
    } forgeries[] = {
        {0, 7, io, io, "No such file"},
        {1, 0, corrupt, corrupt, "out of range"},
        {1, 3 << 20, corrupt, corrupt, "out of range"},
        {1, uint64_t{1} << 36, corrupt, corrupt, "out of range"},
        {2, 0, corrupt, corrupt, "out of range"},
        {2, 1 << 10, corrupt, corrupt, "out of range"},
        {2, 1 << 21, corrupt, corrupt, "out of range"},
        {3, 0, corrupt, corrupt, "out of range"},
        {3, 3, corrupt, corrupt, "its place in the file cannot be"},
        {3, huge, corrupt, corrupt, "its place in the file cannot be"},
        {3, huge >> 20, corrupt, corrupt, "rows are missing"},
        {4, 4, corrupt, corrupt, "manifest.per"},
        {4, 6, corrupt, corrupt, "manifest.per"},
        {4, huge, corrupt, corrupt, "manifest.per: it ends early"},
        {first_array, huge, corrupt, corrupt, "its place in the file cannot be"},
        {first_array, ~uint64_t{0}, corrupt, corrupt, "its place in the file cannot be"},
        {n_pieces, 1, corrupt, corrupt, "manifest.per"},
        {n_pieces, huge, corrupt, corrupt, "manifest.per: it ends early"},
        {first_piece, 9, corrupt, corrupt, "rows-0000000000000000.per: it ends early"},
        {first_piece, uint64_t{1} << 44, corrupt, corrupt, "it ends early"},
        {first_piece, 1, corrupt, corrupt, "rows-0000000000000000.per"},
        {first_piece + 1, 0, corrupt, corrupt, "rows are missing"},
        {first_piece + 1, 2, corrupt, corrupt, "rows are missing"},
        {first_piece + 1, first_blocks | 1 << 16, PER_OK, corrupt, "its table cannot be"},
        {first_piece + 2, 5, corrupt, PER_OK, "the hash is wrong"},
        {first_piece + 4, 0, corrupt, corrupt, "rows are missing"},
        {first_piece + 4, second_blocks << 1, corrupt, corrupt, "rows are missing"},
    };
    for (const auto& forgery : forgeries) {
        forge(forgery.number, forgery.value);
        for (const bool stays : {false, true}) {
            const std::string where = std::to_string(&forgery - forgeries) + (stays ? ", stays: " : ", copied: ");
            Replay replay;
            const per_status status = load_to(stays, replay);
            const per_status expected = stays ? forgery.when_adopted : forgery.when_copied;
            if (expected == PER_OK)
                EXPECT_EQ(status, PER_OK) << where << per_last_error();
            else
                EXPECT_FAILS(status, expected, forgery.reason) << where;
        }
    }
    expect_whole();
}

// A table with arbitrary numbers is refused, or the buffer works like any other.
TEST_F(CraftedTable, what_is_loaded_of_any_table_can_be_used) {
    User user(3);
    int n_loaded = 0, n_refused = 0;
    for (int i = 0; i < 150; ++i) {
        const std::size_t number = user.below(first_piece + 6);
        const uint64_t value = number_at(number);
        const uint64_t values[] = {
            value + 1, value - 1,      value * 2, value / 2, value ^ uint64_t{1} << user.below(64),
            0,         user.below(64), 1 << 16,   1 << 20};
        forge(number, values[user.below(std::size(values))]);
        Replay replay;
        const per_status status = load_to(user.chance(2), replay);
        ASSERT_TRUE(status == PER_OK || status == PER_ERROR_CORRUPT_FILE || status == PER_ERROR_IO)
            << per_status_name(status) << ": " << per_last_error();
        ++(status == PER_OK ? n_loaded : n_refused);
        if (status != PER_OK) continue;
        user.use(replay.get(), 6);
        user.sample(replay.get());
        EXPECT_OK(per_replay_checkpoint(replay.get(), storage_.c_str(), nullptr, nullptr));
        save(replay.get());
        const std::string saved = contents(path());
        replay.reset();
        // Hashes are not verified if rows stay in their file, and the next checkpoint keeps them.
        const bool is_hash = number == first_piece + 2 || number == first_piece + 5;
        ASSERT_OK(load_to(is_hash || user.chance(2), replay));
        save(replay.get());
        ASSERT_EQ(contents(path()), saved) << number;
        replay.reset();
        fs::remove_all(storage_);
        fs::copy(path("kept"), storage_);
    }
    EXPECT_GT(n_loaded, 10);
    EXPECT_GT(n_refused, 50);
}

// Ids are 64-bit integers. A buffer whose lanes begin at row 2^53 is bit-identical to one whose lanes begin at 0,
// except that its ids are larger by 2^54. A double would round the ids of the second environment, which are all odd.
TEST_F(CraftedFile, ids_beyond_2_to_the_53_are_exact) {
    constexpr int64_t rows = int64_t{1} << 53;
    constexpr int64_t shift = 2 * rows;
    for (const bool has_sequences : {false, true}) {
        per_replay_options options = options_of(32, 2);
        options.n_step = 2;
        options.prioritization = has_sequences ? PER_RANK : PER_PROPORTIONAL;
        if (has_sequences) options.sequence_length = 2;
        Replay low = create(options);
        User user(29), twin(29);
        user.add(low.get(), 40);  // so that all slots of the lanes are in the file
        twin.add(create(options).get(), 40);
        save(low.get());
        Parts parts(path());
        for (Lane& lane : parts.lanes) {
            lane.head += rows;
            lane.first += rows;
            lane.tail += rows;
            lane.episode += rows;
        }
        parts.write(path());
        Replay high;
        ASSERT_OK(load(high));
        for (int round = 0; round < 60; ++round) {
            user.add(low.get(), 3);
            twin.add(high.get(), 3);
            std::vector<int64_t> of_low = live_ids(low.get());
            for (int64_t& id : of_low) id += shift;
            ASSERT_EQ(live_ids(high.get()), of_low);
            if (of_low.empty()) continue;
            Arrays low_rows(options, 16, false), high_rows(options, 16, false);
            ASSERT_OK(per_replay_sample(low.get(), nullptr, 16, &low_rows.batch, nullptr));
            ASSERT_OK(per_replay_sample(high.get(), nullptr, 16, &high_rows.batch, nullptr));
            std::vector<int64_t> ids(high_rows.batch.ids, high_rows.batch.ids + 16);
            for (int64_t i = 0; i < 16; ++i) {
                ASSERT_EQ(high_rows.batch.ids[i], low_rows.batch.ids[i] + shift);
                high_rows.batch.ids[i] -= shift;
            }
            ASSERT_EQ(high_rows.numbers, low_rows.numbers);
            ASSERT_EQ(high_rows.values, low_rows.values);
            const std::vector<float> priorities(16, static_cast<float>(round + 1));
            ASSERT_OK(write_priorities(low.get(), 8, low_rows.batch.ids, priorities.data(), nullptr));
            ASSERT_OK(write_priorities(high.get(), 8, ids.data(), priorities.data(), nullptr));
        }
        EXPECT_EQ(statistics_of(high.get()).stale_updates, 0);
        EXPECT_EQ(statistics_of(high.get()).total, statistics_of(low.get()).total);
        int64_t never_issued = shift + 2 * 10000 + 1;
        const float one = 1;
        EXPECT_EQ(write_priorities(high.get(), 1, &never_issued, &one, nullptr), PER_ERROR_INVALID_ARGUMENT);
    }
}

}  // namespace
}  // namespace per::test

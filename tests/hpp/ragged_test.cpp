// Fields with max_length: rows of any length go in and come back, and batches make room for them.
#include <gtest/gtest.h>
#include <per.hpp>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "buffers.h"

namespace {

using Points = std::vector<float>;    // two numbers each
using Tokens = std::vector<int16_t>;  // of one row

constexpr int64_t max_points = 5, max_tokens = 20;

// The rows of step t of an environment. Both have all lengths from 0 to the largest; those of points change from step
// to step.
Points points_of(int64_t env, int64_t t) {
    Points points(static_cast<std::size_t>(2 * ((7 * t + 3 * env) % (max_points + 1))));
    for (std::size_t k = 0; k < points.size(); ++k)
        points[k] = static_cast<float>(1000 * env + 20 * t) + static_cast<float>(k);
    return points;
}
Tokens tokens_of(int64_t env, int64_t t) {
    Tokens tokens(static_cast<std::size_t>((5 * t + env) % (max_tokens + 1)));
    for (std::size_t k = 0; k < tokens.size(); ++k)
        tokens[k] = static_cast<int16_t>(100 * t + env - static_cast<int>(k));
    return tokens;
}

// The field `action` is the step.
std::vector<per::Field> ragged_fields() {
    return {per::field<float>("observation", {2}).set_max_length(max_points),
            per::field<int16_t>("tokens").set_max_length(max_tokens), per::field<int32_t>("action")};
}
per::ReplayOptions ragged_options(int64_t n_envs = 1) {
    per::ReplayOptions options;
    options.capacity = 64 * n_envs;
    options.n_envs = n_envs;
    options.seed = 7;
    return options;
}
per::ReplayBuffer ragged_buffer(const per_replay_options& options = ragged_options()) {
    return per::ReplayBuffer(options, ragged_fields());
}

// Steps first .. first + n_steps - 1 of all environments. Episodes have `episode` steps, and end by a limit.
struct Episodes {
    std::vector<Points> observation, next_observation;
    std::vector<Tokens> tokens;
    std::vector<int32_t> action;
    std::vector<float> reward;
    std::vector<uint8_t> terminated, truncated;
    int64_t length;

    Episodes(int64_t n_envs, int64_t first, int64_t n_steps, int64_t episode = 1000) : length(n_steps) {
        for (int64_t t = first; t < first + n_steps; ++t) {
            for (int64_t env = 0; env < n_envs; ++env) {
                observation.push_back(points_of(env, t));
                next_observation.push_back(points_of(env, t + 1));
                tokens.push_back(tokens_of(env, t));
                action.push_back(static_cast<int32_t>(t));
                truncated.push_back((t + 1) % episode == 0);
            }
        }
        reward.resize(action.size());
        terminated.resize(action.size());
    }
    // All but the observations and the tokens.
    template <class Target>
    per::Steps plain_steps(const Target& target) const {
        per::Steps steps = target.steps();
        steps.length = length;
        steps.fields["action"] = action;
        steps.reward = reward;
        steps.terminated = terminated;
        steps.truncated = truncated;
        return steps;
    }
    template <class Target>
    per::Steps steps(const Target& target) const {
        per::Steps steps = plain_steps(target);
        steps.fields["observation"] = observation;
        steps.fields["tokens"] = tokens;
        steps.next_fields["observation"] = next_observation;
        return steps;
    }
};

void add_steps(per::ReplayBuffer& buffer, int64_t first, int64_t length, int64_t episode = 1000) {
    buffer.add(Episodes(buffer.describe().n_envs, first, length, episode).steps(buffer));
}

template <class T>
std::vector<std::remove_const_t<T>> values(per::Span<T> span) {
    return {span.begin(), span.end()};
}

// Lengths, offsets and total of packed rows agree.
template <class T>
void expect_packed(const per::Ragged<T>& rows, std::size_t n_rows, std::size_t row_size) {
    ASSERT_EQ(rows.size(), n_rows);
    ASSERT_EQ(rows.offsets().size(), n_rows + 1);
    EXPECT_EQ(rows.padded_length(), 0U);
    std::size_t sum = 0;
    for (std::size_t i = 0; i < n_rows; ++i) {
        EXPECT_EQ(rows.offsets()[i], static_cast<int64_t>(sum));
        EXPECT_EQ(rows[i].data(), rows.values().data() + sum * row_size);
        EXPECT_EQ(rows[i].size(), rows.length(i) * row_size);
        sum += rows.length(i);
    }
    EXPECT_EQ(rows.total(), sum);
    EXPECT_EQ(rows.values().size(), sum * row_size);
}

// The rows of each transition are those of its step and of the step that follows its window.
void expect_own_rows(const per::Batch& batch, int64_t n_envs) {
    const auto n = static_cast<std::size_t>(batch.size());
    const auto observation = batch.ragged<float>("observation"), next = batch.next_ragged<float>("observation");
    const auto tokens = batch.ragged<int16_t>("tokens");
    for (std::size_t i = 0; i < n; ++i) {
        const int64_t env = batch.ids()[i] % n_envs, t = batch.field<int32_t>("action")[i];
        EXPECT_EQ(values(observation[i]), points_of(env, t));
        EXPECT_EQ(values(next[i]), points_of(env, t + batch.n_steps()[i]));
        EXPECT_EQ(values(tokens[i]), tokens_of(env, t));
    }
}
void expect_packed_rows(const per::Batch& batch, int64_t n_envs) {
    const auto n = static_cast<std::size_t>(batch.size());
    expect_packed(batch.ragged<float>("observation"), n, 2);
    expect_packed(batch.next_ragged<float>("observation"), n, 2);
    expect_packed(batch.ragged<int16_t>("tokens"), n, 1);
    expect_own_rows(batch, n_envs);
}

TEST(Ragged, rows_of_every_length_are_drawn) {
    for (const int64_t n_step : {1, 3}) {
        per::ReplayOptions options = ragged_options(3);
        options.n_step = n_step;
        per::ReplayBuffer buffer = ragged_buffer(options);
        per::Batch reused = buffer.batch(32);
        std::vector<int64_t> seen_points(max_points + 1), seen_tokens(max_tokens + 1);
        for (int64_t round = 0; round < 30; ++round) {
            add_steps(buffer, 7 * round, 7, 11);
            buffer.sample(reused);
            expect_packed_rows(reused, 3);
            for (std::size_t i = 0; i < 32; ++i) {
                ++seen_points[reused.ragged<float>("observation").length(i)];
                ++seen_tokens[reused.ragged<int16_t>("tokens").length(i)];
            }
            expect_packed_rows(buffer.sample(5), 3);
        }
        EXPECT_EQ(std::count(seen_points.begin(), seen_points.end(), 0), 0);
        EXPECT_EQ(std::count(seen_tokens.begin(), seen_tokens.end(), 0), 0);
        EXPECT_EQ(buffer.stats().cuts, 0) << "observations are those announced";
        EXPECT_EQ(reused.shape("observation"), std::vector<int64_t>{32});
        EXPECT_EQ(reused.next_ragged<int16_t>("tokens").size(), 0U) << "they are no observation";
    }
}

// Adds four steps of two environments, whose tokens set() puts into the steps.
template <class Set>
void expect_given(const Set& set) {
    per::ReplayBuffer buffer = ragged_buffer(ragged_options(2));
    const Episodes run(2, 0, 4);
    per::Steps steps = run.steps(buffer);
    set(steps.fields["tokens"]);
    buffer.add(steps);
    expect_packed_rows(buffer.get(buffer.live_ids()), 2);
}

TEST(Ragged, rows_are_given_in_many_forms) {
    const std::vector<Tokens> rows = Episodes(2, 0, 4).tokens;
    Tokens all;
    std::vector<int64_t> offsets = {0};
    std::vector<per::Span<const int16_t>> spans;
    std::vector<std::vector<int64_t>> wide;
    for (const Tokens& row : rows) {
        all.insert(all.end(), row.begin(), row.end());
        offsets.push_back(static_cast<int64_t>(all.size()));
        spans.emplace_back(row);
        wide.emplace_back(row.begin(), row.end());
    }
    expect_given([&](per::Array& tokens) { tokens = rows; });
    expect_given([&](per::Array& tokens) { tokens = spans; });
    expect_given([&](per::Array& tokens) { tokens = {all, offsets}; });
    expect_given([&](per::Array& tokens) { tokens = {per::Span(all), per::Span<const int64_t>(offsets)}; });
    const per_array in_c = {all.data(), nullptr, 0, PER_INT16, offsets.data()};
    expect_given([&](per::Array& tokens) { tokens = in_c; });
    expect_given([&](per::Array& tokens) { tokens = wide; });

    // Rows are read when they are added, and packed rows may begin anywhere.
    std::vector<Tokens> later(rows.size());
    expect_given([&](per::Array& tokens) {
        tokens = later;
        std::copy(rows.begin(), rows.end(), later.begin());
    });
    all.insert(all.begin(), 3, int16_t{-1});
    for (int64_t& offset : offsets) offset += 3;
    expect_given([&](per::Array& tokens) { tokens = {all, offsets}; });
}

TEST(Ragged, a_single_row_needs_no_offsets) {
    per::ReplayBuffer buffer = ragged_buffer();
    for (int64_t t = 0; t < 20; ++t) {
        const Episodes run(1, t, 1);
        const std::vector<int8_t> narrow(run.tokens[0].begin(), run.tokens[0].end());
        per::Steps steps = run.plain_steps(buffer);
        steps.fields["observation"] = run.observation[0];
        steps.fields["tokens"] = t == 0 ? per::Array(narrow) : per::Array(run.tokens[0]);
        steps.next_fields["observation"] = run.next_observation[0];
        buffer.add(steps);
    }
    expect_packed_rows(buffer.get(buffer.live_ids()), 1);
    EXPECT_EQ(buffer.live(), 20);
    EXPECT_EQ(buffer.stats().cuts, 0);
}

// A repeated draw is the same draw: batches that must grow are those of a buffer whose batches have room at once.
TEST(Ragged, a_reused_batch_grows_and_keeps_its_memory) {
    per::ReplayBuffer buffer = ragged_buffer(), twin = ragged_buffer();
    per::Batch batch = buffer.batch(16), roomy = twin.batch(16);
    roomy.pad("tokens", max_tokens);
    roomy.pad("observation", max_points);
    roomy.pad("tokens", 0);
    roomy.pad("observation", 0);
    const int16_t* const roomy_tokens = roomy.ragged<int16_t>("tokens").values().data();
    int growths = 0, shrinkages = 0;
    std::size_t before = 0;
    const int16_t* memory = nullptr;
    for (int64_t t = 0; t < 100; ++t) {
        add_steps(buffer, t, 1, 9);
        add_steps(twin, t, 1, 9);
        buffer.sample(batch);
        twin.sample(roomy);
        EXPECT_EQ(values(batch.ids()), values(roomy.ids()));
        EXPECT_EQ(values(batch.ragged<int16_t>("tokens").values()), values(roomy.ragged<int16_t>("tokens").values()));
        expect_packed_rows(batch, 1);
        const per::Ragged<int16_t> tokens = batch.ragged<int16_t>("tokens");
        growths += tokens.values().data() != memory;
        shrinkages += tokens.total() < before;
        memory = tokens.values().data();
        before = tokens.total();
    }
    EXPECT_EQ(roomy.ragged<int16_t>("tokens").values().data(), roomy_tokens);
    EXPECT_GT(growths, 1);
    EXPECT_LT(growths, 20);
    EXPECT_GT(shrinkages, 20);
    EXPECT_EQ(buffer.stats().samples, 100);
}

// Gives all transitions n tokens.
void set_lengths(per::ReplayBuffer& buffer, std::size_t n) {
    const std::vector<int64_t> ids = buffer.live_ids();
    const std::vector<Tokens> rows(ids.size(), Tokens(n, static_cast<int16_t>(n)));
    per::FieldArrays fields = buffer.field_arrays();
    fields["tokens"] = rows;
    buffer.set(ids, fields);
}

TEST(Ragged, a_batch_that_grows_has_room_for_a_quarter_more) {
    per::ReplayBuffer buffer = ragged_buffer();
    add_steps(buffer, 0, 10);
    per::Batch batch = buffer.batch(16);
    const auto draw = [&](std::size_t n) {
        set_lengths(buffer, n);
        buffer.sample(batch);
        EXPECT_EQ(values(batch.ragged<int16_t>("tokens").values()), Tokens(16 * n, static_cast<int16_t>(n)));
        return batch.ragged<int16_t>("tokens").values().data();
    };
    const int16_t* const memory = draw(8);
    EXPECT_EQ(draw(9), memory);
    EXPECT_EQ(draw(10), memory);
    EXPECT_NE(draw(11), memory);
}

// The first call of this draw finds that tokens need more room, the second that observations are padded to too little.
TEST(Ragged, a_draw_that_fails_keeps_the_rows_of_the_last) {
    per::ReplayBuffer buffer = ragged_buffer();
    add_steps(buffer, 0, 10);
    set_lengths(buffer, 2);
    per::Batch batch = buffer.batch(16);
    buffer.sample(batch);
    const Tokens tokens = values(batch.ragged<int16_t>("tokens").values());
    const std::vector<int64_t> ids = values(batch.ids());
    batch.pad("observation", 1);
    set_lengths(buffer, 20);
    EXPECT_ERROR(buffer.sample(batch), Full, "observation.padded_length is 1: ");
    EXPECT_EQ(values(batch.ragged<int16_t>("tokens").values()), tokens);
    EXPECT_EQ(values(batch.ids()), ids);
    EXPECT_EQ(buffer.stats().samples, 1);
    batch.pad("observation", 0);
    buffer.sample(batch);
    EXPECT_EQ(batch.ragged<int16_t>("tokens").total(), 16U * 20);
}

TEST(Ragged, rows_are_read_by_id) {
    per::ReplayOptions options = ragged_options(2);
    options.n_step = 3;
    per::ReplayBuffer buffer = ragged_buffer(options);
    add_steps(buffer, 0, 20);
    const std::vector<int64_t> ids = {30, 3, 31, 3};
    const per::Batch rows = buffer.get(ids);
    EXPECT_EQ(values(rows.ids()), ids);
    expect_packed_rows(rows, 2);
    EXPECT_EQ(buffer.get(ids, false).next_ragged<float>("observation").size(), 0U);
    EXPECT_EQ(buffer.get({}).ragged<int16_t>("tokens").size(), 0U);

    const per::Batch windows = buffer.get_windows(ids);
    EXPECT_EQ(windows.n_steps()[0], 3);
    expect_packed_rows(windows, 2);
    const per::Batch skipped = buffer.get_windows({3, -1}, PER_INVALID_SKIP);
    EXPECT_EQ(skipped.ragged<int16_t>("tokens").length(1), 0U);
    EXPECT_EQ(values(skipped.ragged<int16_t>("tokens")[0]), tokens_of(1, 1));

    std::vector<uint64_t> masses(4), first_units(4);
    const per::Batch units = buffer.get_units({0, 1, 5, 1000}, masses, first_units);
    expect_packed_rows(units, 2);
    EXPECT_GT(masses[0], 0U);
}

TEST(Ragged, rows_are_set_by_id) {
    per::ReplayBuffer buffer = ragged_buffer();
    add_steps(buffer, 0, 10);
    const auto tokens_of_ids = [&](const std::vector<int64_t>& ids) {
        const per::Batch rows = buffer.get(ids);
        std::vector<Tokens> tokens;
        for (std::size_t i = 0; i < ids.size(); ++i) tokens.push_back(values(rows.ragged<int16_t>("tokens")[i]));
        return tokens;
    };
    const std::vector<Tokens> rows = {{7, -7}, {1, 2, 3}, {}, {4, 5}};
    per::FieldArrays fields = buffer.field_arrays();
    fields["tokens"] = rows;
    buffer.set({8, 3, 9, 3}, fields);
    EXPECT_EQ(tokens_of_ids({8, 3, 9, 2}), (std::vector<Tokens>{{7, -7}, {4, 5}, {}, tokens_of(0, 2)}));

    const std::vector<int8_t> all = {1, 2, 3, 4, 5, 6};
    const std::vector<int64_t> offsets = {0, 5, 6};
    fields["tokens"] = {all, offsets};
    buffer.set({8, 9}, fields);
    EXPECT_EQ(tokens_of_ids({8, 9}), (std::vector<Tokens>{{1, 2, 3, 4, 5}, {6}}));
    fields["tokens"] = all;
    buffer.set({3}, fields);
    const std::vector<int8_t> none;
    fields["tokens"] = none;
    buffer.set({2}, fields);
    EXPECT_EQ(tokens_of_ids({3, 2}), (std::vector<Tokens>{{1, 2, 3, 4, 5, 6}, {}}));
    const std::vector<Tokens> no_rows;
    fields["tokens"] = no_rows;
    buffer.set({}, fields);
    fields["tokens"] = per::Array();
    buffer.set({2}, fields);
    EXPECT_EQ(tokens_of_ids({2}), (std::vector<Tokens>{{}}));
    EXPECT_ERROR(buffer.set({1, 2, 3},
                            [&] {
                                fields["tokens"] = rows;
                                return fields;
                            }()),
                 InvalidArgument, "tokens has 4 rows: expected are 3");
}

TEST(Ragged, epochs_give_each_row_once) {
    per::ReplayBuffer buffer = ragged_buffer(ragged_options(2));
    add_steps(buffer, 0, 15);
    per::Epochs epochs = buffer.epochs(2, 8);
    std::vector<int64_t> seen(30);
    while (epochs.next()) {
        expect_packed_rows(epochs.batch(), 2);
        for (const int64_t id : epochs.batch().ids()) ++seen[static_cast<std::size_t>(id)];
    }
    EXPECT_EQ(seen, std::vector<int64_t>(30, 2));
    EXPECT_EQ(epochs.batch().ragged<float>("observation").size(), 0U);

    per::Epochs padded = buffer.epochs(1, 8);
    padded.pad("tokens", max_tokens);
    int64_t n = 0;
    for (; padded.next(); n += padded.batch().size()) {
        expect_own_rows(padded.batch(), 2);
        EXPECT_EQ(padded.batch().ragged<int16_t>("tokens").values().size(),
                  static_cast<std::size_t>(padded.batch().size() * max_tokens));
    }
    EXPECT_EQ(n, 30);
}

TEST(Ragged, bootstraps_have_their_rows) {
    per::ReplayBuffer buffer = ragged_buffer(ragged_options(2));
    EXPECT_EQ(buffer.bootstraps().ragged<int16_t>("tokens").size(), 0U);
    add_steps(buffer, 0, 20, 7);
    const per::Batch last = buffer.bootstraps();
    EXPECT_EQ(last.size(), 6) << "after steps 6, 13 and 19";
    expect_packed_rows(last, 2);
}

// Entry t of the observations of a sequence belongs to its step t. Rows beyond the end of an episode are empty.
TEST(Ragged, sequences_have_a_row_for_each_step) {
    constexpr int64_t n_steps = 4, n_ahead = 2, n_sequences = 16, episode = 6;
    per::ReplayOptions options = ragged_options(2);
    options.n_step = n_ahead;
    options.burn_in = 1;
    options.sequence_length = n_steps - 1;
    options.sequence_stride = 1;
    per::ReplayBuffer buffer = ragged_buffer(options);
    add_steps(buffer, 0, 60, episode);
    per::Batch batch = buffer.batch(n_sequences);
    for (int round = 0; round < 4; ++round) {
        const int64_t padded_length = round == 2 ? max_points : 0;
        batch.pad("observation", padded_length);
        buffer.sample(batch);
        const per::Ragged<float> observation = batch.ragged<float>("observation");
        const per::Ragged<int16_t> tokens = batch.ragged<int16_t>("tokens");
        ASSERT_EQ(observation.size(), static_cast<std::size_t>(n_sequences * (n_steps + n_ahead)));
        if (padded_length == 0) expect_packed(observation, observation.size(), 2);
        expect_packed(tokens, static_cast<std::size_t>(n_sequences * n_steps), 1);
        EXPECT_EQ(batch.shape("observation"), (std::vector<int64_t>{n_sequences, n_steps + n_ahead}));
        EXPECT_EQ(batch.shape("tokens"), (std::vector<int64_t>{n_sequences, n_steps}));
        EXPECT_EQ(batch.next_ragged<float>("observation").size(), 0U);
        for (int64_t i = 0; i < n_sequences; ++i) {
            const int64_t env = batch.ids()[static_cast<std::size_t>(i)] % 2;
            const int64_t first = batch.field<int32_t>("action")[static_cast<std::size_t>(i * n_steps)];
            const int64_t left = episode - first % episode;  // transitions of the episode
            for (int64_t t = 0; t < n_steps + n_ahead; ++t)
                EXPECT_EQ(values(observation[static_cast<std::size_t>(i * (n_steps + n_ahead) + t)]),
                          t <= std::min(left, n_steps + n_ahead - 1) ? points_of(env, first + t) : Points());
            for (int64_t t = 0; t < n_steps; ++t)
                EXPECT_EQ(values(tokens[static_cast<std::size_t>(i * n_steps + t)]),
                          t < left ? tokens_of(env, first + t) : Tokens());
        }
    }
}

TEST(Ragged, rows_are_padded_on_request) {
    per::ReplayBuffer buffer = ragged_buffer();
    add_steps(buffer, 0, 30);
    per::Batch batch = buffer.batch(16);
    buffer.sample(batch);
    batch.pad("observation", max_points);
    EXPECT_EQ(batch.ragged<float>("observation").total(), 0U) << "no batch was written yet";
    for (const int64_t length : {max_tokens, max_tokens - 1, int64_t{0}, max_tokens}) {
        batch.pad("tokens", length);
        bool is_long = false;
        try {
            buffer.sample(batch);
        } catch (const per::Full& error) {
            is_long = true;
            EXPECT_NE(std::string(error.what()).find("tokens.padded_length is 19: "), std::string::npos);
            EXPECT_EQ(batch.ragged<int16_t>("tokens").total(), 0U);
        }
        EXPECT_EQ(is_long, length == max_tokens - 1);
        if (is_long) continue;
        expect_own_rows(batch, 1);
        const per::Ragged<int16_t> tokens = batch.ragged<int16_t>("tokens");
        if (length == 0) expect_packed(tokens, 16, 1);
        ASSERT_EQ(tokens.padded_length(), static_cast<std::size_t>(length));
        ASSERT_EQ(tokens.values().size(), length == 0 ? tokens.total() : 16 * static_cast<std::size_t>(length));
        for (const auto& rows : {batch.ragged<float>("observation"), batch.next_ragged<float>("observation")}) {
            ASSERT_EQ(rows.values().size(), static_cast<std::size_t>(16 * max_points * 2));
            for (std::size_t i = 0; i < 16; ++i)
                for (std::size_t k = 0; k < 2 * max_points; ++k) {
                    const float value = rows.values()[2 * max_points * i + k];
                    EXPECT_EQ(value, k < rows[i].size() ? rows[i][k] : 0.0f);
                }
        }
    }
    EXPECT_ERROR(batch.pad("tokens", -1), InvalidArgument, "length is -1: allowed are 0 .. 20");
    EXPECT_ERROR(batch.pad("tokens", 21), InvalidArgument, "length is 21: allowed are 0 .. 20");
    EXPECT_ERROR(batch.pad("action", 1), InvalidArgument, "\"action\" has rows of one length");
    EXPECT_ERROR(batch.pad("velocity", 1), InvalidArgument, "\"velocity\" is no field");
}

TEST(Ragged, a_moved_batch_keeps_its_rows) {
    per::ReplayBuffer buffer = ragged_buffer();
    add_steps(buffer, 0, 30);
    per::Batch batch = buffer.sample(8);
    per::Batch moved = std::move(batch);
    expect_packed_rows(moved, 1);
    buffer.sample(moved);
    expect_packed_rows(moved, 1);
    EXPECT_EQ(batch.ragged<float>("observation").size(), 0U);
    EXPECT_EQ(batch.ragged<float>("observation").total(), 0U);
    EXPECT_TRUE(batch.ragged<float>("observation").values().empty());
    EXPECT_ERROR(batch.pad("tokens", 1), InvalidArgument, "ReplayBuffer::batch()");
}

TEST(Ragged, rows_are_saved) {
    per::ReplayBuffer buffer = ragged_buffer(ragged_options(2));
    add_steps(buffer, 0, 50, 9);
    std::stringstream file;
    buffer.save(file);
    per::ReplayBuffer loaded = per::ReplayBuffer::load(file);
    const per::ReplayOptions described = loaded.describe();
    ASSERT_EQ(described.n_fields, 3);
    EXPECT_EQ(described.fields[0].max_length, max_points);
    EXPECT_EQ(described.fields[1].max_length, max_tokens);
    EXPECT_EQ(described.fields[2].max_length, 0);
    EXPECT_EQ(per::Field(described.fields[1]).max_length, max_tokens);
    EXPECT_EQ(loaded.live_ids(), buffer.live_ids());
    expect_packed_rows(loaded.get(loaded.live_ids()), 2);
    expect_packed_rows(loaded.sample(16), 2);
    add_steps(loaded, 50, 5, 9);
    expect_packed_rows(loaded.get(loaded.live_ids()), 2);
}

// The program may bring its own memory, as in C.
TEST(Ragged, arrays_of_the_caller_are_filled) {
    per::ReplayBuffer buffer = ragged_buffer(), twin = ragged_buffer();
    add_steps(buffer, 0, 30);
    add_steps(twin, 0, 30);
    std::vector<int64_t> offsets(9), ids(8);
    Tokens memory(1);
    per_ragged ragged = {memory.data(), offsets.data(), 1, 0, 0};
    void* const fields[3] = {nullptr, &ragged, nullptr};
    per_batch batch;
    per::check(per_batch_init(&batch, sizeof batch));
    batch.fields = fields;
    batch.ids = ids.data();
    EXPECT_ERROR(buffer.sample(8, batch), Full, "tokens.capacity is 1: ");
    EXPECT_GT(ragged.total, 1);
    memory.resize(static_cast<std::size_t>(ragged.total));
    ragged.values = memory.data();
    ragged.capacity = ragged.total;
    buffer.sample(8, batch);
    const per::Ragged<int16_t> rows(ragged, 8, 1);
    expect_packed(rows, 8, 1);
    EXPECT_EQ(values(twin.sample(8).ragged<int16_t>("tokens").values()), memory);
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(values(rows[i]), tokens_of(0, ids[i]));
}

// A draw that is repeated for more room asks for its rewards once.
TEST(Ragged, hindsight_calls_the_reward_once) {
    std::vector<per::Field> fields = ragged_fields();
    fields.push_back(per::field<float>("observation.state"));
    fields.push_back(per::field<float>("goal"));
    per::ReplayBuffer buffer(ragged_options(), fields);
    const Episodes run(1, 0, 10, 10);
    per::Steps steps = run.steps(buffer);
    steps.fields["observation.state"] = run.reward;
    steps.fields["goal"] = run.reward;
    steps.next_fields["observation.state"] = run.reward;
    buffer.add(steps);
    int calls = 0;
    per::Hindsight hindsight =
        buffer.hindsight<float>("observation.state", "goal", [&](auto, auto, per::Span<float> rewards, auto) {
            ++calls;
            std::fill(rewards.begin(), rewards.end(), 5.0f);
        });
    hindsight.options.fraction = 1;
    const per::Batch batch = buffer.sample(8, nullptr, &hindsight);
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(batch.reward()[3], 5.0f);
    expect_packed_rows(batch, 1);
    expect_packed_rows(buffer.get_windows(values(batch.ids()), PER_INVALID_ERROR, nullptr, &hindsight), 1);
    EXPECT_EQ(calls, 2);
}

TEST(Ragged, wrong_rows_are_refused) {
    per::ReplayBuffer buffer = ragged_buffer(ragged_options(2));
    const Episodes run(2, 0, 2);
    per::Steps steps = run.steps(buffer);
    const std::vector<Tokens> three = {{1}, {2}, {3}}, long_row = {{1}, {2}, Tokens(21), {3}};
    const std::vector<Points> odd = {{1, 2}, {1, 2}, {1}, {1}};
    const Tokens all = {1, 2, 3, 4};
    const Points numbers = {1, 2, 3, 4, 5, 6, 7};
    const std::vector<int64_t> offsets = {0, 1, 2, 3, 4}, falling = {0, 1, 0, 3, 4}, beyond = {0, 1, 2, 3, 5},
                               few = {0, 4}, none;
    const auto expect_refused = [&](per::Array array, const char* text) {
        per::Steps bad = steps;
        bad.fields["tokens"] = array;
        EXPECT_ERROR(buffer.add(bad), InvalidArgument, text);
    };
    expect_refused(three, "tokens has 3 rows: expected are 2 * 2");
    expect_refused({all, few}, "tokens has 1 rows: expected are 2 * 2");
    expect_refused({all, none}, "tokens has 0 rows: expected are 2 * 2");
    expect_refused(long_row, "tokens: row 2 has 21 values: at most max_length, 20, are allowed");
    expect_refused({all, falling}, "tokens.offsets[2] is 0: allowed are 1 .. 4");
    expect_refused({all, beyond}, "tokens.offsets[4] is 5: allowed are 3 .. 4");
    expect_refused(all, "tokens.offsets is NULL: must be given for 4 rows");
    expect_refused(per::Array(), "tokens is missing: every step needs it");
    expect_refused(odd, "tokens has dtype float32");

    per::Steps bad = steps;
    bad.fields["observation"] = odd;
    EXPECT_ERROR(buffer.add(bad), InvalidArgument,
                 "observation: row 2 has a number of elements that is no multiple of 2");
    bad = steps;
    bad.next_fields["observation"] = odd;
    EXPECT_ERROR(buffer.add(bad), InvalidArgument, "next_observation: row 2 has");
    bad = steps;
    bad.next_fields["observation"] = three;
    EXPECT_ERROR(buffer.add(bad), InvalidArgument, "next_observation has 3 rows: expected are 2 * 2");
    bad = steps;
    bad.fields["observation"] = {numbers, offsets};
    EXPECT_ERROR(buffer.add(bad), InvalidArgument, "observation has shape (7,): expected is (n, 2), for n values");
    bad = steps;
    bad.fields["action"] = {run.action, offsets};
    EXPECT_ERROR(buffer.add(bad), InvalidArgument, "action.offsets is given: must be NULL");
    bad = steps;
    bad.fields["action"] = run.tokens;
    EXPECT_ERROR(buffer.add(bad), InvalidArgument, "action is a range of rows: only fields with max_length take one");
    bad = steps;
    bad.reward = run.observation;
    EXPECT_ERROR(buffer.add(bad), InvalidArgument, "only fields with max_length take one");
    EXPECT_EQ(buffer.stats().added, 0);
    buffer.add(steps);
    EXPECT_EQ(buffer.stats().added, 4);
}

TEST(Ragged, rows_are_asked_for_by_their_kind) {
    per::ReplayBuffer buffer = ragged_buffer();
    add_steps(buffer, 0, 5);
    const per::Batch batch = buffer.sample(2);
    EXPECT_ERROR(batch.field<int16_t>("tokens"), InvalidArgument, "\"tokens\" has rows of any length: use ragged()");
    EXPECT_ERROR(batch.next_field<float>("observation"), InvalidArgument, "rows of any length");
    EXPECT_ERROR(batch.ragged<int32_t>("action"), InvalidArgument, "\"action\" has rows of one length: use field()");
    EXPECT_ERROR(batch.next_ragged<int32_t>("action"), InvalidArgument, "rows of one length");
    EXPECT_ERROR(batch.ragged<float>("tokens"), InvalidArgument, "dtype of \"tokens\" is int16: asked for was float32");
    EXPECT_ERROR(batch.ragged<float>("velocity"), InvalidArgument, "\"velocity\" is no field");
}

TEST(Ragged, loaders_have_the_rows_of_the_buffer) {
    per::ReplayBuffer buffer = ragged_buffer(), twin = ragged_buffer(), shared = ragged_buffer();
    for (per::ReplayBuffer* each : {&buffer, &twin, &shared}) add_steps(*each, 0, 50, 9);
    per::LoaderOptions options;
    options.batch_size = 16;
    per::Loader loader = buffer.loader(options);
    per::SharedLoaderOptions shared_options;
    shared_options.batch_size = 16;
    shared_options.readers = 1;
    per::SharedLoader shared_loader = shared.shared_loader(shared_options);
    per::Reader reader(shared_loader.path());
    for (int round = 0; round < 8; ++round) {
        const per::Batch expected = twin.sample(16);
        per::Slot slot = loader.take();
        per::ReadBatch read = reader.take();
        for (const per::Batch* batch : {static_cast<per::Batch*>(&slot), static_cast<per::Batch*>(&read)}) {
            EXPECT_EQ(values(batch->ids()), values(expected.ids()));
            expect_packed_rows(*batch, 1);
        }
        slot.release();
        read.release();
    }
}

TEST(Ragged, writers_bring_the_rows_into_the_buffer) {
    per::ReplayBuffer buffer = ragged_buffer(ragged_options(2)), twin = ragged_buffer(ragged_options(2));
    per::ChannelOptions options;
    options.slots = 4;
    per::Channel channel = buffer.channel(options);
    per::Writer writer(channel.path());
    for (int64_t t = 0; t < 40; t += 2) {
        writer.add(Episodes(2, t, 2, 8).steps(writer));
        add_steps(twin, t, 2, 8);
    }
    channel.flush();
    const per::Batch batch = buffer.sample(32), expected = twin.sample(32);
    EXPECT_EQ(values(batch.ids()), values(expected.ids()));
    expect_packed_rows(batch, 2);
}

TEST(Ragged, mixtures_join_the_rows_of_their_buffers) {
    per::ReplayBuffer a = ragged_buffer(), b = ragged_buffer(), other = ragged_buffer();
    add_steps(a, 0, 40, 9);
    add_steps(b, 60, 40, 9);
    per::Mixture mixture({{a, 1}, {b, 1}});
    per::Batch batch = mixture.batch(4);
    for (int round = 0; round < 5; ++round) {
        mixture.sample(batch);
        expect_packed_rows(batch, 1);
        expect_packed_rows(mixture.sample(64), 1);
    }
    batch.pad("tokens", 20);
    mixture.sample(batch);
    EXPECT_EQ(batch.ragged<int16_t>("tokens").padded_length(), 20U);
    expect_own_rows(batch, 1);

    per::Mixture::Source empty = {other, 1};
    EXPECT_ERROR(per::Mixture({{a, 1}, empty}).sample(8), Empty, "sources[1].replay");
    empty.when_empty = PER_EMPTY_OTHERS;
    per::Mixture gives_way({{a, 1}, empty});
    const per::Batch of_one = gives_way.sample(8);
    for (const int32_t source : of_one.sources()) EXPECT_EQ(source, 0);
    expect_packed_rows(of_one, 1);
}

TEST(Ragged, other_calls_refuse_such_fields) {
    EXPECT_ERROR(per::field<float>("x").set_max_length(-1).check(), InvalidArgument, "max_length is -1");
    EXPECT_ERROR(per::field<float>("x").set_max_length(2).set_default(1.0f).check(), Unsupported, "default is given");
    per::ReplayOptions options = ragged_options();
    options.memory.storage = ".";
    EXPECT_ERROR(per::ReplayBuffer(options, ragged_fields()), Unsupported, "max_length of field \"observation\"");
}

}  // namespace

// per::ReplayBuffer is per_replay, with fields by name and arrays of the right size.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <per.hpp>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "../c/struct_calls.h"
#include "buffers.h"

namespace {

template <class T>
std::vector<T> values(per::Span<T> span) {
    return {span.begin(), span.end()};
}

TEST(ReplayBuffer, options_are_those_of_the_library) {
    per_replay_options filled;
    ASSERT_EQ(per_replay_options_init(&filled, sizeof filled), PER_OK);
    const per::ReplayOptions options;
    EXPECT_EQ(options.struct_size, sizeof(per_replay_options));
    EXPECT_EQ(options.gamma, filled.gamma);
    EXPECT_EQ(options.alpha, filled.alpha);
    EXPECT_EQ(options.beta_final, filled.beta_final);
    EXPECT_TRUE(std::isnan(per::SampleOptions().beta));
    EXPECT_EQ(per::HindsightOptions().goal_field, -1);
    EXPECT_EQ(per::LoaderOptions().slots, 3);
}

TEST(ReplayBuffer, fields_are_declared_by_type_and_shape) {
    per::Field state = per::field<double>("state", {3, 2});
    state.role = PER_ROLE_RECURRENT_STATE;
    per::ReplayOptions options = small_options();
    options.frame_stack = 4;
    per::ReplayBuffer buffer(options, {per::field<uint8_t>("observation", {84, 84}), per::field<int64_t>("action"),
                                       state, per::field<int16_t>("label", {2}).set_default(int16_t{-5})});
    const per::ReplayOptions described = buffer.describe();
    ASSERT_EQ(described.n_fields, 4);
    EXPECT_STREQ(described.fields[0].name, "observation");
    EXPECT_EQ(described.fields[0].dtype, PER_UINT8);
    ASSERT_EQ(described.fields[0].ndim, 2);
    EXPECT_EQ(described.fields[0].shape[1], 84);
    EXPECT_EQ(described.fields[0].stack, 4);
    EXPECT_EQ(described.fields[1].dtype, PER_INT64);
    EXPECT_EQ(described.fields[1].ndim, 0);
    EXPECT_EQ(described.fields[2].role, PER_ROLE_RECURRENT_STATE);
    EXPECT_EQ(described.fields[2].default_value, nullptr);
    ASSERT_NE(described.fields[3].default_value, nullptr);
    EXPECT_EQ(static_cast<const int16_t*>(described.fields[3].default_value->data)[1], -5);
    EXPECT_EQ(buffer.field_number("label"), 3);

    const double two_numbers[] = {1.5, 2.5};
    const per_array elements = {two_numbers, nullptr, 0, PER_FLOAT64, nullptr};
    per::Field with_array = per::field<float>("pair", {2});
    with_array.default_value = &elements;
    const per::ReplayBuffer other(small_options(), {per::field<float>("observation"), with_array});
    EXPECT_EQ(static_cast<const float*>(other.describe().fields[1].default_value->data)[1], 2.5f);
    EXPECT_ERROR(buffer.field_number("nothing"), InvalidArgument,
                 "\"nothing\" is no field: there are observation, action, state, label");

    per::field<float>("x", {2}).check();
    per::field<float>("", {2}).check();
    EXPECT_ERROR(per::field<float>("x", {0}).check(), InvalidArgument, "shape is (0,)");
    EXPECT_ERROR(per::field<float>("next_x").check(), InvalidArgument, "reserved");
    EXPECT_ERROR(per::field<float>(std::string("x\0y", 3)).check(), InvalidArgument, "has a NUL in it");
}

TEST(ReplayBuffer, windows_by_id_are_those_of_a_draw) {
    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 5);
    const per::Batch batch = buffer.sample(16);
    const per::Batch windows = buffer.get_windows({batch.ids().data(), 16});
    ASSERT_EQ(windows.size(), 16);
    for (std::size_t i = 0; i < 16; ++i) {
        EXPECT_EQ(windows.ids()[i], batch.ids()[i]);
        EXPECT_EQ(windows.field<float>("observation")[2 * i + 1], batch.field<float>("observation")[2 * i + 1]);
        EXPECT_EQ(windows.weights()[i], batch.weights()[i]);
    }
    const std::vector<int64_t> ids = {3, 99};
    EXPECT_ERROR(buffer.get_windows(ids), InvalidArgument, "ids[1] is 99: never issued; ids so far are 0 .. ");
    EXPECT_EQ(buffer.get_windows(ids, PER_INVALID_SKIP).ids()[1], -1);
    EXPECT_EQ(buffer.get_windows({}).size(), 0);
    EXPECT_EQ(buffer.get_units({}, {}, {}).size(), 0);
}

TEST(ReplayBuffer, what_is_added_is_drawn) {
    per::ReplayBuffer buffer = small_buffer();
    const std::vector<int64_t> ids = add_episode(buffer, 5);
    EXPECT_EQ(buffer.live(), 5);
    EXPECT_EQ(buffer.live_ids(), ids);
    const per::Batch batch = buffer.sample(16);
    ASSERT_EQ(batch.size(), 16);
    EXPECT_EQ(batch.shape("observation"), (std::vector<int64_t>{16, 2}));
    EXPECT_EQ(batch.shape("action"), (std::vector<int64_t>{16}));
    ASSERT_EQ(batch.field<float>("observation").size(), 32U);
    ASSERT_EQ(batch.next_field<float>("observation").size(), 32U);
    EXPECT_TRUE(batch.mask().empty());
    EXPECT_TRUE(batch.next_field<int8_t>("action").empty()) << "it is no observation";
    for (std::size_t i = 0; i < 16; ++i) {
        const int64_t t = batch.ids()[i];
        EXPECT_EQ(batch.field<float>("observation")[2 * i + 1], 10 * static_cast<float>(t));
        EXPECT_EQ(batch.next_field<float>("observation")[2 * i], static_cast<float>(t + 1));
        EXPECT_EQ(batch.field<int8_t>("action")[i], t);
        EXPECT_EQ(batch.reward()[i], static_cast<float>(t));
        EXPECT_EQ(batch.discount()[i], t == 4 ? 0.0f : 0.99f);
        EXPECT_EQ(batch.gamma_m()[i], 0.99f);
        EXPECT_EQ(batch.terminated()[i], t == 4);
        EXPECT_EQ(batch.truncated()[i], 0);
        EXPECT_EQ(batch.n_steps()[i], 1);
        EXPECT_EQ(batch.weights()[i], 1.0f);
        EXPECT_EQ(batch.priorities()[i], 1.0f);
        EXPECT_FLOAT_EQ(batch.probabilities()[i], 0.2f);
    }
}

TEST(ReplayBuffer, n_step_of_a_draw_may_be_a_range) {
    per::ReplayOptions options = small_options();
    options.n_step = 3;
    per::ReplayBuffer buffer = small_buffer(options);
    add_episode(buffer, 20);
    per::SampleOptions range;
    range.n_step_min = 2;
    const per::Batch batch = buffer.sample(64, &range);
    int64_t counts[4] = {};
    for (std::size_t i = 0; i < 64; ++i) {
        const int64_t t = batch.ids()[i], m = batch.n_steps()[i];
        ASSERT_TRUE(m >= 1 && m <= 3);
        EXPECT_EQ(batch.next_field<float>("observation")[2 * i], static_cast<float>(t + m));
        if (t < 17) ++counts[m];
    }
    EXPECT_TRUE(counts[1] == 0 && counts[2] > 0 && counts[3] > 0);
    range.n_step_min = 4;
    EXPECT_THROW(buffer.sample(64, &range), per::InvalidArgument);
}

TEST(ReplayBuffer, the_newest_transitions_are_in_the_batch) {
    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 20);
    per::SampleOptions with_newest;
    with_newest.newest = 2;
    const per::Batch batch = buffer.sample(8, &with_newest);
    EXPECT_EQ(batch.ids()[6], 19);
    EXPECT_EQ(batch.ids()[7], 18);
    EXPECT_EQ(batch.weights()[6], 1.0f);
    with_newest.newest = 8;
    EXPECT_THROW(buffer.sample(8, &with_newest), per::InvalidArgument);
}

TEST(ReplayBuffer, draws_what_the_buffer_of_per_h_draws) {
    per::ReplayBuffer buffer = small_buffer(), twin = small_buffer();
    add_episode(buffer, 20);
    add_episode(twin, 20);
    per::SampleOptions options;
    options.scheme = PER_INDEPENDENT;
    per::Batch batch = buffer.batch(32);
    for (int i = 0; i < 3; ++i) {
        std::vector<int64_t> ids(32);
        std::vector<float> weights(32);
        per_batch expected;
        ASSERT_EQ(per_batch_init(&expected, sizeof expected), PER_OK);
        expected.ids = ids.data();
        expected.weights = weights.data();
        const per_sample_options* const given = i == 0 ? nullptr : &options;
        ASSERT_EQ(per_replay_sample(twin.get(), given, 32, &expected, nullptr), PER_OK);
        buffer.sample(batch, given);
        EXPECT_EQ(values(batch.ids()), ids);
        EXPECT_EQ(values(batch.weights()), weights);
        std::vector<float> td_errors(ids.begin(), ids.end());
        buffer.update_priorities(batch.ids(), td_errors);
        ASSERT_EQ(write_td_errors(twin.get(), 32, ids.data(), 1, td_errors.data(), nullptr), PER_OK);
    }
    per_batch own;  // the caller's own arrays
    ASSERT_EQ(per_batch_init(&own, sizeof own), PER_OK);
    std::vector<int64_t> ids(8);
    own.ids = ids.data();
    buffer.sample(8, own);
    EXPECT_EQ(ids, values(twin.sample(8).ids()));
}

// A temporary would be gone at the call, unless it is a span.
using Ids = std::vector<int64_t>;
static_assert(std::is_assignable_v<per::EnvIds&, Ids&> && std::is_assignable_v<per::EnvIds&, const Ids&> &&
              std::is_assignable_v<per::EnvIds&, per::Span<int64_t>>);
static_assert(!std::is_constructible_v<per::EnvIds, Ids> && !std::is_constructible_v<per::EnvIds, const Ids> &&
              !std::is_constructible_v<per::EnvIds, std::initializer_list<int64_t>>);
static_assert(std::is_constructible_v<per::Array, Ids&> && !std::is_constructible_v<per::Array, const Ids> &&
              std::is_constructible_v<per::Array, per::Span<float>, per::Span<int64_t>> &&
              !std::is_constructible_v<per::Array, per::Span<float>, std::initializer_list<int64_t>>);

TEST(ReplayBuffer, environments_may_be_some_and_are_not_all_if_none) {
    per::ReplayOptions options = small_options();
    options.n_envs = 3;
    per::ReplayBuffer buffer(options, {per::field<float>("observation")});
    const std::array<float, 2> observation = {1, 2}, reward = {3, 4};
    const std::array<bool, 2> flags = {false, false};
    const std::array<int64_t, 2> envs = {0, 2};
    std::vector<int64_t> ids(2);
    per::Steps steps = buffer.steps();
    steps.env_ids = envs;
    steps.fields["observation"] = observation;
    steps.next_fields["observation"] = observation;
    steps.reward = reward;
    steps.terminated = flags;
    steps.truncated = flags;
    buffer.add(steps, ids);
    EXPECT_EQ(ids, (std::vector<int64_t>{0, 2}));
    buffer.add(steps);
    EXPECT_EQ(buffer.stats().added, 4);

    const std::vector<float> none;
    const std::vector<int64_t> no_envs;
    per::Steps nothing = buffer.steps();
    nothing.env_ids = no_envs;
    nothing.fields["observation"] = none;
    nothing.reward = none;
    nothing.terminated = none;
    nothing.truncated = none;
    buffer.add(nothing);
    EXPECT_EQ(buffer.stats().added, 4);

    buffer.cut(no_envs);
    EXPECT_EQ(buffer.stats().cuts, 0);
    buffer.cut({2});
    EXPECT_EQ(buffer.stats().cuts, 1);
    buffer.cut();
    EXPECT_EQ(buffer.stats().cuts, 2);
}

TEST(ReplayBuffer, cuts_the_environments_of_a_list_and_no_other) {
    per::ReplayOptions options;
    options.capacity = 100;
    options.n_envs = 2;
    const std::vector<float> zeros = {0, 0};
    const std::vector<uint8_t> no = {0, 0};
    for (int which = 0; which < 4; ++which) {
        per::ReplayBuffer buffer(options, {per::field<float>("observation")});
        per::Steps steps = buffer.steps();
        steps.fields["observation"] = steps.next_fields["observation"] = zeros;
        steps.reward = zeros;
        steps.terminated = steps.truncated = no;
        buffer.add(steps);
        if (which == 0) buffer.cut({});
        if (which == 1) buffer.cut({0});
        if (which == 2) buffer.cut({0, 1});
        if (which == 3) buffer.cut(nullptr);
        EXPECT_EQ(buffer.stats().cuts, which == 3 ? 2 : which);
    }
}

TEST(ReplayBuffer, arrays_of_other_sizes_are_refused_with_what_is_expected) {
    per::ReplayBuffer buffer = small_buffer();
    const std::vector<float> three = {1, 2, 3}, two = {1, 2}, one = {1};
    const std::vector<uint8_t> flag = {0};
    const std::vector<int8_t> action = {1};
    per::Steps steps = buffer.steps();
    steps.fields["observation"] = three;
    steps.fields["action"] = action;
    steps.fields["goal"] = two;
    steps.reward = one;
    steps.terminated = flag;
    steps.truncated = flag;
    EXPECT_ERROR(buffer.add(steps), InvalidArgument, "observation has shape (3,): expected is (2,)");
    steps.fields["observation"] = two;
    steps.reward = two;
    EXPECT_ERROR(buffer.add(steps), InvalidArgument, "reward has shape (2,)");
    steps.reward = one;
    std::vector<int64_t> ids(2);
    EXPECT_ERROR(buffer.add(steps, ids), InvalidArgument, "ids_out has 2 elements: expected are 1");
    steps.priorities = three;
    EXPECT_ERROR(buffer.add(steps), InvalidArgument, "priorities has shape (3,)");
    steps.priorities = per::Array();
    EXPECT_EQ(buffer.stats().added, 0);
    buffer.add(steps);
    EXPECT_EQ(buffer.stats().added, 1);

    EXPECT_ERROR(steps.fields["reward"], InvalidArgument, "\"reward\" is no field");
    EXPECT_ERROR(steps.next_fields["action"], InvalidArgument,
                 "next_action is given; allowed: next_x for observations");
    EXPECT_ERROR(buffer.update_priorities({0}, two), InvalidArgument, "td_errors has 2 elements: expected are 1");
    EXPECT_ERROR(buffer.update_priorities({0}, one, 2), InvalidArgument, "td_errors has 1 elements: expected are 2");
    EXPECT_ERROR(buffer.update_sequences({0}, 3, two, 2), InvalidArgument, "expected are 2 * 3");
    EXPECT_ERROR(buffer.set_priorities({0}, two), InvalidArgument, "priorities has 2 elements");
    std::vector<float> out(2);
    EXPECT_ERROR(buffer.priorities({0}, out), InvalidArgument, "priorities_out has 2 elements");
    EXPECT_ERROR(buffer.advantages("value", "advantage", "", 1, {0}, two), InvalidArgument, "bootstrap_values");
}

TEST(ReplayBuffer, stacked_frames_are_given_with_their_shape) {
    per::ReplayOptions options = small_options();
    options.frame_stack = 2;
    per::ReplayBuffer buffer(options, {per::field<float>("observation", {2})});
    const std::vector<float> stacked = {1, 2, 3, 4}, reward = {0};
    const std::vector<uint8_t> flag = {0};
    const int64_t shape[] = {2, 2};
    per::Steps steps = buffer.steps();
    steps.fields["observation"] = per_array{stacked.data(), shape, 2, PER_FLOAT32, nullptr};
    steps.next_fields["observation"] = per_array{stacked.data(), shape, 2, PER_FLOAT32, nullptr};
    steps.reward = reward;
    steps.terminated = flag;
    steps.truncated = flag;
    buffer.add(steps);
    const per::Batch batch = buffer.sample(1);
    EXPECT_EQ(batch.shape("observation"), (std::vector<int64_t>{1, 2, 2}));
    EXPECT_EQ(values(batch.field<float>("observation")), (std::vector<float>{3, 4, 3, 4}));
    EXPECT_EQ(values(buffer.get({0}).field<float>("observation")), (std::vector<float>{3, 4})) << "one frame";
}

TEST(ReplayBuffer, elements_are_read_as_what_they_are) {
    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 2);
    const per::Batch batch = buffer.sample(2);
    EXPECT_ERROR(batch.field<double>("observation"), InvalidArgument,
                 "dtype of \"observation\" is float32: asked for was float64");
    EXPECT_ERROR(batch.next_field<uint8_t>("observation"), InvalidArgument,
                 "dtype of \"observation\" is float32: asked for was uint8");
    EXPECT_ERROR(batch.field<float>("velocity"), InvalidArgument, "\"velocity\" is no field");
    EXPECT_ERROR(batch.shape("velocity"), InvalidArgument, "\"velocity\" is no field");
}

TEST(ReplayBuffer, rows_are_read_and_written_by_id) {
    per::ReplayBuffer buffer = small_buffer();
    const std::vector<int64_t> ids = add_episode(buffer, 3);
    const std::vector<float> goals = {1, 2, 3, 4}, value = {5, 6};
    per::FieldArrays fields = buffer.field_arrays();
    fields["goal"] = goals;
    fields["value"] = value;
    buffer.set({2, 0}, fields);
    const per::Batch rows = buffer.get(ids);
    EXPECT_EQ(values(rows.ids()), ids);
    EXPECT_EQ(values(rows.field<float>("goal")), (std::vector<float>{3, 4, -1, -1, 1, 2}));
    EXPECT_EQ(values(rows.field<float>("value")), (std::vector<float>{6, 0, 5}));
    EXPECT_EQ(values(rows.next_field<float>("observation")), (std::vector<float>{1, 10, 2, 20, 3, 30}));
    EXPECT_TRUE(rows.weights().empty());
    EXPECT_TRUE(buffer.get(ids, false).next_field<float>("observation").empty());
    EXPECT_EQ(buffer.get({}).size(), 0);
    fields["goal"] = value;
    EXPECT_ERROR(buffer.set({2, 0}, fields), InvalidArgument, "goal has shape (2,)");

    std::vector<float> priorities(2);
    buffer.set_priorities({0, 1}, {0.25f, 4.0f});
    buffer.priorities({1, 0}, priorities);
    EXPECT_EQ(priorities, (std::vector<float>{4, 0.25f}));
    buffer.update_priorities({0, 1}, {1.0f, 2.0f, -3.0f, -4.0f}, 2);
    buffer.priorities({0, 1}, priorities);
    EXPECT_FLOAT_EQ(priorities[0], 2.0f) << "the mean of two critics";
    EXPECT_FLOAT_EQ(priorities[1], 3.0f);
}

int64_t lent_bytes = 0;

void* lend(void*, int64_t bytes, int64_t alignment, int32_t) {
    lent_bytes += bytes;
    return std::aligned_alloc(static_cast<std::size_t>(alignment), static_cast<std::size_t>(bytes));
}

void take_back(void*, void* memory, int64_t bytes, int32_t) {
    lent_bytes -= bytes;
    std::free(memory);
}

TEST(ReplayBuffer, lies_in_the_memory_of_the_caller) {
    {
        per::ReplayOptions options;
        options.capacity = 64;
        options.memory.allocate = lend;
        options.memory.deallocate = take_back;
        const per::ReplayBuffer buffer(options, {per::field<float>("observation")});
        EXPECT_GE(lent_bytes, 64 * (4 + 6 + 9));
    }
    EXPECT_EQ(lent_bytes, 0);
}

std::string saved(per::ReplayBuffer& buffer) {
    std::ostringstream bytes;
    buffer.save(bytes);
    return bytes.str();
}

TEST(ReplayBuffer, rows_lie_in_a_file) {
    const std::string folder = ::testing::TempDir();
    const std::string path = folder + "/per_hpp_storage.per";
    per::ReplayOptions options = small_options();
    per::ReplayBuffer in_memory = small_buffer(options);
    options.memory.storage = folder.c_str();
    per::ReplayBuffer buffer = small_buffer(options);
    EXPECT_EQ(buffer.describe().memory.storage, folder);
    add_episode(buffer, 6);
    add_episode(in_memory, 6);
    EXPECT_EQ(saved(buffer), saved(in_memory));
    buffer.save(path);
    per::LoadOptions place;
    place.memory.storage = folder.c_str();
    per::ReplayBuffer loaded = per::ReplayBuffer::load(path, place);
    EXPECT_EQ(loaded.describe().memory.storage, folder);
    EXPECT_EQ(saved(loaded), saved(buffer));
    place.memory.storage = "no/such/folder";
    EXPECT_THROW(per::ReplayBuffer::load(path, place), per::IoError);
    std::remove(path.c_str());
}

TEST(ReplayBuffer, rows_stay_in_their_file_where_a_checkpoint_is_in_its_directory) {
    const std::string directory = testing::TempDir() + "per_hpp_rows_" + std::to_string(getpid());
    ASSERT_EQ(mkdir(directory.c_str(), 0700), 0);
    per::LoadOptions place;
    place.memory.storage = directory.c_str();
    std::string expected;
    {
        per::ReplayOptions options = small_options();
        options.memory.storage = directory.c_str();
        per::ReplayBuffer buffer = small_buffer(options);
        add_episode(buffer, 6);
        EXPECT_GT(buffer.checkpoint(directory), 0);
        expected = saved(buffer);
        EXPECT_ERROR(per::ReplayBuffer::load(directory, place), Busy, "a buffer has its rows already");
        per::ReplayBuffer copy = per::ReplayBuffer::load(directory);
        EXPECT_EQ(saved(copy), expected);
    }
    per::ReplayBuffer loaded = per::ReplayBuffer::load(directory, place);
    EXPECT_EQ(saved(loaded), expected);
    add_episode(loaded, 6);
    per::ReplayBuffer as_before = per::ReplayBuffer::load(directory);
    EXPECT_EQ(saved(as_before), expected);
    for (const char* name : {"/manifest.per", "/pack-0000000000000000.per", "/rows-0000000000000000.per", ""})
        EXPECT_EQ(std::remove((directory + name).c_str()), 0) << name;
}

TEST(ReplayBuffer, fields_are_compressed) {
    std::vector<per::Field> fields = {per::field<float>("observation", {8, 8}), per::field<int64_t>("action")};
    fields[0].compression = PER_COMPRESSION_DELTA;
    fields[0].check();
    per::ReplayBuffer buffer(small_options(), fields);
    EXPECT_EQ(buffer.describe().fields[0].compression, PER_COMPRESSION_DELTA);
    EXPECT_EQ(buffer.describe().fields[1].compression, PER_COMPRESSION_NONE);
    fields[0].shape = {1};
    EXPECT_ERROR(fields[0].check(), InvalidArgument, "its frame has 4 bytes");
}

TEST(ReplayBuffer, the_rate_limiter_is_waited_for) {
    per::ReplayOptions options = small_options();
    options.rate_limit.samples_per_insert = 1;
    options.rate_limit.samples_tolerance = 8;
    options.rate_limit.min_size_to_sample = 6;
    per::ReplayBuffer buffer = small_buffer(options);
    EXPECT_THROW(buffer.wait_to_sample(4, std::chrono::milliseconds(1)), per::Busy);
    add_episode(buffer, 6);
    buffer.wait_to_sample(8);
    buffer.wait_to_add(8);
    EXPECT_THROW(buffer.wait_to_sample(9), per::InvalidArgument);
    EXPECT_THROW(buffer.wait_to_add(9), per::InvalidArgument);
    buffer.stop_limiting();
    buffer.wait_to_add(1000000);
    EXPECT_EQ(buffer.describe().rate_limit.samples_tolerance, 0);
}

TEST(ReplayBuffer, a_loader_waits_for_the_rate_limiter) {
    per::ReplayOptions options = small_options();
    options.rate_limit.min_size_to_sample = 6;
    per::ReplayBuffer buffer = small_buffer(options);
    per::LoaderOptions loader_options;
    loader_options.batch_size = 4;
    per::Loader loader = buffer.loader(loader_options);
    std::thread adder([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        add_episode(buffer, 6);
    });
    EXPECT_EQ(loader.take().size(), 4);
    adder.join();
}

TEST(ReplayBuffer, transitions_are_drawn_so_often_and_no_more) {
    per::ReplayOptions options = small_options();
    options.scheme = PER_WITHOUT_REPLACEMENT;
    options.max_times_sampled = 2;
    per::ReplayBuffer buffer = small_buffer(options);
    const std::vector<int64_t> ids = add_episode(buffer, 4);
    for (int32_t times = 1; times <= 2; ++times) {
        const per::Batch batch = buffer.sample(4);
        ASSERT_EQ(batch.times_sampled().size(), 4U);
        for (const int32_t n : batch.times_sampled()) EXPECT_EQ(n, times);
    }
    EXPECT_EQ(buffer.live(), 0);
    EXPECT_EQ(buffer.get(ids).times_sampled()[3], 2);
    EXPECT_THROW(buffer.sample(1), per::Empty);
    EXPECT_TRUE(small_buffer().describe().keep_times_sampled == 0);
}

TEST(ReplayBuffer, versions_grow) {
    per::ReplayOptions options = small_options();
    options.freshness.age = PER_AGE_VERSIONS;
    options.freshness.max_age = 1;
    per::ReplayBuffer buffer = small_buffer(options);
    add_episode(buffer, 6);
    buffer.set_version(1);
    EXPECT_EQ(buffer.stats().version, 1);
    EXPECT_EQ(buffer.stats().live, 6);
    buffer.set_version(2);
    EXPECT_EQ(buffer.stats().live, 0);
    EXPECT_ERROR(buffer.set_version(1), InvalidArgument, "version is 1");
}

TEST(ReplayBuffer, settings_and_statistics) {
    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 6);
    buffer.set_alpha(0.5);
    buffer.set_beta(0.75);
    buffer.set_gamma(0.5);
    buffer.set_n_step(2);
    buffer.set_save_compression(0);
    const per::ReplayOptions options = buffer.describe();
    EXPECT_EQ(options.alpha, 0.5);
    EXPECT_EQ(options.beta, 0.75);
    EXPECT_EQ(options.gamma, 0.5);
    EXPECT_EQ(options.n_step, 2);
    EXPECT_ERROR(buffer.set_alpha(std::nan("")), InvalidArgument, "alpha is nan");
    EXPECT_ERROR(buffer.set_n_step(0), InvalidArgument, "n_step is 0");
    EXPECT_ERROR(buffer.set_save_compression(-1), InvalidArgument, "save_compression is -1");
    per::Settings settings;
    settings.alpha = 0.25;
    settings.n_step = 65;
    EXPECT_ERROR(buffer.change_settings(settings), InvalidArgument, "n_step is 65");
    EXPECT_EQ(buffer.describe().alpha, 0.5);
    settings.n_step = 1;
    buffer.change_settings(settings);
    EXPECT_EQ(buffer.describe().alpha, 0.25);
    EXPECT_EQ(buffer.describe().n_step, 1);
    const per::Statistics statistics = buffer.stats();
    EXPECT_EQ(statistics.capacity, 64);
    EXPECT_EQ(statistics.added, 6);
    EXPECT_EQ(statistics.episodes, 1);
    buffer.synchronize();
    buffer.clear();
    EXPECT_EQ(buffer.live(), 0);
    EXPECT_TRUE(buffer.live_ids().empty());
    // By the formula of per.h, divisions rounded down: 2 (500 + 499 / 10 + 1 + 1).
    per::ReplayOptions for_two;
    for_two.n_envs = 2;
    EXPECT_EQ(per::ReplayBuffer::capacity_for(for_two, {}, 1000, 10), 2 * (500 + 49 + 1 + 1));
    // A stack of 4 takes three rows more.
    per::Field stacked = per::field<float>("observation");
    stacked.stack = 4;
    EXPECT_EQ(per::ReplayBuffer::capacity_for(for_two, {stacked}, 1000, 10), 2 * (500 + 49 + 1 + 4));
}

TEST(ReplayBuffer, a_loaded_one_goes_on_as_the_saved_one) {
    const std::string path = testing::TempDir() + "per_hpp_test_" + std::to_string(getpid()) + ".per";
    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 10);
    buffer.save(path);
    per::ReplayBuffer loaded = per::ReplayBuffer::load(path);
    std::remove(path.c_str());
    EXPECT_EQ(values(loaded.sample(8).ids()), values(buffer.sample(8).ids()));
}

TEST(ReplayBuffer, a_loaded_one_goes_on_as_the_one_of_a_checkpoint) {
    const std::string directory = testing::TempDir() + "per_hpp_test_" + std::to_string(getpid());
    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 10);
    EXPECT_GT(buffer.checkpoint(directory), 0);
    per::ReplayBuffer loaded = per::ReplayBuffer::load(directory);
    EXPECT_ERROR(buffer.checkpoint(directory + "/none/below"), IoError, "below");
    const int lock = open(directory.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(flock(lock, LOCK_EX), 0);
    per::SaveOptions saving;
    saving.timeout_ms = 0;
    EXPECT_ERROR(buffer.checkpoint(directory, saving), Busy, directory);
    per::LoadOptions loading;
    loading.timeout_ms = 0;
    EXPECT_ERROR(per::ReplayBuffer::load(directory, loading), Busy, directory);
    ASSERT_EQ(close(lock), 0);
    EXPECT_GT(buffer.checkpoint(directory, saving), 0);
    for (const char* name : {"/manifest.per", "/pack-0000000000000000.per", ""})
        EXPECT_EQ(std::remove((directory + name).c_str()), 0);
    EXPECT_EQ(values(loaded.sample(8).ids()), values(buffer.sample(8).ids()));
}

TEST(ReplayBuffer, is_saved_as_it_was_while_it_goes_on) {
    const std::string path = testing::TempDir() + "per_hpp_test_" + std::to_string(getpid()) + ".per";
    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 10);
    per::Save save = buffer.start_save(path);
    buffer.clear();
    save.wait();
    EXPECT_TRUE(save.wait_for(std::chrono::milliseconds(0)));
    EXPECT_EQ(save.progress().written, save.progress().total);
    EXPECT_EQ(per::ReplayBuffer::load(path).live(), 10);
    std::remove(path.c_str());
    EXPECT_ERROR(buffer.start_save(path + "/missing/x"), IoError, "");
    EXPECT_ERROR(save.wait_for(std::chrono::milliseconds(-2)), InvalidArgument, "timeout_ms");
}

TEST(ReplayBuffer, goes_through_streams_one_after_the_other) {
    std::stringstream stream;
    per::ReplayBuffer first = small_buffer(), second = small_buffer();
    add_episode(first, 10);
    add_episode(second, 20);
    first.save(stream);
    second.save(stream);
    stream << "more";
    per::ReplayBuffer loaded = per::ReplayBuffer::load(stream);
    EXPECT_EQ(values(loaded.sample(8).ids()), values(first.sample(8).ids()));
    EXPECT_EQ(per::ReplayBuffer::load(stream).live(), 20);
    std::string rest;
    stream >> rest;
    EXPECT_EQ(rest, "more");
}

template <class Buffer, class = void>
struct takes_a_number : std::false_type {};
template <class Buffer>
struct takes_a_number<Buffer, std::void_t<decltype(std::declval<Buffer&>().cut(0))>> : std::true_type {};
static_assert(!takes_a_number<per::ReplayBuffer>::value, "cut(0) would cut all environments: 0 is a null pointer");

TEST(ReplayBuffer, streams_that_fail_are_errors) {
    per::ReplayBuffer buffer = small_buffer();
    std::ofstream closed;
    EXPECT_ERROR(buffer.save(closed), CallbackError, "write");
    std::ifstream missing("no file of this name");
    EXPECT_ERROR(per::ReplayBuffer::load(missing), CallbackError, "read");
    closed.clear();
    closed.exceptions(std::ios::badbit);
    EXPECT_THROW(buffer.save(closed), std::ios_base::failure);
    std::stringstream stream;
    buffer.save(stream);
    std::stringstream half(stream.str().substr(0, stream.str().size() / 2));
    EXPECT_ERROR(per::ReplayBuffer::load(half), CorruptFile, "");
    half.setstate(std::ios::badbit);
    EXPECT_ERROR(per::ReplayBuffer::load(half), CallbackError, "read");
}

TEST(ReplayBuffer, sequences_have_an_axis_of_steps) {
    per::ReplayOptions options = small_options();
    options.sequence_length = 3;
    options.burn_in = 1;
    options.n_step = 2;
    per::Field state = per::field<float>("state", {5});
    state.role = PER_ROLE_RECURRENT_STATE;
    state.set_default(0.0f);
    per::ReplayBuffer buffer(options, {per::field<float>("observation", {2}), per::field<int8_t>("action"),
                                       per::field<float>("goal", {2}), state});
    add_episode(buffer, 12);
    per::Batch batch = buffer.batch(4);
    EXPECT_EQ(batch.shape("observation"), (std::vector<int64_t>{4, 4 + 2, 2}));
    EXPECT_EQ(batch.shape("action"), (std::vector<int64_t>{4, 4}));
    EXPECT_EQ(batch.shape("state"), (std::vector<int64_t>{4, 5}));
    buffer.sample(batch);
    EXPECT_EQ(batch.reward().size(), 16U);
    EXPECT_EQ(batch.mask().size(), 16U);
    EXPECT_EQ(batch.weights().size(), 4U);
    EXPECT_TRUE(batch.next_field<float>("observation").empty());
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(batch.field<int8_t>("action")[4 * i], batch.ids()[i]) << "ids are those of the starts";
        EXPECT_EQ(batch.field<float>("observation")[12 * i], static_cast<float>(batch.ids()[i]));
    }
    buffer.update_priorities(batch.ids(), std::vector<float>(2 * 4 * 4, 1.0f), 2);
    buffer.update_sequences(batch.ids(), 3, std::vector<float>(4 * 3, 1.0f));
    EXPECT_ERROR(buffer.update_priorities(batch.ids(), std::vector<float>(4, 1.0f)), InvalidArgument,
                 "expected are 1 * 4 * 4");

    // The observations of a batch that was made for another n_step have another size.
    buffer.set_n_step(3);
    buffer.sample(batch);
    EXPECT_EQ(batch.shape("observation"), (std::vector<int64_t>{4, 4 + 2, 2}));
    EXPECT_EQ(buffer.sample(4).shape("observation"), (std::vector<int64_t>{4, 4 + 3, 2}));
    per::SampleOptions longer;
    longer.n_step = 3;
    EXPECT_ERROR(buffer.sample(batch, &longer), InvalidArgument, "n_step is 3: the batch was made for 2");
    per::SampleOptions shorter;
    shorter.n_step = 1;
    EXPECT_EQ(buffer.sample(4, &shorter).shape("observation"), (std::vector<int64_t>{4, 4 + 1, 2}));
    shorter.n_step = 9;
    EXPECT_ERROR(buffer.sample(4, &shorter), InvalidArgument, "n_step is 9");
    buffer.set_n_step(1);
    EXPECT_ERROR(buffer.sample(batch), InvalidArgument, "n_step is 2");
}

TEST(ReplayBuffer, advantages_by_the_names_of_fields) {
    per::ReplayOptions options = small_options();
    options.gamma = 0.5;
    per::ReplayBuffer buffer = small_buffer(options);
    const std::vector<float> observation = {0, 0, 1, 1}, next_observation = {1, 1, 2, 2}, goal(4), reward = {1, 2},
                             value = {4, 8};
    const std::vector<uint8_t> flags = {0, 0};
    const std::vector<int8_t> action = {0, 0};
    per::Steps steps = buffer.steps();
    steps.length = 2;
    steps.fields["observation"] = observation;
    steps.fields["action"] = action;
    steps.fields["goal"] = goal;
    steps.fields["value"] = value;
    steps.next_fields["observation"] = next_observation;
    steps.reward = reward;
    steps.terminated = flags;
    steps.truncated = flags;
    buffer.add(steps);
    const per::Batch bootstraps = buffer.bootstraps();
    ASSERT_EQ(values(bootstraps.ids()), (std::vector<int64_t>{1}));
    EXPECT_EQ(values(bootstraps.next_field<float>("observation")), (std::vector<float>{2, 2}));
    EXPECT_EQ(buffer.bootstraps(0, nullptr), 1);
    buffer.advantages("value", "advantage", "", 0.5, bootstraps.ids(), {16.0f});
    // delta_1 = 2 + 0.5 16 - 8 = 2, delta_0 = 1 + 0.5 8 - 4 = 1, and A_0 = 1 + 0.5 0.5 2.
    EXPECT_EQ(values(buffer.get({0, 1}).field<float>("advantage")), (std::vector<float>{1.5f, 2}));
    EXPECT_EQ(values(buffer.get({0, 1}).field<float>("value")), value);
    EXPECT_ERROR(buffer.advantages("value", "advantage", "value", 0.5, bootstraps.ids(), {16.0f}), InvalidArgument,
                 "return_field and value_field are both \"value\"");
}

}  // namespace

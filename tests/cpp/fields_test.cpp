// Declared fields: valid ones, the errors of invalid ones, and the resolution of "default".

#include "rows/fields.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"

namespace per {
namespace {

per_field field(const char* name, int32_t dtype = PER_FLOAT32, const std::vector<int64_t>& shape = {}) {
    return {name, shape.data(), static_cast<int32_t>(shape.size()), dtype, PER_ROLE_DEFAULT, 0, nullptr, 0, 0, 0};
}

per_replay_options options_of(const std::vector<per_field>& fields, int64_t frame_stack = 1) {
    per_replay_options options{};
    options.fields = fields.data();
    options.n_fields = static_cast<int64_t>(fields.size());
    options.field_size = sizeof(per_field);
    options.frame_stack = frame_stack;
    return options;
}

// The message with which the fields are refused, or "".
std::string refusal(const std::vector<per_field>& fields, per_status status = PER_ERROR_INVALID_ARGUMENT) {
    try {
        Fields{options_of(fields)};
    } catch (const Error& error) {
        EXPECT_EQ(error.status(), status) << error.what();
        return error.what();
    }
    return "";
}

std::string refusal_of_name(const char* name) {
    const per_field observation = field("observation");
    return refusal({observation, field(name)});
}

TEST(Fields, names_shapes_and_sizes_are_copied) {
    std::vector<int64_t> shape = {84, 83};
    char name[] = "observation";
    std::vector<per_field> given = {field(name, PER_UINT8, shape), field("action", PER_INT64)};
    Fields fields(options_of(given));
    name[0] = 'x';
    shape[0] = 1;
    given[1].dtype = PER_BOOL;
    ASSERT_EQ(fields.count(), 2);
    EXPECT_EQ(fields[0].name, "observation");
    EXPECT_EQ(fields[0].next_name, "next_observation");
    EXPECT_EQ(fields[0].shape, (std::vector<int64_t>{84, 83}));
    EXPECT_EQ(fields[0].elements, 84 * 83);
    EXPECT_EQ(fields[0].bytes, 84 * 83);
    EXPECT_EQ(fields[1].name, "action");
    EXPECT_EQ(fields[1].elements, 1);
    EXPECT_EQ(fields[1].bytes, 8);
    EXPECT_EQ(fields.row_bytes(), 84 * 83 + 8);
}

TEST(Fields, default_role_follows_the_name) {
    per_field plain = field("observation.plain");
    plain.role = PER_ROLE_PLAIN;
    per_field goal = field("goal");
    goal.role = PER_ROLE_OBSERVATION;
    per_field state = field("state");
    state.role = PER_ROLE_RECURRENT_STATE;
    const std::vector<per_field> given = {field("observation"),
                                          field("observation.x"),
                                          field("observation_x"),
                                          field("observations"),
                                          field("action"),
                                          plain,
                                          goal,
                                          state};
    const Fields fields(options_of(given));
    const std::vector<bool> observed = {true, true, false, false, false, false, true, false};
    for (size_t i = 0; i < observed.size(); ++i) {
        EXPECT_EQ(fields[static_cast<int64_t>(i)].is_observation(), observed[i]) << given[i].name;
    }
    EXPECT_EQ(fields[4].role, PER_ROLE_PLAIN);
    EXPECT_EQ(fields[7].role, PER_ROLE_RECURRENT_STATE);
}

TEST(Fields, default_stack_is_that_of_the_options_for_observations_only) {
    per_field single = field("observation.single");
    single.stack = 1;
    per_field deep = field("observation.deep");
    deep.stack = 64;
    per_field actions = field("action");
    actions.stack = 3;
    const std::vector<per_field> given = {field("observation"), single, deep, actions, field("reward_to_go")};
    const Fields fields(options_of(given, 4));
    EXPECT_EQ(fields[0].stack, 4);
    EXPECT_EQ(fields[1].stack, 1);
    EXPECT_EQ(fields[2].stack, 64);
    EXPECT_EQ(fields[3].stack, 3);
    EXPECT_EQ(fields[4].stack, 1);
    EXPECT_EQ(fields.max_stack(), 64);
}

TEST(Fields, described_fields_are_the_resolved_ones_and_keep_their_place) {
    const std::vector<int64_t> shape = {2, 3};
    const std::vector<per_field> given = {field("observation", PER_UINT8, shape), field("action", PER_INT64)};
    Fields made(options_of(given, 4));
    const per_field* described = made.described();
    const Fields fields(std::move(made));
    ASSERT_EQ(fields.described(), described);
    EXPECT_STREQ(described[0].name, "observation");
    EXPECT_EQ(described[0].ndim, 2);
    EXPECT_EQ(described[0].shape[0], 2);
    EXPECT_EQ(described[0].shape[1], 3);
    EXPECT_EQ(described[0].dtype, PER_UINT8);
    EXPECT_EQ(described[0].role, PER_ROLE_OBSERVATION);
    EXPECT_EQ(described[0].stack, 4);
    EXPECT_STREQ(described[1].name, "action");
    EXPECT_EQ(described[1].ndim, 0);
    EXPECT_EQ(described[1].role, PER_ROLE_PLAIN);
    EXPECT_EQ(described[1].stack, 1);
}

TEST(Fields, good_names_are_accepted) {
    const std::string longest(255, 'a');
    for (const char* name : {"a",
                             "Z9",
                             "_x",
                             ".x",
                             "rewards",
                             "next",
                             "nextobservation",
                             "a.b_c.0",
                             "0",
                             " ",
                             "walker/joints_pos",
                             "agent-pos",
                             "a\\.b",
                             "\xc2\xa0",          // U+00A0, the first after the control characters
                             "\xdf\xbf",          // U+07FF
                             "\xe0\xa0\x80",      // U+0800
                             "\xed\x9f\xbf",      // U+D7FF
                             "\xee\x80\x80",      // U+E000
                             "\xef\xbf\xbf",      // U+FFFF
                             "\xf0\x90\x80\x80",  // U+10000
                             "\xf4\x8f\xbf\xbf",  // U+10FFFF
                             longest.c_str()}) {
        EXPECT_EQ(refusal_of_name(name), "") << name;
    }
}

TEST(Fields, bad_names_are_refused) {
    const std::string allowed = ": allowed are 1 to 255 bytes of UTF-8 without control characters";
    EXPECT_EQ(refusal_of_name(nullptr), "fields[1].name is NULL" + allowed);
    EXPECT_EQ(refusal_of_name(""), "name of a field is \"\"" + allowed);
    // The message shows every character that is allowed.
    EXPECT_EQ(refusal_of_name("a\nb \xc3\xa4"), "name of a field is \"a?b \xc3\xa4\"" + allowed);
    for (const char* control : {"\x01", "\x1f", "\x7f"})
        EXPECT_EQ(refusal_of_name(control), "name of a field is \"?\"" + allowed) << control;
    for (const char* control : {"\xc2\x80", "\xc2\x9f"})
        EXPECT_EQ(refusal_of_name(control), "name of a field is \"??\"" + allowed) << control;
    const std::vector<std::string> no_utf8 = {
        "\x80",              // begins with a later byte
        "\xc3",              // ends early
        "\xe2\x82",          // ends early
        "\xf0\x9f\x99",      // ends early
        "\xc1\xbf",          // longer than needed
        "\xe0\x9f\xbf",      // longer than needed
        "\xf0\x8f\xbf\xbf",  // longer than needed
        "\xed\xa0\x80",      // a surrogate
        "\xf4\x90\x80\x80",  // beyond U+10FFFF
        "\xf8",              // begins nothing
    };
    for (const std::string& name : no_utf8)
        EXPECT_EQ(refusal_of_name(("a" + name + "b").c_str()),
                  "name of a field is \"a" + std::string(name.size(), '?') + "b\"" + allowed);
    const std::string longest(255, 'a');
    for (const char* rest : {"a", "b", "bc"})  // it is not shown
        EXPECT_EQ(refusal_of_name((longest + rest).c_str()), "name of a field is \"" + longest + "\"..." + allowed);
    // A cut-off character is not shown, either.
    EXPECT_EQ(refusal_of_name((std::string(254, 'a') + "\xc3\xa4").c_str()),
              "name of a field is \"" + std::string(254, 'a') + "\"..." + allowed);
}

TEST(Fields, two_long_names_fit_into_a_message) {
    const std::string observation = "observation." + std::string(243, 'a');
    const std::string other = "observation." + std::string(243, 'b');
    const Error error(PER_ERROR_INVALID_ARGUMENT, "%s is missing: %s is given, and all or none are allowed",
                      observation.c_str(), other.c_str());
    EXPECT_EQ(std::string(error.what()),
              observation + " is missing: " + other + " is given, and all or none are allowed");
}

TEST(Fields, message_that_is_too_long_ends_with_a_whole_character) {
    for (int shift = 0; shift < 3; ++shift) {
        std::string text(static_cast<size_t>(shift), 'x');
        while (text.size() < 2 * max_message_bytes) text += "\xe2\x82\xac";
        const std::string shown = Error(PER_ERROR_INVALID_ARGUMENT, "%s", text.c_str()).what();
        EXPECT_GT(shown.size(), max_message_bytes - 8);
        EXPECT_EQ((shown.size() - static_cast<size_t>(shift)) % 3, 0u);
        EXPECT_EQ(text.compare(0, shown.size(), shown), 0);
    }
}

TEST(Fields, reserved_names_are_refused) {
    for (std::string name : {"reward", "terminated", "truncated", "weights", "ids", "discount", "mask", "n_steps",
                             "priorities", "probabilities", "gamma_m", "times_sampled"}) {
        EXPECT_EQ(refusal_of_name(name.c_str()),
                  "name of a field is \"" + name + "\": it is reserved, for what every buffer or batch has");
    }
    EXPECT_EQ(refusal_of_name("next_action"),
              "name of a field is \"next_action\": names that begin with \"next_\" are reserved");
}

TEST(Fields, names_are_unique) {
    EXPECT_EQ(refusal({field("observation"), field("action"), field("action")}),
              "fields[2].name is \"action\": fields[1] has that name");
}

TEST(Fields, one_observation_is_required) {
    EXPECT_EQ(refusal({field("action")}),
              "fields have no observation: name one \"observation\", or give one the role PER_ROLE_OBSERVATION");
}

TEST(Fields, numbers_out_of_range_are_refused) {
    const auto changed = [](auto change) {
        per_field given = field("observation", PER_FLOAT32);
        change(given);
        return refusal({given});
    };
    EXPECT_EQ(changed([](per_field& f) { f.ndim = -1; }), "ndim of field \"observation\" is -1: allowed are 0 .. 8");
    EXPECT_EQ(changed([](per_field& f) { f.ndim = 9; }), "ndim of field \"observation\" is 9: allowed are 0 .. 8");
    EXPECT_EQ(changed([](per_field& f) { f.dtype = -1; }), "dtype of field \"observation\" is -1: allowed are 0 .. 12");
    EXPECT_EQ(changed([](per_field& f) { f.dtype = 13; }), "dtype of field \"observation\" is 13: allowed are 0 .. 12");
    EXPECT_EQ(changed([](per_field& f) { f.role = -1; }), "role of field \"observation\" is -1: allowed are 0 .. 3");
    EXPECT_EQ(changed([](per_field& f) { f.role = 4; }), "role of field \"observation\" is 4: allowed are 0 .. 3");
    EXPECT_EQ(changed([](per_field& f) { f.stack = -1; }), "stack of field \"observation\" is -1: allowed are 0 .. 64");
    EXPECT_EQ(changed([](per_field& f) { f.stack = 65; }), "stack of field \"observation\" is 65: allowed are 0 .. 64");
    EXPECT_EQ(changed([](per_field& f) { f.padding = 2; }),
              "padding of field \"observation\" is 2: allowed are 0 .. 1");
    EXPECT_EQ(changed([](per_field& f) { f.compression = 2; }),
              "compression of field \"observation\" is 2: allowed are 0 .. 1");
    EXPECT_EQ(changed([](per_field& f) {
                  f.ndim = 2;
                  f.shape = nullptr;
              }),
              "shape of field \"observation\" is NULL: with ndim 2 it is required");
    static const int64_t empty_axis[] = {84, 0};
    EXPECT_EQ(changed([](per_field& f) {
                  f.ndim = 2;
                  f.shape = empty_axis;
              }),
              "shape of field \"observation\" is (84, 0): allowed are axes of 1 and above");
}

TEST(Fields, one_to_256_are_allowed) {
    EXPECT_EQ(refusal({}), "n_fields is 0: allowed are 1 .. 256");
    std::vector<std::string> names;
    for (int i = 0; i < 257; ++i) names.push_back("observation." + std::to_string(i));
    std::vector<per_field> given;
    for (const std::string& name : names) given.push_back(field(name.c_str()));
    EXPECT_EQ(refusal(given), "n_fields is 257: allowed are 1 .. 256");
    given.pop_back();
    EXPECT_EQ(refusal(given), "");
    per_replay_options without_array = options_of(given);
    without_array.fields = nullptr;
    EXPECT_THROW(Fields{without_array}, Error);
}

TEST(Fields, bytes_beyond_64_bits_are_out_of_memory) {
    const std::vector<int64_t> elements = {int64_t{1} << 32, int64_t{1} << 31};
    EXPECT_EQ(refusal({field("observation", PER_UINT8, elements)}, PER_ERROR_OUT_OF_MEMORY),
              "shape of field \"observation\" takes more than 2^63 - 1 bytes a row");
    const std::vector<int64_t> bytes = {int64_t{1} << 60};
    EXPECT_EQ(refusal({field("observation", PER_FLOAT64, bytes)}, PER_ERROR_OUT_OF_MEMORY),
              "shape of field \"observation\" takes more than 2^63 - 1 bytes a row");
    const std::vector<int64_t> half = {int64_t{1} << 62};
    EXPECT_EQ(refusal({field("observation", PER_UINT8, half)}, PER_ERROR_OUT_OF_MEMORY), "");
    EXPECT_EQ(
        refusal({field("observation", PER_UINT8, half), field("action", PER_UINT8, half)}, PER_ERROR_OUT_OF_MEMORY),
        "fields take more than 2^63 - 1 bytes a row");
}

}  // namespace
}  // namespace per

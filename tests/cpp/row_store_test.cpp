// The layout of rows: values do not overlap, a transition touches few cache lines, and padding costs little. Listeners
// are called before a value can be written.
#include "cpu/rows/row_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "backend/replay_options.h"
#include "core/checks.h"

namespace per::cpu {
namespace {

struct DeclaredField {
    std::string name;
    int64_t bytes;  // of one frame, as uint8
    int32_t role = PER_ROLE_PLAIN;
};

class Rows {
 public:
    explicit Rows(std::vector<DeclaredField> declared, int64_t capacity = 64,
                  void (*change)(per_replay_options&) = nullptr)
        : declared_(std::move(declared)) {
        per_replay_options_init(&options_, sizeof options_);
        for (const DeclaredField& field : declared_) {
            per_field given = {};
            given.name = field.name.c_str();
            given.shape = &field.bytes;
            given.ndim = 1;
            given.dtype = PER_UINT8;
            given.role = field.role;
            given.stack = 1;
            given_.push_back(given);
        }
        options_.fields = given_.data();
        options_.n_fields = static_cast<int64_t>(given_.size());
        options_.field_size = sizeof(per_field);
        options_.capacity = capacity;
        if (change != nullptr) change(options_);
        check_replay_options(options_);
        fields_.emplace(options_);
        options_ = resolve_replay_options(options_, *fields_);
        store_.emplace(options_, *fields_);
    }

    RowStore& store() { return *store_; }
    const per_replay_options& options() const { return options_; }

    // All columns, with the bytes of their values.
    std::vector<std::pair<RowColumn<std::byte>, int64_t>> columns() {
        std::vector<std::pair<RowColumn<std::byte>, int64_t>> columns = {
            {store_->rewards().as_bytes(), 4}, {store_->priorities().as_bytes(), 4}, {store_->flags().as_bytes(), 1}};
        for (int64_t i = 0; i < fields_->count(); ++i) {
            columns.emplace_back(store_->field(i), (*fields_)[i].bytes);
            if (options_.store_next_observation && (*fields_)[i].is_observation())
                columns.emplace_back(store_->next_field(i), (*fields_)[i].bytes);
        }
        return columns;
    }

    // The mean number of cache lines of a transition, including the observation in the next slot, over all slots but
    // the last.
    double lines_of_transition() {
        int64_t lines = 0;
        for (int64_t slot = 0; slot + 1 < options_.capacity; ++slot) {
            std::set<uintptr_t> touched;
            const auto touch = [&](const Column<const std::byte>& column, int64_t bytes, int64_t at) {
                const auto first = reinterpret_cast<uintptr_t>(column.at(at));
                for (uintptr_t line = first / 64; line <= (first + static_cast<uintptr_t>(bytes) - 1) / 64; ++line)
                    touched.insert(line);
            };
            for (const auto& [column, bytes] : columns()) touch(column, bytes, slot);
            for (int64_t i = 0; i < fields_->count() && !options_.store_next_observation; ++i)
                if ((*fields_)[i].is_observation()) touch(store_->field(i), (*fields_)[i].bytes, slot + 1);
            lines += static_cast<int64_t>(touched.size());
        }
        return static_cast<double>(lines) / static_cast<double>(options_.capacity - 1);
    }

 private:
    std::vector<DeclaredField> declared_;
    std::vector<per_field> given_;
    per_replay_options options_;
    std::optional<Fields> fields_;
    std::optional<RowStore> store_;
};

const std::vector<DeclaredField> locomotion = {{"action", 24}, {"observation", 68, PER_ROLE_OBSERVATION}};
const std::vector<DeclaredField> images = {{"observation", 7056, PER_ROLE_OBSERVATION}, {"action", 4}};
// Odd sizes, two observations, one of them large.
const std::vector<DeclaredField> mixed = {{"a", 3},    {"b", 5, PER_ROLE_OBSERVATION},    {"c", 1023},
                                          {"d", 1024}, {"e", 1025, PER_ROLE_OBSERVATION}, {"f", 1}};

void stores_next(per_replay_options& options) {
    options.store_next_observation = 1;
}
void takes_largest_live(per_replay_options& options) {
    options.max_priority = PER_MAX_NOW;
}

// Writes a different number to every byte of every value, and reads all of them afterwards.
void expect_own_bytes(Rows& rows) {
    const auto columns = rows.columns();
    const auto byte_of = [](size_t column, int64_t slot, int64_t i) {
        return static_cast<std::byte>(column * 89 + static_cast<size_t>(slot) * 31 + static_cast<size_t>(i) * 7);
    };
    for (size_t c = 0; c < columns.size(); ++c)
        for (int64_t slot = 0; slot < rows.options().capacity; ++slot)
            for (int64_t i = 0; i < columns[c].second; ++i)
                columns[c].first.to_write(slot, 1).first[i] = byte_of(c, slot, i);
    for (size_t c = 0; c < columns.size(); ++c)
        for (int64_t slot = 0; slot < rows.options().capacity; ++slot)
            for (int64_t i = 0; i < columns[c].second; ++i)
                ASSERT_EQ(columns[c].first.at(slot)[i], byte_of(c, slot, i)) << c << " " << slot << " " << i;
}

TEST(RowStore, values_have_bytes_of_their_own) {
    for (const auto& fields : {locomotion, images, mixed})
        for (const auto change :
             {static_cast<void (*)(per_replay_options&)>(nullptr), stores_next, takes_largest_live}) {
            Rows rows(fields, 64, change);
            ASSERT_NO_FATAL_FAILURE(expect_own_bytes(rows));
        }
}

struct Listener : ChangeListener {
    struct Told {
        std::size_t part;
        int64_t first, n;

        bool operator==(const Told&) const = default;
    };
    void will_change(std::size_t part, int64_t first, int64_t n) noexcept override { told = {part, first, n}; }

    Told told = {};
};

TEST(RowStore, a_listener_is_called_before_a_value_can_be_written) {
    const auto keeps_counts_in_a_file = [](per_replay_options& options) {
        options.keep_times_sampled = 1;
        options.memory.storage = "/tmp";
    };
    for (const auto change : {static_cast<void (*)(per_replay_options&)>(nullptr), stores_next, takes_largest_live,
                              static_cast<void (*)(per_replay_options&)>(keeps_counts_in_a_file)}) {
        Rows rows(mixed, 64, change);
        RowStore& store = rows.store();
        Listener listener;
        store.set_listener(&listener);
        const auto expect_told = [&](const auto& column) {
            static_assert(std::is_const_v<std::remove_reference_t<decltype(column[0])>>);
            static_assert(std::is_const_v<std::remove_pointer_t<decltype(column.first)>>);
            const std::size_t part = store.part_of(column.first);
            using Told = Listener::Told;
            EXPECT_EQ(column.to_write(5, 3).at(2), column.at(7));
            EXPECT_EQ(listener.told, (Told{part, 5, 3}));
            EXPECT_EQ(&column.to_write(9), column.at(9));
            EXPECT_EQ(listener.told, (Told{part, 9, 1}));
            const std::vector<int64_t> slots = {11};
            EXPECT_EQ(column.to_write(slots).at(11), column.at(11));
            EXPECT_EQ(listener.told, (Told{part, 11, 1}));
        };
        expect_told(store.rewards());
        expect_told(store.priorities());
        expect_told(store.flags());
        if (store.has_times_sampled()) expect_told(store.times_sampled());
        for (const auto& [column, bytes] : rows.columns()) expect_told(column);
        // The copy of the flags beside the records is not saved: it changes with the flags in the records.
        store.flags_side_by_side().to_write(3) = 1;
        EXPECT_EQ(listener.told.part, store.part_of(store.flags().first));
    }
}

TEST(RowStore, rewards_and_priorities_are_aligned) {
    for (const auto& fields : {locomotion, images, mixed})
        for (const auto change : {static_cast<void (*)(per_replay_options&)>(nullptr), takes_largest_live}) {
            Rows rows(fields, 64, change);
            for (int64_t slot = 0; slot < 64; ++slot) {
                EXPECT_EQ(reinterpret_cast<uintptr_t>(rows.store().rewards().at(slot)) % alignof(float), 0u);
                EXPECT_EQ(reinterpret_cast<uintptr_t>(rows.store().priorities().at(slot)) % alignof(float), 0u);
            }
        }
}

// 68 bytes of observation, 4 of reward, 4 of priority, 24 of action, 1 of flags: 101, rounded up to 104. With the next
// observation a transition is a run of 172 bytes, which begins equally often at each multiple of 8: from 24 .. 56 it
// touches a fourth line.
TEST(RowStore, a_small_transition_is_one_run_of_lines) {
    Rows rows(locomotion, 65);
    EXPECT_EQ(rows.store().records().stride, 104);
    EXPECT_EQ(rows.store().place_in_record(rows.store().field(1).first), 0);
    EXPECT_DOUBLE_EQ(rows.lines_of_transition(), 3.625);
}

// 16 + 4 + 4 + 8 + 1 bytes: 36. With the next observation this is a run of 52 bytes, which fits into a line if it
// begins at 0 .. 12.
TEST(RowStore, a_transition_of_cartpole_touches_less_than_two_lines) {
    Rows rows({{"observation", 16, PER_ROLE_OBSERVATION}, {"action", 8}}, 65);
    EXPECT_EQ(rows.store().records().stride, 36);
    EXPECT_DOUBLE_EQ(rows.lines_of_transition(), 1.75);
}

// A record may be a sixteenth longer than its content if it then touches fewer lines.
TEST(RowStore, records_are_padded_where_that_saves_lines) {
    Rows rows({{"observation", 50, PER_ROLE_OBSERVATION}, {"action", 9}}, 65, stores_next);
    // 50 + 50 + 4 + 4 + 9 + 1 = 118: 120, as 124 would save no line.
    EXPECT_EQ(rows.store().records().stride, 120);
    Rows padded({{"observation", 50, PER_ROLE_OBSERVATION}, {"action", 13}}, 65, stores_next);
    // 122: 128 at most 129.
    EXPECT_EQ(padded.store().records().stride, 128);
    EXPECT_DOUBLE_EQ(padded.lines_of_transition(), 2.0);
}

TEST(RowStore, padding_is_at_most_a_sixteenth_or_six_bytes) {
    for (int64_t observation = 1; observation < 300; ++observation)
        for (const auto change : {static_cast<void (*)(per_replay_options&)>(nullptr), stores_next}) {
            Rows rows({{"observation", observation, PER_ROLE_OBSERVATION}, {"action", 1}}, 64, change);
            int64_t bytes = 0;
            for (const auto& [column, size] : rows.columns()) bytes += size;
            // Up to three bytes align the reward.
            EXPECT_LE(rows.store().records().stride, std::max(bytes + 6, (bytes + 3) * 17 / 16));
        }
}

TEST(RowStore, large_frames_lie_on_lines_of_their_own) {
    Rows rows(mixed);
    for (const int64_t field : {3, 4}) {
        EXPECT_EQ(rows.store().place_in_record(rows.store().field(field).first), -1);
        for (int64_t slot = 0; slot < 64; ++slot)
            EXPECT_EQ(reinterpret_cast<uintptr_t>(rows.store().field(field).at(slot)) % 64, 0u);
    }
    EXPECT_GE(rows.store().place_in_record(rows.store().field(2).first), 0);
}

TEST(RowStore, flags_are_the_same_in_the_record_and_side_by_side) {
    Rows rows(locomotion);
    rows.store().set_flags(0, 64, 1);
    rows.store().set_flags(7, 9);
    for (int64_t slot = 0; slot < 64; ++slot) {
        EXPECT_EQ(rows.store().flags(slot), slot == 7 ? 9 : 1);
        EXPECT_EQ(rows.store().flags_side_by_side()[slot], slot == 7 ? 9 : 1);
    }
}

// The bounds of docs/memory.md, with 4.7 bytes a row of the tree and the set of live slots.
TEST(RowStore, memory_of_a_million_rows_keeps_the_bounds) {
    EXPECT_LE(Rows(locomotion, 1000000).store().memory_use().bytes + 4.72e6, 0.110e9);
    EXPECT_LE(static_cast<double>(Rows(images, 1000000).store().memory_use().bytes) + 4.72e6, 7.2e9);
}

// The other rows have none of these flags: they have all others, or no flag at all. The array has exactly n bytes.
TEST(Flags, front_and_back_without_some_are_those_of_a_look_at_each) {
    for (const uint8_t bits : {1, 2, 4, 6, 0x18, 0x80})
        for (const uint8_t others : {uint8_t{0}, static_cast<uint8_t>(~bits)})
            for (std::size_t size = 0; size <= 26; ++size) {
                const auto n = static_cast<int64_t>(size);
                std::vector<uint8_t> flags(size, others);
                EXPECT_EQ(front_without(flags.data(), n, bits), n);
                EXPECT_EQ(back_without(flags.data(), n, bits), n);
                for (std::size_t first = 0; first < size; ++first)
                    for (std::size_t last = first; last < size; ++last) {
                        flags[first] |= bits;
                        flags[last] |= static_cast<uint8_t>(bits & -bits);
                        EXPECT_EQ(front_without(flags.data(), n, bits), static_cast<int64_t>(first));
                        EXPECT_EQ(back_without(flags.data(), n, bits), n - 1 - static_cast<int64_t>(last));
                        flags[first] = flags[last] = others;
                    }
            }
}

}  // namespace
}  // namespace per::cpu

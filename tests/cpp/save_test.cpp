// A background save writes the buffer as it was at the start, bit for bit, whatever calls follow while its thread
// writes, and whatever happens to the disk, the buffer, or the process.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../c/check.h"
#include "../c/checkpoints.h"
#include "../c/settings.h"
#include "../c/struct_calls.h"
#include "choices.h"
#include "expect.h"
#include "file/compression.h"
#include "own_folder.h"
#include "per.h"
#include "replay_handle.h"

namespace {

// Controls threads of the library, such as that of a save: each waits until it may lock a buffer or write to a file.
// Writes fail with the error number, unless it is 0.
struct Disk {
    std::atomic<int64_t> n_allowed = INT64_MAX;
    std::atomic<int64_t> n_done = 0;
    std::atomic<int64_t> n_refused_at = 0;  // n_done at the last refused write
    std::atomic<int> write_error = 0;
    std::atomic<int> fsync_error = 0;

    void reset() {
        write_error = fsync_error = 0;
        allow(INT64_MAX);
        n_done = 0;
    }
    void hold() {
        n_done = 0;
        n_allowed = 0;
    }
    void allow(int64_t n) {
        n_allowed = n;
        n_allowed.notify_all();
    }
    void enter() {
        const int64_t number = n_done;
        for (int64_t n = n_allowed; n <= number; n = n_allowed) n_allowed.wait(n);
        ++n_done;
    }
    // Waits until the save has done n operations or has ended.
    void wait_for(int64_t n, per_save* save) {
        while (n_done < n && per_save_wait(save, 0, nullptr, nullptr) == PER_ERROR_BUSY) std::this_thread::yield();
    }
} disk;

bool is_library_thread() {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    return sigismember(&blocked, SIGINT) == 1;
}

[[maybe_unused]] thread_local bool refuses_memory = false;
[[maybe_unused]] thread_local bool refuses_threads = false;
thread_local std::size_t n_allocated_bytes = 0;

}  // namespace

extern "C" {
ssize_t write(int file, const void* data, size_t size) {
    if (is_library_thread()) {
        disk.enter();
        if (disk.write_error != 0) {
            disk.n_refused_at = disk.n_done.load();
            errno = disk.write_error;
            return -1;
        }
    }
    return syscall(SYS_write, file, data, size);
}
int fsync(int file) {
    if (is_library_thread() && disk.fsync_error != 0) {
        errno = disk.fsync_error;
        return -1;
    }
    return static_cast<int>(syscall(SYS_fsync, file));
}
}

#ifndef SANITIZED  // a sanitizer defines these functions
extern "C" int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
    using Function = int (*)(pthread_rwlock_t*);
    static const Function next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "pthread_rwlock_wrlock"));
    if (is_library_thread()) disk.enter();
    return next(lock);
}
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*),
                              void* argument) noexcept {
    using Function = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    static const Function next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "pthread_create"));
    return refuses_threads ? EAGAIN : next(thread, attributes, work, argument);
}
[[gnu::noinline]] void* operator new(std::size_t size) {
    n_allocated_bytes += size;
    void* const memory = refuses_memory ? nullptr : std::malloc(size);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}
#endif

namespace per::test {
namespace {

namespace fs = std::filesystem;

struct FreeSave {
    void operator()(per_save* save) const { per_save_free(save); }
};
using SaveHandle = std::unique_ptr<per_save, FreeSave>;

enum { image, position, action, value, advantage, result, n_fields };

struct Kind {
    std::string name;
    int64_t capacity;
    int64_t image_bytes;  // images of 1024 bytes or more are stored in a separate array
    std::function<void(per_replay_options& options)> change;
    int32_t compression = PER_COMPRESSION_NONE;  // of the image
};

const Kind kinds[] = {
    {"records", 30000, 8, [](per_replay_options&) {}},
    {"large frames", 1500, 1500, [](per_replay_options& options) { options.n_step = 3; }},
    {"largest now", 1500, 1300,
     [](per_replay_options& options) {
         options.max_priority = PER_MAX_NOW;
         options.frame_stack = 2;
     }},
    {"next observations", 1200, 1030,
     [](per_replay_options& options) {
         options.store_next_observation = 1;
         options.prioritization = PER_RANK;
     }},
    {"compressed", 30000, 40, [](per_replay_options& options) { options.save_compression = has_zstd() ? 1 : 0; }},
    {"sequences", 9000, 40,
     [](per_replay_options& options) {
         options.sequence_length = 4;
         options.burn_in = 1;
         options.sequence_stride = 2;
     }},
    {"in a file", 3000, 1100, [](per_replay_options& options) { options.memory.storage = "/tmp"; }},
    {"compressed frames", 1500, 1100, [](per_replay_options&) {}, PER_COMPRESSION_DELTA},
    {"compressed small frames", 9000, 8, [](per_replay_options& options) { options.store_next_observation = 1; },
     PER_COMPRESSION_DELTA}};

// An option of a buffer, and its values.
struct VariedOption {
    std::vector<int32_t> values;
    void (*set)(per_replay_options& options, int32_t value) = nullptr;
};

enum { in_memory, in_a_file, compressed };
enum { some_slots_unused, all_slots_used, cleared };

// Option 0 is the size of an image in bytes, option 1 the storage of the rows, and the last one the state of the slots
// before the save.
const std::vector<VariedOption> varied_options = {
    {{8, 1100}},
    {{in_memory, in_a_file, compressed},
     [](per_replay_options& o, int32_t value) { o.memory.storage = value == in_a_file ? "/tmp" : nullptr; }},
    {{0, 1}, [](per_replay_options& o, int32_t value) { o.store_next_observation = value; }},
    {{0, 1}, [](per_replay_options& o, int32_t value) { o.keep_times_sampled = value; }},
    {{0, 1, 2},
     [](per_replay_options& o, int32_t value) {
         o.max_times_sampled = value;
         if (value != 0) o.scheme = PER_WITHOUT_REPLACEMENT;
     }},
    {{PER_MAX_EVER, PER_MAX_NOW}, [](per_replay_options& o, int32_t value) { o.max_priority = value; }},
    {{PER_PROPORTIONAL, PER_RANK, PER_UNIFORM}, [](per_replay_options& o, int32_t value) { o.prioritization = value; }},
    {{PER_BATCH_MAX, PER_BUFFER_MAX}, [](per_replay_options& o, int32_t value) { o.normalize_weights = value; }},
    {{1, 3}, [](per_replay_options& o, int32_t value) { o.n_step = value; }},
    {{1, 2}, [](per_replay_options& o, int32_t value) { o.frame_stack = value; }},
    {{0, 1, 3},
     [](per_replay_options& o, int32_t value) {
         o.sequence_length = value;
         o.burn_in = value / 2;
         o.sequence_stride = value / 2;
     }},
    {{0, 1}, [](per_replay_options& o, int32_t value) { o.save_compression = has_zstd() ? value : 0; }},
    {{some_slots_unused, all_slots_used, cleared}},
};

std::vector<size_t> n_values() {
    std::vector<size_t> n;
    for (const VariedOption& option : varied_options) n.push_back(option.values.size());
    return n;
}

// Arrays of small rows are read in several parts, like those of large frames.
Kind kind_of(const ChosenValues& row) {
    const auto value = [row](size_t i) { return varied_options[i].values[row[i]]; };
    const auto change = [value](per_replay_options& options) {
        for (size_t i = 0; i < varied_options.size(); ++i)
            if (varied_options[i].set != nullptr) varied_options[i].set(options, value(i));
    };
    const bool is_small = value(0) < 1024;
    return {is_small ? "small" : "large", is_small ? 15000 : 1200, value(0), change,
            value(1) == compressed ? PER_COMPRESSION_DELTA : PER_COMPRESSION_NONE};
}

// A buffer and random calls on it.
class Subject {
 public:
    Subject(const Kind& kind, uint32_t seed)
        : random_(seed), image_bytes_(kind.image_bytes), is_compressed_(kind.compression != PER_COMPRESSION_NONE) {
        const int64_t shape = image_bytes_;
        per_field fields[n_fields] = {};
        fields[image] = {"observation.image", &shape, 1, PER_UINT8, PER_ROLE_DEFAULT, 0, nullptr, 0,
                         kind.compression,    0};
        fields[position] = {"observation.position", nullptr, 0, PER_FLOAT32, PER_ROLE_DEFAULT, 0, nullptr, 0, 0, 0};
        fields[action] = {"action", nullptr, 0, PER_INT16, PER_ROLE_DEFAULT, 0, nullptr, 0, 0, 0};
        fields[value] = {"value", nullptr, 0, PER_FLOAT32, PER_ROLE_DEFAULT, 0, nullptr, 0, 0, 0};
        fields[advantage] = {"advantage", nullptr, 0, PER_FLOAT32, PER_ROLE_DEFAULT, 0, nullptr, 0, 0, 0};
        fields[result] = {"return", nullptr, 0, PER_FLOAT32, PER_ROLE_DEFAULT, 0, nullptr, 0, 0, 0};
        per_replay_options options = initialized(per_replay_options_init);
        options.capacity = kind.capacity;
        options.n_envs = n_envs;
        options.fields = fields;
        options.n_fields = n_fields;
        options.field_size = sizeof(per_field);
        options.seed = seed;
        kind.change(options);
        stores_next_ = options.store_next_observation != 0;
        rows_ = kind.capacity / n_envs;
        has_windows_ = options.sequence_length == 0;
        is_used_up_ = options.max_times_sampled != 0;
        per_replay* replay = nullptr;
        EXPECT_OK(per_replay_create(&options, &replay));
        replay_.reset(replay);
    }

    per_replay* get() const { return replay_.get(); }
    void close() { replay_.reset(); }

    void add(int64_t length) {
        const size_t n = static_cast<size_t>(length * n_envs);
        const std::vector<uint8_t> images = draw_images(n);
        const std::vector<uint8_t> next_images = draw_images(n);
        const std::vector<float> numbers = floats(4 * n);
        const std::vector<int16_t> actions(n, static_cast<int16_t>(random_()));
        std::vector<uint8_t> ends(n, 0);
        std::vector<uint8_t> cuts(n, 0);
        const bool gives_next = stores_next_ || chance(3);
        for (size_t i = 0; i < n && gives_next; ++i) ends[i] = chance(9);
        for (size_t i = 0; i < n && gives_next; ++i) cuts[i] = ends[i] == 0 && chance(15);
        per_array fields[n_fields] = {of(images.data(), PER_UINT8),    of(numbers.data(), PER_FLOAT32),
                                      of(actions.data(), PER_INT16),   of(numbers.data() + n, PER_FLOAT32),
                                      of(numbers.data(), PER_FLOAT32), of(numbers.data(), PER_FLOAT32)};
        per_array next[n_fields] = {of(next_images.data(), PER_UINT8), of(numbers.data() + 2 * n, PER_FLOAT32)};
        per_steps steps = initialized(per_steps_init);
        steps.length = length;
        steps.fields = fields;
        if (gives_next) steps.next_fields = next;
        steps.reward = of(numbers.data() + 3 * n, PER_FLOAT32);
        steps.terminated = of(ends.data(), PER_BOOL);
        steps.truncated = of(cuts.data(), PER_BOOL);
        if (chance(3)) steps.priorities = of(numbers.data(), PER_FLOAT32);
        EXPECT_OK(per_replay_add(get(), &steps, nullptr, nullptr));
    }

    void fill() {
        for (int64_t n = 0; n < rows_ + rows_ / 2; n += 20) add(20);
    }

    void change() {
        switch (random_() % 16) {
            case 0:
                return add(rows_ / 3);
            case 1:
                EXPECT_OK(per_replay_cut(get(), 0, nullptr, nullptr));
                return;
            case 2:
                EXPECT_OK(change_alpha(get(), 0.1 * static_cast<double>(random_() % 9), nullptr));
                EXPECT_OK(change_beta(get(), 0.1 * static_cast<double>(random_() % 9), nullptr));
                EXPECT_OK(change_gamma(get(), 0.1 * static_cast<double>(random_() % 9), nullptr));
                return;
            case 3:
                if (has_windows_) set_n_step(1 + random_() % 4);
                return;
            case 4:
                if (chance(6)) clear();
                return;
            case 5:
                return set_advantages();
            case 6:
            case 7:
                return set_fields();
            case 8:
            case 9:
            case 10:
                return train();
            default:
                return add(1 + random_() % 7);
        }
    }

    // Sets how many of 64 images of a compressed field are random. The others differ from the previous one in three
    // bytes.
    void set_noise(uint32_t noise_of_64) { noise_of_64_ = noise_of_64; }

    void set_n_step(int64_t n_step) { EXPECT_OK(change_n_step(get(), n_step, nullptr)); }
    void clear() { EXPECT_OK(per_replay_clear(get(), nullptr)); }

    // Draws a batch and changes its priorities.
    void train() {
        std::vector<int64_t> ids(64);
        per_batch batch = initialized(per_batch_init);
        batch.ids = ids.data();
        const per_status status = per_replay_sample(get(), nullptr, 64, &batch, nullptr);
        if (status == PER_OK) {
            EXPECT_OK(write_priorities(get(), 64, ids.data(), floats(64).data(), nullptr));
        } else {
            EXPECT_TRUE(status == PER_ERROR_EMPTY || is_used_up_) << per_last_error();
        }
    }

    void set_fields() {
        std::vector<int64_t> ids = live_ids();
        if (ids.empty()) return;
        std::shuffle(ids.begin(), ids.end(), random_);
        ids.resize(std::min<size_t>(ids.size(), 200));
        per_array fields[n_fields] = {};
        const std::vector<int16_t> actions(ids.size(), static_cast<int16_t>(random_()));
        const std::vector<float> values = floats(ids.size());
        fields[action] = of(actions.data(), PER_INT16);
        fields[value] = of(values.data(), PER_FLOAT32);
        EXPECT_OK(per_replay_set(get(), static_cast<int64_t>(ids.size()), ids.data(), fields, nullptr));
    }

    void set_advantages() {
        int64_t count = 0;
        EXPECT_OK(per_replay_get_bootstraps(get(), 0, nullptr, &count, nullptr));
        std::vector<int64_t> ids(static_cast<size_t>(count));
        per_batch batch = initialized(per_batch_init);
        batch.ids = ids.data();
        EXPECT_OK(per_replay_get_bootstraps(get(), count, &batch, &count, nullptr));
        EXPECT_OK(per_replay_compute_advantages(get(), value, advantage, chance(2) ? result : -1, 0.9, count,
                                                ids.data(), floats(ids.size()).data(), nullptr));
    }

    // Sets the priority of each live transition, one by one. Returns the allocated bytes.
    std::size_t set_each_priority(const std::vector<int64_t>& ids) {
        const float priority = 2.0f;
        const std::size_t before = n_allocated_bytes;
        for (const int64_t& id : ids) EXPECT_OK(write_priorities(get(), 1, &id, &priority, nullptr));
        return n_allocated_bytes - before;
    }

    std::vector<int64_t> live_ids() {
        int64_t count = 0;
        EXPECT_OK(per_replay_get_live_ids(get(), 0, nullptr, &count));
        std::vector<int64_t> ids(static_cast<size_t>(count));
        EXPECT_OK(per_replay_get_live_ids(get(), count, ids.data(), &count));
        return ids;
    }

    int64_t memory_bytes() const {
        per_replay_statistics statistics;
        EXPECT_OK(per_replay_get_statistics(get(), &statistics, sizeof statistics));
        return statistics.memory_bytes;
    }

    // The bytes of a save.
    std::string saved() const {
        std::string bytes;
        const auto append = [](void* to, const void* data, int64_t size) {
            static_cast<std::string*>(to)->append(static_cast<const char*>(data), static_cast<size_t>(size));
            return size;
        };
        EXPECT_OK(save_to(get(), append, &bytes));
        return bytes;
    }

    SaveHandle start(const std::string& path) const {
        per_save* save = nullptr;
        EXPECT_OK(per_replay_save_start(get(), path.c_str(), nullptr, &save));
        return SaveHandle(save);
    }

 private:
    static constexpr int64_t n_envs = 3;

    static per_array of(const void* data, int32_t dtype) { return {data, nullptr, 0, dtype, nullptr}; }
    bool chance(uint32_t n) { return random_() % n == 0; }
    std::vector<uint8_t> noise(size_t n) {
        std::vector<uint8_t> bytes(n, static_cast<uint8_t>(random_()));
        for (size_t i = 0; i < n; i += 61) bytes[i] = static_cast<uint8_t>(random_());
        return bytes;
    }
    std::vector<uint8_t> draw_images(size_t n) {
        const size_t bytes = static_cast<size_t>(image_bytes_);
        if (!is_compressed_) return noise(n * bytes);
        std::vector<uint8_t> images;
        images.reserve(n * bytes);
        image_.resize(bytes);
        for (size_t i = 0; i < n; ++i) {
            const bool is_noise = random_() % 64 < noise_of_64_;
            for (size_t k = 0; k < (is_noise ? bytes : 3); ++k)
                image_[is_noise ? k : random_() % bytes] = static_cast<uint8_t>(random_() >> 7);
            images.insert(images.end(), image_.begin(), image_.end());
        }
        return images;
    }
    std::vector<float> floats(size_t n) {
        std::vector<float> numbers(n);
        for (float& number : numbers) number = static_cast<float>(random_() % 10000 + 1) / 64.0f;
        return numbers;
    }

    std::mt19937 random_;
    const int64_t image_bytes_;
    const bool is_compressed_;
    uint32_t noise_of_64_ = 2;
    std::vector<uint8_t> image_;  // the last image
    int64_t rows_;
    bool stores_next_;
    bool has_windows_;
    bool is_used_up_;  // draws use up transitions, so too few may be left
    ReplayHandle replay_;
};

class Save : public FolderTest {
 protected:
    void TearDown() override { disk.reset(); }

    // Saves the buffer, and waits for the end.
    void save_and_wait(const Subject& subject) const {
        EXPECT_OK(per_save_wait(subject.start(path()).get(), -1, nullptr, nullptr));
    }

    // Starts a save that stops before its first read or write.
    SaveHandle start_held(const Subject& subject) const {
        disk.hold();
        return subject.start(path());
    }

    // Lets a held save go on to its end.
    static void finish(const SaveHandle& save) {
        disk.allow(INT64_MAX);
        EXPECT_OK(per_save_wait(save.get(), -1, nullptr, nullptr));
    }
};

// Each pair of options occurs in some of the buffers.
TEST_F(Save, a_file_is_that_of_the_moment_whatever_changes_before_its_rows_are_read) {
    uint32_t seed = 0;
    for (const ChosenValues& row : covering_rows(n_values())) {
        const Kind kind = kind_of(row);
        std::string values;
        for (size_t i = 0; i < row.size(); ++i) values += " " + std::to_string(varied_options[i].values[row[i]]);
        SCOPED_TRACE("options" + values);
        Subject subject(kind, ++seed);
        // Unused slots are filled while the save is written.
        varied_options.back().values[row.back()] == some_slots_unused ? subject.add(50) : subject.fill();
        for (int i = 0; i < 30; ++i) subject.change();
        if (varied_options.back().values[row.back()] == cleared) subject.clear();
        const std::string expected = subject.saved();
        const SaveHandle save = start_held(subject);
        for (int64_t n = 0; per_save_wait(save.get(), 0, nullptr, nullptr) == PER_ERROR_BUSY; ++n) {
            for (int i = 0; i < 12; ++i) subject.change();
            disk.allow(n + 1);
            disk.wait_for(n + 1, save.get());
        }
        EXPECT_OK(per_save_wait(save.get(), -1, nullptr, nullptr));
        EXPECT_TRUE(contents(path()) == expected);
        disk.reset();
        const std::string later = subject.saved();
        EXPECT_TRUE(later != expected);
        save_and_wait(subject);
        EXPECT_TRUE(contents(path()) == later);
        if (HasFailure()) return;
    }
}

const Kind& compressed_kind() {
    return *std::find_if(std::begin(kinds), std::end(kinds), [](const Kind& k) { return k.compression != 0; });
}

// Each of the saves keeps copies of all frames, as they are overwritten before it reads them.
TEST_F(Save, memory_of_compressed_frames_is_given_back) {
    Subject subject(compressed_kind(), 1);
    subject.fill();
    const int64_t before = subject.memory_bytes();
    for (int i = 0; i < 10; ++i) {
        const SaveHandle save = start_held(subject);
        subject.fill();
        finish(save);
        disk.reset();
    }
    EXPECT_LT(subject.memory_bytes(), 3 * before);
}

// A thread that is not joined leaks its stack.
TEST_F(Save, threads_of_saves_that_are_freed_leave_no_stack) {
    const auto n_mappings = [] {
        std::ifstream maps("/proc/self/maps");
        std::string line;
        int64_t n = 0;
        while (std::getline(maps, line)) ++n;
        return n;
    };
    Subject subject(kinds[0], 1);
    subject.add(20);
    for (int i = 0; i < 5; ++i) save_and_wait(subject);
    const int64_t before = n_mappings();
    for (int i = 0; i < 60; ++i) save_and_wait(subject);
    EXPECT_LT(n_mappings(), before + 30);
}

// Kept frames are counted in groups of 64 slots: here the last group has one slot.
TEST_F(Save, memory_of_the_very_last_frame_is_given_back) {
    const Kind kind = {"one more than two groups", 129, 8000, [](per_replay_options&) {}, PER_COMPRESSION_DELTA};
    Subject subject(kind, 1);
    subject.set_noise(64);
    subject.fill();
    int64_t before = 0;
    for (int i = 0; i < 80; ++i) {
        const SaveHandle save = start_held(subject);
        subject.fill();
        finish(save);
        disk.reset();
        if (i == 10) before = subject.memory_bytes();
    }
    EXPECT_LT(subject.memory_bytes(), before + 40 * kind.image_bytes);
}

// Lets a save proceed by one write or piece of rows at a time. Calls visit(bytes of rows written by it) after each.
template <class Visit>
void go_on_until_all_is_read(per_save* save, const Visit& visit) {
    int64_t written = 0, total = 1;
    for (int64_t n = 1; written < total; ++n) {
        const int64_t before = written;
        disk.allow(n);
        disk.wait_for(n, save);
        const per_status status = per_save_wait(save, 0, &written, &total);
        EXPECT_TRUE(status == PER_ERROR_BUSY || status == PER_OK) << per_last_error();
        visit(written - before);
    }
}

// The memory of frames that the save has read is reused before the save ends.
TEST_F(Save, memory_of_compressed_frames_is_given_back_piece_by_piece) {
#ifndef SANITIZED
    Subject subject(compressed_kind(), 1);
    subject.set_noise(64);
    subject.fill();
    const int64_t before = subject.memory_bytes();
    const SaveHandle save = start_held(subject);
    subject.set_noise(0);
    subject.fill();
    go_on_until_all_is_read(save.get(), [](int64_t) {});
    subject.set_noise(64);
    subject.fill();
    EXPECT_LT(subject.memory_bytes(), before + before / 2);
    finish(save);
#endif
}

// Calls wait while a piece is read, so a piece has at most 512 small compressed frames. A visit may see two pieces.
TEST_F(Save, pieces_of_small_compressed_frames_have_few_of_them) {
#ifndef SANITIZED
    const Kind kind = {"small", 9000, 64, [](per_replay_options&) {}, PER_COMPRESSION_DELTA};
    Subject subject(kind, 1);
    subject.fill();
    const SaveHandle save = start_held(subject);
    int64_t largest = 0;
    go_on_until_all_is_read(save.get(), [&](int64_t piece) { largest = std::max(largest, piece); });
    EXPECT_LE(largest, 2 * 512 * kind.image_bytes);
    finish(save);
#endif
}

// A failed save releases its unread frames piece by piece, and unlocks the buffer in between.
TEST_F(Save, memory_of_failed_saves_is_given_back_piece_by_piece) {
#ifndef SANITIZED
    Subject subject({"small", 9000, 200, [](per_replay_options&) {}, PER_COMPRESSION_DELTA}, 1);
    subject.set_noise(64);
    subject.fill();
    const int64_t before = subject.memory_bytes();
    for (int i = 0; i < 5; ++i) {
        const SaveHandle save = start_held(subject);
        subject.fill();
        disk.write_error = ENOSPC;
        disk.allow(INT64_MAX);
        EXPECT_EQ(per_save_wait(save.get(), -1, nullptr, nullptr), PER_ERROR_IO);
        EXPECT_GE(disk.n_done - disk.n_refused_at, 9000 / 512);
        disk.reset();
    }
    EXPECT_LT(subject.memory_bytes(), 3 * before);
#endif
}

TEST_F(Save, threads_that_use_the_buffer_do_not_reach_the_file) {
    for (const Kind& kind : kinds) {
        SCOPED_TRACE(kind.name);
        Subject subject(kind, 7);
        subject.fill();
        for (int round = 0; round < 2; ++round) {
            const std::string expected = subject.saved();
            const SaveHandle save = subject.start(path());
            std::vector<std::thread> threads;
            std::atomic<bool> is_over = false;
            threads.emplace_back([&] {
                while (!is_over) subject.change();
            });
            threads.emplace_back([&] {
                std::vector<int64_t> ids(32);
                std::vector<float> priorities(32, 2.5f);
                per_batch batch = initialized(per_batch_init);
                batch.ids = ids.data();
                while (!is_over) {
                    const per_status status = per_replay_sample(subject.get(), nullptr, 32, &batch, nullptr);
                    if (status == PER_ERROR_EMPTY) continue;
                    EXPECT_OK(write_priorities(subject.get(), 32, ids.data(), priorities.data(), nullptr));
                    int64_t written = -1, total = -1;
                    const per_status of_save = per_save_wait(save.get(), 0, &written, &total);
                    EXPECT_TRUE(of_save == PER_ERROR_BUSY || of_save == PER_OK) << per_last_error();
                    EXPECT_TRUE(0 <= written && written <= total);
                }
            });
            EXPECT_OK(per_save_wait(save.get(), -1, nullptr, nullptr));
            is_over = true;
            for (std::thread& thread : threads) thread.join();
            EXPECT_TRUE(contents(path()) == expected);
        }
    }
}

TEST_F(Save, a_buffer_has_one_save_at_a_time_and_waits_end_in_time) {
    Subject subject(kinds[0], 1);
    subject.fill();
    const SaveHandle save = start_held(subject);
    per_save* other = save.get();
    EXPECT_EQ(per_replay_save_start(subject.get(), path().c_str(), nullptr, &other), PER_ERROR_BUSY);
    EXPECT_EQ(other, nullptr);
    EXPECT_EQ(names().size(), 1u);
    EXPECT_EQ(per_save_wait(save.get(), 0, nullptr, nullptr), PER_ERROR_BUSY);
    EXPECT_FAILS(per_save_wait(save.get(), 20, nullptr, nullptr), PER_ERROR_BUSY, "still running");
    // Another buffer may start a save, and this one may be saved by a blocking call.
    Subject neighbour(kinds[1], 1);
    disk.n_allowed = 0;
    const SaveHandle beside = neighbour.start(path() + ".2");
    EXPECT_OK(per_replay_save(subject.get(), (path() + ".3").c_str(), nullptr));
    disk.allow(INT64_MAX);
    EXPECT_OK(per_save_wait(save.get(), INT64_MAX, nullptr, nullptr));
    EXPECT_OK(per_save_wait(beside.get(), -1, nullptr, nullptr));
    int64_t written = -1, total = -1;
    EXPECT_OK(per_save_wait(save.get(), 0, &written, &total));
    EXPECT_TRUE(written == total && total > 0);
    EXPECT_EQ(names().size(), 3u);
    save_and_wait(subject);
}

TEST_F(Save, a_disk_that_fails_is_told_by_every_wait_and_leaves_what_was_there) {
    Subject subject(kinds[0], 1);
    subject.fill();
    EXPECT_OK(per_replay_save(subject.get(), path().c_str(), nullptr));
    const std::string before = contents(path());
    subject.add(10);
    for (const bool at_write : {true, false}) {
        (at_write ? disk.write_error : disk.fsync_error) = ENOSPC;
        const SaveHandle save = subject.start(path());
        for (int i = 0; i < 2; ++i) {
            int64_t written = -1;
            EXPECT_FAILS(per_save_wait(save.get(), -1, &written, nullptr), PER_ERROR_IO, "No space left");
            EXPECT_GE(written, 0);
        }
        EXPECT_TRUE(contents(path()) == before);
        EXPECT_EQ(names().size(), 1u);
        disk.reset();
    }
    per_save* save = nullptr;
    EXPECT_EQ(per_replay_save_start(subject.get(), (folder_ / "none" / "x").c_str(), nullptr, &save), PER_ERROR_IO);
    EXPECT_EQ(save, nullptr);
    save_and_wait(subject);
    EXPECT_TRUE(contents(path()) == subject.saved());
}

TEST_F(Save, an_error_names_the_file_as_it_is) {
    Subject subject(kinds[0], 1);
    subject.fill();
    const std::string name = path() + " 100%% full %s";
    disk.write_error = ENOSPC;
    const SaveHandle save = subject.start(name);
    EXPECT_FAILS(per_save_wait(save.get(), -1, nullptr, nullptr), PER_ERROR_IO, name.c_str());
    disk.reset();
}

TEST_F(Save, a_thread_that_cannot_start_is_an_error_and_nothing_is_kept) {
#ifndef SANITIZED
    Subject subject(kinds[0], 1);
    subject.fill();
    const std::vector<int64_t> ids = subject.live_ids();
    subject.set_each_priority(ids);
    per_save* save = nullptr;
    refuses_threads = true;
    EXPECT_EQ(per_replay_save_start(subject.get(), path().c_str(), nullptr, &save), PER_ERROR_OUT_OF_MEMORY);
    refuses_threads = false;
    EXPECT_NE(strstr(per_last_error(), "no thread for the save"), nullptr);
    EXPECT_EQ(save, nullptr);
    EXPECT_EQ(names().size(), 0u);
    EXPECT_EQ(subject.set_each_priority(ids), 0u);
    save_and_wait(subject);
    EXPECT_TRUE(contents(path()) == subject.saved());
#endif
}

TEST_F(Save, memory_that_ends_ends_the_save_and_not_the_call) {
#ifndef SANITIZED
    Subject subject(kinds[1], 1);
    subject.fill();
    const int64_t id = subject.live_ids()[0];
    const float priority = 2.0f;
    // The first such call allocates the memory that the later ones need.
    EXPECT_OK(write_priorities(subject.get(), 1, &id, &priority, nullptr));
    const SaveHandle save = start_held(subject);
    refuses_memory = true;
    const per_status status = write_priorities(subject.get(), 1, &id, &priority, nullptr);
    refuses_memory = false;
    EXPECT_OK(status);
    disk.allow(INT64_MAX);
    EXPECT_EQ(per_save_wait(save.get(), -1, nullptr, nullptr), PER_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(names().size(), 0u);
    save_and_wait(subject);
    EXPECT_TRUE(contents(path()) == subject.saved());
#endif
}

TEST_F(Save, memory_holds_each_row_that_changes_before_it_is_read_once) {
#ifndef SANITIZED
    for (const Kind& kind : kinds) {
        SCOPED_TRACE(kind.name);
        Subject subject(kind, 1);
        subject.fill();
        const std::vector<int64_t> ids = subject.live_ids();
        EXPECT_LE(subject.set_each_priority(ids), 1000u);
        const SaveHandle save = start_held(subject);
        // The records of these kinds have at most 80 bytes, and each copy uses 16 more. Memory is allocated in chunks.
        EXPECT_LE(subject.set_each_priority(ids), ids.size() * 96 + (1u << 18) + 10000);
        EXPECT_EQ(subject.set_each_priority(ids), 0u);
        finish(save);
        EXPECT_EQ(subject.set_each_priority(ids), 0u);
        // Once all rows have been read, changes keep no copies, even though the save has not ended.
        const SaveHandle late = start_held(subject);
        go_on_until_all_is_read(late.get(), [](int64_t) {});
        EXPECT_EQ(subject.set_each_priority(ids), 0u);
        finish(late);
    }
#endif
}

TEST_F(Save, a_buffer_that_is_freed_ends_its_save_first) {
    Subject subject(kinds[0], 2);
    subject.fill();
    const std::string expected = subject.saved();
    for (const bool frees_save : {true, false}) {
        disk.hold();
        SaveHandle save = subject.start(path());
        if (frees_save) {
            save.reset();
            disk.allow(INT64_MAX);
            per_save* other = nullptr;
            while (per_replay_save_start(subject.get(), (path() + ".2").c_str(), nullptr, &other) == PER_ERROR_BUSY)
                std::this_thread::yield();
            EXPECT_OK(per_save_wait(other, -1, nullptr, nullptr));
            per_save_free(other);
            EXPECT_TRUE(contents(path()) == expected);
            fs::remove(path());
            continue;
        }
        std::thread later([] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            disk.allow(INT64_MAX);
        });
        subject.close();
        EXPECT_TRUE(contents(path()) == expected);
        EXPECT_OK(per_save_wait(save.get(), 0, nullptr, nullptr));
        later.join();
    }
}

TEST_F(Save, a_forked_child_leaves_the_file_to_its_parent) {
    Subject subject(kinds[0], 3);
    subject.fill();
    const std::string expected = subject.saved();
    disk.hold();
    SaveHandle save = subject.start(path());
    for (int i = 0; i < 5; ++i) {
        for (int k = 0; k < 5; ++k) subject.change();
        const pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            alarm(20);  // ends a child that waits for the thread of its parent
            disk.allow(INT64_MAX);
            int64_t written = -7;
            bool is_right = per_save_wait(save.get(), -1, &written, nullptr) == PER_ERROR_INVALID_ARGUMENT &&
                            strstr(per_last_error(), "fork") != nullptr && written == -7;
            // No thread will read the old rows, so no copies are kept.
            is_right = is_right && subject.set_each_priority(subject.live_ids()) <= 1000;
            for (int k = 0; k < 30; ++k) subject.change();
#ifndef SANITIZED  // ThreadSanitizer does not support threads in a child whose parent had several
            if (i % 2 == 0) {
                const std::string own = subject.saved();
                const std::string own_path = path() + ".child";
                is_right = is_right && per_save_wait(subject.start(own_path).get(), -1, nullptr, nullptr) == PER_OK;
                is_right = is_right && contents(own_path) == own;
                fs::remove(own_path);
            }
#endif
            save.reset();
            subject.close();
            _exit(is_right && names().size() == 1 && !testing::Test::HasFailure() ? 0 : 1);
        }
        int status;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
        disk.allow(i + 1);
    }
    finish(save);
    EXPECT_TRUE(contents(path()) == expected);
    EXPECT_EQ(names().size(), 1u);
}

TEST_F(Save, a_process_that_is_killed_leaves_what_was_there) {
#ifndef SANITIZED  // ThreadSanitizer does not support threads in a child
    Subject subject(kinds[1], 4);
    subject.fill();
    EXPECT_OK(per_replay_save(subject.get(), path().c_str(), nullptr));
    const std::string before = contents(path());
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        subject.add(5);
        const SaveHandle save = start_held(subject);
        disk.allow(3);
        disk.wait_for(3, save.get());
        (void)!syscall(SYS_write, ready[1], "", 1);
        for (;;) pause();
    }
    char byte;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    EXPECT_TRUE(contents(path()) == before);
    EXPECT_EQ(names().size(), 2u);
    save_and_wait(subject);
    EXPECT_EQ(names().size(), 1u);
#endif
}

}  // namespace
}  // namespace per::test

// The file that rows lie in: room is reserved before it is written to, file systems that cannot do so are refused, and on
// those without files that have no name there is one that loses its name at once. Requests are as long as the system
// takes them.
#include "file/row_file.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <string>
#include <vector>

#include "rows/error.h"

namespace {

struct Range {
    off_t first;
    off_t size;
};

std::vector<Range> reserved;
std::vector<Range> asked_for;
int fallocate_error = 0;
int n_interrupted = 0;  // of the next calls of fallocate()
bool has_unnamed_files = true;
mode_t mode_of_file = 0;

}  // namespace

extern "C" {
int fallocate(int file, int mode, off_t first, off_t size) {
    using Function = int (*)(int, int, off_t, off_t);
    static const Function next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "fallocate"));
    errno = n_interrupted > 0 ? EINTR : fallocate_error;
    if (n_interrupted > 0) --n_interrupted;
    if (errno != 0) return -1;
    reserved.push_back({first, size});
    return next(file, mode, first, size);
}
int posix_fadvise(int, off_t first, off_t size, int advice) {
    if (advice == POSIX_FADV_WILLNEED) asked_for.push_back({first, size});
    return 0;
}
int open(const char* path, int flags, ...) {
    using Function = int (*)(const char*, int, ...);
    static const Function next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "open"));
    const bool is_unnamed = (flags & O_TMPFILE) == O_TMPFILE;
    if (is_unnamed && !has_unnamed_files) {
        errno = EOPNOTSUPP;
        return -1;
    }
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = is_unnamed || flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    if (mode != 0) mode_of_file = mode;
    return next(path, flags, mode);
}
}

namespace per {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t piece = std::size_t{1} << 16;

void expect_ranges(const std::vector<Range>& ranges, const std::vector<Range>& expected) {
    ASSERT_EQ(ranges.size(), expected.size());
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        EXPECT_EQ(ranges[i].first, expected[i].first) << i;
        EXPECT_EQ(ranges[i].size, expected[i].size) << i;
    }
}

std::string error_of(const char* folder, std::size_t bytes, bool is_preallocated, per_status status) {
    try {
        const RowFile file(folder, bytes, is_preallocated);
    } catch (const Error& error) {
        EXPECT_EQ(error.status(), status);
        return error.what();
    }
    return "";
}

class RowFileTest : public ::testing::Test {
 protected:
    RowFileTest() : folder_(::testing::TempDir() + "per_row_file_test") {
        fs::remove_all(folder_);
        fs::create_directory(folder_);
        reserved.clear();
        asked_for.clear();
    }
    ~RowFileTest() override {
        fs::remove_all(folder_);
        fallocate_error = 0;
        n_interrupted = 0;
        has_unnamed_files = true;
    }

    const char* folder() const { return folder_.c_str(); }
    bool is_empty() const { return fs::is_empty(folder_); }

 private:
    const std::string folder_;
};

TEST_F(RowFileTest, room_is_reserved_once_piece_by_piece) {
    RowFile file(folder(), 10 * piece - 100, false);
    expect_ranges(reserved, {{0, piece}});  // shows that the file system can
    file.reserve(3 * piece - 1, 2);
    expect_ranges(reserved, {{0, piece}, {2 * piece, piece}, {3 * piece, piece}});
    file.reserve(0, piece);
    file.reserve(2 * piece, 2 * piece);
    file.reserve(5 * piece, 0);
    EXPECT_EQ(reserved.size(), 3u);
    file.reserve(0, 10 * piece - 100);
    EXPECT_EQ(reserved.size(), 10u);
    for (std::size_t i = 0; i < 10 * piece; ++i) ASSERT_EQ(file.data()[i], std::byte{0});
}

TEST_F(RowFileTest, all_room_is_reserved_at_once) {
    RowFile file(folder(), 10 * piece, true);
    expect_ranges(reserved, {{0, 10 * piece}});
    file.reserve(0, 10 * piece);
    EXPECT_EQ(reserved.size(), 1u);
}

// A call that a signal interrupts begins anew: one of a large file would take a second and more.
TEST_F(RowFileTest, room_is_reserved_in_steps_that_signals_interrupt) {
    constexpr off_t step = off_t{1} << 26;
    n_interrupted = 3;
    const RowFile file(folder(), step + 10, true);
    expect_ranges(reserved, {{0, step}, {step, piece}});
}

TEST_F(RowFileTest, where_there_is_no_room_later_calls_ask_again) {
    RowFile file(folder(), 10 * piece, false);
    fallocate_error = ENOSPC;
    EXPECT_THROW(file.reserve(piece, 10), Error);
    for (const bool is_preallocated : {false, true})
        EXPECT_EQ(error_of(folder(), 10, is_preallocated, PER_ERROR_IO),
                  "storage " + std::string(folder()) + " cannot be written: No space left on device");
    fallocate_error = 0;
    file.reserve(piece, 10);
    expect_ranges(reserved, {{0, piece}, {piece, piece}});
    EXPECT_TRUE(is_empty());
}

TEST_F(RowFileTest, a_file_system_that_cannot_reserve_room_is_refused) {
    fallocate_error = EOPNOTSUPP;
    for (const bool is_preallocated : {false, true})
        EXPECT_EQ(
            error_of(folder(), 10, is_preallocated, PER_ERROR_UNSUPPORTED),
            "storage " + std::string(folder()) + ": its file system cannot reserve room: must be one with fallocate()");
    EXPECT_TRUE(is_empty());
}

TEST_F(RowFileTest, a_file_longer_than_the_process_may_write_is_an_error_and_no_signal) {
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit limit = before;
    limit.rlim_cur = piece;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_NE(error_of(folder(), piece + 1, false, PER_ERROR_IO).find("cannot be written: File too large"),
              std::string::npos);
    EXPECT_EQ(error_of(folder(), piece, false, PER_ERROR_IO), "");
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
}

TEST_F(RowFileTest, pieces_of_a_large_file_have_a_mebibyte) {
    RowFile file(folder(), std::size_t{1} << 40, false);  // it is sparse
    expect_ranges(reserved, {{0, 1 << 20}});
    file.reserve((std::size_t{1} << 40) - 1, 1);
    expect_ranges(reserved, {{0, 1 << 20}, {(off_t{1} << 40) - (1 << 20), 1 << 20}});
}

TEST_F(RowFileTest, more_than_a_process_maps_is_refused) {
    EXPECT_NE(error_of(folder(), (std::size_t{1} << 47) + 1, false, PER_ERROR_OUT_OF_MEMORY), "");
}

// The system cuts longer ones short: nothing would say that the rest is not fetched.
TEST_F(RowFileTest, what_will_be_needed_is_asked_for_by_requests_of_128_kibibytes) {
    constexpr std::size_t most = 128 * 1024;
    const RowFile file(folder(), 10 * most, false);
    file.will_need(100, 1);
    file.will_need(5, 2 * most + 3);
    file.will_need(7, 0);
    expect_ranges(asked_for, {{100, 1}, {5, most}, {5 + most, most}, {5 + 2 * most, 3}});
}

TEST_F(RowFileTest, a_file_system_without_unnamed_files_has_one_that_loses_its_name) {
    has_unnamed_files = false;
    RowFile file(folder(), 3 * piece, false);
    EXPECT_TRUE(is_empty());
    file.reserve(0, 1);
    file.data()[0] = std::byte{7};
    const RowFile other(folder(), 3 * piece, false);
    EXPECT_EQ(other.data()[0], std::byte{0});
}

TEST_F(RowFileTest, nobody_else_reads_it) {
    for (const bool is_unnamed : {true, false}) {
        has_unnamed_files = is_unnamed;
        const RowFile file(folder(), 1, false);
        EXPECT_EQ(mode_of_file, mode_t{0600});
    }
}

}  // namespace
}  // namespace per

// The file of the rows. Space is reserved before it is written to, and file systems that cannot reserve space are
// refused. Without unnamed files it is created and unlinked at once. Read-ahead is requested in pieces that the system
// accepts. Pieces that a checkpoint refers to are not overwritten, and only one buffer at a time adopts the file.
#include "file/row_file.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "error_of.h"
#include "new_row_file.h"
#include "own_folder.h"

namespace {

struct Range {
    off_t first;
    off_t size;
};

std::vector<Range> reserved;
std::vector<Range> asked_for;
int fallocate_error = 0;
int n_interrupted = 0;  // number of the next calls of fallocate() that are interrupted by a signal
int fdatasync_error = 0;
std::vector<int> pwrite_errors;  // errors of the next calls; 0: the call writes half of its bytes
bool has_unnamed_files = true;
mode_t mode_of_file = 0;
bool refuses_fixed_mappings = false;  // after removing the old mapping, as mmap(2) allows
int mremap_error = 0;
bool mremap_leaves_hole = false;  // a failing call unmaps the range

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
int fdatasync(int) {
    errno = fdatasync_error;
    return fdatasync_error == 0 ? 0 : -1;
}
ssize_t pwrite(int file, const void* data, size_t size, off_t first) {
    using Function = ssize_t (*)(int, const void*, size_t, off_t);
    static const Function next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "pwrite"));
    if (pwrite_errors.empty()) return next(file, data, size, first);
    errno = pwrite_errors.front();
    pwrite_errors.erase(pwrite_errors.begin());
    return errno == 0 ? next(file, data, size / 2, first) : -1;
}
int posix_fadvise(int, off_t first, off_t size, int advice) {
    if (advice == POSIX_FADV_WILLNEED) asked_for.push_back({first, size});
    return 0;
}
void* mmap(void* address, size_t size, int protection, int flags, int file, off_t first) noexcept {
    if (refuses_fixed_mappings && (flags & MAP_FIXED)) {
        munmap(address, size);
        errno = ENODEV;
        return MAP_FAILED;
    }
    return reinterpret_cast<void*>(syscall(SYS_mmap, address, size, protection, flags, file, first));
}
void* mremap(void* from, size_t size, size_t new_size, int flags, ...) noexcept {
    va_list arguments;
    va_start(arguments, flags);
    void* const to = va_arg(arguments, void*);
    va_end(arguments);
    if (mremap_error == 0) return reinterpret_cast<void*>(syscall(SYS_mremap, from, size, new_size, flags, to));
    if (mremap_leaves_hole) munmap(to, new_size);
    errno = mremap_error;
    return MAP_FAILED;
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

namespace per::test {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t block = std::size_t{1} << 16;
constexpr std::size_t piece = std::size_t{1} << 20;

void expect_ranges(const std::vector<Range>& ranges, const std::vector<Range>& expected) {
    ASSERT_EQ(ranges.size(), expected.size());
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        EXPECT_EQ(ranges[i].first, expected[i].first) << i;
        EXPECT_EQ(ranges[i].size, expected[i].size) << i;
    }
}

class RowFileTest : public FolderTest {
 protected:
    RowFileTest() {
        reserved.clear();
        asked_for.clear();
    }
    ~RowFileTest() override {
        fallocate_error = 0;
        n_interrupted = 0;
        fdatasync_error = 0;
        pwrite_errors.clear();
        has_unnamed_files = true;
        refuses_fixed_mappings = mremap_leaves_hole = false;
        mremap_error = 0;
    }

    const char* folder() const { return folder_.c_str(); }
    bool is_empty() const { return fs::is_empty(folder_); }
};

TEST_F(RowFileTest, room_is_reserved_once_piece_by_piece) {
    NewRowFile file(folder(), 10 * block - 100, false);
    expect_ranges(reserved, {{0, block}});  // shows that the file system can reserve
    file.reserve(3 * block - 1, 2);
    expect_ranges(reserved, {{0, block}, {2 * block, block}, {3 * block, block}});
    file.reserve(0, block);
    file.reserve(2 * block, 2 * block);
    file.reserve(5 * block, 0);
    EXPECT_EQ(reserved.size(), 3u);
    file.reserve(0, 10 * block - 100);
    EXPECT_EQ(reserved.size(), 10u);
    for (std::size_t i = 0; i < 10 * block; ++i) ASSERT_EQ(file.data()[i], std::byte{0});
}

TEST_F(RowFileTest, all_room_is_reserved_at_once) {
    NewRowFile file(folder(), 10 * block, true);
    expect_ranges(reserved, {{0, 10 * block}});
    file.reserve(0, 10 * block);
    EXPECT_EQ(reserved.size(), 1u);
}

// An interrupted call is restarted. A single call for a large file would take more than a second.
TEST_F(RowFileTest, room_is_reserved_in_steps_that_signals_interrupt) {
    constexpr off_t step = off_t{1} << 26;
    n_interrupted = 3;
    const NewRowFile file(folder(), step + 10, true);
    expect_ranges(reserved, {{0, step}, {step, block}});
}

TEST_F(RowFileTest, where_there_is_no_room_later_calls_ask_again) {
    NewRowFile file(folder(), 10 * block, false);
    fallocate_error = ENOSPC;
    EXPECT_THROW(file.reserve(block, 10), Error);
    for (const bool is_preallocated : {false, true})
        EXPECT_THROWS(NewRowFile(folder(), 10, is_preallocated), PER_ERROR_IO,
                      "storage " + std::string(folder()) + " cannot be written: No space left on device");
    fallocate_error = 0;
    file.reserve(block, 10);
    expect_ranges(reserved, {{0, block}, {block, block}});
    EXPECT_TRUE(is_empty());
}

TEST_F(RowFileTest, a_file_system_that_cannot_reserve_room_is_refused) {
    fallocate_error = EOPNOTSUPP;
    for (const bool is_preallocated : {false, true})
        EXPECT_THROWS(
            NewRowFile(folder(), 10, is_preallocated), PER_ERROR_UNSUPPORTED,
            "storage " + std::string(folder()) + ": its file system cannot reserve room: must be one with fallocate()");
    EXPECT_TRUE(is_empty());
}

TEST_F(RowFileTest, a_file_longer_than_the_process_may_write_is_an_error_and_no_signal) {
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit limit = before;
    limit.rlim_cur = block;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_THROWS(NewRowFile(folder(), block + 1, false), PER_ERROR_IO, "cannot be written: File too large");
    EXPECT_NO_THROW(NewRowFile(folder(), block, false));
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
}

TEST_F(RowFileTest, a_large_file_is_reserved_by_larger_blocks) {
    NewRowFile file(folder(), std::size_t{1} << 36, false);  // it is sparse
    expect_ranges(reserved, {{0, 256 << 10}});
    file.reserve((std::size_t{1} << 36) - 1, 1);
    expect_ranges(reserved, {{0, 256 << 10}, {(off_t{1} << 36) - (256 << 10), 256 << 10}});
}

TEST_F(RowFileTest, more_than_a_process_maps_is_refused) {
    EXPECT_THROWS(NewRowFile(folder(), (std::size_t{1} << 47) + 1, false), PER_ERROR_OUT_OF_MEMORY, "");
}

// The system silently shortens longer requests.
TEST_F(RowFileTest, what_will_be_needed_is_asked_for_by_requests_of_128_kibibytes) {
    constexpr std::size_t most = 128 * 1024;
    const NewRowFile file(folder(), 10 * most, false);
    file.will_need(100, 1);
    file.will_need(5, 2 * most + 3);
    file.will_need(7, 0);
    expect_ranges(asked_for, {{100, 1}, {5, most}, {5 + most, most}, {5 + 2 * most, 3}});
}

TEST_F(RowFileTest, a_file_system_without_unnamed_files_has_one_that_loses_its_name) {
    has_unnamed_files = false;
    NewRowFile file(folder(), 3 * block, false);
    EXPECT_TRUE(is_empty());
    file.reserve(0, 1);
    file.data()[0] = std::byte{7};
    const NewRowFile other(folder(), 3 * block, false);
    EXPECT_EQ(other.data()[0], std::byte{0});
}

TEST_F(RowFileTest, a_name_that_is_taken_is_left_alone) {
    has_unnamed_files = false;
    const fs::path taken = folder_ / ("rows-" + std::to_string(getpid()) + "-0.tmp");
    std::ofstream(taken) << "not of this buffer";
    const NewRowFile file(folder(), 3 * block, false);
    EXPECT_EQ(fs::file_size(taken), 18u);
    fs::remove(taken);
    EXPECT_TRUE(is_empty());
    fs::remove(folder_);
    EXPECT_THROWS(NewRowFile((folder_ / "below").c_str(), 1, false), PER_ERROR_IO, "cannot be written: No such file");
}

// The library looks up names in the folder, but does not list it. The test uses a relative path, since other users may
// not read the parent folders.
TEST_F(RowFileTest, a_folder_that_cannot_be_read_has_rows) {
    const fs::path before = fs::current_path();
    fs::current_path(folder_);
    ASSERT_EQ(chmod(folder(), 0333), 0);
    const bool is_root = geteuid() == 0;  // root reads any folder
    if (is_root) {
        ASSERT_EQ(seteuid(65534), 0);
    }
    const Error error = error_of([] { NewRowFile(".", 1, false); });
    if (is_root) {
        ASSERT_EQ(seteuid(0), 0);
    }
    fs::current_path(before);
    ASSERT_EQ(chmod(folder(), 0777), 0);
    EXPECT_EQ(error.status(), PER_OK) << error.what();
}

TEST_F(RowFileTest, nobody_else_reads_it) {
    for (const bool is_unnamed : {true, false}) {
        has_unnamed_files = is_unnamed;
        const NewRowFile file(folder(), 1, false);
        EXPECT_EQ(mode_of_file, mode_t{0600});
    }
}

// ---- checkpoints

// Does the work of a checkpoint. If is_kept is true, the checkpoint has replaced the previous one.
RowTable checkpoint(RowFile& file, const char* folder, bool is_kept = true) {
    const LockedFolder locked(folder, LockedFolder::Use::writing);
    RowTable table;
    EXPECT_TRUE(file.take_name(locked));
    file.write_out(table);
    if (!is_kept) return table;
    file.keep();
    file.committed();
    return table;
}

void write(RowFile& file, std::size_t first, std::size_t n, int value) {
    file.reserve(first, n);
    std::memset(file.data() + first, value, n);
}

// The bytes of a range according to a table.
std::string read(const char* folder, const RowTable& table, std::size_t first, std::size_t n) {
    const LockedFolder locked(folder, LockedFolder::Use::reading);
    std::string bytes(n, '\0');
    RowReader(locked, table).read(first, bytes.data(), n);
    return bytes;
}

bool adopts(RowFile& file, const char* folder, const RowTable& table) {
    const LockedFolder locked(folder, LockedFolder::Use::reading);
    return file.adopt(locked, table);
}

TEST_F(RowFileTest, a_large_file_has_few_pieces) {
    for (const std::size_t bytes :
         {std::size_t{1}, piece, 4096 * piece, 4096 * piece + 1, (std::size_t{1} << 36) + 1}) {
        NewRowFile file(folder(), bytes, false);
        const RowTable table = checkpoint(file, folder());
        EXPECT_LE(table.pieces.size(), 4096u);
        EXPECT_GE(table.pieces.size() * table.piece_bytes, bytes);
        EXPECT_GE(table.piece_bytes, piece);
        EXPECT_LE(table.piece_bytes / table.block_bytes, 64u);
    }
}

TEST_F(RowFileTest, what_a_checkpoint_names_is_not_written_again) {
    NewRowFile file(folder(), 3 * piece, false);
    write(file, 0, 3 * piece, 1);
    const RowTable first = checkpoint(file, folder());
    write(file, piece - 10, 20, 2);  // crosses two pieces
    EXPECT_EQ(read(folder(), first, 0, 3 * piece), std::string(3 * piece, 1));
    EXPECT_EQ(file.data()[piece - 11], std::byte{1});
    EXPECT_EQ(file.data()[piece - 10], std::byte{2});
    EXPECT_EQ(file.data()[piece + 10], std::byte{1});

    const RowTable second = checkpoint(file, folder());
    for (const std::size_t i : {0, 1}) {
        EXPECT_NE(second.pieces[i].place, first.pieces[i].place);
        EXPECT_NE(second.pieces[i].hash, first.pieces[i].hash);
    }
    EXPECT_EQ(second.pieces[2], first.pieces[2]);
    // Places that only earlier checkpoints refer to are reused, so that the file does not grow indefinitely.
    for (int value = 3; value < 20; ++value) {
        const std::string before(reinterpret_cast<const char*>(file.data()), 3 * piece);
        const RowTable table = checkpoint(file, folder());
        write(file, 0, 3 * piece, value);
        EXPECT_EQ(read(folder(), table, 0, 3 * piece), before);
        EXPECT_LE(fs::file_size(folder_ / row_file_name(table.number)), 6 * piece);
    }
}

// The pieces of the last checkpoint stay until the next one has replaced it.
TEST_F(RowFileTest, a_checkpoint_that_fails_frees_nothing) {
    NewRowFile file(folder(), piece, false);
    write(file, 0, piece, 1);
    const RowTable first = checkpoint(file, folder());
    for (int value = 2; value < 6; ++value) {
        write(file, 0, piece, value);
        const RowTable table = checkpoint(file, folder(), false);
        if (value % 2 == 0) file.keep();  // the checkpoint may have taken effect
        write(file, 0, piece, value + 10);
        EXPECT_EQ(read(folder(), first, 0, piece), std::string(piece, 1));
        if (value % 2 == 0) {
            EXPECT_EQ(read(folder(), table, 0, piece), std::string(piece, static_cast<char>(value)));
        }
    }
}

TEST_F(RowFileTest, a_copy_that_has_no_room_changes_nothing) {
    for (const bool is_preallocated : {false, true}) {
        NewRowFile file(folder(), 2 * piece, is_preallocated);
        write(file, 0, block, 1);
        const RowTable table = checkpoint(file, folder());
        fallocate_error = ENOSPC;
        EXPECT_THROWS(file.reserve(0, 1), PER_ERROR_IO, "");
        EXPECT_EQ(read(folder(), table, 0, block), std::string(block, 1));
        EXPECT_EQ(file.data()[0], std::byte{1});
        if (is_preallocated) write(file, piece, 10, 5);  // this piece has space, and no rows
        fallocate_error = 0;
        reserved.clear();
        write(file, 0, 1, 2);
        // Only blocks with rows are copied. Preallocated files reserve the whole piece again.
        expect_ranges(reserved, {{2 * piece, static_cast<off_t>(is_preallocated ? piece : block)}});
        EXPECT_EQ(read(folder(), table, 0, block), std::string(block, 1));
        EXPECT_EQ(file.data()[1], std::byte{1});
    }
}

TEST_F(RowFileTest, a_copy_goes_on_where_it_was_interrupted_and_ends_where_it_cannot_be_written) {
    NewRowFile file(folder(), piece, false);
    write(file, 0, piece, 1);
    const RowTable table = checkpoint(file, folder());
    pwrite_errors = {EINTR, 0, EINTR, EIO, EIO, EIO, EIO, EIO};
    EXPECT_THROWS(file.reserve(0, 1), PER_ERROR_IO, "cannot be written: Input/output error");
    EXPECT_EQ(pwrite_errors.size(), 4u);
    EXPECT_EQ(file.data()[piece - 1], std::byte{1});
    pwrite_errors = {EINTR, 0, EINTR};
    write(file, 0, 1, 2);
    EXPECT_TRUE(pwrite_errors.empty());
    EXPECT_EQ(file.data()[0], std::byte{2});
    for (std::size_t i = 1; i < piece; ++i) ASSERT_EQ(file.data()[i], std::byte{1}) << i;
    EXPECT_EQ(read(folder(), table, 0, piece), std::string(piece, 1));
}

// An unmapped row cannot be read, so the old mapping stays if a new one fails.
TEST_F(RowFileTest, a_copy_that_cannot_be_mapped_leaves_what_was_there) {
    NewRowFile file(folder(), 3 * piece, false);
    write(file, 0, 3 * piece, 1);
    const RowTable table = checkpoint(file, folder());
    const auto expect_rows = [&](std::size_t n_changed) {
        std::vector<unsigned char> is_resident(3 * piece / static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
        ASSERT_EQ(mincore(file.data(), 3 * piece, is_resident.data()), 0) << "there is a hole";
        std::string rows(3 * piece, 1);
        std::fill_n(rows.begin() + piece, n_changed, 2);
        EXPECT_TRUE(std::memcmp(file.data(), rows.data(), rows.size()) == 0);
        EXPECT_EQ(read(folder(), table, 0, 3 * piece), std::string(3 * piece, 1));
    };
    mremap_error = ENOMEM;
    for (const bool leaves_hole : {false, true}) {
        mremap_leaves_hole = leaves_hole;
        EXPECT_THROWS(file.reserve(piece, 1), PER_ERROR_OUT_OF_MEMORY, "cannot be mapped: Cannot allocate memory");
        ASSERT_NO_FATAL_FAILURE(expect_rows(0));
    }
    mremap_error = 0;
    refuses_fixed_mappings = true;
    write(file, piece, 10, 2);
    ASSERT_NO_FATAL_FAILURE(expect_rows(10));
}

// The process may have a lower limit than the one that created the file.
TEST_F(RowFileTest, a_copy_beyond_what_the_process_may_write_is_an_error_and_no_signal) {
    NewRowFile file(folder(), piece, false);
    for (const int value : {1, 2, 3}) {  // at place 0, 1, 0
        write(file, 0, piece, value);
        checkpoint(file, folder());
    }
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit limit = before;
    limit.rlim_cur = piece;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const Error error = error_of([&] { file.reserve(0, 1); });
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_TRUE(is_error(error.status(), error.what(), PER_ERROR_IO, "cannot be written: File too large"));
    EXPECT_EQ(file.data()[0], std::byte{3});
    write(file, 0, piece, 4);
    EXPECT_EQ(checkpoint(file, folder()).pieces[0].place, 1u);
}

// The number of open files of this folder that an exec would pass on.
int n_inherited(const fs::path& folder) {
    int n = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
        std::error_code error;
        const std::string file = fs::read_symlink(entry.path(), error).string();
        const int flags = fcntl(std::stoi(entry.path().filename()), F_GETFD);
        n += file.starts_with(folder.string()) && flags >= 0 && (flags & FD_CLOEXEC) == 0;
    }
    return n;
}

TEST_F(RowFileTest, one_buffer_at_a_time_adopts_it) {
    auto file = std::make_unique<NewRowFile>(folder(), 3 * piece - 5 * block, false);
    write(*file, 5, 2 * piece, 1);
    checkpoint(*file, folder());
    write(*file, 7, 1, 2);
    const RowTable table = checkpoint(*file, folder());
    EXPECT_EQ(read(folder(), table, 5, 3), std::string({1, 1, 2}));
    RowFile next(folder(), 3 * piece - 5 * block);
    EXPECT_THROWS(adopts(next, folder(), table), PER_ERROR_BUSY, row_file_name(table.number));
    file.reset();
    ASSERT_TRUE(adopts(next, folder(), table));
    EXPECT_EQ(n_inherited(folder_), 0);
    for (std::size_t i = 5; i < 2 * piece + 5; ++i) ASSERT_EQ(next.data()[i], std::byte(i == 7 ? 2 : 1));
    EXPECT_TRUE(next.holds(5, 2 * piece));
    EXPECT_FALSE(next.holds(5, 2 * piece + block));
    write(next, 3 * piece - 6 * block, block, 3);
    write(next, 6, 1, 9);
    EXPECT_EQ(read(folder(), table, 5, 3), std::string({1, 1, 2}));
    const RowTable last = checkpoint(next, folder());
    EXPECT_EQ(last.pieces[1], table.pieces[1]);
    EXPECT_EQ(read(folder(), last, 5, 3), std::string({1, 9, 2}));
    EXPECT_EQ(last.number, table.number);
}

// A file of 16 GiB has pieces of 4 MiB with 64 blocks, so their bits fill a 64-bit integer.
TEST_F(RowFileTest, pieces_of_64_blocks_are_adopted) {
    constexpr std::size_t bytes = std::size_t{1} << 34;  // it is sparse
    constexpr std::size_t large_piece = std::size_t{1} << 22;
    RowTable table;
    {
        NewRowFile file(folder(), bytes, false);
        write(file, large_piece - block, 2 * block, 1);  // the last block of a piece, and the first of the next
        table = checkpoint(file, folder());
    }
    ASSERT_EQ(table.piece_bytes, large_piece);
    ASSERT_EQ(table.block_bytes, block);
    EXPECT_EQ(table.pieces[0].blocks, uint64_t{1} << 63);
    EXPECT_EQ(table.pieces[1].blocks, uint64_t{1});
    RowFile file(folder(), bytes);
    ASSERT_TRUE(adopts(file, folder(), table));
    EXPECT_EQ(file.data()[large_piece - 1], std::byte{1});
    EXPECT_EQ(read(folder(), table, large_piece - block, 2 * block), std::string(2 * block, 1));
}

TEST_F(RowFileTest, tables_that_cannot_be_are_refused) {
    RowTable table;
    {
        NewRowFile file(folder(), 3 * piece, false);
        write(file, 0, 3 * piece, 1);
        table = checkpoint(file, folder());
    }
    const auto status_of = [&](const auto& change) {
        RowTable changed = table;
        change(changed);
        RowFile file(folder(), 3 * piece);
        return error_of([&] { EXPECT_FALSE(adopts(file, folder(), changed)); }).status();
    };
    EXPECT_EQ(status_of([](RowTable& t) { t.pieces[1].place = 0; }), PER_ERROR_CORRUPT_FILE);
    EXPECT_EQ(status_of([](RowTable& t) { t.pieces[1].place = 3; }), PER_ERROR_CORRUPT_FILE);
    EXPECT_EQ(status_of([](RowTable& t) { t.pieces[1].place = ~uint64_t{0}; }), PER_ERROR_CORRUPT_FILE);
    EXPECT_EQ(status_of([](RowTable& t) { t.pieces[1].blocks |= uint64_t{1} << 16; }), PER_ERROR_CORRUPT_FILE);
    EXPECT_EQ(status_of([](RowTable& t) { t.number = 5; }), PER_ERROR_IO);
    EXPECT_EQ(status_of([](RowTable& t) { t.pieces.pop_back(); }), PER_OK);  // it is not adopted, but read
    EXPECT_EQ(status_of([](RowTable& t) { t.piece_bytes *= 2; }), PER_OK);
    const auto read_status = [&](const auto& change) {
        RowTable changed = table;
        change(changed);
        return error_of([&] { read(folder(), changed, piece + 3, 100); }).status();
    };
    EXPECT_EQ(read_status([](RowTable&) {}), PER_OK);
    EXPECT_EQ(read_status([](RowTable& t) { t.pieces[1].hash ^= 1; }), PER_ERROR_CORRUPT_FILE);
    EXPECT_EQ(read_status([](RowTable& t) { t.pieces[1].blocks = 2; }), PER_ERROR_CORRUPT_FILE);
    EXPECT_EQ(read_status([](RowTable& t) { t.pieces[1].place = 3; }), PER_ERROR_CORRUPT_FILE);
    EXPECT_EQ(read_status([](RowTable& t) { t.pieces[1].place = ~uint64_t{0}; }), PER_ERROR_CORRUPT_FILE);
    EXPECT_EQ(read_status([](RowTable& t) { t.pieces.resize(1); }), PER_ERROR_CORRUPT_FILE);
    EXPECT_EQ(read_status([](RowTable& t) { t.block_bytes = t.piece_bytes = uint64_t{1} << 47; }),
              PER_ERROR_CORRUPT_FILE);
    fs::resize_file(folder_ / row_file_name(table.number), piece + 10);
    EXPECT_EQ(read_status([](RowTable&) {}), PER_ERROR_CORRUPT_FILE);
    EXPECT_EQ(status_of([](RowTable&) {}), PER_ERROR_CORRUPT_FILE);
}

// The system drops the data that it could not write, and the next fdatasync() succeeds.
TEST_F(RowFileTest, a_file_that_could_not_be_written_is_not_trusted_again) {
    NewRowFile file(folder(), piece, false);
    write(file, 0, piece, 1);
    checkpoint(file, folder());
    write(file, 0, piece, 2);
    const LockedFolder locked(folder(), LockedFolder::Use::writing);
    RowTable table;
    ASSERT_TRUE(file.take_name(locked));
    fdatasync_error = EIO;
    EXPECT_THROWS(file.write_out(table), PER_ERROR_IO, "");
    fdatasync_error = 0;
    EXPECT_FALSE(file.take_name(locked));
    write(file, 0, piece, 3);
    EXPECT_EQ(file.data()[piece - 1], std::byte{3});
}

// A copied file may lack reserved space, and its length may have changed.
TEST_F(RowFileTest, what_lies_between_pieces_of_an_adopted_file_is_reserved_again) {
    RowTable table;
    {
        NewRowFile file(folder(), 2 * piece, true);
        write(file, 0, 2 * piece, 1);
        checkpoint(file, folder());
        write(file, 0, 1, 2);
        table = checkpoint(file, folder());  // places 2 and 1
    }
    fs::resize_file(folder_ / row_file_name(table.number), std::size_t{1} << 42);
    RowFile file(folder(), 2 * piece);
    ASSERT_TRUE(adopts(file, folder(), table));
    for (const int value : {3, 4}) {
        reserved.clear();
        write(file, 0, piece, value);
        EXPECT_FALSE(reserved.empty()) << value;
        EXPECT_EQ(read(folder(), table, piece, 1), std::string(1, 1));
        for (const RowTable::Piece& each : checkpoint(file, folder()).pieces) EXPECT_LT(each.place, 5u);
    }
}

TEST_F(RowFileTest, the_last_number_is_no_name) {
    EXPECT_EQ(row_file_number(row_file_name(no_row_file - 1)), no_row_file - 1);
    std::ofstream(folder_ / row_file_name(no_row_file - 1)).put('x');
    NewRowFile file(folder(), piece, false);
    EXPECT_FALSE(file.take_name(LockedFolder(folder(), LockedFolder::Use::writing)));
    fs::remove(folder_ / row_file_name(no_row_file - 1));
    EXPECT_TRUE(file.take_name(LockedFolder(folder(), LockedFolder::Use::writing)));
}

TEST_F(RowFileTest, a_name_that_no_checkpoint_kept_goes) {
    {
        NewRowFile file(folder(), piece, false);
        checkpoint(file, folder(), false);
        EXPECT_FALSE(is_empty());
    }
    EXPECT_TRUE(is_empty());
    {
        NewRowFile file(folder(), piece, false);
        checkpoint(file, folder());
    }
    EXPECT_FALSE(is_empty());
}

TEST_F(RowFileTest, rows_stay_only_in_their_own_folder_and_under_their_name) {
    NewRowFile file(folder(), piece, false);
    const std::string other = std::string(folder()) + "/other";
    EXPECT_FALSE(file.take_name(LockedFolder(other.c_str(), LockedFolder::Use::writing)));
    const RowTable table = checkpoint(file, folder());
    fs::remove(folder_ / row_file_name(table.number));
    EXPECT_FALSE(file.take_name(LockedFolder(folder(), LockedFolder::Use::writing)));
    has_unnamed_files = false;
    NewRowFile without(folder(), piece, false);
    EXPECT_FALSE(without.take_name(LockedFolder(folder(), LockedFolder::Use::writing)));
}

}  // namespace
}  // namespace per::test

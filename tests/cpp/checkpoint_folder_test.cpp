// A checkpoint in a folder writes only new parts. Whatever fails, the folder holds this checkpoint or the previous one.
#include "file/checkpoint_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "error_of.h"
#include "file/compression.h"
#include "new_row_file.h"
#include "own_folder.h"
#include "per.h"

namespace {

// A requested change of the folder. Files are identified by their inodes.
struct Operation {
    enum class Kind { create, write, rewrite, sync_file, rename, remove, sync_folder } kind;
    ino_t file;
    std::string name, other_name;
    std::string bytes;
};

std::vector<Operation>* operations = nullptr;
std::function<int(const char* function)> system_fails;  // returns an error number, or 0

bool fails(const char* function) {
    const int error = system_fails ? system_fails(function) : 0;
    if (error != 0) errno = error;
    return error != 0;
}

void record(Operation operation) {
    if (operations != nullptr) operations->push_back(std::move(operation));
}

struct stat status_of(int file) {
    struct stat found = {};
    fstat(file, &found);
    return found;
}

// All bytes of a file, including rows written through a mapping.
std::string bytes_of(int file) {
    std::string bytes(static_cast<size_t>(status_of(file).st_size), '\0');
    for (size_t done = 0; done < bytes.size();)
        done += static_cast<size_t>(
            syscall(SYS_pread64, file, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done)));
    return bytes;
}

ino_t number_of(int folder, const char* name) {
    struct stat found = {};
    fstatat(folder, name, &found, AT_SYMLINK_NOFOLLOW);
    return found.st_ino;
}

}  // namespace

// The program's definitions take precedence over those of the C library.
extern "C" {
ssize_t write(int file, const void* data, size_t size) {
    if (fails("write")) return -1;
    // A write may take fewer bytes than it is given.
    const ssize_t n = syscall(SYS_write, file, data, size > 1000 ? size / 2 : size);
    if (n > 0)
        record({Operation::Kind::write, status_of(file).st_ino, "", "",
                std::string(static_cast<const char*>(data), static_cast<size_t>(n))});
    return n;
}
ssize_t pread(int file, void* data, size_t size, off_t offset) {
    return fails("pread") ? -1 : syscall(SYS_pread64, file, data, size > 1000 ? size / 2 : size, offset);
}
int fsync(int file) {
    if (fails("fsync")) return -1;
    const struct stat found = status_of(file);
    record(
        {S_ISDIR(found.st_mode) ? Operation::Kind::sync_folder : Operation::Kind::sync_file, found.st_ino, "", "", ""});
    return 0;  // no file of these tests must survive a power failure
}
ssize_t pwrite(int file, const void* data, size_t size, off_t offset) {
    if (fails("pwrite")) return -1;
    const ssize_t n = syscall(SYS_pwrite64, file, data, size > 1000 ? size / 2 : size, offset);
    if (operations != nullptr) record({Operation::Kind::rewrite, status_of(file).st_ino, "", "", bytes_of(file)});
    return n;
}
int fdatasync(int file) {
    if (fails("fdatasync")) return -1;
    if (operations != nullptr) {
        record({Operation::Kind::rewrite, status_of(file).st_ino, "", "", bytes_of(file)});
        record({Operation::Kind::sync_file, status_of(file).st_ino, "", "", ""});
    }
    return 0;
}
int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
    if (fails("linkat")) return -1;
    const int result = static_cast<int>(syscall(SYS_linkat, from_folder, from, to_folder, to, flags));
    if (result == 0) record({Operation::Kind::create, number_of(to_folder, to), to, "", ""});
    return result;
}
int openat(int folder, const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const int mode = flags & O_CREAT ? va_arg(arguments, int) : 0;
    va_end(arguments);
    if (fails("openat")) return -1;
    const int file = static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
    if (file >= 0 && flags & O_CREAT) record({Operation::Kind::create, status_of(file).st_ino, path, "", ""});
    return file;
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
    if (fails("renameat")) return -1;
    record({Operation::Kind::rename, number_of(from_folder, from), from, to, ""});
    return static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, 0));
}
int unlinkat(int folder, const char* path, int flags) noexcept {
    if (fails("unlinkat")) return -1;
    record({Operation::Kind::remove, number_of(folder, path), path, "", ""});
    return static_cast<int>(syscall(SYS_unlinkat, folder, path, flags));
}
}

namespace per::test {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t part = 50000;  // bytes between cuts

std::string noise(std::size_t size, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::string bytes(size, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    return bytes;
}

LockedFolder locked(const std::string& path) {
    return LockedFolder(path.c_str(), LockedFolder::Use::writing);
}

int64_t save(const std::string& path, const std::string& bytes) {
    FolderWriter writer(locked(path));
    for (std::size_t at = 0; at < bytes.size(); at += part) {
        writer.write(bytes.data() + at, std::min(part, bytes.size() - at));
        writer.cut();
    }
    writer.commit();
    return writer.bytes_written();
}

std::string load(const std::string& path) {
    FolderReader reader(path.c_str());
    std::string bytes(std::size_t{1} << 23, '\0');
    std::size_t size = 0;
    // Pieces of many sizes, across chunks.
    for (std::size_t n = 1; const std::size_t found = reader.read(bytes.data() + size, n); n = n * 3 % 200001)
        size += found;
    bytes.resize(size);
    return bytes;
}

class Folder : public FolderTest {
 protected:
    void TearDown() override {
        system_fails = nullptr;
        operations = nullptr;
    }

    std::string path(const std::string& name = "buffer") const { return FolderTest::path(name); }

    int64_t size_of(const std::string& folder) const {
        int64_t size = 0;
        for (const fs::directory_entry& entry : fs::directory_iterator(folder))
            size += static_cast<int64_t>(entry.file_size());
        return size;
    }
};

TEST_F(Folder, what_was_written_is_read) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, part, 3 * part + 7, std::size_t{5000000}}) {
        const std::string bytes = noise(size, size);
        save(path(), bytes);
        EXPECT_EQ(load(path()), bytes);
    }
}

TEST_F(Folder, chunks_without_cuts_have_an_end) {
    const std::string bytes = noise(3 << 20, 5);
    {
        FolderWriter writer(locked(path()));
        writer.write(bytes.data(), bytes.size());
        writer.commit();
    }
    EXPECT_EQ(load(path()), bytes);
    FolderWriter writer(locked(path()));
    writer.write(bytes.data(), bytes.size() - 1);
    writer.commit();
    EXPECT_LT(writer.bytes_written(), 1100000);  // the last chunk of 2^20 bytes
}

TEST_F(Folder, chunks_are_compressed_where_a_level_is_given) {
    const std::string bytes(100000, 'x');
    const auto written = [&](const char* name, auto... compression) {
        const std::string folder = path(name);
        int64_t n = 0;
        {
            FolderWriter writer(locked(folder), compression...);
            writer.write(bytes.data(), bytes.size());
            writer.commit();
            n = writer.bytes_written();
        }
        EXPECT_EQ(load(folder), bytes);
        return n;
    };
    EXPECT_GT(written("by default"), 100000);
    EXPECT_GT(written("level 0", 0), 100000);
    if (!has_zstd()) return;
    EXPECT_LT(written("level 1", 1), 10000);
    EXPECT_LT(written("level 3", 3), 10000);
}

TEST_F(Folder, only_what_differs_is_written) {
    std::string bytes = noise(40 * part, 1);
    const int64_t first = save(path(), bytes);
    EXPECT_GT(first, static_cast<int64_t>(40 * part));
    const int64_t same = save(path(), bytes);
    EXPECT_LT(same, 4000);  // the manifest
    bytes[7 * part + 3] ^= 1;
    const int64_t one_part = save(path(), bytes);
    EXPECT_GT(one_part, static_cast<int64_t>(part));
    EXPECT_LT(one_part, static_cast<int64_t>(part) + 4000);
    EXPECT_EQ(load(path()), bytes);
    // A known part is not written again, even at another position.
    EXPECT_LT(save(path(), bytes.substr(2 * part) + bytes), 8000);
    EXPECT_EQ(load(path()), bytes.substr(2 * part) + bytes);
}

// Each save has changes like those of a buffer: old parts are removed, new ones added, and two changed.
TEST_F(Folder, takes_no_more_than_some_twice_what_it_holds) {
    std::vector<std::string> parts;
    int64_t written = 0;
    for (int i = 0; i < 100; ++i) {
        parts.push_back(noise(part, 100 + static_cast<uint64_t>(i)));
        if (parts.size() > 20) parts.erase(parts.begin());
        std::string bytes = noise(2 * part, 1000 + static_cast<uint64_t>(i));
        for (const std::string& old : parts) bytes += old;
        written += save(path(), bytes);
        EXPECT_EQ(load(path()), bytes);
        EXPECT_LT(size_of(path()), 2 * static_cast<int64_t>(bytes.size()) + 4 * static_cast<int64_t>(part));
    }
    EXPECT_LT(written, 100 * 2 * 3 * static_cast<int64_t>(part));  // three parts are new each time
}

TEST_F(Folder, other_files_stay_and_what_a_killed_writer_left_goes) {
    save(path(), "first");
    write_file(path() + "/notes.txt", "mine");
    write_file(path() + "/pack-12.per", "mine, too");
    const pid_t child = fork();
    if (child == 0) {
        FolderWriter writer(locked(path()));
        const std::string bytes = noise(4 * part, 3);
        writer.write(bytes.data(), bytes.size());
        writer.cut();
        kill(getpid(), SIGKILL);
    }
    waitpid(child, nullptr, 0);
    EXPECT_EQ(load(path()), "first");
    EXPECT_GT(size_of(path()), static_cast<int64_t>(part));
    save(path(), "second");
    EXPECT_EQ(load(path()), "second");
    EXPECT_LT(size_of(path()), 1000);
    EXPECT_EQ(contents(path() + "/notes.txt"), "mine");
    EXPECT_EQ(contents(path() + "/pack-12.per"), "mine, too");
}

TEST_F(Folder, what_somebody_removed_or_cut_short_is_written_again) {
    const std::string bytes = noise(4 * part, 11);
    const std::string pack = path() + "/pack-0000000000000000.per";
    save(path(), bytes);
    fs::resize_file(pack, 3 * part);
    save(path(), bytes);
    EXPECT_EQ(load(path()), bytes);
    fs::remove(path() + "/pack-0000000000000001.per");
    EXPECT_THROWS(load(path()), PER_ERROR_IO, "");
    save(path(), bytes);
    EXPECT_EQ(load(path()), bytes);
}

// The link has the name and the size of the pack, and is dangling.
TEST_F(Folder, a_link_in_the_place_of_a_pack_is_no_pack) {
    const std::string bytes = noise(60, 1);
    save(path(), bytes);
    for (const fs::directory_entry& entry : fs::directory_iterator(path())) {
        if (entry.path().filename().string().rfind("pack-", 0) != 0) continue;
        const std::string pack = entry.path().string();
        const std::string nowhere(entry.file_size(), 'x');
        fs::remove(pack);
        fs::create_symlink(nowhere, pack);
        break;
    }
    save(path(), bytes);
    EXPECT_EQ(load(path()), bytes);
}

// All digits of the number matter: the last five equal those of an existing pack.
TEST_F(Folder, a_pack_with_a_large_number_that_nothing_names_goes) {
    save(path(), noise(60, 1));
    const std::string left = path() + "/pack-0000000100000000.per";
    std::ofstream(left) << "x";
    save(path(), noise(60, 1));
    EXPECT_FALSE(fs::exists(left));
}

TEST_F(Folder, errors_name_the_folder_and_the_reason) {
    EXPECT_THROWS(load(path()), PER_ERROR_IO, "");
    fs::create_directory(path());
    EXPECT_THROWS(load(path()), PER_ERROR_IO, "the directory holds no checkpoint");
    write_file(path("file"), "");
    EXPECT_THROWS(save(path("file"), "bytes"), PER_ERROR_IO, "");
    EXPECT_THROWS(save(path("none/below"), "bytes"), PER_ERROR_IO, "");
}

TEST_F(Folder, every_damaged_byte_is_found) {
    const std::string bytes = noise(part, 9) + noise(part, 10);
    save(path(), bytes);
    for (const fs::directory_entry& entry : fs::directory_iterator(path())) {
        const std::string whole = contents(entry.path());
        const std::size_t step = whole.size() > 1000 ? 997 : 1;
        for (std::size_t i = 0; i < whole.size(); i += step) {
            std::string damaged = whole;
            damaged[i] ^= 0x40;
            write_file(entry.path(), damaged);
            const Error error = error_of([&] { load(path()); });
            EXPECT_TRUE(error.status() == PER_ERROR_CORRUPT_FILE || error.status() == PER_ERROR_UNSUPPORTED) << i;
            EXPECT_NE(std::string(error.what()).find(path()), std::string::npos);
            write_file(entry.path(), whole.substr(0, i));
            EXPECT_THROWS(load(path()), PER_ERROR_CORRUPT_FILE, "") << i;
        }
        write_file(entry.path(), whole + "x");
        write_file(entry.path(), whole);
    }
    EXPECT_EQ(load(path()), bytes);
}

TEST_F(Folder, after_any_failing_call_the_checkpoint_of_before_is_there) {
    std::string before = noise(4 * part, 20);
    save(path(), before);
    int n_failed = 0;
    for (int n = 0;; ++n) {
        const std::string after = before.substr(0, 2 * part) + noise(2 * part, 30 + static_cast<uint64_t>(n));
        int calls = 0;
        system_fails = [&](const char*) { return calls++ == n ? EIO : 0; };
        const Error error = error_of([&] { save(path(), after); });
        const bool was_reached = calls > n;
        system_fails = nullptr;
        const std::string found = load(path());
        if (error.status() == PER_OK) {
            // Only a failure to remove a file is ignored.
            EXPECT_EQ(found, after);
        } else {
            ++n_failed;
            EXPECT_EQ(error.status(), PER_ERROR_IO);
            EXPECT_TRUE(found == before || std::string(error.what()).find("is written, but") != std::string::npos);
        }
        before = found;
        if (!was_reached) break;
    }
    EXPECT_GE(n_failed, 10);
    const pid_t child = fork();  // the failed calls hold no lock
    if (child == 0) {
        save(path(), before);
        _exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(load(path()), before);
}

// ---- power failures

// The folder as a power failure may leave it. Operations requested after the last sync of the folder may have changed
// some of its names; data written to a file after its last sync may be there, missing, or zeros.
class Disk {
 public:
    explicit Disk(const std::string& folder) {
        for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
            const ino_t file = number_of(AT_FDCWD, entry.path().c_str());
            names_[entry.path().filename().string()] = file;
            synced_[file] = written_[file] = contents(entry.path());
        }
    }

    void apply(const Operation& operation) {
        using Kind = Operation::Kind;
        if (operation.kind == Kind::write)
            written_[operation.file] += operation.bytes;
        else if (operation.kind == Kind::rewrite)
            written_[operation.file] = operation.bytes;
        else if (operation.kind == Kind::sync_file)
            synced_[operation.file] = written_[operation.file];
        else if (operation.kind != Kind::sync_folder)
            pending_.push_back(operation);
        if (operation.kind == Kind::create) written_[operation.file] = synced_[operation.file] = "";
        if (operation.kind == Kind::sync_folder) {
            names_ = names_after(~std::size_t{0});
            pending_.clear();
        }
    }

    // Calls visit() with the `folder` that each possible failure leaves.
    template <class Visit>
    void for_each_failure(const std::string& folder, const Visit& visit) const {
        std::vector<ino_t> unsynced;
        for (const auto& [file, bytes] : written_)
            if (bytes != synced_.at(file)) unsynced.push_back(file);
        std::size_t n_contents = 1;
        for (std::size_t i = 0; i < unsynced.size(); ++i) n_contents *= 3;
        for (std::size_t subset = 0; subset < std::size_t{1} << pending_.size(); ++subset)
            for (std::size_t choice = 0; choice < n_contents; ++choice) {
                std::map<ino_t, std::string> contents = synced_;
                std::size_t rest = choice;
                for (const ino_t file : unsynced) {
                    if (rest % 3 == 1) contents[file] = written_.at(file);
                    if (rest % 3 == 2) contents[file].resize(written_.at(file).size(), '\0');
                    rest /= 3;
                }
                fs::remove_all(folder);
                fs::create_directory(folder);
                for (const auto& [name, file] : names_after(subset)) write_file(folder + "/" + name, contents.at(file));
                visit();
            }
    }

 private:
    // The names after a power failure that let only some pending operations happen: those whose bit in `subset` is set.
    std::map<std::string, ino_t> names_after(std::size_t subset) const {
        std::map<std::string, ino_t> names = names_;
        for (std::size_t i = 0; i < pending_.size(); ++i) {
            if ((subset >> i & 1) == 0) continue;
            const Operation& operation = pending_[i];
            if (operation.kind == Operation::Kind::remove) {
                names.erase(operation.name);
            } else if (operation.kind == Operation::Kind::create) {
                names[operation.name] = operation.file;
            } else {
                names.erase(operation.name);
                names[operation.other_name] = operation.file;
            }
        }
        return names;
    }

    std::map<std::string, ino_t> names_;  // the names that a power failure cannot change
    std::map<ino_t, std::string> synced_, written_;
    std::vector<Operation> pending_;
};

TEST_F(Folder, after_a_power_failure_at_any_time_one_of_two_checkpoints_is_there) {
    std::string before = noise(2 * part, 40);
    save(path(), before);
    std::size_t n_failures = 0, n_before = 0, n_after = 0;
    // The first keeps the existing pack, the second removes it, the third writes none.
    for (const std::string& after : {before + noise(part, 41), noise(part, 42), noise(part, 42)}) {
        std::vector<Operation> done;
        Disk disk(path());
        operations = &done;
        save(path(), after);
        operations = nullptr;
        const auto check = [&](bool is_committed) {
            disk.for_each_failure(path("found"), [&] {
                const std::string found = load(path("found"));
                ASSERT_TRUE(found == after || (!is_committed && found == before)) << n_failures;
                ++(found == after ? n_after : n_before);
                if (n_failures++ % 7 != 0) return;
                // Later checkpoints succeed.
                save(path("found"), after + before);
                ASSERT_EQ(load(path("found")), after + before);
            });
        };
        for (const Operation& operation : done) {
            check(false);
            disk.apply(operation);
        }
        check(true);
        before = after;
    }
    EXPECT_GT(n_failures, 100u);
    EXPECT_GT(n_before, 20u);
    EXPECT_GT(n_after, 20u);
}

// ---- rows that stay in their file

constexpr std::size_t piece_of_rows = std::size_t{1} << 20;

// The checkpoint holds `bytes`, and names the file of the rows if the file can have a name.
void save_rows(const std::string& path, const std::string& bytes, RowFile& rows) {
    FolderWriter writer(locked(path), 0, &rows);
    writer.write(bytes.data(), bytes.size());
    if (writer.leaves_rows()) writer.leave_in_rows(0, 8);
    writer.commit();
}

// The first byte of each piece. All bytes of a piece must be equal.
std::string load_rows(const std::string& path) {
    FolderReader reader(path.c_str());
    if (reader.rows() == nullptr) return "none";
    RowReader rows(reader.folder(), *reader.rows());
    std::string found;
    std::string bytes(piece_of_rows, '\0');
    for (std::size_t i = 0; i < reader.rows()->pieces.size(); ++i) {
        rows.read(i * piece_of_rows, bytes.data(), bytes.size());
        EXPECT_TRUE(bytes == std::string(bytes.size(), bytes[0]));
        found += bytes[0];
    }
    return found;
}

void set_piece(RowFile& rows, std::size_t i, char value) {
    rows.reserve(i * piece_of_rows, piece_of_rows);
    std::memset(rows.data() + i * piece_of_rows, value, piece_of_rows);
}

TEST_F(Folder, a_checkpoint_of_other_rows_takes_their_file_away) {
    fs::create_directory(path());
    {
        NewRowFile rows(path().c_str(), 2 * piece_of_rows, false);
        set_piece(rows, 0, 'a');
        set_piece(rows, 1, 'b');
        save_rows(path(), "first", rows);
        EXPECT_EQ(load_rows(path()), "ab");
        EXPECT_EQ(load(path()), "first");
    }
    EXPECT_EQ(load_rows(path()), "ab");
    save(path(), "second");
    EXPECT_EQ(load_rows(path()), "none");
    EXPECT_LT(size_of(path()), 1000);
}

TEST_F(Folder, every_damaged_byte_of_a_table_of_rows_is_found) {
    fs::create_directory(path());
    NewRowFile rows(path().c_str(), 2 * piece_of_rows, false);
    set_piece(rows, 1, 'b');
    save_rows(path(), "first", rows);
    const std::string manifest = path() + "/manifest.per";
    const std::string whole = contents(manifest);
    for (std::size_t i = 0; i < whole.size(); ++i) {
        std::string damaged = whole;
        damaged[i] ^= 0x40;
        write_file(manifest, damaged);
        const per_status status = error_of([&] { load(path()); }).status();
        EXPECT_TRUE(status == PER_ERROR_CORRUPT_FILE || status == PER_ERROR_UNSUPPORTED) << i;
        write_file(manifest, whole.substr(0, i));
        EXPECT_THROWS(load(path()), PER_ERROR_CORRUPT_FILE, "") << i;
    }
    // Numbers out of range are refused even if the checksum is right.
    const std::size_t table = whole.size() - 8 - 2 * 24 - 8 - 8 - 8 - 32;
    const std::size_t chunk = 8 + 4 + 4 + 8 + 8 + 16;  // follows the numbers of the only pack
    for (const auto& [place, value] : std::vector<std::pair<std::size_t, uint64_t>>{
             {table + 8, 0},
             {table + 8, 3 << 20},
             {table + 8, uint64_t{1} << 48},
             {table + 16, 0},
             {table + 16, 3},
             {table + 16, 2 << 20},
             {table + 16, 1 << 10},
             {table + 24, 0},
             {chunk + 16, 1},                                           // a second pack, but there is only one
             {chunk + 32, 0},                                           // a chunk of 0 bytes
             {chunk + 32, 1 << 10},                                     // a chunk that is missing
             {chunk + 32, (1 << 20) + 1},                               // a chunk that is too large
             {chunk + 32, uint64_t{(1 << 20) + 1} << 32 | 1 << 20}}) {  // a chunk that takes more bytes than it holds
        std::string forged = whole.substr(0, whole.size() - 8);
        std::memcpy(forged.data() + place, &value, sizeof value);
        Checksum checksum;
        checksum.add(forged.data(), forged.size());
        const uint64_t seal = checksum.value();
        forged.append(reinterpret_cast<const char*>(&seal), sizeof seal);
        write_file(manifest, forged);
        EXPECT_THROWS(load(path()), PER_ERROR_CORRUPT_FILE, "out of range") << place << " " << value;
    }
}

// The formats are invented. No checkpoint is written over such a manifest either.
TEST_F(Folder, manifest_of_a_newer_format_is_unsupported) {
    save(path(), "first");
    const std::string manifest = path() + "/manifest.per";
    const std::string whole = contents(manifest);
    const auto expect = [&](uint32_t format, uint32_t has_rows, per_status status, const std::string& reason) {
        std::string bytes = whole;
        std::memcpy(&bytes[8], &format, sizeof format);
        std::memcpy(&bytes[12], &has_rows, sizeof has_rows);
        write_file(manifest, bytes);
        for (const Error& error : {error_of([&] { load(path()); }), error_of([&] { save(path(), "second"); })}) {
            EXPECT_EQ(error.status(), status);
            EXPECT_TRUE(std::string(error.what()).ends_with(reason)) << error.what();
        }
        EXPECT_EQ(contents(manifest), bytes);
    };
    for (const uint32_t format : {2u, 77u, UINT32_MAX})
        for (const uint32_t more : {0u, 1u, 2u})
            expect(format, more, PER_ERROR_UNSUPPORTED,
                   " has a manifest of format " + std::to_string(format) + ": this libper reads up to 1");
    expect(0, 0, PER_ERROR_CORRUPT_FILE, "is damaged in manifest.per: its format is 0");
    expect(1, 2, PER_ERROR_CORRUPT_FILE, "is damaged in manifest.per: a number in it is out of range");
    write_file(manifest, whole);
    EXPECT_EQ(load(path()), "first");
}

// A save in which a system call fails leaves this checkpoint or the previous one, whatever is written to rows later.
// The next save is complete, and leaves the rows in their file unless that file could not be synced before.
TEST_F(Folder, after_any_failing_call_rows_of_the_checkpoint_of_before_are_there) {
    std::set<std::string> failed;
    for (const bool is_first : {false, true}) {
        for (int n = 0;; ++n) {
            fs::remove_all(path());
            fs::create_directory(path());
            NewRowFile rows(path().c_str(), 2 * piece_of_rows, false);
            for (const std::size_t i : {0, 1}) set_piece(rows, i, 'a');
            if (!is_first) save_rows(path(), "aa", rows);
            set_piece(rows, 0, 'b');
            int calls = 0;
            std::string name;
            system_fails = [&](const char* call) {
                if (calls++ != n) return 0;
                name = call;
                return EIO;
            };
            const Error error = error_of([&] { save_rows(path(), "ba", rows); });
            system_fails = nullptr;
            failed.insert(name);
            if (error.status() != PER_OK) set_piece(rows, 0, 'z');
            if (is_first && error.status() != PER_OK && !fs::exists(path() + "/manifest.per")) {
                EXPECT_EQ(error.status(), PER_ERROR_IO) << name;
            } else {
                const std::string found = load(path());
                EXPECT_TRUE(found == "ba" || (error.status() == PER_ERROR_IO && found == "aa")) << name;
                EXPECT_EQ(load_rows(path()), is_first && name == "linkat" ? "none" : found) << name;
            }
            set_piece(rows, 0, 'c');
            save_rows(path(), "ca", rows);
            EXPECT_EQ(load(path()), "ca") << name;
            EXPECT_EQ(load_rows(path()), name == "fdatasync" ? "none" : "ca") << name;
            if (name.empty()) break;
        }
    }
    for (const char* const name : {"linkat", "fdatasync", "fsync", "renameat"})
        EXPECT_TRUE(failed.contains(name)) << name;
}

TEST_F(Folder, after_a_power_failure_at_any_time_rows_of_one_of_two_checkpoints_are_there) {
    fs::create_directory(path());
    NewRowFile rows(path().c_str(), 2 * piece_of_rows, false);
    set_piece(rows, 0, '0');
    set_piece(rows, 1, '#');
    save_rows(path(), "0#", rows);
    std::size_t n_failures = 0, n_before = 0, n_after = 0;
    std::string before = "0#";
    for (const char value : {'1', '2'}) {
        std::vector<Operation> done;
        Disk disk(path());
        operations = &done;
        const std::string after = {value, '#'};
        set_piece(rows, 0, value);
        save_rows(path(), after, rows);
        // The save is complete. The next change overwrites the part of the file that only the previous checkpoint used.
        // From here on a power failure must leave the new checkpoint.
        const std::size_t n_until_committed = done.size();
        set_piece(rows, 0, 'x');
        operations = nullptr;
        const auto check = [&](bool is_committed) {
            disk.for_each_failure(path("found"), [&] {
                const std::string found = load(path("found"));
                ASSERT_TRUE(found == after || (!is_committed && found == before)) << n_failures;
                ASSERT_EQ(load_rows(path("found")), found) << n_failures;
                ++(found == after ? n_after : n_before);
                ++n_failures;
            });
        };
        for (std::size_t i = 0; i < done.size(); ++i) {
            // Copies consist of many writes of the same kind.
            const bool is_one_of_many = done[i].kind == Operation::Kind::rewrite && i + 1 < done.size() &&
                                        done[i + 1].kind == Operation::Kind::rewrite && i % 60 != 0;
            if (!is_one_of_many) check(i >= n_until_committed);
            disk.apply(done[i]);
        }
        check(true);
        save_rows(path(), after + "!", rows);
        before = after + "!";
        set_piece(rows, 0, value);
        save_rows(path(), after, rows);
        before = after;
    }
    EXPECT_GT(n_failures, 20u);
    EXPECT_GT(n_before, 5u);
    EXPECT_GT(n_after, 5u);
}

// ---- locks

// Keeps the folder locked, like another process.
class LockOfAnother {
 public:
    LockOfAnother(const std::string& path, int operation) : folder_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
        EXPECT_EQ(flock(folder_, operation), 0);
    }
    ~LockOfAnother() { close(folder_); }

 private:
    int folder_;
};

TEST_F(Folder, readers_share_it_and_writers_have_it_alone) {
    using enum LockedFolder::Use;
    const std::string folder = path();
    fs::create_directory(folder);
    const auto is_had = [&](LockedFolder::Use use, int64_t timeout_ms) {
        const Error error = error_of([&] { LockedFolder(folder.c_str(), use, timeout_ms); });
        if (error.status() == PER_OK) return true;
        EXPECT_EQ(error.status(), PER_ERROR_BUSY);
        EXPECT_EQ(std::string(error.what()),
                  "path " + folder + " cannot be " + (use == reading ? "read" : "written") +
                      " yet: another thread or process reads or writes it, and holds its lock");
        return false;
    };
    for (const int64_t timeout_ms : {0, 30}) {
        {
            const LockOfAnother lock(folder, LOCK_SH);
            EXPECT_TRUE(is_had(reading, timeout_ms));
            EXPECT_FALSE(is_had(writing, timeout_ms));
        }
        {
            const LockOfAnother lock(folder, LOCK_EX);
            EXPECT_FALSE(is_had(reading, timeout_ms));
            EXPECT_FALSE(is_had(writing, timeout_ms));
        }
        EXPECT_TRUE(is_had(reading, timeout_ms));
        EXPECT_TRUE(is_had(writing, timeout_ms));
    }
}

TEST_F(Folder, who_waits_gets_it_once_it_is_free) {
    alarm(60);
    fs::create_directory(path());
    for (const int64_t timeout_ms : {int64_t{-1}, int64_t{60000}, INT64_MAX}) {
        auto lock = std::make_unique<LockOfAnother>(path(), LOCK_SH);
        std::thread writer([&] { LockedFolder(path().c_str(), LockedFolder::Use::writing, timeout_ms); });
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        lock.reset();
        writer.join();
    }
    alarm(0);
}

// A child that is forked while another thread is at any point of a call keeps no file of the folder open, and so no
// lock.
TEST_F(Folder, a_forked_child_has_no_file_of_it_open) {
    fs::create_directory(path());
    NewRowFile rows(path().c_str(), 2 * piece_of_rows, false);
    int n_forks = 0;
    const auto fork_here = [&] {
        const pid_t child = fork();
        if (child == 0) {
            for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
                std::error_code none;
                if (fs::read_symlink(entry, none).string().starts_with(folder_.string())) _exit(1);
            }
            _exit(0);
        }
        int status = -1;
        EXPECT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0) << n_forks;
        ++n_forks;
    };
    system_fails = [&](const char* function) {
        if (std::strcmp(function, "openat") != 0)
            fork_here();  // fork() waits until a file that is being opened is registered
        return 0;
    };
    for (const char value : {'a', 'b'}) {
        for (const std::size_t piece : {0, 1}) set_piece(rows, piece, value);
        save_rows(path(), noise(part, static_cast<uint64_t>(value)), rows);
        load(path());
        load_rows(path());
    }
    ReplacementFile file(path("file").c_str());
    file.write("bytes", 5);
    file.commit();
    EXPECT_GT(n_forks, 30);
}

TEST_F(Folder, a_forked_child_does_not_keep_its_lock) {
    fs::create_directory(path());
    pid_t child = -1;
    {
        const LockedFolder folder(path().c_str(), LockedFolder::Use::reading);
        child = fork();
        if (child == 0) {
            pause();
            _exit(0);
        }
    }
    EXPECT_EQ(error_of([&] { LockedFolder(path().c_str(), LockedFolder::Use::writing, 0); }).status(), PER_OK);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace per::test

// Files are replaced atomically, for any path, other savers of the file, and failures of any system call.
#include "file/disk_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "error_of.h"
#include "own_folder.h"
#include "per.h"

namespace {

// Returns the error number with which a system function fails, or 0 if it succeeds. Set by tests.
std::function<int(const char* function, int descriptor)> system_fails;
// The flags of files that were opened, by any thread.
std::mutex flags_mutex;
std::vector<long> flags_of_opened;

void note_opened(int flags) {
    const std::lock_guard<std::mutex> guard(flags_mutex);
    flags_of_opened.push_back(flags);
}

bool fails(const char* function, int descriptor) {
    if (!system_fails) return false;
    const int error = system_fails(function, descriptor);
    if (error != 0) errno = error;
    return error != 0;
}

}  // namespace

// The program's definitions take precedence over those of the C library.
extern "C" {
ssize_t read(int file, void* data, size_t size) {
    return fails("read", file) ? -1 : syscall(SYS_read, file, data, size);
}
ssize_t write(int file, const void* data, size_t size) {
    return fails("write", file) ? -1 : syscall(SYS_write, file, data, size);
}
int fsync(int file) {
    return fails("fsync", file) ? -1 : static_cast<int>(syscall(SYS_fsync, file));
}
int sync_file_range(int file, off64_t offset, off64_t size, unsigned int flags) {
    if (fails("sync_file_range", file)) return -1;
    return static_cast<int>(syscall(SYS_sync_file_range, file, offset, size, flags));
}
int flock(int file, int operation) noexcept {
    const bool is_own = (fcntl(file, F_GETFL) & O_ACCMODE) == O_WRONLY;
    return fails(is_own ? "flock" : "flock of another", file) ? -1
                                                              : static_cast<int>(syscall(SYS_flock, file, operation));
}
int openat(int folder, const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const int mode = flags & O_CREAT ? va_arg(arguments, int) : 0;
    va_end(arguments);
    note_opened(flags);
    const bool writes_to_another = (flags & O_ACCMODE) == O_RDWR;
    return fails(writes_to_another ? "openat of another" : "openat", folder)
               ? -1
               : static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
}
int open(const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const int mode = flags & O_CREAT ? va_arg(arguments, int) : 0;
    va_end(arguments);
    note_opened(flags);
    return fails("open", AT_FDCWD) ? -1 : static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
int fchown(int file, uid_t user, gid_t group) noexcept {
    return fails("fchown", file) ? -1 : static_cast<int>(syscall(SYS_fchown, file, user, group));
}
}

namespace per::test {
namespace {

namespace fs = std::filesystem;

class File : public FolderTest {
 protected:
    void TearDown() override { system_fails = nullptr; }

    static void save(const std::string& path, const std::string& bytes) {
        ReplacementFile file(path.c_str());
        file.write(bytes.data(), bytes.size());
        file.commit();
    }
    static std::string load(const std::string& path) {
        InputFile file(path.c_str());
        std::string bytes(std::size_t{1} << 20, '\0');
        bytes.resize(file.read(bytes.data(), bytes.size()));
        return bytes;
    }
    static struct stat status_of(const std::string& path) {
        struct stat found = {};
        EXPECT_EQ(stat(path.c_str(), &found), 0);
        return found;
    }

    // Processes that write to `path` concurrently until they are killed.
    static void kill_savers(const std::string& path, int n) {
        std::deque<pid_t> children;
        for (int i = 0; i < n; ++i) {
            int ready[2];
            ASSERT_EQ(pipe(ready), 0);
            children.push_back(fork());
            if (children.back() == 0) {
                ReplacementFile file(path.c_str());
                file.write("half", 4);
                (void)!write(ready[1], "", 1);
                for (;;) pause();
            }
            char byte;
            ASSERT_EQ(read(ready[0], &byte, 1), 1);
            close(ready[0]);
            close(ready[1]);
        }
        for (const pid_t child : children) kill(child, SIGKILL);
        for (const pid_t child : children) waitpid(child, nullptr, 0);
    }
};

std::string many_bytes() {
    std::string bytes;
    for (int i = 0; i < 300000; ++i) bytes += static_cast<char>(i * 37 >> 3);
    return bytes;
}

TEST_F(File, what_was_written_is_read) {
    const std::string bytes = many_bytes();
    {
        ReplacementFile file(path().c_str());
        for (std::size_t at = 0, n = 1; at < bytes.size(); at += n, n = n * 3 % 200001) {
            n = std::min(n, bytes.size() - at);
            file.write(bytes.data() + at, n);
        }
        file.commit();
    }
    EXPECT_EQ(contents(path()), bytes);
    InputFile file(path().c_str());
    std::string found(bytes.size() + 9, '\0');
    std::size_t size = 0;
    for (const std::size_t n : {1, 70000, 3, 200000}) size += file.read(found.data() + size, n);
    EXPECT_EQ(size, 270004u);
    size += file.read(found.data() + size, 40000);
    EXPECT_EQ(size, bytes.size());
    EXPECT_EQ(file.read(found.data() + size, 9), 0u);
    EXPECT_EQ(found.substr(0, size), bytes);
}

// Skipped bytes lie within the buffered bytes and beyond them.
TEST_F(File, bytes_are_left_out_or_read_out_of_turn) {
    const std::string bytes = many_bytes();
    write_file(path(), bytes);
    InputFile file(path().c_str());
    std::size_t place = 0;
    for (const std::size_t left_out : {0, 1, 10, 70000, 0, 100000}) {
        ASSERT_TRUE(file.skip(left_out));
        place += left_out;
        EXPECT_EQ(file.place(), place);
        std::string there(1000, '\0'), next(30, '\0');
        EXPECT_EQ(file.read_at(123456, there.data(), there.size()), there.size());
        EXPECT_EQ(there, bytes.substr(123456, there.size()));
        EXPECT_EQ(file.place(), place);
        EXPECT_EQ(file.read(next.data(), next.size()), next.size());
        EXPECT_EQ(next, bytes.substr(place, next.size()));
        place += next.size();
    }
    std::string rest(bytes.size(), '\0');
    EXPECT_EQ(file.read_at(bytes.size() - 5, rest.data(), 9), 5u);
    EXPECT_EQ(file.read_at(bytes.size() + 5, rest.data(), 9), 0u);
    for (const std::uint64_t too_many : {std::uint64_t{bytes.size() - place + 1}, std::uint64_t{1} << 63, UINT64_MAX})
        EXPECT_FALSE(file.skip(too_many));
    EXPECT_EQ(file.place(), place);
    EXPECT_EQ(file.read(rest.data(), 5), 5u);
    EXPECT_EQ(rest.substr(0, 5), bytes.substr(place, 5));
    EXPECT_TRUE(file.skip(bytes.size() - place - 5));
    EXPECT_EQ(file.read(rest.data(), 1), 0u);
    EXPECT_EQ(truncate(path().c_str(), 100), 0);
    EXPECT_FALSE(file.skip(1));
}

TEST_F(File, what_a_killed_saver_left_is_removed_by_the_next_save) {
    for (const std::string& name : {std::string("buffer.per"), std::string(250, 'x')}) {
        kill_savers(path(name), 3);
        EXPECT_EQ(names().size(), 3u);
        save(path(name), "whole");
        EXPECT_EQ(names(), std::set<std::string>{name});
        EXPECT_EQ(contents(path(name)), "whole");
        fs::remove(path(name));
    }
}

// The name of a temporary contains only the beginning of a long name.
TEST_F(File, what_a_killed_saver_of_another_long_name_left_is_left_alone) {
    kill_savers(path(std::string(249, 'x') + "y"), 3);
    save(path(std::string(250, 'x')), "whole");
    EXPECT_EQ(names().size(), 4u);
}

TEST_F(File, what_a_live_saver_writes_is_not_removed) {
    ReplacementFile first(path().c_str());
    first.write("first", 5);
    save(path(), "second");
    EXPECT_EQ(names().size(), 2u);
    // A forked child has the same files open. Its end does not release their locks.
    const pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, nullptr, 0);
    save(path(), "third");
    EXPECT_EQ(contents(path()), "third");
    first.commit();
    EXPECT_EQ(contents(path()), "first");
    EXPECT_EQ(names(), std::set<std::string>{"buffer.per"});
}

TEST_F(File, what_others_called_alike_is_left_alone) {
    const std::set<std::string> foreign = {"buffer.per.libper-.tmp",
                                           "buffer.per.libper-01.tmp",
                                           "buffer.per.libper-1.tmpx",
                                           "buffer.per.libper-x.tmp",
                                           "buffer.per.libper--1.tmp",
                                           "buffer.per.libper-12345678901.tmp",
                                           "buffer.per2.libper-1.tmp",
                                           "xbuffer.per.libper-1.tmp",
                                           "buffer.per.1.0.tmp",
                                           "buffer.per.tmp",
                                           "buffer"};
    for (const std::string& name : foreign) write_file(path(name), "mine");
    // A directory, a link and a FIFO that have the names of temporaries.
    fs::create_directory(path("buffer.per.libper-0.tmp"));
    fs::create_symlink("buffer", path("buffer.per.libper-1.tmp"));
    ASSERT_EQ(mkfifo(path("buffer.per.libper-2.tmp").c_str(), 0600), 0);
    save(path(), "whole");
    EXPECT_EQ(names().size(), foreign.size() + 4);
    for (const std::string& name : foreign) EXPECT_EQ(contents(path(name)), "mine") << name;
}

// Another saver may find and remove a temporary before its creator has locked it.
TEST_F(File, temporary_removed_before_it_is_locked_is_made_anew) {
    int n_removed = 0;
    system_fails = [&](const char* function, int) {
        if (std::strcmp(function, "flock") == 0 && n_removed == 0) n_removed += fs::remove(path() + ".libper-0.tmp");
        return 0;
    };
    save(path(), "whole");
    EXPECT_EQ(n_removed, 1);
    EXPECT_EQ(contents(path()), "whole");
    EXPECT_EQ(names(), std::set<std::string>{"buffer.per"});
}

// Any process that can read a temporary may lock it before its creator does, and keep the lock.
TEST_F(File, temporary_that_another_locked_first_is_left_to_them) {
    int locked = -1;
    system_fails = [&](const char* function, int) {
        if (std::strcmp(function, "flock") != 0 || locked >= 0) return 0;
        locked = ::open(path("buffer.per.libper-0.tmp").c_str(), O_RDONLY | O_CLOEXEC);
        syscall(SYS_flock, locked, LOCK_EX);
        return 0;
    };
    alarm(60);  // a wait for the lock would never end
    save(path(), "whole");
    alarm(0);
    EXPECT_EQ(contents(path()), "whole");
    EXPECT_EQ(names(), (std::set<std::string>{"buffer.per", "buffer.per.libper-0.tmp"}));
    ASSERT_EQ(close(locked), 0);
    save(path(), "next");
    EXPECT_EQ(names(), std::set<std::string>{"buffer.per"});
}

// Another saver may rename a temporary that is about to be locked, and create a new one with its name.
TEST_F(File, name_that_became_anothers_before_the_lock_is_not_removed) {
    write_file(path("buffer.per.libper-4.tmp"), "left behind");
    system_fails = [&](const char* function, int) {
        if (std::strcmp(function, "flock of another") != 0 || fs::exists(path("elsewhere"))) return 0;
        fs::rename(path("buffer.per.libper-4.tmp"), path("elsewhere"));
        write_file(path("buffer.per.libper-4.tmp"), "another");
        return 0;
    };
    save(path(), "whole");
    EXPECT_EQ(contents(path("buffer.per.libper-4.tmp")), "another");
}

TEST_F(File, savers_of_one_path_do_not_disturb_each_other) {
    constexpr int n_savers = 4;
    std::vector<std::thread> savers;
    for (int i = 0; i < n_savers; ++i)
        savers.emplace_back([&, i] {
            for (int k = 0; k < 25; ++k) EXPECT_NO_THROW(save(path(), std::string(100000, static_cast<char>('a' + i))));
        });
    for (std::thread& saver : savers) saver.join();
    const std::string bytes = contents(path());
    EXPECT_EQ(bytes, std::string(100000, bytes[0]));
    EXPECT_EQ(names(), std::set<std::string>{"buffer.per"});
}

TEST_F(File, link_stays_and_what_it_leads_to_is_replaced) {
    fs::create_directory(path("a"));
    write_file(path("a/real"), "before");
    fs::create_symlink("a/second", path("first"));
    fs::create_symlink("real", path("a/second"));
    save(path("first"), "after");
    EXPECT_EQ(contents(path("a/real")), "after");
    EXPECT_TRUE(fs::is_symlink(path("first")) && fs::is_symlink(path("a/second")));
    fs::remove(path("a/real"));
    save(path("first"), "anew");  // a link to nothing
    EXPECT_EQ(contents(path("a/real")), "anew");
    fs::create_symlink(path("a/real"), path("absolute"));
    save(path("absolute"), "last");
    EXPECT_EQ(contents(path("a/real")), "last");
    fs::create_symlink("loop", path("loop"));
    EXPECT_THROWS(save(path("loop"), "x"), PER_ERROR_IO, std::strerror(ELOOP));
}

TEST_F(File, mode_of_a_file_that_is_replaced_is_kept) {
    const mode_t mask = umask(0027);
    save(path(), "new");
    umask(mask);
    EXPECT_EQ(status_of(path()).st_mode & 07777, 0640u);
    for (const mode_t kept : {0600u, 0400u, 0664u, 0755u}) {
        ASSERT_EQ(chmod(path().c_str(), kept), 0);
        {
            ReplacementFile file(path().c_str());
            for (const std::string& name : names())
                EXPECT_TRUE(name == "buffer.per" || (status_of(path(name)).st_mode & 0077) == 0)
                    << "others can read it while it is written";
            file.commit();
        }
        EXPECT_EQ(status_of(path()).st_mode & 07777, kept);
    }
}

// Only root can change the owner of a file.
TEST_F(File, owner_and_group_of_a_file_that_is_replaced_are_kept) {
    constexpr uid_t user = 12345, group = 23456;
    save(path(), "mine");
    if (chown(path().c_str(), user, group) != 0) GTEST_SKIP() << "needs root";
    save(path(), "theirs");
    EXPECT_EQ(status_of(path()).st_uid, user);
    EXPECT_EQ(status_of(path()).st_gid, group);
}

// A saver outside the group of the file creates one with its own group. That group gets the rights of others, not those
// of the old group. The setuid bit is dropped, too.
TEST_F(File, rights_are_not_handed_on_with_a_group_or_an_owner_that_cannot_be_kept) {
    save(path(), "mine");
    if (chown(path().c_str(), 12345, 23456) != 0) GTEST_SKIP() << "needs root";
    for (const auto& [before, after] : {std::pair{0664u, 0644u}, {0670u, 0600u}, {04617u, 0677u}, {0604u, 0644u}}) {
        ASSERT_EQ(chown(path().c_str(), 12345, 23456), 0);
        ASSERT_EQ(chmod(path().c_str(), before), 0);
        system_fails = [](const char* function, int) { return std::strcmp(function, "fchown") == 0 ? EPERM : 0; };
        save(path(), "again");
        system_fails = nullptr;
        EXPECT_EQ(status_of(path()).st_mode & 07777, after) << std::oct << before;
        EXPECT_EQ(status_of(path()).st_uid, geteuid());
    }
}

// A program that is started meanwhile inherits neither the files nor their locks.
TEST_F(File, files_are_closed_where_another_program_starts) {
    kill_savers(path(), 1);
    flags_of_opened.clear();
    // A file that cannot be opened for writing is opened for reading, and locked.
    system_fails = [](const char* function, int) {
        return std::strcmp(function, "openat of another") == 0 ? EACCES : 0;
    };
    save(path(), "whole");
    EXPECT_EQ(load(path()), "whole");
    EXPECT_EQ(names(), std::set<std::string>{"buffer.per"});
    EXPECT_GE(flags_of_opened.size(), 6u);
    for (const int flags : flags_of_opened) EXPECT_TRUE(flags & O_CLOEXEC) << std::oct << flags;
}

TEST_F(File, names_as_long_as_the_file_system_takes_work) {
    const std::string letters = "\xc3\xa4";  // one letter of two bytes
    std::string of_two;
    while (of_two.size() < 250) of_two += letters;
    for (const std::string& name : {std::string(250, 'x'), std::string(255, 'y'), of_two}) {
        save(path(name), name);
        EXPECT_EQ(load(path(name)), name);
        ReplacementFile other(path(name).c_str());  // its temporary has a name of letters only
        for (const std::string& found : names()) EXPECT_LE(found.size(), 255u);
    }
    EXPECT_EQ(names().size(), 3u);
    EXPECT_THROWS(save(path(std::string(256, 'z')), "x"), PER_ERROR_IO, std::strerror(ENAMETOOLONG));
}

TEST_F(File, message_keeps_its_reason_and_its_one_line) {
    const std::string reason = std::strerror(ENOENT);
    std::string deep = folder_.string();
    while (deep.size() < 3000) deep += "/\xc3\xa4\xc3\xa4z";
    for (const std::string& bad : {deep, path("none/a\nb\r\x1b[1mc\x7f")}) {
        for (const Error& error : {error_of([&] { save(bad, "x"); }), error_of([&] { load(bad); })}) {
            const std::string message = error.what();
            EXPECT_EQ(error.status(), PER_ERROR_IO);
            EXPECT_TRUE(message.ends_with(": " + reason)) << message;
            EXPECT_LT(message.size(), 300u);
            for (const char c : message) EXPECT_TRUE(static_cast<unsigned char>(c) >= ' ' && c != 0x7f) << message;
        }
    }
    EXPECT_EQ(shown_path("a\nb"), "a?b");
    const std::string shown = shown_path(deep);
    EXPECT_EQ(shown.substr(0, 20), deep.substr(0, 20));
    EXPECT_TRUE(deep.ends_with(shown.substr(shown.find("...") + 3)));
    EXPECT_EQ(shown.find("...\x84"), std::string::npos);  // no half letters
    EXPECT_EQ(shown.find("\xc3..."), std::string::npos);
}

TEST_F(File, what_is_no_regular_file_is_refused_at_once) {
    alarm(60);
    ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
    // They are in the folder of the test, since a library that did not refuse them would replace them.
    sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
    ASSERT_LT(path("socket").size(), sizeof address.sun_path);
    std::strcpy(address.sun_path, path("socket").c_str());
    const Descriptor socket_in_folder([] { return socket(AF_UNIX, SOCK_STREAM, 0); });
    ASSERT_EQ(bind(socket_in_folder.number(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const std::pair<std::string, const char*> refused[] = {
        {path("fifo"), "it is a FIFO"}, {path("socket"), "it is a socket"}, {folder_.string(), "it is a directory"}};
    for (const std::pair<std::string, const char*>& each : refused) {
        EXPECT_THROWS(save(each.first, "x"), PER_ERROR_IO, each.second);
        EXPECT_THROWS(load(each.first), PER_ERROR_IO, each.second);
    }
    EXPECT_THROWS(load("/dev/null"), PER_ERROR_IO, "it is a device");
    EXPECT_THROWS(save("", "x"), PER_ERROR_IO, "");
    EXPECT_THROWS(save(path("none/"), "x"), PER_ERROR_IO, "");
    EXPECT_EQ(names(), (std::set<std::string>{"fifo", "socket"}));
    alarm(0);
}

TEST_F(File, calls_that_a_signal_interrupts_are_made_again) {
    std::set<std::string> interrupted;
    bool interrupts = true;
    system_fails = [&](const char* function, int) {
        interrupts = !interrupts;
        if (!interrupts && std::strcmp(function, "flock of another") != 0) {
            interrupted.insert(function);
            return EINTR;
        }
        return 0;
    };
    const std::string bytes(300000, 'b');
    save(path(), bytes);
    EXPECT_EQ(load(path()), bytes);
    system_fails = nullptr;
    for (const char* const function : {"read", "write", "fsync", "flock"}) EXPECT_TRUE(interrupted.contains(function));
}

TEST_F(File, errors_of_the_system_have_their_status_and_leave_what_was_there) {
    save(path(), "before");
    for (const char* const function : {"openat", "write", "fsync"}) {
        for (const int number : {ENOMEM, ENOSPC}) {
            system_fails = [&](const char* called, int) { return std::strcmp(called, function) == 0 ? number : 0; };
            const Error error = error_of([&] { save(path(), "after"); });
            system_fails = nullptr;
            EXPECT_EQ(error.status(), number == ENOMEM ? PER_ERROR_OUT_OF_MEMORY : PER_ERROR_IO) << function;
            EXPECT_TRUE(std::string(error.what()).ends_with(std::strerror(number))) << error.what();
            EXPECT_EQ(contents(path()), "before");
            EXPECT_EQ(names(), std::set<std::string>{"buffer.per"});
        }
    }
    system_fails = [&](const char* called, int) { return std::strcmp(called, "read") == 0 ? EIO : 0; };
    EXPECT_THROWS(load(path()), PER_ERROR_IO, "");
    system_fails = [&](const char* called, int) { return std::strcmp(called, "open") == 0 ? EMFILE : 0; };
    EXPECT_THROWS(load(path()), PER_ERROR_IO, std::strerror(EMFILE));
}

// Each 8 MiB are sent to the disk when they have been written, and errors are reported. Without sync_file_range() all
// writing would happen in the sync at the end.
TEST_F(File, disk_that_cannot_take_a_large_file_says_so_while_it_is_written) {
    const std::string large(std::size_t{20} << 20, 'x');
    int n_begun = 0;
    int error_number = 0;
    system_fails = [&](const char* function, int) {
        if (std::strcmp(function, "sync_file_range") != 0) return 0;
        ++n_begun;
        return error_number;
    };
    const auto save_in_pieces = [&] {
        ReplacementFile file(path().c_str());
        constexpr std::size_t piece = std::size_t{1} << 20;
        for (std::size_t at = 0; at < large.size(); at += piece) file.write(large.data() + at, piece);
        file.commit();
    };
    save(path(), "before");
    for (const int error : {EIO, ENOSPC, EDQUOT}) {
        error_number = error;
        EXPECT_EQ(error_of(save_in_pieces).status(), PER_ERROR_IO) << error;
        EXPECT_EQ(contents(path()), "before");
        EXPECT_EQ(names(), std::set<std::string>{"buffer.per"});
    }
    for (const int error : {0, ENOSYS, EPERM}) {
        n_begun = 0;
        error_number = error;
        EXPECT_NO_THROW(save_in_pieces());
        EXPECT_EQ(n_begun, 2);
        EXPECT_EQ(contents(path()), large);
    }
}

TEST_F(File, folder_that_cannot_be_synced_is_told) {
    int error_number = EIO;
    system_fails = [&](const char* function, int file) {
        struct stat found;
        if (std::strcmp(function, "fsync") != 0 || fstat(file, &found) != 0) return 0;
        return S_ISDIR(found.st_mode) ? error_number : 0;
    };
    EXPECT_THROWS(save(path(), "whole"), PER_ERROR_IO, "is written, but its folder cannot be synced");
    EXPECT_EQ(contents(path()), "whole");
    error_number = EINVAL;  // as on a file system that cannot sync folders
    EXPECT_NO_THROW(save(path(), "again"));
    EXPECT_EQ(names(), std::set<std::string>{"buffer.per"});
}

}  // namespace
}  // namespace per::test

// File descriptors of one process.
#pragma once

#include <concepts>
#include <utility>

namespace per {

// Owns a file descriptor, and closes it. A forked child does not keep it: a lock on the file (flock, F_OFD_SETLK) ends
// with the process that took it, whatever children that process leaves behind. In the child no descriptor is open.
class Descriptor {
 public:
    Descriptor() = default;
    // `open` is a call of the system that opens a file: it returns the descriptor, or -1 and sets errno. fork() waits
    // for it, so that no child gets a descriptor which nobody knows of yet.
    template <std::invocable Open>
    explicit Descriptor(const Open& open) {
        const NoFork no_fork;
        own(open());
    }
    Descriptor(Descriptor&& other) noexcept;
    Descriptor& operator=(Descriptor&& other) noexcept;
    ~Descriptor();

    bool is_open() const { return number_ >= 0; }
    // -1: it is not open.
    int number() const { return number_; }
    // Closes it by a function that frees other things along with it, such as closedir().
    template <std::invocable Close>
    void close_by(const Close& close) {
        const NoFork no_fork;
        disown();
        close();
    }

    // From here on forked children close the descriptors. The lock that this takes while a process forks comes after
    // those of the handlers of fork() that are registered later. Throws std::bad_alloc.
    static void watch_forks();

 private:
    // No thread forks as long as this lives.
    struct NoFork {
        NoFork();
        ~NoFork();
        NoFork(const NoFork&) = delete;
        NoFork& operator=(const NoFork&) = delete;
    };

    void own(int number) noexcept;
    int disown() noexcept;
    static void close_all() noexcept;

    int number_ = -1;
    Descriptor* next_ = nullptr;  // in the list of those that are open, as is the next
    Descriptor* previous_ = nullptr;
};

}  // namespace per

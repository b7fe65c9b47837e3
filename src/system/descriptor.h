// File descriptors that forked children do not keep.
#pragma once

#include <concepts>
#include <utility>

namespace per {

// Owns a file descriptor. A forked child closes it, so a lock on the file (flock, F_OFD_SETLK) ends with the process
// that took it, whatever children that process leaves behind. In the child no Descriptor is open.
class Descriptor {
 public:
    Descriptor() = default;
    // `open` is a system call that opens a file: it returns the descriptor, or -1 and sets errno. fork() waits for it,
    // so no child inherits a descriptor that is not yet registered.
    template <std::invocable Open>
    explicit Descriptor(const Open& open) {
        const NoFork no_fork;
        own(open());
    }
    Descriptor(Descriptor&& other) noexcept;
    Descriptor& operator=(Descriptor&& other) noexcept;
    ~Descriptor();

    bool is_open() const { return number_ >= 0; }
    // -1 if it is not open.
    int number() const { return number_; }
    // Closes it with a function that also frees other things, such as closedir().
    template <std::invocable Close>
    void close_by(const Close& close) {
        const NoFork no_fork;
        disown();
        close();
    }

    // Registers the handlers of fork(). A fork takes their lock after the locks of handlers that are registered later.
    // Throws std::bad_alloc.
    static void watch_forks();

 private:
    // No thread forks while this object lives.
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
    Descriptor* next_ = nullptr;  // in the list of open descriptors
    Descriptor* previous_ = nullptr;
};

}  // namespace per

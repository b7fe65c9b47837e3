// Tells a process from those that it was forked from.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace per {

// The process that created an object.
class ProcessMark {
 public:
    // Throws std::bad_alloc.
    ProcessMark() : number_((watch_forks(), current())) {}

    // False in a forked child.
    bool is_here() const noexcept { return number_ == current(); }
    // Makes this process the creator.
    void move_here() noexcept { number_ = current(); }
    // Throws Error with INVALID_ARGUMENT and this message in a forked child.
    void check(const char* message) const;

    uint64_t number() const noexcept { return number_; }
    // The number of this process. It differs from those of all processes that this one was forked from.
    static uint64_t current() noexcept { return process; }
    // A number that no other thread ever has, not even in a forked child.
    static uint64_t this_thread() noexcept;
    // True if it is the number of the thread that called the latest fork(), the only one that a child has inherited.
    static bool is_inherited(uint64_t thread) noexcept { return thread == inherited; }
    // Forks are counted from here on. Throws std::bad_alloc.
    static void watch_forks();

 private:
    static inline std::atomic<uint64_t> process = 1;
    static inline std::atomic<uint64_t> inherited = 0;

    uint64_t number_;
};

// Owns an object that a forked child neither uses nor frees: a mutex or condition on which threads of the parent wait,
// or a file that the parent writes.
template <class Object>
class OfOneProcess {
 public:
    OfOneProcess() : object_(std::make_unique<Object>()) {}
    explicit OfOneProcess(std::unique_ptr<Object> object) : object_(std::move(object)) {}
    ~OfOneProcess() {
        if (!process_.is_here()) static_cast<void>(object_.release());
    }
    OfOneProcess(const OfOneProcess&) = delete;
    OfOneProcess& operator=(const OfOneProcess&) = delete;

    const ProcessMark& process() const noexcept { return process_; }
    Object* get() const noexcept { return object_.get(); }
    Object& operator*() const noexcept { return *object_; }
    Object* operator->() const noexcept { return object_.get(); }
    void reset(std::unique_ptr<Object> object = nullptr) noexcept { object_ = std::move(object); }

 private:
    ProcessMark process_;
    std::unique_ptr<Object> object_;
};

}  // namespace per

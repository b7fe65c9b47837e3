// Objects that a forked child has to put in order.
#pragma once

#include <pthread.h>

#include <new>

namespace per {

// Registers an object with the fork handlers. A class whose objects must act at a fork() has a ForkListEntry as a
// member. It also has before_fork(), called for all objects in the parent before the fork; after_fork(), called for
// them in the parent after it; and in_child(), called for them in the child. No object is created or destroyed from
// before_fork() until the other two have run.
template <class Object>
class ForkListEntry {
 public:
    // Throws std::bad_alloc.
    explicit ForkListEntry(Object& object) : object_(object) {
        pthread_once(&once, [] { error = pthread_atfork(&before_fork, &after_fork, &in_child); });
        if (error != 0) throw std::bad_alloc();  // the only error of pthread_atfork()
        pthread_mutex_lock(&mutex);
        next_ = first;
        if (first != nullptr) first->previous_ = this;
        first = this;
        pthread_mutex_unlock(&mutex);
    }
    ~ForkListEntry() {
        pthread_mutex_lock(&mutex);
        (previous_ == nullptr ? first : previous_->next_) = next_;
        if (next_ != nullptr) next_->previous_ = previous_;
        pthread_mutex_unlock(&mutex);
    }
    ForkListEntry(const ForkListEntry&) = delete;
    ForkListEntry& operator=(const ForkListEntry&) = delete;

 private:
    static void before_fork() noexcept {
        pthread_mutex_lock(&mutex);
        for (ForkListEntry* entry = first; entry != nullptr; entry = entry->next_) entry->object_.before_fork();
    }
    static void after_fork() noexcept {
        for (ForkListEntry* entry = first; entry != nullptr; entry = entry->next_) entry->object_.after_fork();
        pthread_mutex_unlock(&mutex);
    }
    static void in_child() noexcept {
        for (ForkListEntry* entry = first; entry != nullptr; entry = entry->next_) entry->object_.in_child();
        pthread_mutex_init(&mutex, nullptr);
    }

    // A thread takes this mutex before what before_fork() locks, never after.
    static inline pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static inline pthread_once_t once = PTHREAD_ONCE_INIT;
    static inline int error = 0;
    static inline ForkListEntry* first = nullptr;

    Object& object_;
    ForkListEntry* next_ = nullptr;
    ForkListEntry* previous_ = nullptr;
};

}  // namespace per

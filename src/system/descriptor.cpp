#include "system/descriptor.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <new>

namespace per {
namespace {

// All open descriptors, for the handlers of fork().
pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER;
Descriptor* registry = nullptr;
pthread_once_t fork_handlers_once = PTHREAD_ONCE_INIT;
int fork_handlers_error = 0;

}  // namespace

void Descriptor::watch_forks() {
    pthread_once(&fork_handlers_once, [] {
        fork_handlers_error = pthread_atfork([] { pthread_mutex_lock(&registry_mutex); },
                                             [] { pthread_mutex_unlock(&registry_mutex); }, &Descriptor::close_all);
    });
    if (fork_handlers_error != 0) throw std::bad_alloc();  // the only error of pthread_atfork()
}

Descriptor::NoFork::NoFork() {
    watch_forks();
    pthread_mutex_lock(&registry_mutex);
}

// Keeps the errno of the call that it protected.
Descriptor::NoFork::~NoFork() {
    const int error = errno;
    pthread_mutex_unlock(&registry_mutex);
    errno = error;
}

void Descriptor::own(int number) noexcept {
    number_ = number;
    if (number < 0) return;
    previous_ = nullptr;
    next_ = registry;
    if (registry != nullptr) registry->previous_ = this;
    registry = this;
}

int Descriptor::disown() noexcept {
    if (number_ < 0) return -1;
    (previous_ == nullptr ? registry : previous_->next_) = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
    return std::exchange(number_, -1);
}

Descriptor::Descriptor(Descriptor&& other) noexcept {
    if (!other.is_open()) return;
    const NoFork no_fork;
    own(other.disown());
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
    if (this == &other || (!is_open() && !other.is_open())) return *this;
    const NoFork no_fork;
    const int former = disown();
    own(other.disown());
    if (former >= 0) close(former);
    return *this;
}

Descriptor::~Descriptor() {
    if (!is_open()) return;
    const NoFork no_fork;
    close(disown());
}

// Runs in the child. Empties the list, whose entries may lie on stacks of threads that exist only in the parent.
void Descriptor::close_all() noexcept {
    while (registry != nullptr) close(registry->disown());
    pthread_mutex_init(&registry_mutex, nullptr);
}

}  // namespace per

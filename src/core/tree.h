// The part of per_tree that is the same on every device: the checks and the lock.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>

#include "backend/backend.h"
#include "per.h"
#include "threads/handle_lock.h"

namespace per {

// A backend, its lock, and the checks. Callers must have checked pointers, and that `count` is not negative.
class Tree {
 public:
    explicit Tree(const per_tree_options& options);

    int64_t capacity() const { return capacity_; }
    int32_t device() const { return device_; }

    void update(int64_t count, const int64_t* indices, const float* priorities, void* stream);
    void sample(const TreeSample& sample, void* stream);
    void priorities(int64_t count, const int64_t* indices, float* priorities_out, void* stream);

    // Runs call(backend) while the tree is locked. For calls that need no further checks.
    template <class Call>
    void locked(const Call& call) {
        const std::unique_lock guard(lock_);
        call(*backend_);
    }
    // The same for a call that only reads, concurrently with others of its kind if the device allows it.
    template <class Call>
    void read(const Call& call) {
        if (!backend_->reads_concurrently()) return locked(call);
        const std::shared_lock guard(lock_);
        call(*backend_);
    }

 private:
    int64_t capacity_;
    int32_t device_;
    std::unique_ptr<TreeBackend> backend_;
    HandleLock lock_;
};

}  // namespace per

#include "core/tree.h"

#include <cinttypes>

#include "backend/create.h"
#include "base/arguments.h"
#include "base/error.h"
#include "core/checks.h"
#include "rules/limits.h"

namespace per {
namespace {

std::unique_ptr<TreeBackend> create_backend(const per_tree_options& options) {
    check_range("capacity", options.capacity, 1, max_capacity);
    check_device(options.device, options.device_index);
    if (options.device == PER_CPU) return cpu::create_tree_backend(options);
    return cuda::create_tree_backend(options);
}

}  // namespace

Tree::Tree(const per_tree_options& options)
    : capacity_(options.capacity), device_(options.device), backend_(create_backend(options)) {}

template <class Call>
void Tree::read(const Call& call) {
    if (backend_->reads_concurrently()) {
        const std::shared_lock guard(lock_);
        call();
    } else {
        const std::unique_lock guard(lock_);
        call();
    }
}

void Tree::update(int64_t count, const int64_t* indices, const float* priorities, void* stream) {
    check_count_set(count, device_);
    const std::unique_lock guard(lock_);
    backend_->update(count, indices, priorities, stream);
}

void Tree::sample(const TreeSample& sample, void* stream) {
    check_tree_sample(sample);
    if (sample.scheme != PER_WITHOUT_REPLACEMENT) {
        read([&] { backend_->sample(sample, stream); });
    } else {
        const std::unique_lock guard(lock_);
        backend_->sample(sample, stream);
    }
}

void Tree::find(int64_t count, const double* prefix_sums, int64_t* indices_out, void* stream) {
    read([&] { backend_->find(count, prefix_sums, indices_out, stream); });
}

void Tree::find_mass(int64_t count, const uint64_t* units, int64_t* indices_out, void* stream) {
    read([&] { backend_->find_mass(count, units, indices_out, stream); });
}

void Tree::priorities(int64_t count, const int64_t* indices, float* priorities_out, void* stream) {
    if (indices == nullptr && count != capacity_)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "count is %" PRId64 ": must be the capacity, %" PRId64 ", as indices is NULL", count, capacity_);
    if (count == 0) return;
    read([&] { backend_->priorities(count, indices, priorities_out, stream); });
}

TreeMass Tree::mass() {
    TreeMass mass;
    read([&] { mass = backend_->mass(); });
    return mass;
}

void Tree::reset(void* stream) {
    const std::unique_lock guard(lock_);
    backend_->reset(stream);
}

void Tree::synchronize(void* stream) {
    const std::unique_lock guard(lock_);
    backend_->synchronize(stream);
}

}  // namespace per

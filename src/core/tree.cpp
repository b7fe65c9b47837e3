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

void Tree::update(int64_t count, const int64_t* indices, const float* priorities, void* stream) {
    check_count_set(count, device_);
    const std::unique_lock guard(lock_);
    backend_->update(count, indices, priorities, stream);
}

void Tree::sample(const TreeSample& sample, void* stream) {
    check_tree_sample(sample);
    const auto draw = [&](TreeBackend& backend) { backend.sample(sample, stream); };
    sample.scheme == PER_WITHOUT_REPLACEMENT ? locked(draw) : read(draw);
}

void Tree::priorities(int64_t count, const int64_t* indices, float* priorities_out, void* stream) {
    if (indices == nullptr && count != capacity_)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "count is %" PRId64 ": must be the capacity, %" PRId64 ", as indices is NULL", count, capacity_);
    if (count == 0) return;
    read([&](TreeBackend& backend) { backend.priorities(count, indices, priorities_out, stream); });
}

}  // namespace per

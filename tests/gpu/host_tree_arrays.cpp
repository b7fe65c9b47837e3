#include <set>

#include "host_arrays.h"

using namespace host_arrays;

namespace {

std::mutex mutex;

std::set<const per_tree*>& trees_on_cuda() {
    static std::set<const per_tree*> trees;
    return trees;
}

bool is_on_cuda(const per_tree* tree) {
    const std::lock_guard<std::mutex> guard(mutex);
    return trees_on_cuda().count(tree) != 0;
}

void wait(per_tree* tree) {
    uint64_t mass;
    require(per_tree_mass(tree, &mass, nullptr) == PER_OK, "per_tree_mass");
}

}  // namespace

extern "C" {

per_status per_tree_create(const per_tree_options* options, per_tree** tree_out) {
    const per_status status = IN_LIBRARY(per_tree_create)(options, tree_out);
    const std::lock_guard<std::mutex> guard(mutex);
    if (status == PER_OK && options->device == PER_CUDA) trees_on_cuda().insert(*tree_out);
    return status;
}

void per_tree_free(per_tree* tree) {
    {
        const std::lock_guard<std::mutex> guard(mutex);
        trees_on_cuda().erase(tree);
    }
    IN_LIBRARY(per_tree_free)(tree);
}

per_status per_update(per_tree* tree, int64_t count, const int64_t* indices, const float* priorities, void* stream) {
    auto* const update = IN_LIBRARY(per_update);
    if (!is_on_cuda(tree)) return update(tree, count, indices, priorities, stream);
    Staged staged;
    const int64_t* const on_device = staged.array(indices, count);
    const per_status status = update(tree, count, on_device, staged.array(priorities, count), stream);
    if (status == PER_OK) wait(tree);
    return status;
}

per_status per_sample(per_tree* tree, int64_t batch_size, int32_t scheme, float beta, int64_t* indices_out,
                      float* priorities_out, float* weights_out, void* stream) {
    auto* const sample = IN_LIBRARY(per_sample);
    if (!is_on_cuda(tree))
        return sample(tree, batch_size, scheme, beta, indices_out, priorities_out, weights_out, stream);
    Staged staged;
    int64_t* const indices = staged.array(indices_out, batch_size);
    float* const priorities = staged.array(priorities_out, batch_size);
    float* const weights = staged.array(weights_out, batch_size);
    const per_status status = sample(tree, batch_size, scheme, beta, indices, priorities, weights, stream);
    if (status != PER_OK) return status;
    wait(tree);
    staged.copy_back(indices_out);
    staged.copy_back(priorities_out);
    staged.copy_back(weights_out);
    return status;
}

per_status per_tree_find(per_tree* tree, int64_t count, const double* prefix_sums, int64_t* indices_out, void* stream) {
    auto* const find = IN_LIBRARY(per_tree_find);
    if (!is_on_cuda(tree)) return find(tree, count, prefix_sums, indices_out, stream);
    Staged staged;
    const double* const sums = staged.array(prefix_sums, count);
    const per_status status = find(tree, count, sums, staged.array(indices_out, count), stream);
    if (status != PER_OK) return status;
    wait(tree);
    staged.copy_back(indices_out);
    return status;
}

per_status per_tree_find_mass(per_tree* tree, int64_t count, const uint64_t* units, int64_t* indices_out,
                              void* stream) {
    auto* const find = IN_LIBRARY(per_tree_find_mass);
    if (!is_on_cuda(tree)) return find(tree, count, units, indices_out, stream);
    Staged staged;
    const uint64_t* const on_device = staged.array(units, count);
    const per_status status = find(tree, count, on_device, staged.array(indices_out, count), stream);
    if (status != PER_OK) return status;
    wait(tree);
    staged.copy_back(indices_out);
    return status;
}

per_status per_tree_priorities(per_tree* tree, int64_t count, const int64_t* indices, float* priorities_out,
                               void* stream) {
    auto* const read = IN_LIBRARY(per_tree_priorities);
    if (!is_on_cuda(tree)) return read(tree, count, indices, priorities_out, stream);
    Staged staged;
    const int64_t* const on_device = staged.array(indices, count);
    const per_status status = read(tree, count, on_device, staged.array(priorities_out, count), stream);
    if (status != PER_OK) return status;
    wait(tree);
    staged.copy_back(priorities_out);
    return status;
}

}  // extern "C"

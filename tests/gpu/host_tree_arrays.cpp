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
    return with_staged(tree, is_on_cuda(tree), [&](Staged& staged) {
        return IN_LIBRARY(per_update)(tree, count, staged.array(indices, count), staged.array(priorities, count),
                                      stream);
    });
}

per_status per_sample(per_tree* tree, int64_t batch_size, int32_t scheme, float beta, int64_t* indices_out,
                      float* priorities_out, float* weights_out, void* stream) {
    return with_staged(tree, is_on_cuda(tree), [&](Staged& staged) {
        return IN_LIBRARY(per_sample)(tree, batch_size, scheme, beta, staged.array(indices_out, batch_size),
                                      staged.array(priorities_out, batch_size), staged.array(weights_out, batch_size),
                                      stream);
    });
}

per_status per_tree_find(per_tree* tree, int64_t count, const double* prefix_sums, int64_t* indices_out, void* stream) {
    return with_staged(tree, is_on_cuda(tree), [&](Staged& staged) {
        return IN_LIBRARY(per_tree_find)(tree, count, staged.array(prefix_sums, count),
                                         staged.array(indices_out, count), stream);
    });
}

per_status per_tree_find_mass(per_tree* tree, int64_t count, const uint64_t* units, int64_t* indices_out,
                              void* stream) {
    return with_staged(tree, is_on_cuda(tree), [&](Staged& staged) {
        return IN_LIBRARY(per_tree_find_mass)(tree, count, staged.array(units, count), staged.array(indices_out, count),
                                              stream);
    });
}

per_status per_tree_get_priorities(per_tree* tree, int64_t count, const int64_t* indices, float* priorities_out,
                                   void* stream) {
    return with_staged(tree, is_on_cuda(tree), [&](Staged& staged) {
        return IN_LIBRARY(per_tree_get_priorities)(tree, count, staged.array(indices, count),
                                                   staged.array(priorities_out, count), stream);
    });
}

}  // extern "C"

// The functions of per.h that are about the library and the tree: they check their arguments, call, and turn exceptions
// into a status.
#include <cinttypes>
#include <cmath>

#include "api/struct_size.h"
#include "core/tree.h"
#include "per.h"
#include "rows/arguments.h"
#include "rows/error.h"
#include "rows/guarded.h"
#include "rules/mass.h"

struct per_tree {
    per::Tree tree;
};

namespace per {
namespace {

constexpr int64_t largest_capacity = int64_t{1} << 40;
constexpr int64_t largest_batch = int64_t{1} << 24;

constexpr per_tree_options default_tree_options = {sizeof(per_tree_options), 0, 0, PER_CPU, 0};

Tree& tree_of(per_tree* tree) {
    require_pointer("tree", tree);
    return tree->tree;
}

// The tree of a call that queues work on a stream.
Tree& tree_of(per_tree* tree, void* stream) {
    Tree& target = tree_of(tree);
    check_stream(stream, "handle", target.device());
    return target;
}

void check_tree_options(const per_tree_options& options) {
    check_range("capacity", options.capacity, 1, largest_capacity);
    if (options.device != PER_CPU && options.device != PER_CUDA)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "device is %" PRId32 ": allowed are PER_CPU (0) and PER_CUDA (1)",
                    options.device);
    if (options.device_index < 0 || (options.device == PER_CPU && options.device_index != 0))
        throw Error(PER_ERROR_INVALID_ARGUMENT, "device_index is %" PRId32 ": must be %s", options.device_index,
                    options.device == PER_CPU ? "0 for PER_CPU" : ">= 0");
}

void check_sample(const TreeSample& sample) {
    check_range("batch_size", sample.batch_size, 1, largest_batch);
    if (sample.scheme < PER_STRATIFIED || sample.scheme > PER_WITHOUT_REPLACEMENT)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "scheme is %" PRId32 ": allowed are the values of per_scheme, 0 .. 3",
                    sample.scheme);
    if (!(sample.beta >= 0.0 && std::isfinite(sample.beta)))
        throw Error(PER_ERROR_INVALID_ARGUMENT, "beta is %g: must be finite and >= 0", sample.beta);
    require_array("indices_out", sample.indices_out);
    check_aligned("priorities_out", sample.priorities_out);
    check_aligned("weights_out", sample.weights_out);
}

}  // namespace
}  // namespace per

using namespace per;

int32_t per_abi_version(void) {
    return PER_ABI_VERSION;
}

const char* per_version(void) {
    return PER_LIBRARY_VERSION;
}

const char* per_status_name(int32_t status) {
    return status_name(status);
}

const char* per_last_error(void) {
    return last_error();
}

per_status per_tree_options_init(per_tree_options* options, uint64_t struct_size) {
    return guarded([&] { initialize_struct("options", options, struct_size, default_tree_options); });
}

per_status per_tree_create(const per_tree_options* options, per_tree** tree_out) {
    return guarded([&] {
        require_pointer("tree_out", tree_out);
        *tree_out = nullptr;
        const per_tree_options known = read_struct("options", options);
        check_tree_options(known);
        *tree_out = new per_tree{Tree(known)};
    });
}

void per_tree_free(per_tree* tree) {
    delete tree;
}

per_status per_update(per_tree* tree, int64_t count, const int64_t* indices, const float* priorities, void* stream) {
    return guarded([&] {
        Tree& target = tree_of(tree, stream);
        if (!has_entries(count, "indices", indices, "priorities", priorities)) return;
        target.update(count, indices, priorities, stream);
    });
}

per_status per_sample(per_tree* tree, int64_t batch_size, int32_t scheme, float beta, int64_t* indices_out,
                      float* priorities_out, float* weights_out, void* stream) {
    return guarded([&] {
        Tree& target = tree_of(tree, stream);
        const TreeSample sample = {batch_size, scheme, beta, indices_out, priorities_out, weights_out};
        check_sample(sample);
        target.sample(sample, stream);
    });
}

per_status per_tree_find(per_tree* tree, int64_t count, const double* prefix_sums, int64_t* indices_out, void* stream) {
    return guarded([&] {
        Tree& target = tree_of(tree, stream);
        if (!has_entries(count, "prefix_sums", prefix_sums, "indices_out", indices_out)) return;
        target.find(count, prefix_sums, indices_out, stream);
    });
}

per_status per_tree_find_mass(per_tree* tree, int64_t count, const uint64_t* units, int64_t* indices_out,
                              void* stream) {
    return guarded([&] {
        Tree& target = tree_of(tree, stream);
        if (!has_entries(count, "units", units, "indices_out", indices_out)) return;
        target.find_mass(count, units, indices_out, stream);
    });
}

per_status per_tree_priorities(per_tree* tree, int64_t count, const int64_t* indices, float* priorities_out,
                               void* stream) {
    return guarded([&] {
        Tree& target = tree_of(tree, stream);
        check_entries("count", count, 0);
        if (indices == nullptr && count != target.capacity())
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "count is %" PRId64 ": must be the capacity, %" PRId64 ", as indices is NULL", count,
                        target.capacity());
        if (count == 0) return;
        check_aligned("indices", indices);
        require_array("priorities_out", priorities_out);
        target.priorities(count, indices, priorities_out, stream);
    });
}

per_status per_tree_capacity(const per_tree* tree, int64_t* capacity_out) {
    return guarded([&] {
        require_pointer("tree", tree);
        require_pointer("capacity_out", capacity_out);
        *capacity_out = tree->tree.capacity();
    });
}

per_status per_tree_total(per_tree* tree, double* total_out) {
    return guarded([&] {
        Tree& target = tree_of(tree);
        require_pointer("total_out", total_out);
        const TreeMass mass = target.mass();
        *total_out = static_cast<double>(mass.total) / power_of_two(mass.scale);
    });
}

per_status per_tree_mass(per_tree* tree, uint64_t* total_mass_out, int32_t* scale_out) {
    return guarded([&] {
        const TreeMass mass = tree_of(tree).mass();
        if (total_mass_out != nullptr) *total_mass_out = mass.total;
        if (scale_out != nullptr) *scale_out = mass.scale;
    });
}

per_status per_tree_reset(per_tree* tree, void* stream) {
    return guarded([&] { tree_of(tree, stream).reset(stream); });
}

per_status per_tree_synchronize(per_tree* tree, void* stream) {
    return guarded([&] { tree_of(tree, stream).synchronize(stream); });
}

// The functions of per.h that are about the tree. They check pointers and structs; Tree does the rest.
#include "core/tree.h"

#include "api/handle.h"
#include "api/struct_size.h"
#include "rules/mass.h"

struct per_tree {
    static constexpr const char* argument = "tree";
    static constexpr const char* noun = "handle";
    per::Tree object;
};

using namespace per;

namespace {

constexpr per_tree_options default_tree_options = {sizeof(per_tree_options), 0, 0, PER_CPU, 0};

}  // namespace

per_status per_tree_options_init(per_tree_options* options, uint64_t struct_size) {
    return guarded([&] { initialize_struct("options", options, struct_size, default_tree_options); });
}

per_status per_tree_create(const per_tree_options* options, per_tree** tree_out) {
    return create("tree_out", tree_out, [&] { return Tree(read_struct("options", options)); });
}

void per_tree_free(per_tree* tree) {
    delete tree;
}

per_status per_update(per_tree* tree, int64_t count, const int64_t* indices, const float* priorities, void* stream) {
    return call_on(tree, stream, [&](Tree& target) {
        require_arrays(count, "indices", indices, "priorities", priorities);
        if (count == 0) return;
        target.update(count, indices, priorities, stream);
    });
}

per_status per_sample(per_tree* tree, int64_t batch_size, int32_t scheme, float beta, int64_t* indices_out,
                      float* priorities_out, float* weights_out, void* stream) {
    return call_on(tree, stream, [&](Tree& target) {
        require_array("indices_out", indices_out);
        check_aligned("priorities_out", priorities_out);
        check_aligned("weights_out", weights_out);
        target.sample({batch_size, scheme, beta, indices_out, priorities_out, weights_out}, stream);
    });
}

per_status per_tree_find(per_tree* tree, int64_t count, const double* prefix_sums, int64_t* indices_out, void* stream) {
    return call_on(tree, stream, [&](Tree& target) {
        require_arrays(count, "prefix_sums", prefix_sums, "indices_out", indices_out);
        if (count == 0) return;
        target.read([&](TreeBackend& backend) { backend.find(count, prefix_sums, indices_out, stream); });
    });
}

per_status per_tree_find_mass(per_tree* tree, int64_t count, const uint64_t* units, int64_t* indices_out,
                              void* stream) {
    return call_on(tree, stream, [&](Tree& target) {
        require_arrays(count, "units", units, "indices_out", indices_out);
        if (count == 0) return;
        target.read([&](TreeBackend& backend) { backend.find_mass(count, units, indices_out, stream); });
    });
}

per_status per_tree_get_priorities(per_tree* tree, int64_t count, const int64_t* indices, float* priorities_out,
                                   void* stream) {
    return call_on(tree, stream, [&](Tree& target) {
        check_entries("count", count, 0);
        check_aligned("indices", indices);
        if (count > 0) require_array("priorities_out", priorities_out);
        target.priorities(count, indices, priorities_out, stream);
    });
}

per_status per_tree_describe(per_tree* tree, per_tree_description* description_out, uint64_t struct_size) {
    return call_on(tree, [&](Tree& target) {
        fill_struct("description_out", description_out, struct_size, [&] {
            TreeMass mass;
            target.read([&](TreeBackend& backend) { mass = backend.mass(); });
            const double total = static_cast<double>(mass.total) / power_of_two(mass.scale);
            return per_tree_description{
                sizeof(per_tree_description), target.capacity(), mass.total, total, mass.scale, 0};
        });
    });
}

per_status per_tree_reset(per_tree* tree, void* stream) {
    return call_on(tree, stream,
                   [&](Tree& target) { target.locked([&](TreeBackend& backend) { backend.reset(stream); }); });
}

per_status per_tree_synchronize(per_tree* tree, void* stream) {
    return call_on(tree, stream,
                   [&](Tree& target) { target.locked([&](TreeBackend& backend) { backend.synchronize(stream); }); });
}

#include "libper_tree.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "libper_call.h"

namespace bench {

LibperTree::LibperTree(int64_t capacity) : capacity_(capacity) {
    per_tree_options options;
    expect_ok(per_tree_options_init(&options, sizeof options));
    options.capacity = capacity;
    options.seed = 4;
    per_tree* tree = nullptr;
    expect_ok(per_tree_create(&options, &tree));
    tree_.reset(tree);
}

void LibperTree::fill(const float* priorities) {
    constexpr int64_t run = 1 << 16;
    std::vector<int64_t> indices(run);
    for (int64_t first = 0; first < capacity_; first += run) {
        std::iota(indices.begin(), indices.end(), first);
        update(std::min(run, capacity_ - first), indices.data(), priorities + first);
    }
}

void LibperTree::update(int64_t count, const int64_t* indices, const float* priorities) {
    expect_ok(per_update(tree_.get(), count, indices, priorities, nullptr));
}

void LibperTree::sample(Draws& draws, per_scheme scheme) {
    expect_ok(per_sample(tree_.get(), draws.batch(), scheme, 0, draws.indices.data(), draws.priorities.data(), nullptr,
                         nullptr));
}

void LibperTree::sample_weighted(Draws& draws) {
    expect_ok(per_sample(tree_.get(), draws.batch(), PER_STRATIFIED, weights_beta, draws.indices.data(),
                         draws.priorities.data(), draws.weights.data(), nullptr));
}

void LibperTree::read(float* priorities_out) const {
    expect_ok(per_tree_get_priorities(tree_.get(), capacity_, nullptr, priorities_out, nullptr));
}

void LibperTree::mass(uint64_t& total, int32_t& scale) const {
    per_tree_description description;
    expect_ok(per_tree_describe(tree_.get(), &description, sizeof description));
    total = description.total_mass;
    scale = description.scale;
}

}  // namespace bench

#include "tree_cases.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "draws.h"
#include "tree_check.h"

namespace bench {
namespace {

constexpr int64_t pool_size = 4096;

/* Above these capacities the plain structures are impractically slow. */
constexpr int64_t largest_linear = 1'000'000;
constexpr int64_t largest_resummed = 10'000'000;

template <class Tree>
std::vector<float> leaves_of(const Tree& tree, int64_t capacity) {
    std::vector<float> priorities(static_cast<size_t>(capacity));
    tree.read(priorities.data());
    return priorities;
}

template <class Tree>
void sample_weighted(Tree& tree, Draws& draws) {
    tree.sample_stratified(draws);
    importance_weights(draws);
}

void sample_weighted(LibperTree& tree, Draws& draws) {
    tree.sample_weighted(draws);
}

template <class Tree>
Variant sample_variant(const char* name, Tree& tree, TreeStage& stage, int64_t batch) {
    auto draws = std::make_shared<Draws>(batch);
    const auto run = [=, &tree] { tree.sample_stratified(*draws); };
    const auto verify = [=, &tree, &stage] {
        run();
        const std::vector<float> leaves = leaves_of(tree, stage.capacity());
        const Masses masses = masses_of(tree);
        check_total(masses, leaves);
        check_drawn(leaves, *draws);
        check_strata(masses, leaves, *draws);
    };
    return Variant{name, [] {}, run, verify};
}

template <class Tree>
Variant independent_variant(const char* name, Tree& tree, TreeStage& stage, int64_t batch) {
    auto draws = std::make_shared<Draws>(batch);
    const auto run = [=, &tree] { tree.sample_independent(*draws); };
    const auto verify = [=, &tree, &stage] {
        run();
        check_drawn(leaves_of(tree, stage.capacity()), *draws);
    };
    return Variant{name, [] {}, run, verify};
}

template <class Tree>
Variant without_replacement_variant(const char* name, Tree& tree, TreeStage& stage, int64_t batch) {
    auto draws = std::make_shared<Draws>(batch);
    const auto run = [=, &tree] { tree.sample_without_replacement(*draws); };
    const auto verify = [=, &tree, &stage] {
        const std::vector<float> before = leaves_of(tree, stage.capacity());
        run();
        check_drawn(before, *draws);
        check_distinct(*draws);
        check_update(before, {}, {}, leaves_of(tree, stage.capacity()));
    };
    return Variant{name, [] {}, run, verify};
}

template <class Tree>
Variant update_variant(const char* name, Tree& tree, TreeStage& stage, int64_t batch) {
    auto updates = std::make_shared<Draws>(batch);
    const auto prepare = [=, &stage] {
        stage.random_indices(updates->indices);
        stage.random_priorities(updates->priorities);
    };
    const auto run = [=, &tree] { tree.update(batch, updates->indices.data(), updates->priorities.data()); };
    const auto verify = [=, &tree, &stage] {
        const std::vector<float> before = leaves_of(tree, stage.capacity());
        prepare();
        run();
        const std::vector<float> after = leaves_of(tree, stage.capacity());
        check_update(before, updates->indices, updates->priorities, after);
        check_total(masses_of(tree), after);
    };
    return Variant{name, prepare, run, verify};
}

/* A learner's cycle: draws a batch with weights, then sets the priorities of the drawn leaves. */
template <class Tree>
Variant cycle_variant(const char* name, Tree& tree, TreeStage& stage, int64_t batch) {
    auto draws = std::make_shared<Draws>(batch);
    auto priorities = std::make_shared<std::vector<float>>(static_cast<size_t>(batch));
    const auto prepare = [=, &stage] { stage.random_priorities(*priorities); };
    const auto run = [=, &tree] {
        sample_weighted(tree, *draws);
        tree.update(batch, draws->indices.data(), priorities->data());
    };
    const auto verify = [=, &tree, &stage] {
        const std::vector<float> before = leaves_of(tree, stage.capacity());
        const Masses masses = masses_of(tree);
        prepare();
        run();
        check_drawn(before, *draws);
        check_strata(masses, before, *draws);
        check_weights(*draws);
        const std::vector<float> after = leaves_of(tree, stage.capacity());
        check_update(before, draws->indices, *priorities, after);
        check_total(masses_of(tree), after);
    };
    return Variant{name, prepare, run, verify};
}

void verify_read(const LineFloor& floor, const std::vector<int64_t>& indices) {
    uint64_t expected = 0;
    for (const int64_t index : indices) expected += floor.at(index);
    require(floor.read(static_cast<int64_t>(indices.size()), indices.data()) == expected, "three entries are read");
}

/* `in_order`: sorted, like stratified draws; else random. */
Variant read_floor(TreeStage& stage, int64_t batch, bool in_order) {
    auto indices = std::make_shared<std::vector<int64_t>>(static_cast<size_t>(batch));
    LineFloor& floor = stage.floor();
    const auto prepare = [=, &stage] {
        if (in_order) {
            stage.stratified_indices(*indices);
        } else {
            stage.random_indices(*indices);
        }
    };
    const auto run = [=, &floor] { keep(floor.read(batch, indices->data())); };
    const auto verify = [=, &floor] {
        prepare();
        verify_read(floor, *indices);
    };
    return Variant{"floor", prepare, run, verify};
}

/* Writes the lines of each index; `read_first`: reads all of them first, as a cycle does. */
Variant write_floor(TreeStage& stage, int64_t batch, bool read_first) {
    auto indices = std::make_shared<std::vector<int64_t>>(static_cast<size_t>(batch));
    LineFloor& floor = stage.floor();
    const auto prepare = [=, &stage] {
        if (read_first) {
            stage.stratified_indices(*indices);
        } else {
            stage.random_indices(*indices);
        }
    };
    const auto run = [=, &floor] {
        if (read_first) keep(floor.read(batch, indices->data()));
        floor.write(batch, indices->data());
    };
    const auto verify = [=, &floor] {
        prepare();
        const uint64_t before = floor.total();
        run();
        require(floor.total() == before + 3 * static_cast<uint64_t>(batch), "three entries are written");
    };
    return Variant{"floor", prepare, run, verify};
}

}  // namespace

TreeStage::TreeStage(int64_t capacity) : capacity_(capacity), pool_(pool_size) {
    // |td_error|^0.6 with exponentially distributed TD errors: most of them small, a few ten times the mean.
    for (float& priority : pool_) {
        priority = static_cast<float>(std::pow(1e-6 - std::log(1 - random_.uniform()), 0.6));
    }
}

template <class Tree>
Tree& TreeStage::filled(std::optional<Tree>& tree) {
    if (!tree) {
        std::vector<float> priorities(static_cast<size_t>(capacity_));
        Xoshiro random(6);
        for (float& priority : priorities) priority = pool_[random.below(pool_size)];
        tree.emplace(capacity_);
        tree->fill(priorities.data());
    }
    return *tree;
}

LibperTree& TreeStage::libper() {
    return filled(libper_);
}
BinaryTree& TreeStage::binary() {
    return filled(binary_);
}

BranchFreeTree& TreeStage::branch_free() {
    if (!branch_free_) branch_free_.emplace(BranchFreeTree{binary()});
    return *branch_free_;
}

CumulativeSums& TreeStage::cumulative() {
    return filled(cumulative_);
}
LinearScan& TreeStage::linear() {
    return filled(linear_);
}

LineFloor& TreeStage::floor() {
    if (!floor_) floor_.emplace(capacity_);
    return *floor_;
}

void TreeStage::random_indices(std::vector<int64_t>& indices) {
    for (int64_t& index : indices) index = random_.below(capacity_);
}

void TreeStage::stratified_indices(std::vector<int64_t>& indices) {
    const double stratum = static_cast<double>(capacity_) / static_cast<double>(indices.size());
    double i = 0;
    for (int64_t& index : indices) {
        index = std::min(static_cast<int64_t>((i + random_.uniform()) * stratum), capacity_ - 1);
        ++i;
    }
}

void TreeStage::random_priorities(std::vector<float>& priorities) {
    for (float& priority : priorities) priority = pool_[random_.below(pool_size)];
}

const std::vector<std::string>& tree_case_names() {
    static const std::vector<std::string> names = {"sample", "independent", "without_replacement", "update", "cycle"};
    return names;
}

std::vector<Variant> tree_case(const std::string& name, TreeStage& stage, int64_t batch) {
    const bool scanned = stage.capacity() <= largest_linear;
    const bool resummed = stage.capacity() <= largest_resummed;
    std::vector<Variant> variants;
    if (name == "sample") {
        variants.push_back(sample_variant("libper", stage.libper(), stage, batch));
        variants.push_back(sample_variant("binary_float32", stage.binary(), stage, batch));
        variants.push_back(sample_variant("binary_branch_free", stage.branch_free(), stage, batch));
        variants.push_back(sample_variant("cumsum", stage.cumulative(), stage, batch));
        if (scanned) variants.push_back(sample_variant("linear", stage.linear(), stage, batch));
        variants.push_back(read_floor(stage, batch, true));
    } else if (name == "independent") {
        variants.push_back(independent_variant("libper", stage.libper(), stage, batch));
        variants.push_back(independent_variant("binary_float32", stage.binary(), stage, batch));
        variants.push_back(independent_variant("cumsum", stage.cumulative(), stage, batch));
        variants.push_back(read_floor(stage, batch, false));
    } else if (name == "without_replacement") {
        variants.push_back(without_replacement_variant("libper", stage.libper(), stage, batch));
        variants.push_back(without_replacement_variant("binary_float32", stage.binary(), stage, batch));
        variants.push_back(without_replacement_variant("cumsum", stage.cumulative(), stage, batch));
        variants.push_back(read_floor(stage, batch, false));
    } else if (name == "update") {
        variants.push_back(update_variant("libper", stage.libper(), stage, batch));
        variants.push_back(update_variant("binary_float32", stage.binary(), stage, batch));
        if (resummed) variants.push_back(update_variant("cumsum", stage.cumulative(), stage, batch));
        if (scanned) variants.push_back(update_variant("linear", stage.linear(), stage, batch));
        variants.push_back(write_floor(stage, batch, false));
    } else if (name == "cycle") {
        variants.push_back(cycle_variant("libper", stage.libper(), stage, batch));
        variants.push_back(cycle_variant("binary_float32", stage.binary(), stage, batch));
        variants.push_back(cycle_variant("binary_branch_free", stage.branch_free(), stage, batch));
        if (resummed) variants.push_back(cycle_variant("cumsum", stage.cumulative(), stage, batch));
        if (scanned) variants.push_back(cycle_variant("linear", stage.linear(), stage, batch));
        variants.push_back(write_floor(stage, batch, true));
    }
    return variants;
}

}  // namespace bench

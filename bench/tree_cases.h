#ifndef PER_BENCH_TREE_CASES_H
#define PER_BENCH_TREE_CASES_H

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "binary_tree.h"
#include "cumulative_sums.h"
#include "libper_tree.h"
#include "line_floor.h"
#include "linear_scan.h"
#include "variant.h"
#include "xoshiro.h"

namespace bench {

/* The structures of one capacity, filled with the same priorities. Each is created when a case first needs it. */
class TreeStage {
 public:
    explicit TreeStage(int64_t capacity);

    int64_t capacity() const { return capacity_; }
    LibperTree& libper();
    BinaryTree& binary();
    BranchFreeTree& branch_free();  // draws from binary()
    CumulativeSums& cumulative();
    LinearScan& linear();
    LineFloor& floor();

    void random_indices(std::vector<int64_t>& indices);
    void stratified_indices(std::vector<int64_t>& indices);
    void random_priorities(std::vector<float>& priorities);

 private:
    template <class Tree>
    Tree& filled(std::optional<Tree>& tree);

    int64_t capacity_;
    Xoshiro random_{5};
    std::vector<float> pool_;
    std::optional<LibperTree> libper_;
    std::optional<BinaryTree> binary_;
    std::optional<BranchFreeTree> branch_free_;
    std::optional<CumulativeSums> cumulative_;
    std::optional<LinearScan> linear_;
    std::optional<LineFloor> floor_;
};

/* The cases of the tree, described in README.md. */
const std::vector<std::string>& tree_case_names();

/* The variants of a case. They refer to the stage. */
std::vector<Variant> tree_case(const std::string& name, TreeStage& stage, int64_t batch);

}  // namespace bench

#endif

// Trees and the other inner loops with the kernels of each instruction set of this machine: the results are
// bit-identical.
#include <cfloat>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "cpu/kernels/kernels.h"
#include "cpu/tree/sum_tree.h"
#include "fuzz.h"

namespace per::test {
namespace {

using cpu::Kernels;
using cpu::SumTree;

// True if two arrays have the same bytes.
template <class Number>
void expect_same(const std::vector<Number>& found, const std::vector<Number>& expected, const char* name) {
    ASSERT_EQ(found.size(), expected.size()) << name;
    EXPECT_TRUE(found.empty() || std::memcmp(found.data(), expected.data(), found.size() * sizeof(Number)) == 0)
        << name;
}

class KernelUse {
 public:
    explicit KernelUse(Choices choices) : choices_(choices) {
        for (const char* const name : {"baseline", "v3", "v4"})
            if (const Kernels* const kernels = cpu::kernels_named(name)) kernels_.push_back(kernels);
        const auto capacity = static_cast<int64_t>(1 + any(256) + any(2) * 20 * any(256));
        for (const Kernels* const kernels : kernels_) trees_.push_back(std::make_unique<SumTree>(capacity, *kernels));
    }

    void run() {
        for (int i = 0; i < 100 && !choices_.are_over() && !testing::Test::HasFailure(); ++i) {
            change();
            draw();
            compare_inner_loops();
        }
    }

 private:
    uint64_t any(uint64_t n) { return choices_() % n; }

    // A float32 with random bits.
    float any_float() {
        const uint64_t bits = choices_() << 56 | choices_() >> 56 << 48 | choices_() >> 56 << 40;
        const auto upper = static_cast<uint32_t>(bits >> 32);
        float value;
        std::memcpy(&value, &upper, sizeof value);
        return value;
    }
    float any_priority() {
        const float value = std::abs(any_float());
        return std::isfinite(value) ? value : 0.0f;
    }

    void change() {
        const int64_t capacity = trees_[0]->capacity();
        const uint64_t kind = any(16);
        const auto first = static_cast<int64_t>((any(256) * 256 + any(256)) % static_cast<uint64_t>(capacity));
        const int64_t n = std::min<int64_t>(capacity - first, static_cast<int64_t>(any(64)));
        std::vector<int64_t> indices;
        std::vector<float> priorities;
        for (int64_t i = 0; i < n; ++i) {
            indices.push_back(kind % 2 == 0 ? first + i : static_cast<int64_t>(any(256)) % capacity);
            priorities.push_back(any_priority());
        }
        for (const auto& tree : trees_) {
            if (kind == 0)
                tree->reset();
            else if (kind < 4)
                tree->set_run(first, n, priorities.data());
            else
                tree->set(n, indices.data(), priorities.data());
            EXPECT_EQ(tree->total_mass(), trees_[0]->total_mass());
            EXPECT_EQ(tree->scale(), trees_[0]->scale());
        }
        for (const auto& tree : trees_)
            for (int level = 1; level < tree->shape().n_levels; ++level)
                EXPECT_EQ(std::memcmp(tree->sums(level), trees_[0]->sums(level),
                                      sizeof(uint64_t) * static_cast<std::size_t>(tree->shape().n_nodes[level])),
                          0);
    }

    void draw() {
        if (trees_[0]->total_mass() == 0) return;
        const auto n = static_cast<int64_t>(1 + any(200));
        const auto scheme = static_cast<int32_t>(any(3));
        const uint64_t seed = choices_(), batch_number = choices_();
        std::vector<int64_t> expected;
        std::vector<uint64_t> expected_masses;
        for (const auto& tree : trees_) {
            std::vector<int64_t> indices(static_cast<std::size_t>(n));
            std::vector<uint64_t> masses(indices.size());
            tree->draw({n, scheme, seed, batch_number}, indices.data(), masses.data());
            if (expected.empty()) expected = indices, expected_masses = masses;
            EXPECT_EQ(indices, expected);
            EXPECT_EQ(masses, expected_masses);
        }
    }

    // Powers and weights, with arguments that pass the checks.
    void compare_inner_loops() {
        const auto n = static_cast<std::size_t>(1 + any(40));
        const double alpha = static_cast<double>(any(9)) * 0.25, beta = static_cast<double>(any(9)) * 0.25;
        std::vector<float> priorities, td_errors;
        std::vector<uint64_t> masses;
        std::vector<double> shares;
        uint64_t total = 1;
        for (std::size_t i = 0; i < n; ++i) {
            priorities.push_back(any_priority());
            td_errors.push_back(any_float());
            masses.push_back(1 + (choices_() % (leaf_mass_limit - 1) >> any(48)));
            total += masses.back();
            shares.push_back(std::ldexp(1.0 + static_cast<double>(any(256)), -static_cast<int>(any(60)) - 9));
        }
        struct Results {
            std::vector<float> powers, weights, share_weights, priorities;
            std::vector<double> included;
            double smallest;
            bool are_priorities;
            bool are_errors;
        };
        std::vector<Results> all;
        const auto count = static_cast<int64_t>(n);
        for (const Kernels* const kernels : kernels_) {
            Results& r = all.emplace_back(Results{std::vector<float>(n), std::vector<float>(n), std::vector<float>(n),
                                                  std::vector<float>(n), std::vector<double>(n), 0, false, false});
            const cpu::PowerKernels& power = kernels->power;
            power.raise(count, priorities.data(), alpha, r.powers.data());
            power.weigh(count, masses.data(), beta, r.weights.data());
            power.include(count, masses.data(), total, static_cast<double>(n), r.included.data());
            r.smallest = power.smallest(count, shares.data());
            power.weigh_shares(count, shares.data(), r.smallest, beta, r.share_weights.data());
            power.from_td_errors(count, td_errors.data(), 0.25, r.priorities.data());
            r.are_priorities = power.are_priorities(count, priorities.data());
            r.are_errors = power.are_priorities(count, td_errors.data());
        }
        for (const Results& r : all) {
            expect_same(r.powers, all[0].powers, "raise");
            expect_same(r.weights, all[0].weights, "weigh");
            expect_same(r.included, all[0].included, "include");
            expect_same(r.share_weights, all[0].share_weights, "weigh_shares");
            for (std::size_t i = 0; i < n; ++i)  // the bits of NaNs may differ
                EXPECT_TRUE(r.priorities[i] == all[0].priorities[i] ||
                            (std::isnan(r.priorities[i]) && std::isnan(all[0].priorities[i])));
            EXPECT_EQ(r.smallest, all[0].smallest);
            EXPECT_TRUE(r.are_priorities);
            EXPECT_EQ(r.are_errors, all[0].are_errors);
        }
    }

    Choices choices_;
    std::vector<const Kernels*> kernels_;
    std::vector<std::unique_ptr<SumTree>> trees_;
};

}  // namespace
}  // namespace per::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace per::test;
    return fuzz(data, size, [](Choices choices) { KernelUse(choices).run(); });
}

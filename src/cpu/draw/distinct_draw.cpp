#include "cpu/draw/distinct_draw.h"

#include <algorithm>

namespace per::cpu {
namespace {

// A source for draw_from(). draw_from() itself takes leaves out of the tree and puts them back; take_out() and
// put_back() do the same in the other structures of the source.
struct TreeSource {
    SumTree& tree;
    double whole;
    std::byte* scratch;

    bool has_any() const { return tree.total_mass() != 0; }
    double share_left() const { return static_cast<double>(tree.total_mass()) / whole; }
    void draw(const DrawRequest& round, int64_t* indices_out) const {
        tree.draw(round, indices_out, nullptr, nullptr, scratch);
    }
    void take_out(int64_t) const {}
    void put_back(int64_t) const {}
};

struct MixtureSource {
    SumTree& tree;
    LiveSet& live;
    MixtureDraw& mixture;
    const DrawLaw& law;

    bool has_any() const { return live.count() != 0; }
    double share_left() const { return law.share_left(tree.total_mass(), static_cast<uint64_t>(live.count())); }
    void draw(const DrawRequest& round, int64_t* indices_out) const {
        const uint64_t uniform = law.uniform_units_left(tree.total_mass(), static_cast<uint64_t>(live.count()));
        mixture.draw(tree, live, uniform, round, indices_out);
    }
    void take_out(int64_t slot) const { live.erase(slot); }
    void put_back(int64_t slot) const { live.insert(slot); }
};

}  // namespace

void DistinctDraw::reserve(int64_t batch_size) {
    rounds_.reserve(batch_size);
    priorities_.resize(static_cast<size_t>(batch_size + 1));
    zeros_.resize(static_cast<size_t>(batch_size + 1));
}

// Makes the rounds. Call reserve() before.
template <class Source>
DistinctDraw::Found DistinctDraw::draw_from(const Source& source, const DrawRequest& request) {
    rounds_.begin(request);
    const int64_t* const indices = rounds_.found();
    while (rounds_.wants_more() && source.has_any()) {
        const double share = source.share_left();
        source.draw(rounds_.round(), rounds_.drawn());
        if (!rounds_.take(share)) continue;
        const int64_t n_out = rounds_.n_out();
        for (int64_t i = n_out; i < rounds_.n_found(); ++i) {
            priorities_[static_cast<size_t>(i)] = source.tree.priority(indices[i]);
            source.take_out(indices[i]);
        }
        source.tree.set_at_scale(rounds_.n_found() - n_out, indices + n_out, zeros_.data());
        rounds_.taken_out();
    }
    for (int64_t i = 0; i < rounds_.n_out(); ++i) source.put_back(indices[i]);
    source.tree.set_at_scale(rounds_.n_out(), indices, priorities_.data());
    return {indices, std::min(rounds_.n_found(), request.batch_size), rounds_.n_draws()};
}

DistinctDraw::Found DistinctDraw::draw(SumTree& tree, const DrawRequest& request) {
    reserve(request.batch_size);
    const ScratchPool::Loan loan(scratch_, tree.draw_scratch_bytes(rounds_.max_round_size()));
    return draw_from(TreeSource{tree, static_cast<double>(tree.total_mass()), loan.data()}, request);
}

DistinctDraw::Found DistinctDraw::draw(SumTree& tree, LiveSet& live, MixtureDraw& mixture, const DrawLaw& law,
                                       const DrawRequest& request) {
    reserve(request.batch_size);
    mixture.reserve(rounds_.max_round_size());
    return draw_from(MixtureSource{tree, live, mixture, law}, request);
}

}  // namespace per::cpu

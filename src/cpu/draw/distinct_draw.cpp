#include "cpu/draw/distinct_draw.h"

#include <algorithm>
#include <limits>

#include "backend/found_set.h"

namespace per::cpu {
namespace {

// What draw_from() draws from. It takes leaves out of the tree itself; a source does so with what else it has.
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

void DistinctDraw::reserve(int64_t n_wanted) {
    indices_.resize(static_cast<size_t>(n_wanted));
    round_.resize(static_cast<size_t>(distinct_round_size(n_wanted)));
    table_.resize(static_cast<size_t>(found_set_size(n_wanted)));
    priorities_.resize(static_cast<size_t>(n_wanted));
    zeros_.resize(static_cast<size_t>(n_wanted));
}

// The rounds, once memory has been reserved.
template <class Source>
DistinctDraw::Found DistinctDraw::draw_from(const Source& source, const DrawRequest& request) {
    const int64_t n_wanted = request.batch_size + 1;  // the last one only ends the count of draws
    int64_t* const indices = indices_.data();
    FoundSet found(table_.data(), found_set_size(n_wanted));
    int64_t n_found = 0;
    int64_t n_taken_out = 0;
    double n_draws = 0.0;

    DrawRequest round = request;
    round.scheme = PER_INDEPENDENT;
    round.first = 0;
    while (n_found < n_wanted && source.has_any()) {
        const double share = source.share_left();
        round.batch_size = distinct_round_size(n_wanted - n_found);
        source.draw(round, round_.data());
        const int64_t n_before = n_found;
        int64_t n_looked_at = 0;
        for (; n_looked_at < round.batch_size && n_found < n_wanted; ++n_looked_at) {
            indices[n_found] = round_[static_cast<size_t>(n_looked_at)];
            n_found += found.insert(indices[n_found]);
        }
        if (n_taken_out == 0) n_draws += static_cast<double>(n_looked_at);
        for (int64_t i = 0; n_taken_out != 0 && i < n_looked_at; ++i) {
            const uint64_t number = geometric_numbers | (round.first + static_cast<uint64_t>(i));
            n_draws += draws_until_outside(random64(request.seed, request.batch_number, number), share);
        }
        const int64_t n_repeats = n_looked_at - (n_found - n_before);
        if (repeats_prevail(n_repeats, round.batch_size) && n_found < n_wanted) {
            for (int64_t i = n_taken_out; i < n_found; ++i) {
                priorities_[static_cast<size_t>(i)] = source.tree.priority(indices[i]);
                source.take_out(indices[i]);
            }
            source.tree.set_at_scale(n_found - n_taken_out, indices + n_taken_out, zeros_.data());
            n_taken_out = n_found;
        }
        round.first += static_cast<uint64_t>(round.batch_size);
    }
    for (int64_t i = 0; i < n_taken_out; ++i) source.put_back(indices[i]);
    source.tree.set_at_scale(n_taken_out, indices, priorities_.data());
    return {indices, std::min(n_found, request.batch_size),
            n_found == n_wanted ? n_draws - 1.0 : std::numeric_limits<double>::infinity()};
}

DistinctDraw::Found DistinctDraw::draw(SumTree& tree, const DrawRequest& request) {
    reserve(request.batch_size + 1);
    const int64_t n_round = static_cast<int64_t>(round_.size());
    const ScratchPool::Loan loan(scratch_, tree.draw_scratch_bytes(n_round));
    return draw_from(TreeSource{tree, static_cast<double>(tree.total_mass()), loan.data()}, request);
}

DistinctDraw::Found DistinctDraw::draw(SumTree& tree, LiveSet& live, MixtureDraw& mixture, const DrawLaw& law,
                                       const DrawRequest& request) {
    reserve(request.batch_size + 1);
    mixture.reserve(static_cast<int64_t>(round_.size()));
    return draw_from(MixtureSource{tree, live, mixture, law}, request);
}

}  // namespace per::cpu

#include "cpu/tree/mixture_draw.h"

#include <algorithm>
#include <limits>

#include "backend/found_set.h"
#include "per.h"
#include "rules/distinct.h"
#include "rules/mixture.h"
#include "rules/priority.h"

namespace per::cpu {
namespace {

void reserve_entries(auto& entries, int64_t most) {
    if (entries.size() < static_cast<size_t>(most)) entries.resize(static_cast<size_t>(most));
}

}  // namespace

void write_targets(const DrawKernels& kernels, const DrawRequest& request, uint64_t total, uint64_t* targets_out) {
    const int64_t n = request.batch_size;
    if (request.scheme == PER_SYSTEMATIC)
        std::fill_n(targets_out, n, random64(request.seed, request.batch_number, request.first));
    else
        kernels.random_numbers(request.seed, request.batch_number, request.first, n, targets_out);
    if (request.scheme == PER_INDEPENDENT)
        kernels.spread(n, total, targets_out);
    else
        kernels.stratify(n, total, targets_out);
}

void MixtureDraw::Part::reserve(int64_t most) {
    // Each for itself: where memory ended between two of them, they have different sizes.
    reserve_entries(targets, most);
    reserve_entries(places, most);
    reserve_entries(slots, most);
}

void MixtureDraw::Part::add(uint64_t target, int64_t place) {
    targets[static_cast<size_t>(n)] = target;
    places[static_cast<size_t>(n)] = place;
    ++n;
}

void MixtureDraw::Part::scatter(int64_t* slots_out) const {
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) slots_out[places[i]] = slots[i];
}

void MixtureDraw::reserve(int64_t n) {
    reserve_entries(targets_, n + draw_padding);
    uniform_.reserve(n);
    prioritized_.reserve(n);
}

void MixtureDraw::draw(const SumTree& tree, const LiveSet& live, uint64_t uniform, const DrawRequest& request,
                       int64_t* slots_out) {
    reserve(request.batch_size);
    write_targets(tree.kernels().draw, request, mixture_units, targets_.data());
    const uint64_t n_live = static_cast<uint64_t>(live.count());
    uniform_.n = 0;
    prioritized_.n = 0;
    for (int64_t i = 0; i < request.batch_size; ++i) {
        const uint64_t target = targets_[static_cast<size_t>(i)];
        if (target < uniform)
            uniform_.add(rescaled_target(target, uniform, n_live), i);
        else
            prioritized_.add(rescaled_target(target - uniform, mixture_units - uniform, tree.total_mass()), i);
    }
    live.select(uniform_.n, uniform_.targets.data(), uniform_.slots.data());
    const auto unit_of = [this](int64_t i) { return prioritized_.targets[static_cast<std::size_t>(i)]; };
    tree.find(prioritized_.n, unit_of, prioritized_.slots.data(), nullptr);
    uniform_.scatter(slots_out);
    prioritized_.scatter(slots_out);
}

double MixtureDraw::draw_distinct(SumTree& tree, LiveSet& live, double uniform_fraction, const DrawRequest& request,
                                  std::vector<int64_t>& slots_out) {
    const int64_t n_wanted = request.batch_size + 1;  // the last one only ends the count of draws
    const int64_t largest_round = distinct_round_size(n_wanted);
    const int64_t table_size = found_set_size(n_wanted);
    reserve(largest_round);
    round_.resize(static_cast<size_t>(largest_round));
    table_.resize(static_cast<size_t>(table_size));
    slots_out.resize(static_cast<size_t>(n_wanted));
    leaves_.resize(static_cast<size_t>(n_wanted));
    zeros_.assign(static_cast<size_t>(n_wanted), 0.0f);

    const double n_live = static_cast<double>(live.count());
    const double mass = static_cast<double>(tree.total_mass());
    FoundSet found(table_.data(), table_size);
    int64_t n_found = 0;
    int64_t n_taken_out = 0;
    double n_draws = 0.0;
    DrawRequest round = request;
    round.scheme = PER_INDEPENDENT;
    round.first = 0;
    while (n_found < n_wanted && live.count() > 0) {
        // What is left of both parts, as shares of the whole.
        const double uniform = uniform_fraction * (static_cast<double>(live.count()) / n_live);
        const double rest = static_cast<double>(tree.total_mass());
        const double share = uniform + (rest > 0.0 ? (1.0 - uniform_fraction) * (rest / mass) : 0.0);
        round.batch_size = distinct_round_size(n_wanted - n_found);
        draw(tree, live, uniform_units(uniform / share), round, round_.data());
        int64_t n_repeats = 0;
        for (int64_t i = 0; i < round.batch_size && n_found < n_wanted; ++i) {
            const uint64_t number = geometric_numbers | (round.first + static_cast<uint64_t>(i));
            n_draws += n_taken_out == 0
                           ? 1.0
                           : draws_until_outside(random64(request.seed, request.batch_number, number), share);
            const int64_t slot = round_[static_cast<size_t>(i)];
            if (found.insert(slot))
                slots_out[static_cast<size_t>(n_found++)] = slot;
            else
                ++n_repeats;
        }
        if (repeats_prevail(n_repeats, round.batch_size) && n_found < n_wanted) {
            const int64_t* const slots = slots_out.data() + n_taken_out;
            for (int64_t i = n_taken_out; i < n_found; ++i) {
                leaves_[static_cast<size_t>(i)] = tree.priority(slots_out[static_cast<size_t>(i)]);
                live.erase(slots_out[static_cast<size_t>(i)]);
            }
            tree.set_at_scale(n_found - n_taken_out, slots, zeros_.data());
            n_taken_out = n_found;
        }
        round.first += static_cast<uint64_t>(round.batch_size);
    }
    for (int64_t i = 0; i < n_taken_out; ++i) live.insert(slots_out[static_cast<size_t>(i)]);
    tree.set_at_scale(n_taken_out, slots_out.data(), leaves_.data());
    slots_out.resize(static_cast<size_t>(request.batch_size));
    return n_found == n_wanted ? n_draws - 1.0 : std::numeric_limits<double>::infinity();
}

}  // namespace per::cpu

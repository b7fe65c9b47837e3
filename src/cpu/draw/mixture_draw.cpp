#include "cpu/draw/mixture_draw.h"

#include "per.h"

namespace per::cpu {
namespace {

void reserve_entries(auto& entries, int64_t n) {
    if (entries.size() < static_cast<size_t>(n)) entries.resize(static_cast<size_t>(n));
}

}  // namespace

void MixtureDraw::Part::reserve(int64_t batch_size) {
    // Each vector is checked separately: if memory ran out after one had grown, the sizes differ.
    reserve_entries(targets, batch_size);
    reserve_entries(places, batch_size);
    reserve_entries(slots, batch_size);
}

void MixtureDraw::Part::add(uint64_t target, int64_t place) {
    targets[static_cast<size_t>(n)] = target;
    places[static_cast<size_t>(n)] = place;
    ++n;
}

void MixtureDraw::Part::scatter(int64_t* slots_out) const {
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) slots_out[places[i]] = slots[i];
}

void MixtureDraw::reserve(int64_t batch_size) {
    reserve_entries(targets_, batch_size + draw_padding);
    uniform_.reserve(batch_size);
    prioritized_.reserve(batch_size);
}

void MixtureDraw::draw(const SumTree& tree, const LiveSet& live, uint64_t uniform, const DrawRequest& request,
                       int64_t* slots_out) {
    reserve(request.batch_size);
    write_targets(tree.kernels().draw, request, mixture_units, targets_.data());
    const uint64_t n_live = static_cast<uint64_t>(live.count());
    begin_parts();
    for (int64_t i = 0; i < request.batch_size; ++i) {
        const UnitOrRank target = part_of_mixture(targets_[static_cast<size_t>(i)], uniform, tree.total_mass(), n_live);
        (target.is_rank ? uniform_ : prioritized_).add(target.value, i);
    }
    find_parts(tree, live, slots_out);
}

void MixtureDraw::find(const SumTree& tree, const LiveSet& live, int64_t count, const int64_t* units,
                       int64_t* slots_out) {
    reserve(count);
    begin_parts();
    for (int64_t i = 0; i < count; ++i) {
        const bool is_rank = units[i] < 0;
        (is_rank ? uniform_ : prioritized_).add(static_cast<uint64_t>(is_rank ? -1 - units[i] : units[i]), i);
    }
    find_parts(tree, live, slots_out);
}

void MixtureDraw::begin_parts() {
    uniform_.n = 0;
    prioritized_.n = 0;
}

void MixtureDraw::find_parts(const SumTree& tree, const LiveSet& live, int64_t* slots_out) {
    live.select(uniform_.n, uniform_.targets.data(), uniform_.slots.data());
    const auto unit_of = [this](int64_t i) { return prioritized_.targets[static_cast<std::size_t>(i)]; };
    tree.find(prioritized_.n, unit_of, prioritized_.slots.data(), nullptr);
    uniform_.scatter(slots_out);
    prioritized_.scatter(slots_out);
}

}  // namespace per::cpu

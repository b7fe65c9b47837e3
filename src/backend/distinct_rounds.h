// The rounds of a draw without replacement: the same for a tree, a buffer, and buffers that draw as one.
#pragma once

#include <cstdint>
#include <vector>

#include "rules/draw.h"

namespace per {

// Independent draws that discard repeats have the same distribution as draws one by one, each of which sets the mass of
// its index to zero until the end. They can be made together in one pass through a tree. They come in rounds of n + n/4
// + 16 draws, rounded up to an even number, where n is one more than the indices still to be found. If more than half
// of a round are repeats, a few indices hold most of the mass: the indices found are then taken out, and a draw from
// the rest stands for a geometric number of draws from the whole.
//
// Memory is kept from draw to draw.
class DistinctRounds {
 public:
    // Allocates memory for a draw. The other functions throw nothing.
    void reserve(int64_t batch_size);
    int64_t max_round_size() const { return static_cast<int64_t>(round_.size()); }
    void begin(const DrawRequest& request);

    // The caller repeats this while wants_more() and some mass remains: it makes the independent draws of round() from
    // the remaining mass, writes them to drawn(), and calls take() with the share of the whole that remains. If take()
    // returns true, the caller removes found()[n_out()] and all later ones from the mass, and calls taken_out().
    bool wants_more() const { return n_found_ < n_wanted_; }
    const DrawRequest& round() const { return round_request_; }
    int64_t* drawn() { return round_.data(); }
    bool take(double share_left);
    void taken_out() { n_out_ = n_found_; }

    int64_t n_out() const { return n_out_; }
    int64_t n_found() const { return n_found_; }
    const int64_t* found() const { return found_.data(); }  // in order; at most one more than the batch wants
    // The place in the last round where found index i came first. It must be that round that found the index.
    int64_t place_in_round(int64_t i) const { return places_[static_cast<size_t>(i)]; }
    // K, the number of independent draws before the one that would have found another index; infinite if there is no
    // such draw. An index that a draw gives with probability p is among those found with a probability close to
    // 1 - (1 - p)^K.
    double n_draws() const;

 private:
    int64_t n_wanted_ = 0;
    int64_t n_found_ = 0;
    int64_t n_out_ = 0;
    double n_draws_ = 0;
    DrawRequest round_request_ = {};
    std::vector<int64_t> found_;
    std::vector<int64_t> places_;
    std::vector<int64_t> round_;
    std::vector<uint64_t> table_;  // of a FoundSet
};

}  // namespace per

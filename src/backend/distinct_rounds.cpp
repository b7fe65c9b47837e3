#include "backend/distinct_rounds.h"

#include <limits>

#include "backend/found_set.h"
#include "per.h"
#include "rules/random.h"

namespace per {

void DistinctRounds::reserve(int64_t batch_size) {
    const int64_t n_wanted = batch_size + 1;
    found_.resize(static_cast<size_t>(n_wanted));
    places_.resize(static_cast<size_t>(n_wanted));
    round_.resize(static_cast<size_t>(distinct_round_size(n_wanted)));
    table_.resize(static_cast<size_t>(found_set_size(n_wanted)));
}

void DistinctRounds::begin(const DrawRequest& request) {
    n_wanted_ = request.batch_size + 1;  // the last one only ends the count of draws
    n_found_ = 0;
    n_out_ = 0;
    n_draws_ = 0.0;
    round_request_ = request;
    round_request_.scheme = PER_INDEPENDENT;
    round_request_.first = 0;
    round_request_.batch_size = distinct_round_size(n_wanted_);
    FoundSet(table_.data(), found_set_size(n_wanted_)).clear();
}

bool DistinctRounds::take(double share_left) {
    FoundSet found(table_.data(), found_set_size(n_wanted_));
    DrawRequest& round = round_request_;
    const int64_t n_before = n_found_;
    int64_t n_looked_at = 0;
    for (; n_looked_at < round.batch_size && n_found_ < n_wanted_; ++n_looked_at) {
        found_[static_cast<size_t>(n_found_)] = round_[static_cast<size_t>(n_looked_at)];
        places_[static_cast<size_t>(n_found_)] = n_looked_at;
        n_found_ += found.insert(round_[static_cast<size_t>(n_looked_at)]);
    }
    if (n_out_ == 0) n_draws_ += static_cast<double>(n_looked_at);
    for (int64_t i = 0; n_out_ != 0 && i < n_looked_at; ++i) {
        const uint64_t number = geometric_numbers | (round.first + static_cast<uint64_t>(i));
        n_draws_ += draws_until_outside(random64(round.seed, round.batch_number, number), share_left);
    }
    const int64_t n_repeats = n_looked_at - (n_found_ - n_before);
    const bool takes_out = repeats_prevail(n_repeats, round.batch_size) && wants_more();
    round.first += static_cast<uint64_t>(round.batch_size);
    round.batch_size = distinct_round_size(n_wanted_ - n_found_);
    return takes_out;
}

double DistinctRounds::n_draws() const {
    return n_found_ == n_wanted_ ? n_draws_ - 1.0 : std::numeric_limits<double>::infinity();
}

}  // namespace per

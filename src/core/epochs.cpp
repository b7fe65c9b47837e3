#include "core/epochs.h"

#include <algorithm>
#include <utility>

#include "rules/random.h"

namespace per {

void Epochs::start(std::vector<int64_t> ids, int64_t n_epochs, int64_t batch_size, bool drop_last, int64_t n_step,
                   uint64_t seed, uint64_t first_batch) {
    ids_ = std::move(ids);
    place_ = 0;
    batch_size_ = batch_size;
    epochs_left_ = n_epochs;
    drop_last_ = drop_last;
    n_step_ = n_step;
    seed_ = seed;
    batch_number_ = first_batch;
    shuffle();
}

int64_t Epochs::count() const {
    return epochs_left_ > 0 ? std::min(batch_size_, transitions() - place_) : 0;
}

// Shuffles the next epoch as soon as the last minibatch of this one is out. So a call that fails to write a minibatch,
// whichever it is, has changed nothing.
void Epochs::advance() {
    place_ += count();
    const int64_t left = transitions() - place_;
    if (left >= (drop_last_ ? batch_size_ : 1)) return;
    place_ = 0;
    --epochs_left_;
    ++batch_number_;
    if (epochs_left_ > 0) shuffle();
}

void Epochs::shuffle() {
    for (uint64_t i = ids_.size(); i-- > 1;) std::swap(ids_[i], ids_[mulhi(random64(seed_, batch_number_, i), i + 1)]);
}

}  // namespace per

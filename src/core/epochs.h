// Epochs over the live transitions of a replay buffer, each in a different random order.
#pragma once

#include <cstdint>
#include <vector>

namespace per {

// The ids of the transitions in the order of the current epoch, and the position of the next minibatch. The caller must
// hold the buffer's lock.
//
// Each epoch shuffles the order of the previous epoch; the first epoch shuffles the order given to start(). This is
// Fisher-Yates: from the last place to the second, the transition at place i is swapped with the one at place
// mulhi(random64(seed, batch_number, i), i + 1). Each epoch has a separate batch number, so its order does not depend
// on draws in between.
class Epochs {
 public:
    // drop_last leaves out the last minibatch of an epoch if it is smaller than the others; an epoch must keep at least
    // one minibatch. n_step is only stored.
    void start(std::vector<int64_t> ids, int64_t n_epochs, int64_t batch_size, bool drop_last, int64_t n_step,
               uint64_t seed, uint64_t first_batch);

    int64_t n_step() const { return n_step_; }
    int64_t transitions() const { return static_cast<int64_t>(ids_.size()); }

    // The next minibatch. It has 0 transitions after the last epoch.
    int64_t count() const;
    const int64_t* ids() const { return ids_.data() + place_; }
    void advance();

 private:
    void shuffle();

    std::vector<int64_t> ids_;
    int64_t place_ = 0;
    int64_t batch_size_ = 1;
    int64_t epochs_left_ = 0;  // includes the current one
    bool drop_last_ = false;
    int64_t n_step_ = 1;
    uint64_t seed_ = 0;
    uint64_t batch_number_ = 0;  // of the current epoch
};

}  // namespace per

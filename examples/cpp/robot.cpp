// Q-learning in the control loop of a robot, with prioritized replay by per.hpp.
//
// A robot on a rail of n_places drives to its dock at place 0. In each tick of its loop it senses its place, moves,
// stores the outcome, and learns from a batch of stored steps. Its wheels slip one time in ten. After max_ticks an
// attempt is truncated: that is not a terminal state, so its value is bootstrapped.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <per.hpp>
#include <random>
#include <vector>

namespace {

constexpr int n_places = 16, max_ticks = 40, n_ticks = 20000, batch_size = 32;
constexpr double tick_discount = 0.95, slip = 0.1;

class Robot {
 public:
    explicit Robot(unsigned seed) : random_(seed) { restart(); }
    float place() const { return static_cast<float>(place_); }
    void restart() { place_ = 1 + static_cast<int>(random_() % (n_places - 1)); }
    // Action 0 moves towards the dock, 1 away from it.
    void move(int8_t action) {
        if (std::uniform_real_distribution<>()(random_) < slip) return;
        place_ = action == 0 ? place_ - 1 : std::min(place_ + 1, n_places - 1);
    }
    int8_t explore() { return static_cast<int8_t>(random_() % 2); }

 private:
    std::mt19937 random_;
    int place_;
};

// The value of each action at each place.
struct Values {
    double of[n_places][2] = {};
    double best(float place) const {
        const double* const q = of[static_cast<int>(place)];
        return std::max(q[0], q[1]);
    }
};

// Learns from one batch: `discount` is gamma, and 0 if the robot docked.
void learn(per::ReplayBuffer& buffer, per::Batch& batch, Values& values) {
    buffer.sample(batch);
    const auto place = batch.field<float>("observation"), next_place = batch.next_field<float>("observation");
    const auto action = batch.field<int8_t>("action");
    std::array<float, batch_size> td_errors;
    for (std::size_t i = 0; i < batch_size; ++i) {
        double& value = values.of[static_cast<int>(place[i])][action[i]];
        const double td_error = batch.reward()[i] + batch.discount()[i] * values.best(next_place[i]) - value;
        value += 0.05 * batch.weights()[i] * td_error;
        td_errors[i] = static_cast<float>(td_error);
    }
    buffer.update_priorities(batch.ids(), td_errors);
}

}  // namespace

int main() try {
    per::ReplayOptions options;
    options.capacity = 5000;
    options.gamma = tick_discount;
    options.beta_steps = n_ticks;
    options.seed = 1;
    per::ReplayBuffer buffer(options, {per::field<float>("observation"), per::field<int8_t>("action")});

    // The values of a tick, and the views through which the buffer reads them.
    std::array<float, 1> place = {}, next_place = {}, reward = {};
    std::array<int8_t, 1> action = {};
    std::array<bool, 1> docked = {}, out_of_time = {};
    per::Steps tick = buffer.steps();
    tick.fields["observation"] = place;
    tick.fields["action"] = action;
    tick.next_fields["observation"] = next_place;
    tick.reward = reward;
    tick.terminated = docked;
    tick.truncated = out_of_time;

    per::Batch batch = buffer.batch(batch_size);
    Robot robot(1);
    Values values;
    for (int i = 0, attempt_ticks = 0; i < n_ticks; ++i) {
        place[0] = robot.place();
        action[0] = robot.explore();
        robot.move(action[0]);
        next_place[0] = robot.place();
        reward[0] = -1;
        docked[0] = next_place[0] == 0;
        out_of_time[0] = !docked[0] && ++attempt_ticks == max_ticks;
        buffer.add(tick);
        if (docked[0] || out_of_time[0]) {
            robot.restart();
            attempt_ticks = 0;
        }
        learn(buffer, batch, values);
    }

    // On the direct way the value of a place is v = -1 + gamma (slip v + (1 - slip) v of the place before).
    double exact = 0, error = 0;
    for (int i = 1; i < n_places; ++i) {
        exact = (-1 + tick_discount * (1 - slip) * exact) / (1 - tick_discount * slip);
        const double value = values.best(static_cast<float>(i));
        std::cout << "place " << i << ": value " << value << ", exactly " << exact << "\n";
        error = std::max(error, std::abs(value - exact));
    }
    const per::Statistics statistics = buffer.stats();
    std::cout << statistics.added << " ticks in " << statistics.episodes << " attempts\n";
    return error < 0.5 ? 0 : 1;
} catch (const per::Error& error) {
    std::cerr << error.status_name() << ": " << error.what() << "\n";
    return 1;
}

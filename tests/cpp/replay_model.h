// A naive replay buffer: it keeps every episode whole, with copies of its observations, and finds the live transitions
// after each call by scanning everything.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "replay_call.h"

namespace per::test {

class ReplayModel {
 public:
    ReplayModel(const per_replay_options& options, int32_t padding)
        : options_(options),
          padding_(padding),
          rows_((options.capacity + options.n_envs - 1) / options.n_envs),
          stride_(options.sequence_length == 0   ? 1
                  : options.sequence_stride == 0 ? options.sequence_length
                                                 : options.sequence_stride),
          steps_(options.sequence_length == 0 ? 1 : options.burn_in + options.sequence_length),
          lanes_(static_cast<size_t>(options.n_envs)) {}

    // The status of per_replay_add(). The model cannot be used after an error.
    per_status add(const GivenCall& call, std::vector<int64_t>& ids_out) {
        const int64_t n = call.env_ids.empty() ? options_.n_envs : static_cast<int64_t>(call.env_ids.size());
        ids_out.clear();
        if (options_.on_nan == PER_NAN_ERROR && has_nan(call)) return PER_ERROR_INVALID_ARGUMENT;
        for (int64_t k = 0; k < call.length; ++k) {
            const float largest = largest_priority();
            float largest_given = 0;
            for (int64_t j = 0; j < n; ++j) {
                const GivenStep& step = call.steps[static_cast<size_t>(k * n + j)];
                const int64_t env = call.env_ids.empty() ? j : call.env_ids[static_cast<size_t>(j)];
                ids_out.push_back(-1);
                if (call.with_mask && !step.given) continue;
                const per_status status = add_step(env, step, call, ids_out.back(), largest_given);
                if (status != PER_OK) return status;
            }
            settle(largest);
            largest_ever_ = std::max(largest_ever_, largest_given);
        }
        return PER_OK;
    }

    void cut(int64_t env) {
        const float largest = largest_priority();
        Lane& lane = lanes_[static_cast<size_t>(env)];
        if (!lane.running) return;
        Episode& episode = lane.episodes.back();
        episode.truncated = true;
        episode.last_known = episode.announced;
        lane.running = false;
        lane.has_reserved = false;
        ++cuts;
        ++episodes_ended;
        settle(largest);
    }

    void update(const std::vector<int64_t>& ids, const std::vector<float>& priorities) {
        std::map<int64_t, float> last;
        for (size_t i = 0; i < ids.size(); ++i) {
            if (!(priorities[i] >= 0 && std::isfinite(priorities[i]))) {
                ++rejected;
            } else if (const Transition* transition = find(ids[i]);
                       transition != nullptr && (transition->live || transition->pending)) {
                last[ids[i]] = priorities[i];
            } else {
                ++stale;
            }
        }
        for (const auto& [id, priority] : last) {
            find(id)->priority = priority;
            largest_ever_ = std::max(largest_ever_, priority);
        }
    }

    // Sets the priorities of sequences from errors of each critic and step: first the mean or the maximum over the
    // critics, then eta max + (1 - eta) mean over the steps after the burn-in.
    void update(const std::vector<int64_t>& ids, const std::vector<std::vector<std::vector<float>>>& errors) {
        std::vector<int64_t> known_ids;
        std::vector<float> priorities;
        for (size_t i = 0; i < ids.size(); ++i) {
            const Place place = place_of(ids[i]);
            const Transition* const start = find(ids[i]);
            double largest = 0, sum = 0, count = 0;
            for (int64_t t = options_.burn_in; start != nullptr && (start->live || start->pending) && t < steps_; ++t) {
                if (!is_learned_from(*place.episode, static_cast<int64_t>(place.t) + t)) break;
                double error = 0;
                for (const auto& critic : errors) {
                    const double magnitude = std::abs(static_cast<double>(critic[i][static_cast<size_t>(t)]));
                    error = options_.critics == PER_CRITICS_MAX ? std::max(error, magnitude) : error + magnitude;
                }
                if (options_.critics == PER_CRITICS_MEAN) error /= static_cast<double>(errors.size());
                largest = std::max(largest, error);
                sum += error;
                ++count;
            }
            if (count == 0) {
                ++stale;
                continue;
            }
            const double eta = options_.sequence_eta;
            known_ids.push_back(ids[i]);
            priorities.push_back(static_cast<float>(eta * largest + (1 - eta) * (sum / count) + options_.epsilon));
        }
        update(known_ids, priorities);
    }

    void clear() {
        for (Lane& lane : lanes_) {
            lane.episodes.clear();
            lane.running = false;
            lane.cleared_rows = lane.used_rows - (lane.has_reserved ? 1 : 0);
            lane.used_rows = lane.cleared_rows;
            lane.has_reserved = false;
        }
    }

    void set_n_step(int64_t n_step) {
        const float largest = largest_priority();
        options_.n_step = n_step;
        settle(largest);
    }
    void set_gamma(double gamma) { options_.gamma = gamma; }

    bool was_issued(int64_t id) const {
        const Lane& lane = lanes_[static_cast<size_t>(id % options_.n_envs)];
        return id / options_.n_envs < lane.used_rows - (lane.has_reserved ? 1 : 0);
    }

    float priority(int64_t id) {
        const Transition* transition = find(id);
        return transition != nullptr && transition->live ? *transition->priority : 0.0f;
    }

    // The step as per_replay_get() returns it, if the row is an existing step. `with_next` requires a known next
    // observation.
    std::optional<Row> step(int64_t id, bool with_next) const {
        const Place place = place_of(id);
        if (place.episode == nullptr) return {};
        const Episode& episode = *place.episode;
        const Transition& transition = episode.transitions[place.t];
        const bool is_last = place.t + 1 == episode.transitions.size();
        const bool ended = episode.terminated || episode.truncated;
        Row row = {};
        row.id = id;
        row.observation = {transition.step.observation};
        if (is_last && !(ended ? episode.last_known : episode.announced)) {
            if (with_next && !episode.terminated) return {};
            row.next_observation = {transition.step.observation};
        } else if (options_.store_next_observation || is_last) {
            row.next_observation = {transition.step.next};
        } else {
            row.next_observation = {episode.transitions[place.t + 1].step.observation};
        }
        row.action = transition.step.action;
        row.reward = transition.step.reward;
        row.terminated = is_last && episode.terminated;
        row.truncated = is_last && episode.truncated;
        row.gamma_m = static_cast<float>(options_.gamma);
        row.discount = row.terminated ? 0.0f : row.gamma_m;
        row.n_steps = 1;
        row.priority = transition.live ? *transition.priority : 0.0f;
        return row;
    }

    void set_actions(const std::vector<int64_t>& ids, const std::vector<int64_t>& actions) {
        for (size_t i = 0; i < ids.size(); ++i) {
            Transition* const transition = find(ids[i]);
            if (transition == nullptr) {
                ++stale;
            } else {
                transition->step.action = actions[i];
            }
        }
    }

    float largest_priority() const {
        if (options_.max_priority == PER_MAX_EVER) return largest_ever_;
        float largest = -1;
        for (const Lane& lane : lanes_)
            for (const Episode& episode : lane.episodes)
                for (const Transition& transition : episode.transitions)
                    if (transition.live) largest = std::max(largest, *transition.priority);
        return largest < 0 ? 1.0f : largest;
    }

    // The live transitions as per_replay_sample() returns them, without weight and probability.
    std::map<int64_t, Row> live_rows() const {
        std::map<int64_t, Row> live;
        for (const Lane& lane : lanes_)
            for (const Episode& episode : lane.episodes)
                for (size_t t = 0; t < episode.transitions.size(); ++t)
                    if (episode.transitions[t].live) live.emplace(episode.transitions[t].id, row_of(episode, t));
        return live;
    }

    // The live sequences as per_replay_sample() with that n_step returns them, without weight and probability.
    std::map<int64_t, Sequence> live_sequences(int64_t n_step) const {
        ReplayModel model = *this;
        model.options_.n_step = n_step;
        std::map<int64_t, Sequence> live;
        for (const Lane& lane : model.lanes_)
            for (const Episode& episode : lane.episodes)
                for (size_t t = 0; t < episode.transitions.size(); ++t)
                    if (episode.transitions[t].live)
                        live.emplace(episode.transitions[t].id, model.sequence_of(episode, static_cast<int64_t>(t)));
        return live;
    }

    int64_t added = 0;
    int64_t dropped = 0;
    int64_t episodes_ended = 0;
    int64_t cuts = 0;
    int64_t suspected_resets = 0;
    int64_t stale = 0;
    int64_t rejected = 0;

 private:
    struct Transition {
        GivenStep step;
        int64_t row;
        int64_t id;
        bool live = false;
        bool pending = false;
        std::optional<float> priority;
    };
    struct Episode {
        std::vector<Transition> transitions;
        bool terminated = false;
        bool truncated = false;
        bool announced = false;   // the observation after the last step is known
        bool last_known = false;  // the episode has ended, and its final observation is known
        Observation last = {};    // the observation after the last step
    };
    struct Lane {
        std::vector<Episode> episodes;
        bool running = false;
        bool final_known = false;  // the last step ended an episode at a known observation
        Observation final_observation = {};
        int64_t used_rows = 0;      // rows used so far, overwritten ones included
        int64_t cleared_rows = 0;   // number of the first rows that were cleared
        bool has_reserved = false;  // the last used row holds an announced observation
    };

    static bool has_nan(const GivenCall& call) {
        const auto is_nan = [](const Observation& frame) { return std::isnan(frame[0]) || std::isnan(frame[1]); };
        for (const GivenStep& step : call.steps) {
            if (call.with_mask && !step.given) continue;
            const bool has_next = call.with_next && (!call.with_next_mask || step.has_next);
            if (is_nan(step.observation) || (has_next && is_nan(step.next)) || std::isnan(step.reward)) return true;
        }
        return false;
    }

    per_status add_step(int64_t env, const GivenStep& step, const GivenCall& call, int64_t& id_out,
                        float& largest_given) {
        Lane& lane = lanes_[static_cast<size_t>(env)];
        const bool keeps_rows = !options_.store_next_observation;
        const bool brings_final = lane.final_known && step.observation == lane.final_observation;
        lane.final_known = false;
        if (brings_final && options_.autoreset == PER_AUTORESET_NEXT_STEP) {
            ++dropped;
            if (step.reward != 0 || step.terminated || step.truncated) ++suspected_resets;
            return PER_OK;
        }
        if (brings_final) ++suspected_resets;
        const bool next_known = call.with_next && (!call.with_next_mask || step.has_next);
        const bool ends = step.terminated || step.truncated;
        if (ends && options_.autoreset == PER_AUTORESET_SAME_STEP && !call.with_next_mask)
            return PER_ERROR_INVALID_ARGUMENT;
        if (ends && !next_known && !(call.with_next_mask && !step.has_next)) return PER_ERROR_INVALID_ARGUMENT;
        if (!ends && !next_known && options_.store_next_observation) return PER_ERROR_INVALID_ARGUMENT;

        if (keeps_rows && lane.running && lane.episodes.back().announced &&
            lane.episodes.back().last != step.observation) {
            if (options_.on_gap == PER_GAP_ERROR) return PER_ERROR_INVALID_ARGUMENT;
            lane.episodes.back().truncated = true;
            lane.episodes.back().last_known = true;
            lane.running = false;
            lane.has_reserved = false;
            ++cuts;
            ++episodes_ended;
        }
        if (!lane.running) lane.episodes.emplace_back();
        lane.running = true;
        Episode& episode = lane.episodes.back();
        const int64_t row = lane.has_reserved ? lane.used_rows - 1 : lane.used_rows++;
        lane.has_reserved = false;
        id_out = row * options_.n_envs + env;
        episode.transitions.push_back({step, row, id_out, false, false, {}});
        ++added;
        if (call.with_priorities || call.with_td_errors) {
            const float p = call.with_priorities
                                ? step.priority
                                : static_cast<float>(std::abs(static_cast<double>(step.priority)) + options_.epsilon);
            if (p >= 0 && std::isfinite(p)) {
                episode.transitions.back().priority = p;
                if (is_start(static_cast<int64_t>(episode.transitions.size()) - 1))
                    largest_given = std::max(largest_given, p);
            } else if (options_.on_invalid == PER_INVALID_ERROR) {
                return PER_ERROR_INVALID_ARGUMENT;
            } else {
                ++rejected;
            }
        }
        episode.announced = next_known;
        episode.last = step.next;
        if (next_known && keeps_rows) {
            ++lane.used_rows;
            lane.has_reserved = !ends;
        }
        if (ends) {
            episode.terminated = step.terminated;
            episode.truncated = !step.terminated;
            episode.last_known = next_known;
            lane.running = false;
            ++episodes_ended;
            lane.final_known = next_known;
            lane.final_observation = step.next;
        }
        if (!options_.overwrite && lane.used_rows - lane.cleared_rows > rows_) return PER_ERROR_FULL;
        return PER_OK;
    }

    bool is_there(const Lane& lane, int64_t row) const {
        return row >= lane.cleared_rows && row >= lane.used_rows - rows_;
    }

    // The number of steps of the window of transition t; 0 if it is not complete yet, -1 if it never will be.
    int64_t window(const Episode& episode, int64_t t) const {
        const int64_t length = static_cast<int64_t>(episode.transitions.size());
        const int64_t n = options_.n_step;
        const bool ended = episode.terminated || episode.truncated;
        if (!ended) return t + n < length + (episode.announced ? 1 : 0) ? n : 0;
        if (episode.terminated || episode.last_known) return std::min(n, length - t);
        return t == length - 1 ? -1 : std::min(n, length - 1 - t);
    }

    bool is_start(int64_t t) const { return t % stride_ == 0; }

    // True if step t exists and its return is complete.
    bool is_learned_from(const Episode& episode, int64_t t) const {
        return t < static_cast<int64_t>(episode.transitions.size()) && window(episode, t) > 0;
    }

    // The number of steps after the burn-in in the sequence at t; 0 if the sequence is not complete yet, -1 if none
    // starts there or it ends within the burn-in.
    int64_t sequence(const Episode& episode, int64_t t) const {
        if (!is_start(t)) return -1;
        int64_t count = 0;
        while (count < steps_ && is_learned_from(episode, t + count)) ++count;
        if (count == steps_) return count;
        if (!(episode.terminated || episode.truncated)) return 0;
        return count > (options_.sequence_length == 0 ? 0 : options_.burn_in) ? count : -1;
    }

    bool has_stack(const Lane& lane, const Episode& episode, int64_t t) const {
        const int64_t oldest = std::max<int64_t>(0, t - (options_.frame_stack - 1));
        return is_there(lane, episode.transitions[static_cast<size_t>(oldest)].row);
    }

    // Updates the live transitions. One that becomes live without a priority gets `largest`.
    void settle(float largest) {
        for (Lane& lane : lanes_) {
            for (Episode& episode : lane.episodes) {
                for (size_t t = 0; t < episode.transitions.size(); ++t) {
                    Transition& transition = episode.transitions[t];
                    const int64_t m = sequence(episode, static_cast<int64_t>(t));
                    const bool whole = has_stack(lane, episode, static_cast<int64_t>(t));
                    transition.live = m > 0 && whole;
                    transition.pending = m == 0;
                    if (transition.live && !transition.priority) transition.priority = largest;
                }
            }
        }
    }

    struct Place {
        const Episode* episode = nullptr;
        size_t t = 0;
    };
    Place place_of(int64_t id) const {
        if (id < 0) return {};
        const Lane& lane = lanes_[static_cast<size_t>(id % options_.n_envs)];
        for (const Episode& episode : lane.episodes)
            for (size_t t = 0; t < episode.transitions.size(); ++t)
                if (episode.transitions[t].id == id && is_there(lane, episode.transitions[t].row)) return {&episode, t};
        return {};
    }
    Transition* find(int64_t id) {
        const Place place = place_of(id);
        return place.episode == nullptr ? nullptr : const_cast<Transition*>(&place.episode->transitions[place.t]);
    }

    // Frames up to index t of an episode, preceded by copies of the first one or by zeros.
    std::vector<Observation> frames(const Episode& episode, int64_t t) const {
        std::vector<Observation> result;
        for (int64_t age = options_.frame_stack - 1; age >= 0; --age) {
            if (t - age < 0 && padding_ == PER_PADDING_ZERO) {
                result.push_back({0, 0});
                continue;
            }
            const int64_t i = std::max<int64_t>(0, t - age);
            const bool is_last = i == static_cast<int64_t>(episode.transitions.size());
            result.push_back(is_last ? episode.last : episode.transitions[static_cast<size_t>(i)].step.observation);
        }
        return result;
    }

    Sequence sequence_of(const Episode& episode, int64_t first) const {
        const Observation nothing = {0, 0};
        const int64_t length = static_cast<int64_t>(episode.transitions.size());
        const int64_t count = sequence(episode, first);
        const Transition& start = episode.transitions[static_cast<size_t>(first)];
        Sequence result = {start.id, {}, {}, state_of(start.step.observation), 0, *start.priority, 0};
        const bool ended = episode.terminated || episode.truncated;
        std::set<int64_t> places;  // positions of the observations of steps and of those they bootstrap from
        for (int64_t t = 0; t < steps_; ++t) {
            if (t >= count) {
                result.steps.push_back({0, 0, 0, 0, 0, false, false, false});
                continue;
            }
            const Row row = row_of(episode, static_cast<size_t>(first + t));
            result.steps.push_back(
                {row.action, row.reward, row.discount, row.gamma_m, row.n_steps, row.terminated, row.truncated, true});
            places.insert(first + t);
            places.insert(first + t + row.n_steps);
        }
        for (int64_t p = first; p < first + steps_ + options_.n_step; ++p) {
            const bool is_known = p < length || (p == length && (ended ? episode.last_known : episode.announced));
            if (!places.contains(p))
                result.observation.emplace_back(options_.frame_stack, nothing);
            else
                result.observation.push_back(frames(episode, is_known ? p : p - 1));
        }
        return result;
    }

    Row row_of(const Episode& episode, size_t first) const {
        const int64_t t = static_cast<int64_t>(first);
        const int64_t m = window(episode, t);
        const int64_t length = static_cast<int64_t>(episode.transitions.size());
        const bool reaches_end = t + m == length && (episode.terminated || episode.truncated);
        double reward = 0;
        for (int64_t k = m - 1; k >= 0; --k)
            reward = static_cast<double>(episode.transitions[static_cast<size_t>(t + k)].step.reward) +
                     options_.gamma * reward;
        Row row = {};
        row.id = episode.transitions[first].id;
        row.observation = frames(episode, t);
        const bool repeats_own = reaches_end && !episode.last_known;
        row.next_observation = frames(episode, repeats_own ? t + m - 1 : t + m);
        if (options_.store_next_observation && !repeats_own)
            row.next_observation.back() = episode.transitions[static_cast<size_t>(t + m - 1)].step.next;
        row.action = episode.transitions[first].step.action;
        row.reward = static_cast<float>(reward);
        row.terminated = reaches_end && episode.terminated;
        row.truncated = reaches_end && episode.truncated;
        row.gamma_m = static_cast<float>(std::pow(options_.gamma, static_cast<double>(m)));
        row.discount = row.terminated ? 0.0f : row.gamma_m;
        row.n_steps = static_cast<int32_t>(m);
        row.priority = episode.transitions[first].priority.value_or(0.0f);
        return row;
    }

    per_replay_options options_;
    int32_t padding_;  // padding of the observation's stack
    int64_t rows_;
    int64_t stride_;
    int64_t steps_;
    std::vector<Lane> lanes_;
    float largest_ever_ = 1;
};

}  // namespace per::test

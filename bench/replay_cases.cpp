#include "replay_cases.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "cumulative_sums.h"
#include "draws.h"
#include "record_rows.h"

namespace bench {
namespace {

/* Maximum size of a ring of observations: libper's and the plain one, which stores them twice, exist at the same time.
 * */
constexpr int64_t largest_ring_bytes = int64_t{1} << 30;

/* Number of draws for the check of probabilities; see check_mean_priority(). */
constexpr int64_t checked_draws = 4096;

RowKind kind_of(const std::string& case_name) {
    if (case_name == "gather_u8_84x84x4") {
        return RowKind{case_name, {{"observation", PER_UINT8, {84, 84, 4}}, {"action", PER_INT32, {}}}};
    }
    if (case_name == "gather_u8_64x64x3") {
        return RowKind{case_name, {{"observation", PER_UINT8, {64, 64, 3}}, {"action", PER_INT32, {}}}};
    }
    if (case_name == "gather_f32_32x32x3") {
        return RowKind{case_name, {{"observation", PER_FLOAT32, {32, 32, 3}}, {"action", PER_INT32, {}}}};
    }
    if (case_name == "n_step" || case_name == "frame_stack") {
        RowKind kind = kind_of("gather");
        (case_name == "n_step" ? kind.n_step : kind.stack) = case_name == "n_step" ? 3 : 4;
        return kind;
    }
    if (case_name == "sequence") {
        RowKind kind = kind_of("gather");
        kind.n_step = 5;
        kind.burn_in = 40;
        kind.sequence_length = 40;
        return kind;
    }
    if (case_name == "uniform" || case_name == "freshness") return RowKind{case_name, {{"observation", PER_UINT8, {}}}};
    return RowKind{case_name, {{"observation", PER_FLOAT32, {17}}, {"action", PER_FLOAT32, {6}}}};
}

std::vector<float> random_priorities(Xoshiro& random, int64_t count) {
    std::vector<float> priorities(static_cast<size_t>(count));
    for (float& priority : priorities) priority = static_cast<float>(1e-6 - std::log(1 - random.uniform()));
    return priorities;
}

/* Weights are (q_min / q)^beta with q = p^alpha. */
void check_replay_weights(const LibperReplay& replay, const std::vector<int64_t>& ids,
                          const std::vector<float>& weights) {
    const std::vector<float> priorities = replay.priorities(ids);
    const double smallest = *std::min_element(priorities.begin(), priorities.end());
    require(smallest > 0, "what is drawn is live");
    const double exponent = replay.alpha() * static_cast<double>(weights_beta);
    for (size_t i = 0; i < ids.size(); ++i) {
        const double weight = std::pow(smallest / static_cast<double>(priorities[i]), exponent);
        require(std::fabs(weights[i] - weight) <= 1e-5 * weight, "a weight is (q_min / q)^beta");
    }
}

/*
 * The mean priority of some thousand draws matches P(i), by a naive sum over all live rows. The means of proportional
 * and uniform draws differ by half, while chance moves a mean by 2 %. Seeds are fixed, so the check cannot start to
 * fail by chance.
 */
template <class DrawIds>
void check_mean_priority(ReplayStage& stage, double exponent, int64_t batch, DrawIds draw_ids) {
    double expected = 0;
    double total = 0;
    for (const float priority : stage.libper().priorities(stage.newest_ids())) {
        if (priority == 0) continue;
        const double mass = std::pow(static_cast<double>(priority), exponent);
        expected += mass * static_cast<double>(priority);
        total += mass;
    }
    expected /= total;
    double sum = 0;
    int64_t draws = 0;
    for (; draws < checked_draws; draws += batch) {
        for (const float priority : stage.libper().priorities(draw_ids())) sum += static_cast<double>(priority);
    }
    const double mean = sum / static_cast<double>(draws);
    require(std::fabs(mean - expected) < 0.15 * expected, "rows are drawn with the probabilities asked for");
}

// -------------------------------------------------------------------------------------------------------- gather

Variant libper_gather(const char* name, ReplayStage& stage, LibperReplay& replay, int64_t batch) {
    auto rows = std::make_shared<Rows>(stage.kind(), batch);
    const auto run = [=, &replay] { replay.sample_rows(*rows); };
    const auto verify = [=, &stage, &replay] {
        const auto draw_ids = [&]() -> const std::vector<int64_t>& {
            run();
            return rows->ids;
        };
        draw_ids();
        check_rows(stage.kind(), *rows);
        check_replay_weights(replay, rows->ids, rows->weights);
        check_mean_priority(stage, replay.alpha(), batch, draw_ids);
    };
    return Variant{name, [] {}, run, verify};
}

Variant plain_gather(ReplayStage& stage, int64_t batch) {
    auto rows = std::make_shared<Rows>(stage.kind(), batch);
    auto draws = std::make_shared<Draws>(batch);
    PlainReplay& replay = stage.plain();
    const auto run = [=, &replay] { replay.sample(*draws, *rows); };
    const auto verify = [=, &stage, &replay] {
        run();
        Rows found = *rows;
        for (int64_t& id : found.ids) id = replay.row_in(id);
        check_rows(stage.kind(), found);
    };
    return Variant{"binary_float32", [] {}, run, verify};
}

/* `copy`: copies the rows of given slots of the plain replay. */
template <class Copy>
Variant floor_of(const char* name, ReplayStage& stage, int64_t batch, const Copy& copy) {
    auto rows = std::make_shared<Rows>(stage.kind(), batch);
    auto slots = std::make_shared<std::vector<int64_t>>(static_cast<size_t>(batch));
    PlainReplay& replay = stage.plain();
    const auto prepare = [=, &stage] { stage.stratified_slots(*slots); };
    const auto run = [=] { copy(*slots, *rows); };
    const auto verify = [=, &stage, &replay] {
        prepare();
        run();
        Rows found = *rows;
        for (int64_t& id : found.ids) id = replay.row_in(id);
        check_rows(stage.kind(), found);
    };
    return Variant{name, prepare, run, verify};
}

Variant gather_floor(ReplayStage& stage, int64_t batch) {
    const PlainReplay& replay = stage.plain();
    return floor_of("floor", stage, batch, [&replay](const std::vector<int64_t>& slots, Rows& rows) {
        replay.copy_rows_and_followers(slots, rows);
    });
}

Variant record_floor(ReplayStage& stage, int64_t batch) {
    const auto records = std::make_shared<RecordRows>(stage.kind(), stage.plain());
    return floor_of("floor_records", stage, batch, [records](const std::vector<int64_t>& slots, Rows& rows) {
        records->copy_rows_and_followers(slots, rows);
    });
}

/* Sequences, drawn in proportion to their priorities. */
Variant libper_sequences(ReplayStage& stage, int64_t batch) {
    auto sequences = std::make_shared<Sequences>(stage.kind(), batch);
    LibperReplay& replay = stage.libper();
    const auto run = [=, &replay] { replay.sample_sequences(*sequences); };
    const auto verify = [=, &stage, &replay] {
        const auto draw_ids = [&]() -> const std::vector<int64_t>& {
            run();
            return sequences->ids;
        };
        draw_ids();
        check_sequences(stage.kind(), *sequences);
        check_replay_weights(replay, sequences->ids, sequences->weights);
        check_mean_priority(stage, replay.alpha(), batch, draw_ids);
    };
    return Variant{"libper", [] {}, run, verify};
}

/* One memcpy of the size of the batch, from anywhere in the ring. */
Variant gather_memcpy(ReplayStage& stage, int64_t batch) {
    PlainReplay& replay = stage.plain();
    const bool has_sequences = stage.kind().sequence_length > 0;
    const int64_t element_bytes = has_sequences ? bytes_of_sequence(stage.kind()) : stage.kind().bytes();
    const int64_t bytes = std::min(batch * element_bytes, replay.ring_bytes());
    auto out = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(bytes));
    auto first = std::make_shared<int64_t>();
    const auto prepare = [=, &stage, &replay] { *first = stage.random().below(replay.ring_bytes() - bytes + 1); };
    const auto run = [=, &replay] { replay.copy_bytes(*first, bytes, out->data()); };
    const auto verify = [=, &replay] {
        prepare();
        run();
        std::vector<std::byte> again(out->size());
        for (int64_t i = 0; i < bytes; ++i) replay.copy_bytes(*first + i, 1, again.data() + i);
        require(again == *out, "the bytes are copied");
    };
    return Variant{"memcpy", prepare, run, verify};
}

// ----------------------------------------------------------------------------------------------------------- add

/* `singly`: one call per step. */
Variant libper_add(const char* name, ReplayStage& stage, LibperReplay& replay, int64_t batch, bool singly) {
    auto steps = std::make_shared<Steps>(stage.kind(), batch);
    auto ids = std::make_shared<std::vector<int64_t>>(static_cast<size_t>(batch));
    const auto prepare = [=, &stage, &replay] { steps->set(stage.kind(), replay.next_step()); };
    const auto run = [=, &replay] {
        if (singly) {
            replay.add_singly(*steps, ids->data());
        } else {
            replay.add(*steps, nullptr, ids->data());
        }
    };
    const auto verify = [=, &stage, &replay] {
        prepare();
        const int64_t first_step = replay.next_step();
        run();
        Rows rows(stage.kind(), batch);
        for (int64_t i = 0; i < batch; ++i) {
            require((*ids)[i] == row_of_step(first_step + i), "an id counts the rows of its environment");
            rows.ids[i] = (*ids)[i];
        }
        replay.get(rows);
        check_rows(stage.kind(), rows);
        const std::vector<float> priorities = replay.priorities(*ids);
        require(*std::min_element(priorities.begin(), priorities.end()) > 0, "what is added is live");
    };
    return Variant{name, prepare, run, verify};
}

/* `with_tree`: the plain replay's add; else the copies alone. */
Variant plain_add(const char* name, ReplayStage& stage, int64_t batch, bool with_tree) {
    auto steps = std::make_shared<Steps>(stage.kind(), batch);
    PlainReplay& replay = stage.plain();
    const auto prepare = [=, &stage, &replay] { steps->set(stage.kind(), replay.next_step()); };
    const auto run = [=, &replay] {
        if (with_tree) {
            replay.add(*steps);
        } else {
            replay.store(*steps);
        }
    };
    const auto verify = [=, &stage, &replay] {
        prepare();
        const int64_t first_step = replay.next_step();
        run();
        std::vector<int64_t> slots;
        for (int64_t i = 0; i < batch; ++i) {
            const int64_t slot = (first_step + i) % replay.capacity();
            require(replay.row_in(slot) == row_of_step(first_step + i), "a step is in the slot that follows the last");
            // The next row must exist, and be its next observation.
            const bool has_follower = i + 1 < batch && slot + 1 < replay.capacity();
            if (has_follower && !is_terminated(replay.row_in(slot))) slots.push_back(slot);
        }
        Rows rows(stage.kind(), static_cast<int64_t>(slots.size()));
        replay.copy_rows_and_followers(slots, rows);
        for (int64_t& id : rows.ids) id = replay.row_in(id);
        check_rows(stage.kind(), rows);
    };
    return Variant{name, prepare, run, verify};
}

// ------------------------------------------------------------------------------------------------------- uniform

Variant ids_variant(const char* name, ReplayStage& stage, int64_t batch, per_prioritization prioritization) {
    auto ids = std::make_shared<std::vector<int64_t>>(static_cast<size_t>(batch));
    auto weights = std::make_shared<std::vector<float>>(static_cast<size_t>(batch));
    LibperReplay& replay = stage.libper();
    const auto run = [=, &replay] { replay.sample_ids(prioritization, *ids, *weights); };
    const auto verify = [=, &stage, &replay] {
        const auto draw_ids = [&]() -> const std::vector<int64_t>& {
            run();
            return *ids;
        };
        const bool uniform = prioritization == PER_UNIFORM;
        check_mean_priority(stage, uniform ? 0 : replay.alpha(), batch, draw_ids);
        if (!uniform) return check_replay_weights(replay, *ids, *weights);
        const std::vector<float> priorities = replay.priorities(*ids);
        require(*std::min_element(priorities.begin(), priorities.end()) > 0, "what is drawn is live");
        require(std::all_of(weights->begin(), weights->end(), [](float weight) { return weight == 1; }),
                "weights of uniform draws are 1");
    };
    return Variant{name, [] {}, run, verify};
}

// ------------------------------------------------------------------------------------------------------- mixture

/* Half of each batch from either of two buffers with the same rows. */
Variant libper_mixture(ReplayStage& stage, int64_t batch) {
    auto rows = std::make_shared<Rows>(stage.kind(), batch);
    auto sources = std::make_shared<std::array<per_source, 2>>();
    LibperReplay &replay = stage.libper(), &other = stage.another_libper();
    const auto run = [=, &replay, &other] { replay.sample_mixture(other, *sources, *rows); };
    const auto verify = [=, &stage, &replay] {
        run();
        check_rows(stage.kind(), *rows);
        check_replay_weights(replay, rows->ids, rows->weights);
    };
    return Variant{"libper", [] {}, run, verify};
}

/* The draws of which a mixture consists. */
Variant draws_of_two(ReplayStage& stage, int64_t batch) {
    auto rows = std::make_shared<Rows>(stage.kind(), (batch + 1) / 2);
    auto others = std::make_shared<Rows>(stage.kind(), (batch + 1) / 2);
    LibperReplay &replay = stage.libper(), &other = stage.another_libper();
    const auto run = [=, &replay, &other] {
        replay.sample_rows(*rows);
        other.sample_rows(*others);
    };
    const auto verify = [=, &stage] {
        run();
        check_rows(stage.kind(), *rows);
        check_rows(stage.kind(), *others);
    };
    return Variant{"two_draws", [] {}, run, verify};
}

// ----------------------------------------------------------------------------------------------------- freshness

/*
 * The mean age of some thousand draws matches P(i) = p_i^alpha 2^(-age / half_life), by a naive sum over all live rows.
 */
template <class DrawIds>
void check_mean_age(ReplayStage& stage, LibperReplay& replay, double half_life, int64_t batch, DrawIds draw_ids) {
    const std::vector<int64_t> ids = stage.newest_ids();
    const std::vector<float> priorities = replay.priorities(ids);
    const auto age_of = [&](int64_t id) { return static_cast<double>(ids.back() - id); };
    double expected = 0, total = 0, sum = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
        const double power = std::pow(static_cast<double>(priorities[i]), replay.alpha());
        const double mass = half_life == 0 ? power : power * std::exp2(-age_of(ids[i]) / half_life);
        expected += mass * age_of(ids[i]);
        total += mass;
    }
    expected /= total;
    int64_t draws = 0;
    for (; draws < checked_draws; draws += batch)
        for (const int64_t id : draw_ids()) sum += age_of(id);
    const double mean = sum / static_cast<double>(draws);
    require(std::fabs(mean - expected) < 0.1 * expected, "rows are drawn with the probabilities asked for");
}

/* A draw of ids and weights, and the update that follows it. */
Variant libper_fresh(const char* name, ReplayStage& stage, LibperReplay& replay, double half_life, int64_t batch) {
    auto ids = std::make_shared<std::vector<int64_t>>(static_cast<size_t>(batch));
    auto weights = std::make_shared<std::vector<float>>(static_cast<size_t>(batch));
    const auto td_errors = std::make_shared<std::vector<float>>(random_priorities(stage.random(), batch));
    const auto run = [=, &replay] {
        replay.sample_ids(PER_PROPORTIONAL, *ids, *weights);
        replay.update(*ids, *td_errors);
    };
    const auto verify = [=, &stage, &replay] {
        const auto draw_ids = [&]() -> const std::vector<int64_t>& {
            replay.sample_ids(PER_PROPORTIONAL, *ids, *weights);
            return *ids;
        };
        check_mean_age(stage, replay, half_life, batch, draw_ids);
    };
    return Variant{name, [] {}, run, verify};
}

/* The way without a tree that knows of age: before each draw, a loop decays every priority. */
Variant refresh_all(ReplayStage& stage, int64_t batch) {
    const auto decayed = std::make_shared<std::vector<float>>(static_cast<size_t>(stage.capacity()));
    const auto priorities = std::make_shared<std::vector<float>>(random_priorities(stage.random(), stage.capacity()));
    const auto sums = std::make_shared<CumulativeSums>(stage.capacity());
    auto draws = std::make_shared<Draws>(batch);
    const float rate = static_cast<float>(1 / stage.half_life());
    const auto run = [=] {
        const size_t n = decayed->size();
        for (size_t i = 0; i < n; ++i)
            (*decayed)[i] = (*priorities)[i] * std::exp2(-static_cast<float>(n - 1 - i) * rate);
        sums->fill(decayed->data());
        sums->sample_stratified(*draws);
        importance_weights(*draws);
    };
    const auto verify = [=] {
        run();
        for (size_t i = 0; i < draws->indices.size(); ++i)
            require(draws->priorities[i] == (*decayed)[static_cast<size_t>(draws->indices[i])],
                    "a draw has its priority");
    };
    return Variant{"refresh_all", [] {}, run, verify};
}

/* One random number per draw, and nothing else. */
Variant uniform_floor(ReplayStage& stage, int64_t batch) {
    auto slots = std::make_shared<std::vector<int64_t>>(static_cast<size_t>(batch));
    const auto run = [=, &stage] {
        for (int64_t& slot : *slots) slot = stage.random().below(stage.capacity());
    };
    const auto verify = [=, &stage] {
        run();
        const auto [least, most] = std::minmax_element(slots->begin(), slots->end());
        require(*least >= 0 && *most < stage.capacity(), "a draw is a slot");
    };
    return Variant{"floor", [] {}, run, verify};
}

}  // namespace

ReplayStage::ReplayStage(const std::string& case_name, int64_t capacity)
    : kind_(kind_of(case_name)), capacity_(capacity), libper_(kind_, capacity) {
    fill(libper_);
}

/* Beyond the capacity, so that the oldest rows have been overwritten. */
void ReplayStage::fill(LibperReplay& replay) {
    Xoshiro random(10);
    fill(capacity_ + capacity_ / 3, [&](const Steps& steps) {
        const std::vector<float> priorities = random_priorities(random, steps.length());
        std::vector<int64_t> ids(static_cast<size_t>(steps.length()));
        replay.add(steps, priorities.data(), ids.data());
    });
}

LibperReplay& ReplayStage::libper_of_two_threads() {
    if (!libper_of_two_threads_) fill(libper_of_two_threads_.emplace(kind_, capacity_, 2));
    return *libper_of_two_threads_;
}

LibperReplay& ReplayStage::another_libper() {
    if (!another_libper_) fill(another_libper_.emplace(kind_, capacity_));
    return *another_libper_;
}

LibperReplay& ReplayStage::libper_with_half_life() {
    if (!libper_with_half_life_) fill(libper_with_half_life_.emplace(kind_, capacity_, 1, half_life()));
    return *libper_with_half_life_;
}

template <class Add>
void ReplayStage::fill(int64_t steps, Add add) {
    constexpr int64_t run_bytes = 1 << 20;
    const int64_t run = std::clamp(run_bytes / kind_.bytes(), int64_t{1}, std::max(int64_t{1}, capacity_ / 4));
    Steps given(kind_, run);
    for (int64_t step = 0; step < steps; step += run) {
        given.set(kind_, step);
        add(given);
    }
}

PlainReplay& ReplayStage::plain() {
    if (!plain_) {
        plain_.emplace(kind_, capacity_);
        fill(capacity_ + capacity_ / 3, [this](const Steps& steps) { plain_->store(steps); });
        Xoshiro random(9);
        plain_->set_priorities(random_priorities(random, capacity_).data());
    }
    return *plain_;
}

void ReplayStage::stratified_slots(std::vector<int64_t>& slots) {
    const PlainReplay& replay = plain();
    const int64_t newest = (replay.next_step() - 1) % capacity_;
    // Its stack, its window and the step after them are contiguous in the ring, and in one episode.
    const auto is_whole = [&](int64_t slot) {
        const int64_t first = slot - (kind_.stack - 1);
        const int64_t last = slot + kind_.n_step;
        if (first < 0 || last >= capacity_ || (newest >= first && newest < last)) return false;
        const int64_t before = steps_before(replay.row_in(slot));
        return before >= kind_.stack - 1 && before + kind_.n_step < episode_steps;
    };
    const double stratum = static_cast<double>(capacity_ - 2) / static_cast<double>(slots.size());
    double i = 0;
    for (int64_t& slot : slots) {
        slot = static_cast<int64_t>((i + random_.uniform()) * stratum);
        while (!is_whole(slot)) slot = (slot + 1) % capacity_;
        ++i;
    }
}

std::vector<int64_t> ReplayStage::newest_ids() const {
    const int64_t next_row = row_of_step(libper_.next_step() - 1) + 1;
    std::vector<int64_t> ids;
    for (int64_t id = next_row - capacity_; id < next_row; ++id) {
        if (!is_final_observation(id)) ids.push_back(id);
    }
    return ids;
}

const std::vector<std::string>& replay_case_names() {
    static const std::vector<std::string> names = {
        "add",    "gather",      "gather_u8_84x84x4", "gather_u8_64x64x3", "gather_f32_32x32x3",
        "n_step", "frame_stack", "sequence",          "uniform",           "freshness",
        "mixture"};
    return names;
}

int64_t replay_capacity(const std::string& case_name, int64_t capacity) {
    return std::min(capacity, largest_ring_bytes / kind_of(case_name).fields[0].bytes());
}

std::vector<Variant> replay_case(const std::string& case_name, ReplayStage& stage, int64_t batch) {
    std::vector<Variant> variants;
    if (case_name == "add") {
        variants.push_back(libper_add("libper", stage, stage.libper(), batch, false));
        variants.push_back(libper_add("libper_single_steps", stage, stage.libper(), batch, true));
        LibperReplay& fresh = stage.libper_with_half_life();
        variants.push_back(libper_add("libper_half_life", stage, fresh, batch, false));
        variants.push_back(libper_add("libper_half_life_single_steps", stage, fresh, batch, true));
        variants.push_back(plain_add("binary_float32", stage, batch, true));
        variants.push_back(plain_add("floor", stage, batch, false));
    } else if (case_name == "uniform") {
        variants.push_back(ids_variant("libper", stage, batch, PER_UNIFORM));
        variants.push_back(ids_variant("libper_proportional", stage, batch, PER_PROPORTIONAL));
        variants.push_back(uniform_floor(stage, batch));
    } else if (case_name == "freshness") {
        constexpr int64_t largest_refreshed = 1'000'000;
        variants.push_back(libper_fresh("libper", stage, stage.libper(), 0, batch));
        variants.push_back(
            libper_fresh("libper_half_life", stage, stage.libper_with_half_life(), stage.half_life(), batch));
        if (stage.capacity() <= largest_refreshed) variants.push_back(refresh_all(stage, batch));
    } else if (case_name == "mixture") {
        variants.push_back(libper_mixture(stage, batch));
        variants.push_back(draws_of_two(stage, batch));
    } else if (case_name == "sequence") {
        variants.push_back(libper_sequences(stage, batch));
        variants.push_back(gather_memcpy(stage, batch));
    } else {
        variants.push_back(libper_gather("libper", stage, stage.libper(), batch));
        // No batch of rows of a few bytes is large enough for a second thread.
        if (case_name.starts_with("gather_"))
            variants.push_back(libper_gather("libper_two_threads", stage, stage.libper_of_two_threads(), batch));
        if (stage.kind().n_step == 1 && stage.kind().stack == 1) variants.push_back(plain_gather(stage, batch));
        variants.push_back(gather_floor(stage, batch));
        if (case_name == "gather") variants.push_back(record_floor(stage, batch));
        variants.push_back(gather_memcpy(stage, batch));
    }
    return variants;
}

}  // namespace bench

#ifndef PER_BENCH_REPLAY_CASES_H
#define PER_BENCH_REPLAY_CASES_H

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "libper_replay.h"
#include "plain_replay.h"
#include "row.h"
#include "variant.h"
#include "xoshiro.h"

namespace bench {

/* Full replay buffers with the rows of one case. */
class ReplayStage {
 public:
    ReplayStage(const std::string& case_name, int64_t capacity);

    const RowKind& kind() const { return kind_; }
    int64_t capacity() const { return capacity_; }
    LibperReplay& libper() { return libper_; }
    LibperReplay& libper_of_two_threads(); /* the same rows, copied by two threads */
    LibperReplay& another_libper();        /* the same rows, copied by two threads */
    LibperReplay& libper_with_half_life(); /* of a quarter of the capacity, in steps */
    double half_life() const { return static_cast<double>(capacity_) / 4; }
    PlainReplay& plain();

    /* Slots of the plain replay in stratified order; their stacks and windows lie around them in the ring. */
    void stratified_slots(std::vector<int64_t>& slots);

    /* Ids that may be live. */
    std::vector<int64_t> newest_ids() const;

    Xoshiro& random() { return random_; }

 private:
    template <class Add>
    void fill(int64_t steps, Add add);
    void fill(LibperReplay& replay);

    RowKind kind_;
    int64_t capacity_;
    Xoshiro random_{9};
    LibperReplay libper_;
    std::optional<LibperReplay> libper_of_two_threads_;
    std::optional<LibperReplay> another_libper_;
    std::optional<LibperReplay> libper_with_half_life_;
    std::optional<PlainReplay> plain_;
};

/* The cases of the replay, described in README.md. */
const std::vector<std::string>& replay_case_names();

/* `capacity`, limited to a few GiB of rows. */
int64_t replay_capacity(const std::string& case_name, int64_t capacity);

/* The variants of a case. They refer to the stage. */
std::vector<Variant> replay_case(const std::string& case_name, ReplayStage& stage, int64_t batch);

}  // namespace bench

#endif

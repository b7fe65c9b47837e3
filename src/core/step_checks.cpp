#include "core/step_checks.h"

#include <cinttypes>
#include <string>
#include <utility>

#include "base/arguments.h"
#include "base/error.h"
#include "core/checks.h"
#include "rows/cast.h"
#include "rules/limits.h"

namespace per {
namespace {

const per_array& required(const char* name, const per_array& array, const char* why = "") {
    if (array.data == nullptr)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is missing: every step needs it%s", name, why);
    return array;
}

// Checks that the array has one flag for each step and environment, and returns it. An array without data is allowed:
// it was not given.
const per_array& checked_flags(const char* name, const per_array& array, const Entries& entries) {
    if (array.data != nullptr) check_array(name, array, entries);
    return array;
}

const per_array& checked_numbers(const char* name, const per_array& array, const Entries& entries) {
    if (array.data != nullptr) check_cast(name, checked_flags(name, array, entries).dtype, PER_FLOAT32);
    return array;
}

GivenArray checked_field(const std::string& name, const per_array& array, const Field& field, Entries entries) {
    entries.shape = field.shape;
    if (field.is_observation()) entries.stack = field.stack;
    const char* const why = field.is_observation() ? "" : ", as the field has no default";
    GivenArray given = {array, 1};  // a copy, since other threads may write to the caller's
    required(name.c_str(), given.array, why);
    if (field.is_ragged())
        check_ragged_array(name, given.array, field, entries.length * entries.n_envs);
    else
        given.frames = check_array(name, given.array, entries);
    check_cast(name, given.array.dtype, field.dtype);
    return given;
}

[[noreturn]] void refuse_to_set(const Field& observation, const Fields& fields) {
    std::string others;
    for (int64_t i = 0; i < fields.count(); ++i)
        if (!fields[i].is_observation()) others += (others.empty() ? "" : ", ") + fields[i].name;
    throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is given: observations cannot be set, as rows share them; %s%s",
                observation.name.c_str(),
                others.empty() ? "the buffer has no other fields" : "these can: ", others.c_str());
}

}  // namespace

void check_fields_set(int64_t count, const per_array* given, const Fields& fields, int32_t device) {
    check_count_set(count, device);
    for (int64_t i = 0; i < fields.count(); ++i) {
        const Field& field = fields[i];
        if (given[i].data == nullptr) continue;
        if (field.is_observation()) refuse_to_set(field, fields);
        checked_field(field.name, given[i], field, {1, count, {}, 1, "the number of ids is", false});
    }
}

StepChecks::StepChecks(const Fields& fields, const per_replay_options& buffer)
    : declared_(fields),
      buffer_(buffer),
      fields_(static_cast<size_t>(fields.count())),
      next_fields_(static_cast<size_t>(fields.count())),
      last_call_of_(static_cast<size_t>(buffer.n_envs), 0) {
    environments_.reserve(last_call_of_.size());
}

std::span<const int64_t> StepChecks::environments(int64_t count, const int64_t* env_ids, bool may_repeat) {
    ++n_calls_;
    environments_.clear();
    for (int64_t i = 0; i < count; ++i) {
        const int64_t env = read_once(env_ids[i]);
        if (env < 0 || env >= buffer_.n_envs) throw_out_of_range("env_ids", i, env, 0, buffer_.n_envs - 1);
        if (std::exchange(last_call_of_[static_cast<size_t>(env)], n_calls_) != n_calls_)
            environments_.push_back(env);
        else if (!may_repeat)
            throw Error(PER_ERROR_INVALID_ARGUMENT, "env_ids[%" PRId64 "] is %" PRId64 ": given twice", i, env);
    }
    return environments_;
}

// Returns true if the observations after the steps are given. Throws Error if only some of them are.
bool StepChecks::has_next_fields(const per_steps& steps) const {
    const Field* given = nullptr;
    const Field* missing = nullptr;
    for (int64_t i = 0; i < declared_.count(); ++i) {
        if (!declared_[i].is_observation()) continue;
        const bool has_data = steps.next_fields != nullptr && steps.next_fields[i].data != nullptr;
        (has_data ? given : missing) = &declared_[i];
    }
    if (given != nullptr && missing != nullptr)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is missing: %s is given, and all or none are allowed",
                    missing->next_name.c_str(), given->next_name.c_str());
    if (given == nullptr && buffer_.store_next_observation)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is missing: with store_next_observation every step needs it",
                    missing->next_name.c_str());
    return given != nullptr;
}

ReplaySteps StepChecks::steps(const per_steps& steps) {
    check_count("length", steps.length, 0);
    ReplaySteps checked = {};
    checked.length = steps.length;
    checked.n_envs = buffer_.n_envs;
    if (steps.env_ids != nullptr) {
        check_aligned("env_ids", steps.env_ids);
        check_count("n_envs", steps.n_envs, 0);
        if (steps.n_envs > buffer_.n_envs)
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "env_ids has %" PRId64 " entries: at most the %" PRId64
                        " environments of the buffer are allowed",
                        steps.n_envs, buffer_.n_envs);
        checked.n_envs = steps.n_envs;
        checked.env_ids = environments(steps.n_envs, steps.env_ids, false).data();
    }
    if (checked.length == 0 || checked.n_envs == 0) return checked;
    int64_t n_entries;
    if (__builtin_mul_overflow(checked.length, checked.n_envs, &n_entries) || n_entries > max_count)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "length is %" PRId64 ": too many steps", steps.length);

    require_pointer("fields", steps.fields);
    const char* const n_envs_from = steps.env_ids != nullptr ? "the length of env_ids is" : "n_envs is";
    const Entries entries = {checked.length, checked.n_envs, {}, 1, n_envs_from};
    const bool has_next = has_next_fields(steps);
    for (int64_t i = 0; i < declared_.count(); ++i) {
        const Field& field = declared_[i];
        const bool takes_default = steps.fields[i].data == nullptr && field.has_default();
        fields_[static_cast<size_t>(i)] =
            takes_default ? GivenArray{{}, 1} : checked_field(field.name, steps.fields[i], field, entries);
        if (has_next && field.is_observation())
            next_fields_[static_cast<size_t>(i)] = checked_field(field.next_name, steps.next_fields[i], field, entries);
    }
    checked.fields = fields_.data();
    checked.next_fields = has_next ? next_fields_.data() : nullptr;
    checked.reward = checked_numbers("reward", required("reward", steps.reward), entries);
    const char* const no_time_limit = "; false is right where episodes have no time limit";
    checked.terminated = checked_flags("terminated", required("terminated", steps.terminated), entries);
    checked.truncated = checked_flags("truncated", required("truncated", steps.truncated, no_time_limit), entries);
    checked.mask = checked_flags("mask", steps.mask, entries);
    checked.next_mask = checked_flags("next_mask", steps.next_mask, entries);
    checked.priorities = checked_numbers("priorities", steps.priorities, entries);
    checked.td_errors = checked_numbers("td_errors", steps.td_errors, entries);
    if (steps.priorities.data != nullptr && steps.td_errors.data != nullptr)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "priorities and td_errors are both given: at most one is allowed");
    return checked;
}

}  // namespace per

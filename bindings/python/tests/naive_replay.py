"""The semantics of a replay buffer, implemented a second time as plainly as possible.

`NaiveReplay` keeps every transition whole, with copies of its observation and its next observation, in lists of
episodes. It shares no idea with the library: no ring, no shared rows, no tree, no liveness maintained from call to
call. Whether a transition can be drawn is computed from the lists on demand.

Row numbers are counted only because ids are derived from them, and because they determine what is overwritten.
"""

from __future__ import annotations

import math

import naive_sequences
import numpy as np
from naive_trajectories import Episode, Lane, Transition, window_of


class Refused(Exception):
    """The call is an error, and nothing has changed. `kind` is the name of the library's exception for it."""

    def __init__(self, kind, message):
        super().__init__(message)
        self.kind = kind


def invalid(message):
    return Refused("InvalidArgument", message)


COUNTERS = (
    "added",
    "dropped",
    "episodes",
    "cuts",
    "suspected_resets",
    "samples",
    "beta_step",
    "updates",
    "stale_updates",
    "rejected_updates",
)


DEFAULTS = {
    "n_envs": 1,
    "n_step": 1,
    "gamma": 0.99,
    "frame_stack": 1,
    "sequence_length": None,
    "burn_in": 0,
    "sequence_stride": None,
    "sequence_eta": 0.9,
    "alpha": 0.6,
    "beta": 0.4,
    "beta_final": 1.0,
    "beta_steps": 0,
    "epsilon": 1e-6,
    "prioritization": "proportional",
    "scheme": "stratified",
    "uniform_fraction": 0.0,
    "normalize_weights": "batch_max",
    "max_priority": "ever",
    "on_invalid": "error",
    "on_gap": "cut",
    "on_nan": "allow",
    "autoreset": "disabled",
    "store_next_observation": False,
    "overwrite": True,
    "critics": "mean",
    "half_life": None,
    "age": "steps",
    "max_age": None,
    "keep_times_sampled": False,
    "max_times_sampled": 0,
    "seed": 0,  # of the draws, which the model does not predict
}


class NaiveReplay:
    def __init__(self, capacity, fields, **options):
        assert options.keys() <= DEFAULTS.keys()
        for name, value in (DEFAULTS | options).items():
            setattr(self, "first_beta" if name == "beta" else name, value)
        self.fields = dict(fields)
        self.observations = [
            name
            for name, f in self.fields.items()
            if f.role == "observation"
            or (f.role is None and (name == "observation" or name.startswith("observation.")))
        ]
        self.stacks = {
            name: f.stack or (self.frame_stack if name in self.observations else 1) for name, f in self.fields.items()
        }
        self.rows = math.ceil(capacity / self.n_envs)
        self.check_rows(self.n_step)
        self.capacity = self.rows * self.n_envs
        self.largest_ever = np.float32(1)
        self.version = 0
        self.lanes = [Lane() for _ in range(self.n_envs)]
        self.counters = dict.fromkeys(COUNTERS, 0)

    def check_rows(self, n_step):
        for_next = 0 if self.store_next_observation else 2
        windows = (n_step - 1) + (max(self.stacks.values()) - 1) + max(1, naive_sequences.steps_of(self))
        if self.rows < windows + for_next:
            raise invalid("rows of a lane")
        if self.max_age is not None and self.age == "steps" and self.max_age < windows + for_next:
            raise invalid("max_age")

    # ---- which rows exist, and which of them can be drawn

    def rows_used(self, lane):
        """Rows counted so far, including the one that holds an announced observation until its step."""
        waits = lane.announced() is not None and not self.store_next_observation
        return lane.next_row + waits

    def oldest_row(self, lane):
        """The first row that has not been overwritten."""
        return max(lane.first_row, self.rows_used(lane) - self.rows)

    def held(self):
        """All transitions whose rows have not been overwritten, with their ids, oldest first in each lane."""
        for env, lane in enumerate(self.lanes):
            oldest = self.oldest_row(lane)
            for episode in lane.episodes:
                for place, transition in enumerate(episode.transitions):
                    if transition.row >= oldest:
                        yield transition.row * self.n_envs + env, lane, episode, place

    def find(self, id):
        return next((found for found in self.held() if found[0] == id), None)

    def check_issued(self, ids):
        for id in ids:
            if id < 0 or id // self.n_envs >= self.lanes[id % self.n_envs].next_row:
                raise invalid("an id that was never issued")

    def stack_is_held(self, lane, episode, place):
        first = max(0, place - max(self.stacks.values()) + 1)
        return episode.transitions[first].row >= self.oldest_row(lane)

    def is_used_up(self, transition):
        return self.max_times_sampled > 0 and transition.uses >= self.max_times_sampled

    def age_of(self, lane, transition):
        return self.version - transition.version if self.age == "versions" else lane.next_row - 1 - transition.row

    def is_over(self, lane, transition):
        """Whether it can never be drawn (again), although its row is there."""
        is_too_old = self.max_age is not None and self.age_of(lane, transition) > self.max_age
        return is_too_old or self.is_used_up(transition)

    def is_live(self, lane, episode, place):
        if not self.stack_is_held(lane, episode, place) or self.is_over(lane, episode.transitions[place]):
            return False
        if self.sequence_length:
            return naive_sequences.is_complete(self, episode, place)
        return window_of(episode, place, self.n_step) is not None

    def live(self):
        """{id: transition} of all transitions that can be drawn."""
        return {
            id: episode.transitions[place]
            for id, lane, episode, place in self.held()
            if self.is_live(lane, episode, place)
        }

    def may_be_drawn(self, id):
        """True if it is live or waits for its window to be complete: priority updates still apply to it."""
        found = self.find(id)
        if found is None:
            return False
        _, lane, episode, place = found
        if self.is_over(lane, episode.transitions[place]):
            return False
        if self.sequence_length:
            waits = naive_sequences.starts(self, place) and not episode.ended
            return self.stack_is_held(lane, episode, place) and (waits or self.is_live(lane, episode, place))
        never = episode.final_is_missing and place == len(episode.transitions) - 1
        return self.stack_is_held(lane, episode, place) and not never

    # ---- adding

    def add(self, **arrays):
        """One step: arrays [n, ...]. Returns ids [n]."""
        for name in list(arrays):
            if arrays[name] is not None and name != "env_ids":
                arrays[name] = np.asarray(arrays[name])[None]
        return self.extend(**arrays)[0]

    def extend(
        self,
        *,
        reward,
        terminated,
        truncated,
        env_ids=None,
        mask=None,
        next_mask=None,
        priorities=None,
        td_errors=None,
        **arrays,
    ):
        """K steps: arrays [K, n, ...]. Returns ids [K, n]. Nothing is changed on an error."""
        if any(name not in arrays and field.default is None for name, field in self.fields.items()):
            raise invalid("a field is missing")
        if self.store_next_observation and "next_" + self.observations[0] not in arrays:
            raise invalid("next observations are needed")
        if self.on_nan == "error":
            self.check_nan(reward, mask, next_mask, arrays)
        before, counters, largest_ever = self.lanes, dict(self.counters), self.largest_ever
        envs = list(range(self.n_envs)) if env_ids is None else list(env_ids)
        self.check_envs(envs)
        ids = np.full(np.shape(reward), -1, np.int64)
        self.lanes = [lane.copied() for lane in self.lanes]
        try:
            for k in range(len(reward)):
                largest, largest_given = self.largest(), np.float32(0)
                for column, env in enumerate(envs):
                    if mask is not None and not mask[k][column]:
                        continue
                    step = Transition(
                        row=-1,
                        values={name: self.given_value(arrays, name, k, column) for name in self.fields},
                        reward=np.float32(reward[k][column]),
                        terminated=bool(terminated[k][column]),
                        truncated=bool(truncated[k][column]) and not terminated[k][column],
                        next_values=self.given_next(arrays, next_mask, k, column),
                        version=self.version,
                    )
                    if self.is_reset_step(self.lanes[env], step):
                        self.counters["dropped"] += 1
                        continue
                    step.priority = self.given_priority(priorities, td_errors, k, column)
                    self.add_step(self.lanes[env], step, None if next_mask is None else bool(next_mask[k][column]))
                    if naive_sequences.starts(self, len(self.lanes[env].episodes[-1].transitions) - 1):
                        largest_given = max(largest_given, step.priority or 0)
                    ids[k][column] = step.row * self.n_envs + env
                self.give_priorities(largest)
                self.largest_ever = max(self.largest_ever, largest_given)
        except Refused:
            self.lanes, self.counters, self.largest_ever = before, counters, largest_ever
            raise
        return ids

    def check_envs(self, envs):
        if len(set(envs)) < len(envs) or any(env not in range(self.n_envs) for env in envs):
            raise invalid("env_ids")

    def given_next(self, arrays, next_mask, k, column):
        if "next_" + self.observations[0] not in arrays or (next_mask is not None and not next_mask[k][column]):
            return None
        return {name: self.newest(arrays["next_" + name][k][column], name) for name in self.observations}

    def given_value(self, arrays, name, k, column):
        if name in arrays:
            return self.newest(arrays[name][k][column], name)
        field = self.fields[name]
        return np.array(np.broadcast_to(field.default, field.shape), field.dtype)

    def newest(self, value, name):
        """A copy of one frame, the last one of a stack."""
        value = np.array(value)
        return value[-1] if value.ndim > len(self.fields[name].shape) else value

    def given_priority(self, priorities, td_errors, k, column):
        if priorities is not None:
            p = np.float32(priorities[k][column])
        elif td_errors is not None:
            p = np.float32(abs(float(td_errors[k][column])) + self.epsilon)
        else:
            return None
        if not (np.isfinite(p) and p >= 0):
            if self.on_invalid == "error":
                raise invalid("priority")
            self.counters["rejected_updates"] += 1
            return None
        return p

    def is_reset_step(self, lane, step):
        """Whether the environment resets in this step. Counts the first step after an end if it looks as if the
        environment reset in another way than `autoreset` says."""
        final, lane.final = lane.final, None
        if final is None or not self.same_observation(step.values, final):
            return False
        if self.autoreset == "next_step":
            self.counters["suspected_resets"] += bool(step.reward != 0 or step.terminated or step.truncated)
            return True
        self.counters["suspected_resets"] += 1
        return False

    def check_nan(self, reward, mask, next_mask, arrays):
        for k, column in np.ndindex(np.shape(reward)):
            if mask is not None and not mask[k][column]:
                continue
            observed = {name: self.newest(arrays[name][k][column], name) for name in self.observations}
            following = self.given_next(arrays, next_mask, k, column) or {}
            for value in (reward[k][column], *observed.values(), *following.values()):
                if np.isnan(np.asarray(value, np.float64)).any():
                    raise invalid("nan")

    def add_step(self, lane, step, next_said_available):
        """Appends one step to its lane. `next_said_available` is None where no next_mask was given."""
        ends = step.terminated or step.truncated
        if ends and step.next_values is None and next_said_available is not False:
            raise invalid("the final observation is missing")
        if ends and self.autoreset == "same_step" and next_said_available is None:
            raise invalid("final observation or first one of the next episode?")

        announced = lane.announced()
        compared = announced is not None and not self.store_next_observation
        if compared and not self.same_observation(step.values, announced):
            if self.on_gap == "error":
                raise invalid("gap")
            self.cut_lane(lane)
        if lane.running():
            if lane.episodes[-1].last.next_values is None:
                lane.episodes[-1].last.next_values = {name: step.values[name] for name in self.observations}
        else:
            lane.episodes.append(Episode())

        step.row = lane.next_row
        lane.episodes[-1].transitions.append(step)
        lane.next_row += 1
        self.counters["added"] += 1
        if ends:
            self.end(lane)
            lane.final = step.next_values
        if not self.overwrite and self.oldest_row(lane) > lane.first_row:
            raise Refused("Full", "the lane is full")

    def same_observation(self, values, others):
        return all(np.array_equal(values[name], others[name], equal_nan=True) for name in self.observations)

    def end(self, lane):
        """Closes the running episode. A known final observation takes a row, unless it already has one."""
        lane.episodes[-1].ended = True
        self.counters["episodes"] += 1
        if lane.episodes[-1].last.next_values is not None and not self.store_next_observation:
            lane.next_row += 1

    def cut_lane(self, lane):
        lane.episodes[-1].last.truncated = True
        self.counters["cuts"] += 1
        self.end(lane)

    def cut(self, env_ids=None):
        largest = self.largest()
        envs = range(self.n_envs) if env_ids is None else env_ids
        self.check_envs(envs)
        for env in envs:
            if self.lanes[env].running():
                self.cut_lane(self.lanes[env])
        self.give_priorities(largest)

    def clear(self):
        for lane in self.lanes:
            lane.first_row = lane.next_row
            lane.episodes = []

    # ---- priorities

    def largest(self):
        """The priority of the next transition."""
        if self.max_priority == "ever":
            return self.largest_ever
        return max((t.priority for t in self.live().values()), default=np.float32(1))

    def give_priorities(self, largest):
        for transition in self.live().values():
            if transition.priority is None:
                transition.priority = largest

    def update_priorities(self, ids, td_errors=None, *, priorities=None):
        """td_errors [count] or [n_critics, count], of sequences [count, T] or [n_critics, count, T]."""
        self.check_issued(id for id in ids if id != -1)
        if priorities is None and self.sequence_length:
            new = self.sequence_priorities(ids, np.asarray(td_errors))
        elif priorities is None:
            errors = np.abs(np.atleast_2d(np.asarray(td_errors, np.float64)))
            with np.errstate(all="ignore"):
                reduced = errors.max(axis=0) if self.critics == "max" else errors.mean(axis=0)
                new = np.float32(reduced + self.epsilon)
        else:
            new = np.asarray(priorities, np.float32)
        bad = [p is not None and not (np.isfinite(p) and p >= 0) for p in new]
        if any(bad) and self.on_invalid == "error":
            raise invalid("priority")
        accepted = {}  # for equal ids the last one wins: the others have no effect
        for id, p, is_bad in zip(ids, new, bad, strict=True):
            if is_bad:
                self.counters["rejected_updates"] += 1
            elif p is None or id == -1 or not self.may_be_drawn(id):
                self.counters["stale_updates"] += 1
            else:
                self.counters["updates"] += 1
                accepted[id] = p
        for id, p in accepted.items():
            _, _, episode, place = self.find(id)
            episode.transitions[place].priority = p
            self.largest_ever = max(self.largest_ever, p)

    def sequence_priorities(self, ids, td_errors):
        """By id; None if the errors have no effect, since the sequence is not live or has no step after its burn-in."""
        new = []
        for i, id in enumerate(ids):
            new.append(None)
            if id != -1 and self.may_be_drawn(id):
                _, _, episode, place = self.find(id)
                new[-1] = naive_sequences.priority(self, episode, place, td_errors[..., i, :])
        return new

    def priorities(self, ids):
        self.check_issued(ids)
        live = self.live()
        return np.array([live[id].priority if id in live else 0 for id in ids], np.float32)

    def set_alpha(self, alpha):
        self.alpha = alpha

    def set_gamma(self, gamma):
        self.gamma = gamma

    def set_version(self, version):
        if self.age != "versions" or version < self.version:
            raise invalid("version")
        self.version = version

    def set_n_step(self, n_step):
        self.check_rows(n_step)
        largest = self.largest()
        self.n_step = n_step
        self.give_priorities(largest)

    # ---- reading and writing rows

    def row(self, id, n_step=None):
        """The values of a batch for a transition that can be drawn."""
        _, _, episode, place = self.find(id)
        if self.sequence_length:
            result = naive_sequences.sequence(self, id, n_step or self.n_step)
        else:
            result = self.transition_row(episode, place, n_step or self.n_step)
        return result | self.uses_of(episode.transitions[place])

    def uses_of(self, transition):
        return {"times_sampled": transition.uses} if self.keep_times_sampled or self.max_times_sampled else {}

    def transition_row(self, episode, place, n_step):
        w = window_of(episode, place, n_step)
        transition = episode.transitions[place]
        reward = sum(self.gamma**k * float(w.steps[place + k].reward) for k in range(w.length))
        result = {name: self.frames(episode, place, transition.values, name) for name in self.fields}
        for name in self.observations:
            result["next_" + name] = self.frames(episode, w.bootstrap, w.bootstrap_values, name)
        result["reward"] = np.float32(reward)
        result["discount"] = np.float32(0 if w.ending.terminated else self.gamma**w.length)
        result["gamma_m"] = np.float32(self.gamma**w.length)
        result["n_steps"] = w.length
        result["terminated"], result["truncated"] = w.ending.terminated, w.ending.truncated
        result["priorities"] = transition.priority
        return result

    def frames(self, episode, place, newest, name):
        """The newest frame and those before it, oldest first.

        Frames before the episode repeat its first one, or are zeros.
        """
        stack = self.stacks[name]
        if stack == 1:
            return newest[name]
        older = []
        for back in range(stack - 1, 0, -1):
            p = max(0, place - back)
            frame = episode.transitions[p].values[name] if p < place else newest[name]
            is_padding = place - back < 0
            older.append(np.zeros_like(frame) if is_padding and self.fields[name].padding == "zero" else frame)
        return np.stack([*older, newest[name]])

    def plain_row(self, id, with_next=True):
        """The result of `get`: the step as it was added."""
        self.check_issued([id])
        found = self.find(id)
        if found is None:
            raise invalid("overwritten, or a final observation")
        _, lane, episode, place = found
        transition = episode.transitions[place]
        next_values = transition.next_values
        if next_values is None and transition.terminated:
            next_values = transition.values
        if next_values is None and with_next:
            raise invalid("next observation is not there")
        result = dict(transition.values)
        if with_next:
            result.update({"next_" + name: next_values[name] for name in self.observations})
        result["reward"] = transition.reward
        result["discount"] = np.float32(0 if transition.terminated else self.gamma)
        result["gamma_m"] = np.float32(self.gamma)
        result["n_steps"] = 1
        result["terminated"], result["truncated"] = transition.terminated, transition.truncated
        result["priorities"] = transition.priority if self.is_live(lane, episode, place) else np.float32(0)
        return result | self.uses_of(transition)

    def set(self, ids, **values):
        self.check_issued(id for id in ids if id != -1)
        if any(name in self.observations for name in values):
            raise invalid("observations are shared by rows")
        for i, id in enumerate(ids):
            found = None if id == -1 else self.find(id)
            if found is None:
                self.counters["stale_updates"] += 1
                continue
            _, _, episode, place = found
            for name, array in values.items():
                episode.transitions[place].values[name] = np.array(array[i])

    # ---- drawing

    @property
    def beta(self):
        if self.beta_steps == 0:
            return self.first_beta
        done = min(self.counters["beta_step"] / self.beta_steps, 1.0)
        return self.first_beta + done * (self.beta_final - self.first_beta)

    def set_beta(self, beta):
        self.first_beta, self.beta_steps = beta, 0

    def probabilities(self):
        """{id: P} of one proportional or uniform draw, in float64."""
        live = self.live()
        masses = {id: self.mass(t) for id, t in live.items()}
        total = math.fsum(masses.values())
        if self.prioritization == "uniform" or total == 0:
            return dict.fromkeys(live, 1 / max(len(live), 1))
        u = self.uniform_fraction
        return {id: (1 - u) * m / total + u / len(live) for id, m in masses.items()}

    def mass(self, transition):
        """p^alpha 2^(-age / half_life), where rows of all lanes are compared with the newest one."""
        power = 1.0 if self.alpha == 0 else float(transition.priority) ** self.alpha
        if self.half_life is None:
            return power
        newest = max(self.lanes, key=lambda lane: lane.next_row)
        return power * 2.0 ** (-self.age_of(newest, transition) / self.half_life)

    def total(self):
        return math.fsum(self.mass(t) for t in self.live().values())

    def weights(self, ids, beta, probabilities):
        """Importance-sampling weights of a batch in which `ids` were drawn with the probabilities {id: P}."""
        raw = np.array([(len(probabilities) * probabilities[id]) ** -beta for id in ids])
        if self.normalize_weights == "batch_max":
            return raw / raw.max()
        if self.normalize_weights == "buffer_max":
            positive = [id for id, t in self.live().items() if t.priority > 0 or self.alpha == 0]
            smallest = min((probabilities[id] for id in positive), default=1 / len(probabilities))
            return raw / (len(probabilities) * smallest) ** -beta
        return raw

    def count_sample(self, by_schedule):
        self.counters["samples"] += 1
        self.counters["beta_step"] += int(by_schedule)

    def use(self, ids):
        """Counts them as drawn, one place of a batch each."""
        for id in ids:
            _, _, episode, place = self.find(id)
            episode.transitions[place].uses += 1

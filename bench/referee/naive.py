"""A buffer that is right by being naive, and the faults that can be planted in it to test the checks.

Every probability and window is recomputed for each batch from a list of all steps, so there is little that could be
wrong. A fault is a name; the lines that look for one say what goes wrong with it.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from contract import Array, Batch, Buffer, Library, Options, Step, goal_reward


@dataclasses.dataclass
class Row:
    """A step of one environment."""

    observation: Array
    action: Array
    reward: float
    terminated: bool
    truncated: bool
    next_observation: Array
    priority: float
    serial: int  # counts the rows of all environments
    starts: bool = True  # an episode
    goal: Array | None = None


class NaiveBuffer(Buffer):
    def __init__(self, options: Options, fault: str | None = None) -> None:
        self.options = options
        self.fault = fault
        self.lanes: list[list[Row]] = [[] for _ in range(options.n_envs)]
        self.resets = [False] * options.n_envs  # the next step of the environment only resets it
        self.largest = 1.0
        self.added = 0
        self.batches = 0
        self.drift = 0.0
        self.random = np.random.default_rng(None if fault == "ignores_seed" else options.seed)
        self.lock = threading.RLock()
        self.total = 0.0
        self.process = os.getpid()
        self.dropped: list[Row] = []

    # ---- steps

    def add(self, step: Step) -> list[int]:
        with self.lock:
            serials = self.add_rows(step)
        if self.fault == "tears_rows":  # part of a row is written after the lock is free
            last = self.lanes[0][-1]
            last.observation = np.zeros_like(last.observation)
            time.sleep(0.001)
            last.observation = np.array(step.observation[0], self.options.dtype)
        return serials

    def add_rows(self, step: Step) -> list[int]:
        options = self.options
        if self.fault == "hangs_after_fork" and self.process != os.getpid():
            time.sleep(60)
        self.check_step(step)
        serials = []
        for env, lane in enumerate(self.lanes):
            if options.autoreset == "next_step" and self.resets[env]:
                self.resets[env] = False
                if self.fault != "keeps_reset_steps":
                    continue
            ended = bool(step.terminated[env]) or bool(step.truncated[env])
            self.resets[env] = ended
            starts = not lane or lane[-1].terminated or lane[-1].truncated
            following = None if step.next_observation is None else step.next_observation[env]
            if options.autoreset == "same_step" and ended and self.fault != "takes_reset_for_final_observation":
                assert step.info is not None
                following = step.info["final_obs"][env]
            if self.fault == "takes_observations_of_other_environments" and step.next_observation is not None:
                following = step.next_observation[env - 1]
            priority = self.largest if step.priority is None else float(step.priority[env])
            if self.fault == "new_ones_have_priority_1":
                priority = 1.0
            observation = np.array(step.observation[env], options.dtype)
            if self.fault == "broadcasts_rows" and observation.size != np.prod(options.shape):
                observation = np.resize(observation, options.shape)
            if self.fault == "stores_integers_as_float":
                observation = observation.astype(np.float64)
            lane.append(
                Row(
                    observation,
                    np.array(step.action[env]),
                    float(step.reward[env]),
                    bool(step.terminated[env]),
                    bool(step.truncated[env]),
                    np.array(following, options.dtype),
                    priority,
                    self.added,
                    starts,
                    None if step.goal is None else np.array(step.goal[env]),
                )
            )
            serials.append(self.added)
            self.added += 1
            if self.fault == "keeps_overwritten_rows":
                self.dropped.append(lane[0])
            oldest = 1 if self.fault == "keeps_the_first_step" else 0
            del lane[oldest : oldest + max(0, len(lane) - options.capacity // options.n_envs)]
        return serials

    def check_step(self, step: Step) -> None:
        options = self.options
        given = np.asarray(step.observation)
        if given.shape != (options.n_envs, *options.shape) and self.fault != "broadcasts_rows":
            raise ValueError(f"observation has shape {given.shape}; allowed: {(options.n_envs, *options.shape)}")
        if not np.can_cast(given.dtype, options.dtype, "same_kind") and self.fault != "casts_unsafely":
            raise ValueError(f"observation has dtype {given.dtype}, which {options.dtype} does not hold")
        if step.priority is not None:
            self.check_priorities(np.asarray(step.priority))

    def check_priorities(self, priorities: Array) -> None:
        if self.fault == "takes_any_priority":
            return
        if not (np.isfinite(priorities) & (priorities >= 0)).all():
            raise ValueError(f"priorities must be finite and not negative: {priorities}")

    # ---- windows

    def window(self, lane: list[Row], i: int) -> list[Row] | None:
        """The n-step window of row i, or None if it is not complete yet."""
        n = self.options.n_step
        if self.fault == "windows_mix_environments":
            lane, serial = (
                sorted((row for rows in self.lanes for row in rows), key=lambda row: row.serial),
                lane[i].serial,
            )
            i = [row.serial for row in lane].index(serial)
        if self.fault == "windows_reach_unwritten_rows":
            blank = np.zeros_like(lane[i].observation)
            lane = lane + [dataclasses.replace(lane[i], reward=0.0, next_observation=blank)] * n
        if self.fault == "windows_reach_over_the_write_head" and len(lane) == self.options.capacity:
            lane = lane + lane[:n]
        rows = []
        for row in lane[i : i + n]:
            rows.append(row)
            if (row.terminated and self.fault != "windows_cross_terminal_states") or (
                row.truncated and self.fault != "windows_cross_truncations"
            ):
                return None if self.fault == "drops_short_windows" and len(rows) < n else rows
        return rows if len(rows) == n else None

    def discount(self, window: list[Row]) -> float:
        if window[-1].terminated or (self.fault == "truncations_do_not_bootstrap" and window[-1].truncated):
            return 0.0
        return self.options.gamma ** len(window)

    def stack(self, lane: list[Row], i: int) -> list[Row] | None:
        """Rows of the frames up to row i, the first of the episode repeated. None if frames were overwritten."""
        rows = [lane[i]]
        while len(rows) < self.options.frame_stack:
            if rows[0].starts and self.fault != "stacks_join_episodes":
                rows.insert(0, rows[0])
            elif i > 0:
                i -= 1
                rows.insert(0, lane[i])
            elif self.fault in ("stacks_repeat_the_oldest_frame", "stacks_join_episodes"):
                rows.insert(0, rows[0])
            else:
                return None
        return rows

    def sequence(self, lane: list[Row], i: int) -> list[Row] | None:
        """Rows i, i + 1, ... of one episode: as many as the options say or up to the end. None if some are to come."""
        length = self.options.sequence_length
        if self.fault == "sequences_reach_over_the_write_head" and len(lane) == self.options.capacity:
            lane = lane + lane[:length]
        rows = []
        for row in lane[i : i + length]:
            rows.append(row)
            if (row.terminated or row.truncated) and self.fault != "sequences_join_episodes":
                return rows
        return rows if len(rows) == length else None

    def live(self) -> list[tuple[list[Row], int]]:
        return [(lane, i) for lane in self.lanes for i in range(len(lane)) if self.is_live(lane, i)]

    def is_live(self, lane: list[Row], i: int) -> bool:
        if self.fault == "lacks_the_newest_step_if_full" and i == self.options.capacity - 1:
            return False
        if self.options.sequence_length:
            return self.sequence(lane, i) is not None
        return self.window(lane, i) is not None and self.stack(lane, i) is not None

    # ---- batches

    def probabilities(self, live: list[tuple[list[Row], int]]) -> Array:
        alpha = 1.0 if self.fault == "ignores_alpha" else self.options.alpha
        masses = np.array([lane[i].priority for lane, i in live], np.float64)
        if self.fault == "forgets_small_priorities":
            masses[masses < 1e-6 * self.largest] = 0.0
        if self.fault != "takes_any_priority":
            masses = np.where(masses > 0, masses, 0.0)
        masses = masses**alpha if alpha else np.ones(len(masses))
        masses[0] += abs(self.drift)
        if self.fault == "draws_priority_0":
            masses += 1e-12**alpha
        return masses / (self.total if self.fault == "adds_up_differences" else masses.sum())

    def beta(self) -> float:
        options = self.options
        if self.fault == "weights_without_beta":
            return 1.0
        if not options.beta_steps or self.fault == "beta_stays":
            return options.beta
        return options.beta + (1 - options.beta) * min(1.0, self.batches / options.beta_steps)

    def sample(self) -> Batch:
        with self.lock:
            return self.batch()

    def batch(self) -> Batch:
        live = self.live()
        if not live and self.fault == "makes_up_rows":
            zeros = np.zeros((self.options.batch_size, *self.options.shape), self.options.dtype)
            return Batch(zeros, None, None, zeros, None, None, None)
        if not live or (len(live) == 1 and self.fault == "needs_two_transitions"):
            raise ValueError("nothing can be drawn")
        options, p = self.options, self.probabilities(live)
        replacement = options.replacement or self.fault == "ignores_replacement"
        if options.stratified and self.fault != "ignores_strata":
            points = (np.arange(options.batch_size) + self.random.random(options.batch_size)) / options.batch_size
            chosen = np.minimum(np.searchsorted(np.cumsum(p), points, side="right"), len(p) - 1)
        else:
            chosen = self.random.choice(len(live), options.batch_size, replace=replacement, p=p)
        weights = (len(live) * p[chosen]) ** -self.beta()
        largest_weight = 1.0 if self.fault == "weights_not_normalised" else weights.max()
        self.batches += 1
        places = [live[k] for k in chosen]
        form = self.sequences if options.sequence_length else self.transitions
        batch = form(places)
        batch.weights = (weights / largest_weight).astype(np.float32)
        batch.handle = np.array([lane[i].serial for lane, i in places])
        return batch

    def transitions(self, places: list[tuple[list[Row], int]]) -> Batch:
        options = self.options
        windows = [self.window(lane, i) or [] for lane, i in places]
        rewards = [sum(options.gamma**k * row.reward for k, row in enumerate(window)) for window in windows]
        observations = [lane[i].observation for lane, i in places]
        following = [window[-1].next_observation for window in windows]
        if self.fault == "takes_the_next_row_for_the_next_observation":
            following = [lane[min(i + 1, len(lane) - 1)].observation for lane, i in places]
        if options.frame_stack > 1:
            stacks = [self.stack(lane, i) or [] for lane, i in places]
            observations = [np.stack([row.observation for row in stack]) for stack in stacks]
            following = [np.stack([*o[1:], f]) for o, f in zip(observations, following, strict=True)]
            if self.fault == "next_stacks_repeat_the_next_frame":
                following = [np.stack([o[-1]] * len(o)) for o in following]
        goals = [self.goal(lane, i) for lane, i in places] if options.goals else None
        if goals is not None and self.fault != "keeps_rewards_of_the_pursued_goal":
            rewards = list(goal_reward(np.stack(following), np.stack(goals)))
        return Batch(
            observation=np.stack(observations),
            action=np.stack([lane[i].action for lane, i in places]),
            reward=np.array(rewards, np.float32),
            next_observation=np.stack(following),
            discount=np.array([self.discount(window) for window in windows], np.float32),
            weights=None,
            handle=None,
            goal=None if goals is None else np.stack(goals),
        )

    def goal(self, lane: list[Row], i: int) -> Array:
        """The pursued goal, or, four times of five, one that the episode achieves in this step or later."""
        pursued = lane[i].goal
        assert pursued is not None
        if self.random.random() < 0.2:
            return pursued
        end = next((k for k in range(i, len(lane)) if lane[k].terminated or lane[k].truncated), len(lane) - 1)
        if self.fault == "takes_goals_of_other_episodes":
            end = len(lane) - 1
        first = end if self.options.goals == "final" else i
        return lane[self.random.integers(first, end + 1)].next_observation

    def sequences(self, places: list[tuple[list[Row], int]]) -> Batch:
        length = self.options.sequence_length
        sequences = [self.sequence(lane, i) or [] for lane, i in places]
        padded = [rows + rows[-1:] * (length - len(rows)) for rows in sequences]

        def gathered(of: Callable[[Row], Any]) -> Array:
            return np.stack([np.stack([of(row) for row in rows]) for rows in padded])

        return Batch(
            observation=gathered(lambda row: row.observation),
            action=gathered(lambda row: row.action),
            reward=gathered(lambda row: row.reward).astype(np.float32),
            next_observation=gathered(lambda row: row.next_observation),
            discount=gathered(lambda row: self.discount([row])).astype(np.float32),
            weights=None,
            handle=None,
            mask=np.array([[k < len(rows) for k in range(length)] for rows in sequences]),
        )

    def update(self, handle: Any, priorities: Array) -> None:
        priorities = np.asarray(priorities, np.float64)
        self.check_priorities(priorities)
        if np.shape(handle) != priorities.shape and self.fault != "takes_any_number_of_priorities":
            raise ValueError(f"{priorities.shape} priorities for {np.shape(handle)} rows")
        rows = {row.serial: row for lane in self.lanes for row in lane}
        pairs = list(zip(np.asarray(handle).tolist(), priorities.tolist(), strict=False))
        if self.fault == "first_of_equal_wins":
            pairs.reverse()
        if self.fault == "late_updates_reach_newer_steps":
            rows = {serial % self.options.capacity: row for serial, row in rows.items()}
            pairs = [(serial % self.options.capacity, priority) for serial, priority in pairs]
        for serial, priority in pairs:
            if self.fault == "drifts":
                self.drift += float(np.float32(priority)) - priority
            if serial in rows:  # others were overwritten
                if self.fault == "adds_up_differences":
                    old, new = np.array([rows[serial].priority, priority]) ** self.options.alpha
                    self.total = (self.total or float(len(rows))) + new - old
                rows[serial].priority = priority
                self.largest = max(self.largest, priority)

    def set_all(self, priorities: Array) -> None:
        rows = sorted((row for lane in self.lanes for row in lane), key=lambda row: row.serial)
        self.update([row.serial for row in rows], priorities)

    def __len__(self) -> int:
        return len(self.live())

    # ---- files

    def state(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("lock", "process")}

    def save(self, path: str) -> None:
        beside = path if self.fault == "saves_in_place" else f"{path}.new"
        with open(beside, "wb") as file:
            pickle.dump(self.state(), file)
        os.replace(beside, path)

    def load(self, path: str) -> None:
        with open(path, "rb") as file:
            state = pickle.load(file)
        rows = [row for lane in state["lanes"] for row in lane]
        if self.fault == "files_lack_the_newest_row":
            del state["lanes"][0][-1]
        if self.fault == "files_lose_the_order" and rows:
            state["lanes"][0].reverse()
        if self.fault == "files_lack_priorities":
            for row in rows:
                row.priority = 1.0
        if self.fault == "files_lack_the_generator":
            state["random"] = self.random
        vars(self).update(state)

    def __getstate__(self) -> dict[str, Any]:
        return self.state()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"], state["fault"])
        vars(self).update(state)
        if self.fault == "copies_lack_priorities":
            for row in (row for lane in self.lanes for row in lane):
                row.priority = 1.0


class Naive(Library):
    threads = atomic_saves = True
    name = "naive"
    module = "numpy"
    pure_python = windows = macos = True

    def __init__(self, fault: str | None = None) -> None:
        self.fault = fault

    def create(self, options: Options) -> Buffer:
        return NaiveBuffer(options, self.fault)

"""Epochs and advantages after random walks, compared with definitions applied to the naive model's episodes."""

from __future__ import annotations

import numpy as np
import per
import pytest
from naive_trajectories import window_of
from naive_walk import Walk

FIELDS = {
    "observation": per.Field((), "float32", padding="zero"),
    "value": per.Field(),
    "advantage": per.Field(default=-9),
    "target": per.Field(default=-9),
    "log_prob": per.Field(2, "float64"),
    "task": per.Field((), "uint8"),
}


def value_of(observation):
    """The value function of these tests."""
    return np.sin(np.asarray(observation, np.float32)).astype(np.float32)


class OnPolicyWalk(Walk):
    def observe(self):
        return {"observation": self.random.integers(0, 1000, self.n).astype(np.float32)}

    def other_fields(self, at):
        return {
            "value": value_of(at["observation"]),
            "log_prob": self.random.random((self.n, 2)),
            "task": self.random.integers(0, 256, self.n).astype(np.uint8),
        }

    # ---- the definitions

    def steps_with_advantage(self):
        """(id, lane, episode, place) of steps with a complete stack whose next observation is known or not needed."""
        for id, lane, episode, place in self.naive.held():
            if self.naive.stack_is_held(lane, episode, place) and window_of(episode, place, 1) is not None:
                yield id, lane, episode, place

    @staticmethod
    def needs_bootstrap(episode, place):
        step = episode.transitions[place]
        return not step.terminated and place == len(episode.transitions) - 1

    def bootstraps(self):
        """{id: next observation}, in order."""
        return {
            id: episode.transitions[place].next_values["observation"]
            for id, _, episode, place in self.steps_with_advantage()
            if self.needs_bootstrap(episode, place)
        }

    def advantages(self, gae_lambda):
        """{id: (A, A + V)} by the sum of equation 16 over the errors of the following steps."""
        gamma = self.naive.gamma
        found = {}
        possible = {id for id, *_ in self.steps_with_advantage()}
        for id, _, episode, place in self.steps_with_advantage():
            advantage, factor = 0.0, 1.0
            for later in range(place, len(episode.transitions)):
                if id + (later - place) * self.n not in possible:
                    break
                step = episode.transitions[later]
                if step.terminated:
                    following = 0.0
                elif self.needs_bootstrap(episode, later):
                    following = float(value_of(step.next_values["observation"]))
                else:
                    following = float(episode.transitions[later + 1].values["value"])
                advantage += factor * (float(step.reward) + gamma * following - float(step.values["value"]))
                factor *= gamma * gae_lambda
            found[id] = (advantage, advantage + float(episode.transitions[place].values["value"]))
        return found

    # ---- checks

    def check_epochs(self):
        live = self.naive.live()
        assert len(self.buffer) == len(live)
        if not live:
            with pytest.raises(per.Empty):
                self.buffer.epochs(1, batch_size=4)
            return
        size = int(self.random.integers(1, len(live) + 3))
        batches = list(self.buffer.epochs(2, batch_size=size))
        self.naive.counters["samples"] += 2
        ids = np.concatenate([batch.ids for batch in batches])
        for epoch in (ids[: len(live)], ids[len(live) :]):
            assert sorted(epoch.tolist()) == sorted(live)
        assert [len(batch.ids) for batch in batches[: -(-len(live) // size)]][:-1] == [size] * ((len(live) - 1) // size)
        for batch in batches:
            for i, id in enumerate(batch.ids.tolist()):
                for name, expected in self.naive.row(id).items():
                    np.testing.assert_allclose(batch[name][i], expected, rtol=1e-6, err_msg=f"{name} of {id}")
        if len(live) >= size:
            whole = [len(batch.ids) for batch in self.buffer.epochs(2, batch_size=size, drop_last=True)]
            self.naive.counters["samples"] += 2
            assert whole == [size] * (2 * (len(live) // size))
        assert self.buffer.stats().samples == self.naive.counters["samples"]

    def check_advantages(self):
        gae_lambda = float(self.random.choice([0.0, 0.5, 0.95, 1.0]))
        expected = self.bootstraps()
        asked = []

        def bootstrap(batch):
            asked.append(batch)
            observation = batch.next_observation
            newest = observation[:, -1] if observation.ndim == 2 else observation
            np.testing.assert_array_equal(newest, list(expected.values()))
            self.check_stacks(batch)
            assert batch.ids.tolist() == list(expected) and (batch.n_steps == 1).all()
            return value_of(newest)

        self.buffer.advantages(gae_lambda=gae_lambda, returns="target", bootstrap=bootstrap)
        assert len(asked) == bool(expected)
        advantages = self.advantages(gae_lambda)
        for id, (advantage, target) in advantages.items():
            step = self.naive.find(id)
            values = step[2].transitions[step[3]].values
            values["advantage"], values["target"] = np.float32(advantage), np.float32(target)
        fields = [(id, episode.transitions[place].values) for id, _, episode, place in self.naive.held()]
        if not fields:
            return
        ids = np.array([id for id, _ in fields])
        stored = self.read(ids)
        for name in ("advantage", "target", "value"):
            # Sums of a few hundred float32 numbers in double, rounded once.
            wanted = [values[name] for _, values in fields]
            np.testing.assert_allclose(stored[name], wanted, rtol=1e-6, atol=1e-6, err_msg=name)

    def check_stacks(self, batch):
        for i, id in enumerate(batch.ids.tolist()):
            _, _, episode, place = self.naive.find(id)
            expected = self.naive.transition_row(episode, place, 1)
            for name in ("observation", "next_observation"):
                np.testing.assert_array_equal(batch[name][i], expected[name], err_msg=f"{name} of {id}")

    def read(self, ids):
        """Values of fields by id, also of steps whose next observation is unknown."""
        rows = {name: np.empty(len(ids), np.float32) for name in ("advantage", "target", "value")}
        lib, ffi = per._library.lib, per._library.ffi
        pointers = ffi.new("void *[]", len(FIELDS))
        for name, array in rows.items():
            pointers[list(FIELDS).index(name)] = ffi.from_buffer(array)
        batch = per._library.new("per_batch")
        batch.fields = pointers
        handle, id_pointer = self.buffer._handle, ffi.from_buffer("int64_t[]", ids)
        per._library.check(lib.per_replay_get(handle, len(ids), id_pointer, batch, ffi.NULL))
        return rows


OPTIONS = [
    {},
    {"overwrite": False},
    {"n_step": 3},
    {"frame_stack": 3},
    {"n_step": 2, "frame_stack": 2, "gamma": 1.0},
    {"store_next_observation": True},
    {"store_next_observation": True, "frame_stack": 2, "n_step": 2},
    {"autoreset": "next_step", "gamma": 0.5},
    {"autoreset": "same_step"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "default")
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("rows", [8, 19])
def test_random_walks_agree_with_the_definitions(options, n_envs, rows):
    walk = OnPolicyWalk(rows + n_envs, rows * n_envs, FIELDS, n_envs=n_envs, **options)
    looked = 0
    for t in range(80):
        walk.step()
        if t % 8 == 7:
            walk.check_advantages()
            walk.check_epochs()
            looked += len(walk.naive.live()) > 0
    assert looked > 5

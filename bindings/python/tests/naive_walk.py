"""Random walks of the library beside the naive model, for tests of results that depend on whole episodes."""

from __future__ import annotations

import numpy as np
import per
import pytest
from naive_replay import NaiveReplay, Refused


class Walk:
    """The same random steps for the library and the model: gaps, ends of each kind, unknown finals, masks, cuts."""

    end_probability = 0.1  # of each kind
    cut_probability = 0.05

    def __init__(self, seed, capacity, fields, **options):
        self.random = np.random.default_rng(seed)
        self.buffer = per.ReplayBuffer(capacity, fields, seed=seed, **options)
        self.naive = NaiveReplay(capacity, fields, seed=seed, **options)
        self.n = self.buffer.n_envs
        self.gives_next = options.get("store_next_observation") or self.random.random() < 0.5
        self.at = self.observe()

    def observe(self):
        """Observations by name, "observation" among them."""
        raise NotImplementedError

    def other_fields(self, at):
        """The other fields of a step with these observations."""
        raise NotImplementedError

    def flags(self, probability):
        return self.random.random(self.n) < probability

    def step(self):
        following = self.observe()
        # Sequences require next observations stored separately for steps in order of time.
        gaps = not (self.naive.store_next_observation and self.naive.sequence_length)
        at = {**self.at, "observation": self.at["observation"] + 0.5 * (gaps & self.flags(0.05)).astype(np.float32)}
        terminated, truncated = self.flags(self.end_probability), self.flags(self.end_probability)
        ends = terminated | truncated
        known = ~ends | self.flags(0.7) if not self.naive.store_next_observation else np.ones(self.n, bool)
        gives_next = self.gives_next or self.random.random() < 0.3 or bool((ends & known).any())
        given = {
            **at,
            **self.other_fields(at),
            "reward": self.random.normal(size=self.n).astype(np.float32),
            "terminated": terminated,
            "truncated": truncated,
            "mask": ~self.flags(0.1),
            "next_mask": known,
        }
        if gives_next:
            given.update({"next_" + name: following[name] for name in self.naive.observations})
        try:
            expected = self.naive.add(**given)
        except Refused as refusal:
            with pytest.raises(getattr(per, refusal.kind)):
                self.buffer.add(**given)
            self.buffer.clear()
            self.naive.clear()
        else:
            np.testing.assert_array_equal(self.buffer.add(**given), expected)
            for name, values in following.items():
                mask = given["mask"].reshape(-1, *[1] * (values.ndim - 1))
                self.at[name] = np.where(mask, values, self.at[name])
        if self.random.random() < self.cut_probability:
            envs = self.random.permutation(self.n)[:1]
            self.buffer.cut(envs)
            self.naive.cut(envs)

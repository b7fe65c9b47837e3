"""Environments whose observations say which environment, episode and step they belong to.

They reset like Gymnasium's vector environments in its three autoreset modes, so they produce what a user would pass to
`add`: the reset step of a "next_step" environment, or the first observation of the next episode in place of the final
one in "same_step" mode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import per

DTYPES = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64"
LAYOUTS = {
    "vector": {
        "observation": per.Field((3,), "float32"),
        "action": per.Field((), "int64"),
        "state": per.Field((2,), "float32", role="recurrent_state"),
    },
    "images": {
        "observation.image": per.Field((2, 3), "uint8"),
        "observation.speed": per.Field((), "float16"),
        "action": per.Field((2,), "float32", stack=2),
        "log_probability": per.Field((), "float64"),
    },
    "every dtype": {
        "observation": per.Field((2,), "float64"),
        "goal": per.Field((4,), "int16", role="observation", stack=1),
        **{"plain_" + dtype: per.Field((), dtype) for dtype in DTYPES.split()},
    },
    "ragged": {
        "observation": per.Field((None, 2), "float32", max_length=4),
        "tokens": per.Field(None, "int16", max_length=6),
        "action": per.Field((), "int64"),
        "state": per.Field(None, "uint8", role="recurrent_state", max_length=3),
    },
}


@dataclass(frozen=True)
class Padded:
    """A field with rows of any length as the model knows it: an array of max_length values, zeros after the last.

    Values of a row are not 0, so a row ends at the first value that is.
    """

    field: per.Field

    def __getattr__(self, name):
        return getattr(self.field, name)

    @property
    def shape(self):
        return (self.field.max_length, *self.field.value_shape)


def padded_field(field):
    return field if field.max_length is None else Padded(field)


def is_in_row(values, field):
    """For padded values [..., max_length, shape of a value]: which of them are in their row, [..., max_length]."""
    firsts = values[(..., *[0] * len(field.value_shape))]
    return np.logical_and.accumulate(firsts != 0, axis=-1)


def ended_at_zero(values, field):
    """Values with zeros after the first that is 0."""
    inside = is_in_row(values, field)
    inside = inside.reshape(*inside.shape, *[1] * len(field.value_shape))
    return np.where(inside, values, np.zeros((), values.dtype))


def encoded(fields, env, episode, step):
    """Values of fields that name their place: all fit into an int8, and no two fields hold the same."""
    values = {}
    for number, (name, field) in enumerate(fields.items()):
        dtype = np.dtype(field.dtype)
        if field.shape == ():
            code = np.array(step + 14 * (episode % 8) + number % 3)
        else:
            code = np.resize([step + number, 8 * env + number, episode % 100], field.shape)
        if field.max_length is not None:
            length = (3 * step + env + episode + number) % (field.max_length + 1)
            code[code == 0] = 100
            code[length:] = 0
        values[name] = (code % 2 if dtype.kind == "b" else code).astype(dtype)
    return values


@dataclass
class Step:
    """The result of one environment's step; `following` is true even where the environment hides it."""

    values: dict
    reward: float
    terminated: bool
    truncated: bool
    following: dict
    shown: dict  # what a vector environment returns as the next observation


class ToyEnvironments:
    def __init__(self, random, fields, n_envs, autoreset, lengths):
        self.random, self.fields, self.autoreset, self.lengths = random, fields, autoreset, lengths
        self.episode, self.step_number = [-1] * n_envs, [0] * n_envs
        self.end_at = [0] * n_envs
        self.resets_next = [False] * n_envs
        for env in range(n_envs):
            self.reset(env)

    def reset(self, env):
        self.episode[env] += 1
        self.step_number[env] = 0
        self.end_at[env] = int(self.random.choice(self.lengths))
        self.resets_next[env] = False

    def observed(self, env):
        return encoded(self.fields, env, self.episode[env], self.step_number[env])

    def in_mid_episode(self, env):
        return self.step_number[env] > 0 and not self.resets_next[env]

    def step(self, env):
        values = self.observed(env)
        if self.resets_next[env]:
            self.reset(env)
            first = self.observed(env)
            return Step(values, 0.0, False, False, first, first)
        self.step_number[env] += 1
        following = shown = self.observed(env)
        terminated = truncated = False
        if self.step_number[env] == self.end_at[env]:
            terminated, truncated = ((True, False), (False, True), (True, True))[
                self.random.choice(3, p=(0.4, 0.5, 0.1))
            ]
            if self.autoreset == "next_step":
                self.resets_next[env] = True
            elif self.step_number[env] + max(self.lengths) < 28 and self.random.random() < 0.1:
                self.end_at[env] += int(self.random.choice(self.lengths))  # the next episode begins there
            else:
                self.reset(env)
            if self.autoreset == "same_step":
                shown = self.observed(env)
        return Step(values, float(self.random.integers(-8, 9)), bool(terminated), bool(truncated), following, shown)


def stacked(table, name, field, shape):
    """One field's values from a [K][n] table of values, None where a step is masked, as an array [K, n, ...]."""
    masked = {name: np.full(field.shape, 1, field.dtype)}
    flat = [(masked if values is None else values)[name] for row in table for values in row]
    return np.array(flat, field.dtype).reshape(*shape, *field.shape)

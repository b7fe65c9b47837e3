"""Steps for buffers with the interface of stable-baselines3, and the transitions of their batches."""

from __future__ import annotations

import numpy as np
import torch


def stacked(values):
    if isinstance(values[0], dict):
        return {key: np.stack([value[key] for value in values]) for key in values[0]}
    return np.stack(values)


def replace(observation, i, by):
    """Replaces the observation of environment i."""
    if not isinstance(observation, dict):
        observation[i] = by
        return
    for key in observation:
        observation[key][i] = by[key]


def fill(stores, observation_space, action_space, *, steps, n_envs=1, end=0.2, timeout=0.5, seed=0):
    """Adds the same steps of random episodes to several buffers, as algorithms do."""
    observation_space.seed(seed)
    action_space.seed(seed)
    random = np.random.default_rng(seed)
    obs = stacked([observation_space.sample() for _ in range(n_envs)])
    for _ in range(steps):
        after = stacked([observation_space.sample() for _ in range(n_envs)])
        done = random.random(n_envs) < end
        infos = [{"TimeLimit.truncated": bool(ended and random.random() < timeout)} for ended in done]
        action = np.stack([np.asarray(action_space.sample()) for _ in range(n_envs)])
        reward = random.standard_normal(n_envs).astype(np.float32)
        for store in stores:
            store.add(obs, after, action, reward, done, infos)
        obs = after
        for i in np.flatnonzero(done):
            replace(obs, i, observation_space.sample())


def plain(tensor):
    return tensor.as_subclass(torch.Tensor)


def rows(samples):
    """The transitions of a batch as hashable values."""
    columns = []
    for part in (samples.observations, samples.next_observations):
        columns += list(part.values()) if isinstance(part, dict) else [part]
    columns += [samples.actions, plain(samples.rewards), samples.dones]
    return [tuple(tuple(column[i].flatten().tolist()) for column in columns) for i in range(len(samples.rewards))]

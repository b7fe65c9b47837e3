"""Fills a buffer from a file of arrays in the layout of D4RL."""

import pathlib
import tempfile

import numpy as np
import per

# The arrays of D4RL: one row a step, episode after episode. `timeouts` marks the episodes that a time limit ended.
generator = np.random.default_rng(7)
n_steps, path = 1000, pathlib.Path(tempfile.mkdtemp()) / "steps.npz"
step = np.arange(n_steps) % 50
np.savez(
    path,
    observations=generator.normal(size=(n_steps, 3)).astype(np.float32),
    actions=generator.normal(size=(n_steps, 1)).astype(np.float32),
    rewards=generator.normal(size=n_steps).astype(np.float32),
    terminals=step == 49,
    timeouts=(step == 24) & (np.arange(n_steps) % 100 < 50),
)

data = np.load(path)
ends = data["terminals"] | data["timeouts"]
# D4RL lacks the observation after the last step of an episode: next_mask marks it as unknown.
last = ends.copy()
last[-1] = True
fields = {"observation": per.Field(3), "action": per.Field(1)}
capacity = per.ReplayBuffer.capacity_for(n_steps, episode_length=25, n_step=3)
buffer = per.ReplayBuffer(capacity, fields, n_step=3, gamma=0.99, seed=7)
buffer.extend(
    observation=data["observations"],
    action=data["actions"],
    reward=data["rewards"],
    terminated=data["terminals"],
    truncated=data["timeouts"],
    next_observation=np.roll(data["observations"], -1, axis=0),
    next_mask=~last,
)
assert buffer.stats().added == n_steps
assert buffer.stats().live == n_steps - data["timeouts"].sum()  # no final observation, no bootstrap
batch = buffer.sample(256)
assert not batch.discount[batch.terminated].any()
print(f"{buffer.stats().live} transitions of {buffer.stats().added} steps can be drawn")

"""Logs the statistics of a buffer to TensorBoard."""

import pathlib
import tempfile

import numpy as np
import per
from torch.utils.tensorboard import SummaryWriter

folder = tempfile.mkdtemp()
buffer = per.ReplayBuffer(5000, {"observation": per.Field(4), "action": per.Field((), "int64")}, seed=7)
random = np.random.default_rng(7)
with SummaryWriter(folder) as writer:
    for step in range(1000):
        observation = random.normal(size=4)
        buffer.add(
            observation=observation,
            action=step % 2,
            reward=random.exponential(),
            terminated=step % 50 == 49,
            truncated=False,
            next_observation=random.normal(size=4) if step % 50 == 49 else None,
        )
        if step >= 100 and step % 100 == 0:
            batch = buffer.sample(64)
            buffer.update_priorities(batch.ids, td_errors=batch.reward)
            buffer.stats().log_to(writer, step)
(events,) = pathlib.Path(folder).iterdir()
print(f"{events.stat().st_size} bytes of events: tensorboard --logdir {folder}")

"""A run stops, and resumes from its file as if it had not stopped."""

import pathlib
import tempfile

import numpy as np
import per

FIELDS = {"observation": per.Field(4), "action": per.Field((), "int64")}


def train(buffer: per.ReplayBuffer, steps: range) -> list[int]:
    """Repeatedly adds a step, draws a batch and sets its priorities; returns the drawn ids."""
    drawn: list[int] = []
    for step in steps:
        end = step % 20 == 19
        observation = np.full(4, 100 * (step // 20) + step % 20, np.float32)  # episodes of 20 steps
        buffer.add(
            observation=observation,
            action=step % 2,
            reward=step % 3,
            terminated=end,
            truncated=False,
            next_observation=observation + 1,
        )
        batch = buffer.sample(8)
        buffer.update_priorities(batch.ids, td_errors=batch.reward - 1.5)
        drawn += batch.ids.tolist()
    return drawn


path = pathlib.Path(tempfile.mkdtemp()) / "run.per"
buffer = per.ReplayBuffer(1000, FIELDS, beta_steps=200, seed=7)
train(buffer, range(100))
buffer.save(path)  # replaces the file atomically: a run killed meanwhile leaves the previous one
expected = train(buffer, range(100, 200))

resumed = per.ReplayBuffer.load(path)
assert train(resumed, range(100, 200)) == expected
print(f"{len(expected)} draws after the file are those of the run that went on; beta is {resumed.beta:.2f}")

"""A second index over the rows of a buffer: a quarter of each batch comes from the ends of successful episodes."""

from typing import Any

import numpy as np
import numpy.typing as npt
import per

Ids = npt.NDArray[np.int64]


class EventIndex:
    """Tagged transitions of a buffer, drawn by priorities that are separate from the buffer's.

    A row has leaf id % capacity of the tree. It shares this leaf with the rows that overwrite it, and with no others.
    """

    def __init__(self, buffer: per.ReplayBuffer, seed: int) -> None:
        self.tree = per.SumTree(buffer.capacity, seed=seed)
        self.ids = np.zeros(buffer.capacity, np.int64)  # the transition that each leaf stands for
        # A step takes a row, and its next observation takes the row after it. With stacks of s frames, overwriting a
        # row also ends the transitions in the s - 1 rows after it.
        self.reach = buffer.n_envs * np.arange(1 + buffer.options["frame_stack"])[:, None]

    def forget_overwritten(self, added: Ids) -> None:
        """Removes the transitions that an add() overwrote. Call it after each add(), with the ids it returned."""
        rows = (added[added >= 0] + self.reach).ravel()
        self.tree.update(rows % self.tree.capacity, np.zeros(rows.size))

    def tag(self, ids: Ids, priority: float = 1.0) -> None:
        """Enters live transitions, or changes their priorities."""
        self.ids[ids % self.tree.capacity] = ids
        self.tree.update(ids % self.tree.capacity, np.full(ids.size, priority))

    def draw(self, n: int) -> Ids:
        return self.ids[self.tree.sample(n).indices] if n > 0 else self.ids[:0]

    def probabilities(self, live_ids: Ids) -> npt.NDArray[np.floating[Any]]:
        """The probability of each live transition in one draw from the index; 0 without a tag."""
        return self.tree.priorities(live_ids % self.tree.capacity) / (self.tree.total or 1.0)


def sample(buffer: per.ReplayBuffer, index: EventIndex, n: int, share: float) -> dict[str, npt.NDArray[Any]]:
    """A batch of n. Its last share * n transitions are drawn from the index; the weights are those of the union."""
    n_tagged = round(share * n) if index.tree.total > 0 else 0
    beta = buffer.beta
    drawn, tagged = buffer.sample(n - n_tagged), buffer.get_windows(index.draw(n_tagged))
    batch = {name: np.concatenate([drawn[name], tagged[name]]) for name in drawn}
    by_index = index.probabilities(batch["ids"])
    batch["probabilities"] = ((n - n_tagged) * batch["probabilities"] + n_tagged * by_index) / n
    weights = (len(buffer) * batch["probabilities"]) ** -beta
    batch["weights"] = weights / weights.max()
    return batch


# A random walk from state 3 ends at state 12 in success, as one in four does, and at state 0 in a crash.
random = np.random.default_rng(7)
buffer = per.ReplayBuffer(1000, {"observation": per.Field((), "int64")}, beta_steps=4900, seed=7)
index = EventIndex(buffer, seed=8)
values = np.zeros(13)
state, length = 3, 0
for step in range(5000):
    next_state = state + random.choice([-1, 1])
    is_end = next_state in (0, 12)
    ids = buffer.add(
        observation=[state],
        reward=[next_state == 12],
        terminated=[is_end],
        truncated=[False],
        next_observation=[next_state],
    )
    index.forget_overwritten(ids)
    length += 1
    if next_state == 12:
        index.tag(ids - np.arange(min(length, 10)))  # the last ten steps
    state, length = (3, 0) if is_end else (next_state, length)
    if step >= 100:
        batch = sample(buffer, index, 32, share=0.25)
        bootstrap = values[batch["next_observation"]]
        td_errors = batch["reward"] + batch["discount"] * bootstrap - values[batch["observation"]]
        np.add.at(values, batch["observation"], 0.05 * batch["weights"] * td_errors)
        buffer.update_priorities(batch["ids"], td_errors)

live = buffer.live_ids()
is_tagged = index.probabilities(live) > 0
assert set(index.ids[index.tree.priorities() > 0]) == set(live[is_tagged])  # no overwritten transition is left
print(f"{is_tagged.mean():.1%} of the transitions are tagged, and at least 25% of each batch")

"""Where prioritized replay pays off: two memories in which one transition matters, and how soon it is learned.

Blind Cliffwalk (Schaul et al. 2016, section 3.1) with tabular values, as in blind_cliffwalk.py: the memory holds every
sequence of actions, one of which is rewarded. The measure is the number of updates until the values are known.

DeepSea (Osband et al. 2020, bsuite, arXiv:1908.03568) with a network: a diver starts in the upper left corner of a grid
of 10 x 10 and sinks one row per step. In each state one action, which differs between states, leads to the right and
costs 0.01 / 10; the other leads to the left. 10 steps to the right earn 1. The memory holds 1000 random episodes, one
of which reached the goal, as 1 in 2^10 does on average. Double Q-learning draws batches of 32 from it. The measure is
the number of updates until the greedy policy reaches the goal.

16 agents with prioritized and 16 with uniform replay learn in parallel. They form pairs with the same memory and
initial values, and differ in one option: alpha is 0.6 or 0. The figure shows medians and quartiles, and the p value of
a two-sided sign test over the pairs. With 16 pairs it is 0.00003 if prioritized replay is faster in all of them, as it
was with base seeds 0 to 3: neither luck nor the machine decides it.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import blind_cliffwalk as cliffwalk
import numpy as np
import per

# matplotlib and tqdm are imported where they are used, so that --help needs neither.
if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = 10
EPISODES = 1000
BATCH = 32
HIDDEN = 32
LEARNING_RATE = 3e-4
TARGET_RATE = 0.02
GAMMA = 0.99
EVALUATE_EVERY = 25
FEWEST_STATES = 4
ALPHAS = {"prioritized": 0.6, "uniform": 0.0}


class DeepSea:
    """bsuite's deterministic deep_sea, many episodes at a time."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.right = rng.integers(0, 2, (SIZE, SIZE))  # by row and column: the action that leads to the right

    def reset(self, n_episodes: int) -> np.ndarray:
        self.row, self.column = 0, np.zeros(n_episodes, dtype=int)
        return self.observation()

    def observation(self) -> np.ndarray:
        """The diver's place as a one-hot grid, [episodes, SIZE * SIZE]."""
        return np.eye(SIZE * SIZE, dtype=np.float32)[min(self.row, SIZE - 1) * SIZE + self.column]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
        goes_right = action == self.right[self.row, self.column]
        reward = np.where(goes_right, (self.column == SIZE - 1) - 0.01 / SIZE, 0.0)
        self.column = np.clip(self.column + np.where(goes_right, 1, -1), 0, SIZE - 1)
        self.row += 1
        return self.observation(), reward, self.row == SIZE


def remember(env: DeepSea, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Steps of random episodes, one of which reaches the goal; arrays [EPISODES * SIZE, ...] in chronological order."""
    goes_right = rng.integers(0, 2, (EPISODES, SIZE)).astype(bool)
    goes_right[goes_right.all(axis=1), 0] = False
    goes_right[rng.integers(EPISODES)] = True
    steps = []
    observation = env.reset(EPISODES)
    for row in range(SIZE):
        right = env.right[row, env.column]
        action = np.where(goes_right[:, row], right, 1 - right)
        next_observation, reward, terminated = env.step(action)
        flags = np.full(EPISODES, terminated)
        steps.append((observation, action, reward, flags, np.zeros_like(flags), next_observation))
        observation = next_observation
    names = ("observation", "action", "reward", "terminated", "truncated", "next_observation")
    columns = (np.stack(column, axis=1) for column in zip(*steps, strict=True))
    return {name: column.reshape(-1, *column.shape[2:]) for name, column in zip(names, columns, strict=True)}


class Networks:
    """Q(s, .) of many agents, each a network with a hidden layer, and its optimizer Adam; arrays [agents, ...]."""

    def __init__(self, first_layers: np.ndarray) -> None:
        agents, _, hidden = first_layers.shape
        # The last layer starts at zero: otherwise random values of rarely seen states would lead the diver.
        shapes = ((agents, 1, hidden), (agents, hidden, 2), (agents, 1, 2))
        self.parameters = [first_layers, *(np.zeros(shape, dtype=np.float32) for shape in shapes)]
        self.target = [parameter.copy() for parameter in self.parameters]
        self.means = [np.zeros_like(parameter) for parameter in self.parameters]
        self.squares = [np.zeros_like(parameter) for parameter in self.parameters]
        self.updates = 0

    @staticmethod
    def forward(parameters: list[np.ndarray], observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights, biases, last_weights, last_biases = parameters
        hidden = np.maximum(observation @ weights + biases, 0)
        return hidden @ last_weights + last_biases, hidden

    def values(self, observation: np.ndarray) -> np.ndarray:
        return self.forward(self.parameters, observation)[0]

    def learn(self, batch: dict[str, np.ndarray]) -> np.ndarray:
        """A step of double Q-learning (van Hasselt et al. 2016) on the weighted Huber loss; the TD errors before it."""
        best = self.values(batch["next_observation"]).argmax(axis=2, keepdims=True)
        bootstrap = np.take_along_axis(self.forward(self.target, batch["next_observation"])[0], best, axis=2)
        goal = batch["reward"] + batch["discount"] * bootstrap[..., 0]
        values, hidden = self.forward(self.parameters, batch["observation"])
        action = batch["action"][..., None]
        td_errors = goal - np.take_along_axis(values, action, axis=2)[..., 0]

        slopes = np.zeros_like(values)
        np.put_along_axis(slopes, action, (-batch["weights"] * np.clip(td_errors, -1, 1) / BATCH)[..., None], axis=2)
        hidden_slopes = (slopes @ self.parameters[2].transpose(0, 2, 1)) * (hidden > 0)
        self.descend(
            batch["observation"].transpose(0, 2, 1) @ hidden_slopes,
            hidden_slopes.sum(axis=1, keepdims=True),
            hidden.transpose(0, 2, 1) @ slopes,
            slopes.sum(axis=1, keepdims=True),
        )
        return td_errors

    def descend(self, *gradients: np.ndarray) -> None:
        self.updates += 1
        arrays = zip(self.parameters, gradients, self.means, self.squares, self.target, strict=True)
        for parameter, gradient, mean, square, target in arrays:
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient * gradient - square)
            deviation = np.sqrt(square / (1 - 0.999**self.updates))
            parameter -= LEARNING_RATE * mean / (1 - 0.9**self.updates) / (deviation + 1e-8)
            target += TARGET_RATE * (parameter - target)


def dive(seed: int, n_pairs: int, n_updates: int) -> dict[str, np.ndarray]:
    """Updates until each greedy policy first reaches the goal, [n_pairs] by kind of replay; n_updates + 1 if never."""
    from tqdm import tqdm

    fields = {"observation": per.Field((SIZE * SIZE,), "float32"), "action": per.Field((), "int64")}
    rngs = [np.random.default_rng([seed, pair]) for pair in range(n_pairs)]
    envs = [DeepSea(rng) for rng in rngs]
    memories = [remember(env, rng) for env, rng in zip(envs, rngs, strict=True)]
    first_layers = np.stack([rng.normal(0, 1 / SIZE, (SIZE * SIZE, HIDDEN)).astype(np.float32) for rng in rngs])
    networks = Networks(np.concatenate([first_layers] * len(ALPHAS)))
    buffers = []
    for alpha in ALPHAS.values():
        for pair, memory in enumerate(memories):
            capacity = per.ReplayBuffer.capacity_for(EPISODES * SIZE, episode_length=SIZE)
            seed_of_pair = 1000 * seed + pair
            buffer = per.ReplayBuffer(
                capacity, fields, alpha=alpha, beta_steps=n_updates, gamma=GAMMA, seed=seed_of_pair
            )
            buffer.extend(**memory)
            buffers.append(buffer)

    on_the_way = np.eye(SIZE * SIZE, dtype=np.float32)[np.arange(SIZE) * (SIZE + 1)]
    right = np.stack([env.right.diagonal() for env in envs] * len(ALPHAS))
    batches = [buffer.sample(BATCH) for buffer in buffers]
    names = ("observation", "action", "reward", "discount", "next_observation", "weights")
    reached_at = np.full(len(buffers), n_updates + 1)
    for update in tqdm(
        range(1, n_updates + 1), desc=f"{2 * n_pairs} agents on DeepSea", unit="update", mininterval=0.5
    ):
        td_errors = networks.learn({name: np.stack([batch[name] for batch in batches]) for name in names})
        for buffer, batch, errors in zip(buffers, batches, td_errors, strict=True):
            buffer.update_priorities(batch.ids, errors)
            buffer.sample(BATCH, out=batch)
        if update % EVALUATE_EVERY == 0:
            reaches_goal = (networks.values(on_the_way).argmax(axis=2) == right).all(axis=1)
            reached_at[reaches_goal] = np.minimum(reached_at[reaches_goal], update)
    return dict(zip(ALPHAS, np.split(reached_at, len(ALPHAS)), strict=True))


def walk(seed: int, n_pairs: int, most_states: int) -> dict[str, dict[int, np.ndarray]]:
    """Updates until the values of Blind Cliffwalk are known, [n_pairs] by kind of replay and number of states."""
    from tqdm import tqdm

    methods = {"prioritized": "proportional", "uniform": "uniform"}
    sizes = range(FEWEST_STATES, most_states + 1)
    counts = {name: {n: np.zeros(n_pairs, dtype=int) for n in sizes} for name in methods}
    with tqdm(total=sum(2**n for n in sizes) * n_pairs, desc="Blind Cliffwalk", mininterval=0.5) as bar:
        for n_states in sizes:
            for pair in range(n_pairs):
                memory = cliffwalk.remember(n_states, np.random.default_rng([seed, n_states, pair]))
                for name, method in methods.items():
                    values = cliffwalk.Values(n_states, False, np.random.default_rng([seed, n_states, pair, 1]))
                    replay = cliffwalk.replay_of(method, memory, values, seed=1000 * seed + pair)
                    counts[name][n_states][pair] = cliffwalk.updates_to_learn(replay, values)
                bar.update(2**n_states)
    return counts


def sign_test(first: np.ndarray, second: np.ndarray) -> float:
    """Two-sided p value of a sign test on the pairs; ties are left out."""
    smaller, larger = int((first < second).sum()), int((first > second).sum())
    n = smaller + larger
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(min(smaller, larger) + 1)) / 2**n)


def summary(task: str, prioritized: np.ndarray, uniform: np.ndarray, most: float = math.inf) -> str:
    """A line with both medians; medians above `most` are unknown."""
    medians = (
        f"{name} {np.median(updates):,.0f}" if np.median(updates) <= most else f"{name} more than {most:,.0f}"
        for name, updates in (("prioritized", prioritized), ("uniform", uniform))
    )
    wins, p = int((prioritized < uniform).sum()), sign_test(prioritized, uniform)
    return (
        f"{task}: {', '.join(medians)} updates (medians); "
        f"prioritized is faster in {wins} of {len(uniform)} pairs, p = {p:.1g}"
    )


COLORS = {"prioritized": "#c1440e", "uniform": "#4a6fa5"}


def draw_walk(axes: Axes, counts: dict[str, dict[int, np.ndarray]]) -> None:
    """The median number of updates by number of transitions, the quartiles as a band."""
    for name, by_size in counts.items():
        x = cliffwalk.transitions(np.array(list(by_size)))
        lower, median, upper = np.quantile(list(by_size.values()), (0.25, 0.5, 0.75), axis=1)
        axes.fill_between(x, lower, upper, color=COLORS[name], alpha=0.2, linewidth=0)
        axes.plot(x, median, color=COLORS[name], linewidth=2.2, label=name)
    axes.set(xscale="log", yscale="log", title="Blind Cliffwalk, values in a table")
    axes.set(xlabel="transitions in the memory, one of them rewarded", ylabel="updates until values are known")
    axes.legend(frameon=False, loc="upper left")


def draw_dive(axes: Axes, reached_at: dict[str, np.ndarray], n_updates: int) -> None:
    """Number of agents that have reached the goal; the median number of updates as a line, the quartiles as a band."""
    for name, updates in reached_at.items():
        lower, median, upper = np.quantile(updates, (0.25, 0.5, 0.75))
        axes.axvspan(lower, upper, color=COLORS[name], alpha=0.2, linewidth=0)
        axes.axvline(median, color=COLORS[name], linewidth=1, linestyle=":")
        ends = np.sort(updates[updates <= n_updates])
        steps = np.concatenate([[0], ends, [n_updates]])
        axes.step(steps, [*range(len(ends) + 1), len(ends)], color=COLORS[name], linewidth=2.2, where="post")
    axes.set(title=f"DeepSea {SIZE} x {SIZE}, a network", xlim=(0, n_updates), ylim=(0, len(updates) * 1.02))
    axes.set(xlabel="updates with batches of 32", ylabel=f"agents that found the way, of {len(updates)}")


def draw_picture(
    counts: dict[str, dict[int, np.ndarray]],
    reached_at: dict[str, np.ndarray],
    n_updates: int,
    lines: list[str],
    path: Path,
) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.9))
    left, right = figure.subplots(1, 2)
    draw_walk(left, counts)
    draw_dive(right, reached_at, n_updates)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    caption = [*lines, "Medians with quartiles as bands; p: two-sided sign test over pairs with the same memory."]
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    figure.text(0.5, 0.02, "\n".join(caption), ha="center", va="bottom", fontsize=9, color="0.25")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of memories, first values and draws (default 0)")
    parser.add_argument("--pairs", type=int, default=16, help="agents of each kind (default 16)")
    parser.add_argument("--short", action="store_true", help="2 pairs and few updates, to see that it runs")
    parser.add_argument("--picture", type=Path, default=Path("rare_reward.png"), help="where the picture goes")
    arguments = parser.parse_args()

    start = time.perf_counter()
    n_pairs, most_states, n_updates = (2, 7, 4000) if arguments.short else (arguments.pairs, 13, 5000)
    counts = walk(arguments.seed, n_pairs, most_states)
    reached_at = dive(arguments.seed, n_pairs, n_updates)
    to_walk = [counts[name][most_states] for name in ALPHAS]
    to_dive = [reached_at[name] for name in ALPHAS]
    lines = [
        summary(f"Blind Cliffwalk, {most_states} states", to_walk[0], to_walk[1]),
        summary(f"DeepSea {SIZE} x {SIZE}", to_dive[0], to_dive[1], most=n_updates),
    ]
    draw_picture(counts, reached_at, n_updates, lines, arguments.picture)
    print("\n".join(lines))
    print(f"{time.perf_counter() - start:.0f} s; picture: {arguments.picture}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Bit flipping with hindsight: 15 bits, which DQN alone does not learn.

A state is 15 bits, an action flips one of them, and the goal is another state. The reward is 0 if the goal is reached
and -1 otherwise, so almost no episode of random play ever sees a 0 (Andrychowicz et al. 2017, arXiv:1707.01495, section
3.1). `hindsight=` replaces the goals of most transitions by states that were reached; nothing else is added to Double
DQN. The same agent is also trained without it.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import numpy as np
import per
import torch
from torch import nn
from tqdm import tqdm

matplotlib.use("Agg")
from matplotlib import pyplot as plt

N_ENVS = 16
BATCH_SIZE = 256
GAMMA = 0.98
LEARNING_RATE = 1e-3
TARGET_RATE = 0.01
WARM_UP = 100
EXPLORATION_STEPS = 1_000
EVALUATE_EVERY = 50
EVALUATION_EPISODES = 200
SOLVED = 0.95


class BitFlipping:
    """Many environments at once: an episode ends at its goal, or is truncated after as many steps as there are bits."""

    def __init__(self, n_envs: int, n_bits: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.bits = np.zeros((n_envs, n_bits), np.uint8)
        self.goal = np.zeros((n_envs, n_bits), np.uint8)
        self.age = np.zeros(n_envs, np.int64)
        self.reset(np.ones(n_envs, bool))

    def reset(self, chosen: np.ndarray) -> None:
        shape = (int(chosen.sum()), self.bits.shape[1])
        self.bits[chosen] = self.random.integers(0, 2, shape)
        self.goal[chosen] = self.random.integers(0, 2, shape)
        self.age[chosen] = 0

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rewards and flags; the caller resets ended environments."""
        self.bits[np.arange(len(action)), action] ^= 1
        self.age += 1
        reward, terminated = reward_of(self.bits, self.goal)
        return reward, terminated, ~terminated & (self.age >= self.bits.shape[1])


def reward_of(achieved: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """0 and a terminal state if the goal is reached, else -1."""
    reached = (achieved == goal).all(axis=1)
    return reached.astype(np.float32) - 1, reached


def q_network(n_bits: int, width: int = 256) -> nn.Module:
    return nn.Sequential(
        nn.Linear(2 * n_bits, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, n_bits)
    )


def inputs(bits: torch.Tensor | np.ndarray, goal: torch.Tensor | np.ndarray) -> torch.Tensor:
    return torch.cat([torch.as_tensor(bits), torch.as_tensor(goal)], dim=1).float()


def greedy(network: nn.Module, environments: BitFlipping) -> np.ndarray:
    with torch.no_grad():
        return network(inputs(environments.bits, environments.goal)).argmax(dim=1).numpy()


def success_rate(network: nn.Module, n_bits: int, seed: int) -> float:
    """Share of greedy episodes that reach their goal."""
    environments = BitFlipping(EVALUATION_EPISODES, n_bits, seed)
    reached = (environments.bits == environments.goal).all(axis=1)
    for _ in range(n_bits):
        environments.step(greedy(network, environments))
        reached |= (environments.bits == environments.goal).all(axis=1)
    return float(reached.mean())


@dataclass
class Run:
    """The training record of one agent."""

    evaluations: list[tuple[int, float]] = field(default_factory=list)  # (environment steps, success rate)
    episodes: int = 0
    seconds: float = 0.0


def learn(
    online: nn.Module, target: nn.Module, optimizer: torch.optim.Optimizer, batch: per.Batch, buffer: per.ReplayBuffer
) -> float:
    next_inputs = inputs(batch.next_observation, batch["goal"])
    with torch.no_grad():
        best = online(next_inputs).argmax(dim=1, keepdim=True)
        # Returns lie between that of never reaching the goal and 0.
        bootstrap = target(next_inputs).gather(1, best).squeeze(1).clamp(-1 / (1 - GAMMA), 0)
        wanted = batch.reward + batch.discount * bootstrap
    value = online(inputs(batch.observation, batch["goal"])).gather(1, batch.action.unsqueeze(1)).squeeze(1)
    loss = (batch.weights * nn.functional.smooth_l1_loss(value, wanted, reduction="none")).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    buffer.update_priorities(batch.ids, wanted - value.detach())
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), TARGET_RATE)
    return float(loss)


def train(name: str, hindsight: per.Hindsight | None, seed: int, n_bits: int, n_steps: int) -> Run:
    """Trains for `n_steps` steps of all environments, each with one update."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    environments = BitFlipping(N_ENVS, n_bits, seed)
    fields = {
        "observation": per.Field(n_bits, "uint8"),
        "goal": per.Field(n_bits, "uint8"),
        "action": per.Field((), "int64"),
    }
    buffer = per.ReplayBuffer(
        200_000, fields, n_envs=N_ENVS, gamma=GAMMA, beta_steps=n_steps, arrays="torch", seed=seed
    )
    online, target = q_network(n_bits), q_network(n_bits)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=LEARNING_RATE)

    run = Run()
    loss = 0.0
    start = time.perf_counter()
    with tqdm(total=n_steps, desc=f"{name:>17}", unit="step", mininterval=0.5) as bar:
        for step in range(1, n_steps + 1):
            exploration = max(0.1, 1.0 - step / EXPLORATION_STEPS)
            explores = random.random(N_ENVS) < exploration
            action = np.where(explores, random.integers(0, n_bits, N_ENVS), greedy(online, environments))
            observation, goal = environments.bits.copy(), environments.goal.copy()
            reward, terminated, truncated = environments.step(action)
            buffer.add(
                observation=observation,
                goal=goal,
                action=action,
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                next_observation=environments.bits,
            )
            environments.reset(terminated | truncated)
            run.episodes += int((terminated | truncated).sum())
            if step >= WARM_UP:
                loss = learn(online, target, optimizer, buffer.sample(BATCH_SIZE, hindsight=hindsight), buffer)
            if step % EVALUATE_EVERY == 0 or step == n_steps:
                run.evaluations.append((step * N_ENVS, success_rate(online, n_bits, seed=1000 + seed)))
                bar.set_postfix_str(f"success {run.evaluations[-1][1]:.2f}, loss {loss:.3f}")
            bar.update()
    run.seconds = time.perf_counter() - start
    return run


COLORS = {"with hindsight": "#c1440e", "without hindsight": "#4a6fa5"}


def draw_picture(runs: dict[str, Run], n_bits: int, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 3.8))
    for name, run in runs.items():
        axes.plot(*zip(*run.evaluations, strict=True), "o-", color=COLORS[name], markersize=3, label=name)
    axes.set(
        title=f"bit flipping, {n_bits} bits", xlabel="environment steps", ylabel="goals reached", ylim=(-0.03, 1.03)
    )
    axes.axhline(SOLVED, color="0.4", linestyle=":", linewidth=1)
    axes.legend(loc="center right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of networks, environments and draws (default 0)")
    parser.add_argument("--bits", type=int, default=15, help="of a state (default 15)")
    parser.add_argument("--steps", type=int, default=5_000, help=f"of {N_ENVS} environments each (default 5000)")
    parser.add_argument("--short", action="store_true", help="300 steps, to see that it runs")
    parser.add_argument("--picture", type=Path, default=Path("bit_flipping_her.png"), help="where the picture goes")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    n_steps = 300 if arguments.short else arguments.steps
    her = per.Hindsight("observation", "goal", reward_of, strategy="future", k=4)
    runs = {
        name: train(name, hindsight, arguments.seed, arguments.bits, n_steps)
        for name, hindsight in (("with hindsight", her), ("without hindsight", None))
    }
    draw_picture(runs, arguments.bits, arguments.picture)
    for name, run in runs.items():
        success = run.evaluations[-1][1]
        print(f"{name:>17}: {success:.0%} of goals reached after {run.episodes:,} episodes, {run.seconds:.0f} s")
    print(f"picture: {arguments.picture}")
    return 0 if arguments.short or runs["with hindsight"].evaluations[-1][1] >= SOLVED else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Ape-X DQN (Horgan et al. 2018) on CartPole-v1: actors, learner and replay buffer in separate Ray processes.

Actor i explores with epsilon^(1 + i alpha / (N - 1)) and a copy of the network, which it fetches every few steps. It
computes priorities from the n-step TD errors of that copy, and writes its steps straight to a shard. The learner
prefetches batches while it learns, and sends priorities back. The rate limiter of the buffer keeps actors and learner
in step on any machine. It needs two cores, a few minutes, and `pip install 'libper[ray]' torch gymnasium tqdm`.
"""

from __future__ import annotations

import argparse
import os
from collections import deque
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import gymnasium
import numpy as np
import per
import per.ray
import ray
import torch
from torch import nn
from tqdm import tqdm

GAMMA, N_STEP = 0.99, 3
EPSILON, ALPHA = 0.4, 7.0  # from the paper, as is the formula
BLOCK = 50  # steps that an actor writes at a time; it then checks for a new network
SOLVED = 475.0
EVALUATION_EPISODES = 20

Network = list[tuple[np.ndarray, np.ndarray]]
"""Weights and biases of the actors, which do not use PyTorch."""


def duel(last: Any) -> Any:
    """Q(s, a) = V(s) + A(s, a) - mean A(s, .) of the last layer (Wang et al. 2016)."""
    advantage = last[..., 1:]
    return last[..., :1] + advantage - advantage.mean(-1)[..., None]


def q_values(network: Network, observation: np.ndarray) -> np.ndarray:
    for weight, bias in network[:-1]:
        observation = np.maximum(observation @ weight + bias, 0.0)
    weight, bias = network[-1]
    return duel(observation @ weight + bias)


class Board:
    """Stores the learner's network; actors fetch it and report the returns of their episodes."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._returns: deque[float] = deque(maxlen=50)
        self._steps = 0

    def put(self, network: Network) -> tuple[int, float]:
        """Steps so far, and the mean return of the latest episodes."""
        self._network = network
        return self._steps, float(np.mean(self._returns)) if self._returns else 0.0

    def fetch(self, steps: int, returns: list[float]) -> Network:
        self._steps += steps
        self._returns.extend(returns)
        return self._network


class Actor:
    """Plays, and writes its steps with initial priorities."""

    def __init__(self, i: int, n_actors: int, seed: int, writer: per.ray.Writer, board: Any) -> None:
        self._epsilon = EPSILON ** (1 + i * ALPHA / max(n_actors - 1, 1))
        self._rng = np.random.default_rng([seed, i])
        self._seed = 1000 * seed + i
        self._writer, self._board = writer, board

    def play(self) -> None:
        """Runs forever."""
        env = gymnasium.make("CartPole-v1")
        n_actions = gymnasium.spaces.flatdim(env.action_space)
        observation, _ = env.reset(seed=self._seed)
        episode_return = 0.0
        returns: list[float] = []
        steps: list[dict[str, Any]] = []  # the last ones wait for the TD error of their window
        while True:
            network = ray.get(self._board.fetch.remote(BLOCK, returns))
            returns = []
            for _ in range(BLOCK):
                values = q_values(network, observation)
                if steps and not steps[-1]["truncated"]:
                    steps[-1]["value_after"] = 0.0 if steps[-1]["terminated"] else values.max()
                explores = self._rng.random() < self._epsilon
                action = int(self._rng.integers(n_actions)) if explores else int(values.argmax())
                after, reward, terminated, truncated, _ = env.step(action)
                step = {"observation": observation, "action": action, "reward": reward, "terminated": terminated}
                step |= {"truncated": truncated, "next_observation": after, "value": values[action]}
                step["value_after"] = q_values(network, after).max() if truncated else 0.0
                steps.append(step)
                observation = after
                episode_return += float(reward)
                if terminated or truncated:
                    returns.append(episode_return)
                    episode_return, (observation, _) = 0.0, env.reset()
            self._write(steps)
            steps = steps[-N_STEP:]

    def _write(self, steps: list[dict[str, Any]]) -> None:
        """Writes all steps except the last N_STEP, whose windows may be incomplete."""
        ready = steps[:-N_STEP]
        given = ("observation", "action", "reward", "terminated", "truncated", "next_observation")
        arrays = {name: np.stack([step[name] for step in ready])[:, None] for name in given}
        errors = np.array([td_error(steps[k : k + N_STEP]) for k in range(len(ready))], np.float32)
        self._writer.extend(**arrays, td_errors=errors[:, None])


def td_error(window: list[dict[str, Any]]) -> float:
    """TD error of the window's first step, from the network's values at the time."""
    goal, discount = 0.0, 1.0
    for step in window:
        goal, discount = goal + discount * step["reward"], discount * GAMMA
        if step["terminated"] or step["truncated"]:
            break
    return goal + discount * step["value_after"] - window[0]["value"]


class Learner:
    """Double, dueling Q-learning with n-step returns from the buffer."""

    def __init__(self, n_observations: int, n_actions: int, width: int = 128) -> None:
        def layers() -> nn.Sequential:
            body = [nn.Linear(n_observations, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
            return nn.Sequential(*body, nn.Linear(width, 1 + n_actions))

        self.online, self.target = layers(), layers()
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-3)
        self.updates = 0
        self.value = 0.0  # mean value of the latest batch

    def network(self) -> Network:
        linear = [layer for layer in self.online if isinstance(layer, nn.Linear)]
        return [(layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy().copy()) for layer in linear]

    def learn(self, batch: per.Batch) -> np.ndarray:
        """One update. Returns TD errors."""
        given = {name: torch.from_numpy(batch[name]) for name in ("observation", "action", "reward", "discount")}
        after = torch.from_numpy(batch.next_observation)
        with torch.no_grad():
            best = duel(self.online(after)).argmax(1, keepdim=True)
            goal = given["reward"] + given["discount"] * duel(self.target(after)).gather(1, best).squeeze(1)
        value = duel(self.online(given["observation"])).gather(1, given["action"][:, None]).squeeze(1)
        losses = nn.functional.smooth_l1_loss(value, goal, reduction="none")
        self.optimizer.zero_grad()
        (torch.tensor(batch.weights) * losses).mean().backward()
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.online.parameters()), 0.02)
        self.updates += 1
        self.value = float(value.mean())
        return (goal - value.detach()).numpy()

    def save(self, path: Path) -> None:
        parts: dict[str, Any] = {"online": self.online, "target": self.target, "optimizer": self.optimizer}
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**states, "updates": self.updates}, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, path: Path) -> None:
        saved = torch.load(path)
        for name in ("online", "target", "optimizer"):
            getattr(self, name).load_state_dict(saved[name])
        self.updates = saved["updates"]


def greedy_return(network: Network, environments: gymnasium.vector.VectorEnv, seed: int) -> float:
    """Mean return of one greedy episode in each of the environments."""
    observation, _ = environments.reset(seed=seed)
    returns = np.zeros(environments.num_envs)
    running = np.ones(environments.num_envs, dtype=bool)
    while running.any():
        action = q_values(network, observation).argmax(1)
        observation, reward, terminated, truncated, _ = environments.step(action)
        returns += running * reward
        running &= ~(terminated | truncated)
    return float(returns.mean())


def new_buffer(n_actors: int, shards: int, batch_size: int, seed: int) -> per.ray.ReplayBuffer:
    fields = {"observation": per.Field(4), "action": per.Field((), "int64")}
    learning: dict[str, Any] = {"n_step": N_STEP, "gamma": GAMMA, "alpha": 0.6, "beta": 0.4, "seed": seed}
    limits: dict[str, Any] = {
        "samples_per_insert": 16,
        "samples_tolerance": 16 * batch_size,
        "min_size_to_sample": 1000,
    }
    return per.ray.ReplayBuffer(100_000, fields, n_envs=n_actors, shards=shards, **learning, **limits)


def train(arguments: argparse.Namespace) -> float:
    """Returns the last greedy return."""
    torch.manual_seed(arguments.seed)
    evaluation_envs = gymnasium.make_vec("CartPole-v1", num_envs=EVALUATION_EPISODES, vectorization_mode="sync")
    learner = Learner(4, 2)
    folder = arguments.checkpoint
    if folder is not None and (folder / "learner.pt").exists():
        learner.load(folder / "learner.pt")
        buffer = per.ray.ReplayBuffer.load(folder / "buffer")
    else:
        buffer = new_buffer(arguments.actors, arguments.shards, arguments.batch_size, arguments.seed)
    board = ray.remote(Board).options(num_cpus=0).remote(learner.network())
    actors = [
        ray.remote(Actor).options(num_cpus=0).remote(i, buffer.n_envs, arguments.seed, buffer.writer([i]), board)
        for i in range(buffer.n_envs)
    ]
    playing = [actor.play.remote() for actor in actors]
    last = 0.0
    bar = tqdm(total=arguments.updates, initial=learner.updates, unit="update", mininterval=0.5)
    with bar, buffer.loader(arguments.batch_size, slots=3) as batches:
        for batch in batches:
            buffer.update_priorities(batch.ids, learner.learn(batch))
            bar.update()
            if learner.updates % 20 == 0:
                steps, played = ray.get(board.put.remote(learner.network()))
                bar.set_postfix_str(f"{steps:,} steps, return {played:.0f}, greedy {last:.0f}")
                ray.get(ray.wait(playing, timeout=0)[0])  # raises the error that ended an actor
            if learner.updates % 100 == 0 or learner.updates >= arguments.updates:
                last = greedy_return(learner.network(), evaluation_envs, 1000 + arguments.seed)
            is_done = last >= SOLVED or learner.updates >= arguments.updates
            if folder is not None and (is_done or learner.updates % 500 == 0):
                buffer.save(folder / "buffer")
                learner.save(folder / "learner.pt")
            if is_done:
                break
    stats = buffer.stats()
    print(f"mean value of the last batch {learner.value:.1f}")
    print(
        f"{'solved' if last >= SOLVED else 'not solved'}: greedy return {last:.0f} after {learner.updates} updates; "
        f"{stats.added:,} steps of {buffer.n_envs} actors, {stats.samples * arguments.batch_size:,} transitions drawn"
    )
    return last


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=4, help="each with an environment (default 4)")
    parser.add_argument("--shards", type=int, default=2, help="of the buffer (default 2)")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--updates", type=int, default=6000, help="at most (default 6000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="a folder, to go on from there and to save to it")
    parser.add_argument("--short", action="store_true", help="two actors and 250 small updates, to see that it runs")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.actors, arguments.updates, arguments.batch_size = 2, 250, 128
    torch.set_num_threads(1)
    ray.init(include_dashboard=False, logging_level="error", object_store_memory=256 * 2**20)
    last = train(arguments)
    ray.shutdown()
    return 0 if arguments.short or last >= SOLVED else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""DQN on CartPole-v1 with the whole training step in one captured CUDA graph.

The draw, loss, gradients, optimizer and new priorities are captured once and replayed with one launch. Each replay
draws another batch, since the buffer's random state, its priorities and beta lie on the device. The environments run on
the CPU, and the buffer takes their output directly. Without a CUDA device the same steps run one by one on the CPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium
import matplotlib
import numpy as np
import per
import torch
from torch import nn
from tqdm import tqdm

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SOLVED = 475.0
EVALUATION_EPISODES = 20
BATCH_SIZE, N_ENVS, WARM_UP, EVALUATE_EVERY, EXPLORATION = 128, 4, 500, 500, 4000


def network(n_inputs: int, n_actions: int, device: torch.device) -> nn.Module:
    layers = (nn.Linear(n_inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, n_actions))
    return nn.Sequential(*layers).to(device)


class Learner:
    """Double Q-learning (van Hasselt et al. 2016) from prioritized replay, on one device."""

    def __init__(self, buffer: per.ReplayBuffer, n_inputs: int, n_actions: int, device: torch.device) -> None:
        self.buffer = buffer
        self.online, self.target = (network(n_inputs, n_actions, device) for _ in range(2))
        self.target.load_state_dict(self.online.state_dict())
        # capturable: Adam's step counters lie on the device, too.
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-3, capturable=device.type == "cuda")
        self.loss = torch.zeros((), device=device)
        self.batch: per.Batch | None = None

    def step(self) -> None:
        """A whole training step. Nothing in it waits for the device, and all arrays stay where they are."""
        # All batches use the arrays of the first: a graph replays with the addresses of its capture.
        self.batch = batch = self.buffer.sample(BATCH_SIZE, out=self.batch)
        with torch.no_grad():
            best = self.online(batch.next_observation).argmax(dim=1, keepdim=True)
            goal = batch.reward + batch.discount * self.target(batch.next_observation).gather(1, best).squeeze(1)
        value = self.online(batch.observation).gather(1, batch.action.unsqueeze(1)).squeeze(1)
        loss = (batch.weights * nn.functional.smooth_l1_loss(value, goal, reduction="none")).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.buffer.update_priorities(batch.ids, goal - value)
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.online.parameters()), 0.01)
            self.loss.copy_(loss)

    def captured_step(self) -> Callable[[], None]:
        """The same step as a CUDA graph, after warm-up steps that allocate memory, on a side stream as torch
        requires."""
        side, current = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay


def greedy_return(learner: Learner, environments: gymnasium.vector.VectorEnv, seed: int, device: torch.device) -> float:
    """Mean return of one greedy episode in each of the environments."""
    observation, _ = environments.reset(seed=seed)
    returns, running = np.zeros(environments.num_envs), np.ones(environments.num_envs, dtype=bool)
    while running.any():
        with torch.no_grad():
            action = learner.online(torch.from_numpy(observation).to(device)).argmax(dim=1).cpu().numpy()
        observation, reward, terminated, truncated, _ = environments.step(action)
        returns += running * reward
        running &= ~(terminated | truncated)
    return float(returns.mean())


@dataclass
class Run:
    """The training record of the agent."""

    evaluations: list[tuple[int, float]] = field(default_factory=list)
    solved_at: int | None = None
    training_steps: int = 0
    training_seconds: float = 0.0
    priorities: np.ndarray = field(default_factory=lambda: np.empty(0))


def train(device: torch.device, seed: int, max_steps: int, use_graph: bool) -> Run:
    """Trains an agent until it is solved or `max_steps` environment steps are done, with a training step for each."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    environments = gymnasium.make_vec("CartPole-v1", num_envs=N_ENVS, vectorization_mode="sync")
    evaluation_envs = gymnasium.make_vec("CartPole-v1", num_envs=EVALUATION_EPISODES, vectorization_mode="sync")
    buffer = per.ReplayBuffer.for_env(
        environments, 50_000, beta_steps=max_steps, device=str(device), arrays="torch", seed=seed
    )
    spaces = environments.single_observation_space, environments.single_action_space
    n_inputs, n_actions = map(gymnasium.spaces.flatdim, spaces)
    learner = Learner(buffer, n_inputs, n_actions, device)
    step_of_learner: Callable[[], None] | None = None if use_graph else learner.step

    run = Run()
    observation, _ = environments.reset(seed=seed)
    with tqdm(total=max_steps, unit="step", mininterval=0.5) as bar:
        for step in range(N_ENVS, max_steps + 1, N_ENVS):
            with torch.no_grad():
                action = learner.online(torch.from_numpy(observation).to(device)).argmax(dim=1).cpu().numpy()
            explores = rng.random(N_ENVS) < max(0.02, 1.0 - step / EXPLORATION)
            action = np.where(explores, rng.integers(n_actions, size=N_ENVS), action)
            next_observation, reward, terminated, truncated, _ = environments.step(action)
            buffer.add(
                observation=observation,
                action=action,
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                next_observation=next_observation,
            )
            observation = next_observation
            if step >= WARM_UP:
                if step_of_learner is None:
                    step_of_learner = learner.captured_step()
                start = time.perf_counter()
                for _ in range(N_ENVS):
                    step_of_learner()
                if device.type == "cuda":
                    torch.cuda.synchronize()  # for the measurement only
                run.training_seconds += time.perf_counter() - start
                run.training_steps += N_ENVS
            if step % 100 == 0:
                buffer.synchronize()  # reports errors of the device, if any
                bar.update(100)
                bar.set_postfix_str(f"loss {learner.loss.item():.3f}, beta {buffer.beta:.2f}")
            if step % EVALUATE_EVERY == 0 and step >= WARM_UP:
                run.evaluations.append((step, greedy_return(learner, evaluation_envs, 1000 + seed, device)))
                if run.evaluations[-1][1] >= SOLVED:
                    run.solved_at = step
                    break
    run.priorities = torch.as_tensor(buffer.priorities(buffer.live_ids())).cpu().numpy()
    environments.close()
    evaluation_envs.close()
    return run


def draw_picture(run: Run, path: Path) -> None:
    figure, (curve, priorities) = plt.subplots(1, 2, figsize=(10, 3.8), width_ratios=(2, 1))
    curve.plot(*zip(*run.evaluations, strict=True), color="#c1440e", linewidth=2, marker=".")
    curve.axhline(SOLVED, color="0.4", linestyle=":", linewidth=1)
    curve.set(title="CartPole-v1, greedy return", xlabel="environment steps", ylim=(0, 520))
    curve.spines[["top", "right"]].set_visible(False)
    per.plot.priorities(run.priorities, priorities, color="#c1440e")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-steps", type=int, default=25_000, help="environment steps (default 25000)")
    parser.add_argument("--seed", type=int, default=0, help="of the agent (default 0)")
    parser.add_argument("--eager", action="store_true", help="no graph: the same steps one by one, to compare")
    parser.add_argument("--short", action="store_true", help="600 steps, to see that it runs")
    parser.add_argument("--picture", type=Path, default=Path("cartpole_dqn_graph.png"), help="where the picture goes")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    has_cuda = torch.cuda.is_available()
    device = torch.device("cuda" if has_cuda else "cpu")
    use_graph = has_cuda and not arguments.eager
    if not has_cuda:
        print("no CUDA device: the training step is not captured, but runs step by step on the CPU")
    run = train(device, arguments.seed, 600 if arguments.short else arguments.max_steps, use_graph)
    draw_picture(run, arguments.picture)
    how = "as one CUDA graph" if use_graph else f"step by step on {device}"
    print(f"{1e6 * run.training_seconds / run.training_steps:.0f} us a training step {how}")
    print("not solved" if run.solved_at is None else f"solved after {run.solved_at} steps")
    print(f"picture: {arguments.picture}")
    return 0 if arguments.short or run.solved_at is not None else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""DQN on CartPole with the whole training step in one graph of torch.compile: draw, loss, new weights and priorities.

    .venv/bin/python examples/integrations/torch_compile.py [--short] [--seed S] [--backend inductor | aot_eager | none]

"inductor" compiles C++ for some 20 seconds; "none" runs the same step without torch.compile. If there is a CUDA device
everything runs there, and "inductor" creates CUDA graphs.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable

import gymnasium
import numpy as np
import per
import per.torch
import torch
from torch import nn

N_ENVS, BATCH_SIZE, WARM_UP, EXPLORATION, EPISODES = 4, 128, 500, 4000, 20


class Learner:
    """Double Q-learning (van Hasselt et al. 2016) with Adam, from prioritized replay."""

    def __init__(self, buffer: per.ReplayBuffer, device: torch.device) -> None:
        self.replay = per.torch.Buffer(buffer)
        self.online = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
        self.online.to(device).requires_grad_(False)  # torch.func.grad() takes gradients in its own way
        self.target = copy.deepcopy(self.online)
        self.weights: dict[str, torch.Tensor] = dict(self.online.named_parameters())
        self.means = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        self.squares = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        self.steps = torch.zeros((), device=device)

    def step(self) -> torch.Tensor:
        """A whole training step. Returns the loss."""
        batch = self.replay.sample(BATCH_SIZE)

        def loss_of(weights: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
            best = torch.func.functional_call(self.online, weights, batch.next_observation).argmax(1, keepdim=True)
            goal = batch.reward + batch.discount * self.target(batch.next_observation).gather(1, best)[:, 0]
            value = torch.func.functional_call(self.online, weights, batch.observation)
            errors = goal.detach() - value.gather(1, batch.action[:, None])[:, 0]
            loss = nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")
            return (batch.weights * loss).mean(), errors

        gradients, (loss, errors) = torch.func.grad_and_value(loss_of, has_aux=True)(self.weights)
        self.replay.update_priorities(batch.ids, errors)
        self.steps += 1
        for name, weight in self.weights.items():
            mean, square = self.means[name], self.squares[name]
            mean.lerp_(gradients[name], 0.1)
            square.lerp_(gradients[name] ** 2, 0.001)
            root = (square / (1 - 0.999**self.steps)).sqrt() + 1e-8
            weight -= 1e-3 * mean / (1 - 0.9**self.steps) / root
            self.target.get_parameter(name).lerp_(weight, 0.01)
        return loss

    def actions(self, observation: np.ndarray) -> np.ndarray:
        return self.online(torch.from_numpy(observation).to(self.steps.device)).argmax(1).cpu().numpy()


def greedy_return(learner: Learner, seed: int) -> float:
    """The mean return of one greedy episode in each of some environments."""
    environments = gymnasium.make_vec("CartPole-v1", num_envs=EPISODES, vectorization_mode="sync")
    observation, _ = environments.reset(seed=seed)
    returns, running = np.zeros(EPISODES), np.ones(EPISODES, dtype=bool)
    while running.any():
        observation, reward, terminated, truncated, _ = environments.step(learner.actions(observation))
        returns += running * reward
        running &= ~(terminated | truncated)
    return float(returns.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="700 steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", choices=("inductor", "aot_eager", "none"), default="inductor")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    rng = np.random.default_rng(arguments.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    environments = gymnasium.make_vec("CartPole-v1", num_envs=N_ENVS, vectorization_mode="sync")
    options = {"device": str(device), "arrays": "torch", "seed": arguments.seed}
    buffer = per.ReplayBuffer.for_env(environments, 50_000, gamma=0.99, alpha=0.6, beta=0.4, **options)
    learner = Learner(buffer, device)
    step: Callable[[], torch.Tensor] = learner.step
    if arguments.backend != "none":
        mode = "reduce-overhead" if device.type == "cuda" and arguments.backend == "inductor" else None
        step = torch.compile(learner.step, fullgraph=True, backend=arguments.backend, mode=mode)

    seconds: list[float] = []
    observation, _ = environments.reset(seed=arguments.seed)
    max_steps, found, t = 700 if arguments.short else 30_000, 0.0, 0
    for t in range(N_ENVS, max_steps + 1, N_ENVS):
        explores = rng.random(N_ENVS) < max(0.02, 1 - t / EXPLORATION)
        action = np.where(explores, rng.integers(2, size=N_ENVS), learner.actions(observation))
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
        if t >= WARM_UP:
            for _ in range(N_ENVS):
                begin = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - begin)
        if t % 1000 == 0:
            found = greedy_return(learner, arguments.seed)
            print(f"{t} steps: return {found:.0f}", flush=True)
            if found >= 475:
                break
    print(f"{t} steps, {1e6 * float(np.median(seconds)):.0f} us a training step ({arguments.backend})")


if __name__ == "__main__":
    main()

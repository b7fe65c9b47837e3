"""Loads a Minari dataset into a prioritized buffer, learns a policy offline, and exports the buffer.

The dataset is generated here: episodes of CartPole-v1 by a policy that pushes in the direction of the fall, or at
random.
"""

from __future__ import annotations

import argparse
import copy
import os
import tempfile

import gymnasium
import minari
import numpy as np
import torch
from per.integrations.minari import create_dataset, new_buffer
from torch import nn
from tqdm import tqdm


def collect(n_steps: int, seed: int) -> minari.MinariDataset:
    env = minari.DataCollector(gymnasium.make("CartPole-v1"))
    random = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    for _ in range(n_steps):
        action = int(observation[2] + observation[3] > 0) if random.random() < 0.5 else int(random.integers(2))
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()
    return env.create_dataset("cartpole/mixed-v0", algorithm_name="half random")


def mean_return(network: nn.Module, episodes: int) -> float:
    env = gymnasium.make("CartPole-v1")
    total = 0.0
    for episode in range(episodes):
        observation, _ = env.reset(seed=1000 + episode)
        ended = False
        while not ended:
            action = int(network(torch.from_numpy(observation)).argmax())
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            ended = terminated or truncated
    return total / episodes


def learn(buffer, updates: int) -> nn.Module:
    """Double Q-learning from the buffer's contents."""
    network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    target = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for update in tqdm(range(updates), unit="update", mininterval=0.5):
        batch = buffer.sample(64)
        with torch.no_grad():
            best = network(batch.next_observation).argmax(dim=1, keepdim=True)
            bootstrap = target(batch.next_observation).gather(1, best)[:, 0]
        values = network(batch.observation).gather(1, batch.action.long()[:, None])[:, 0]
        errors = batch.reward + batch.discount * bootstrap - values
        optimizer.zero_grad()
        (batch.weights * errors.square()).mean().backward()
        optimizer.step()
        buffer.update_priorities(batch.ids, td_errors=errors)
        if update % 100 == 99:
            target.load_state_dict(network.state_dict())
    return network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--short", action="store_true", help="1,000 steps of data and 50 updates")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    os.environ["MINARI_DATASETS_PATH"] = tempfile.mkdtemp()

    dataset = collect(1000 if arguments.short else 20_000, arguments.seed)
    buffer = new_buffer(dataset, n_step=3, arrays="torch", seed=arguments.seed)
    print(f"{dataset.total_episodes} episodes, {len(buffer)} transitions in {buffer!r}", flush=True)

    returns = [float(episode.rewards.sum()) for episode in dataset]
    network = learn(buffer, 50 if arguments.short else arguments.updates)
    learned = mean_return(network, 2 if arguments.short else 10)
    print(f"mean return of the data: {np.mean(returns):.1f}, of the policy learned from it: {learned:.1f}")

    again = create_dataset("cartpole/again-v0", buffer, env="CartPole-v1")
    same = all(
        one.observations.tobytes() == other.observations.tobytes() and one.rewards.tobytes() == other.rewards.tobytes()
        for one, other in zip(dataset, again, strict=True)
    )
    print(f"the same bits: {same}")


if __name__ == "__main__":
    main()

"""A double DQN on Pong. The buffer stores each frame once, compressed."""

import sys

import ale_py
import gymnasium
import numpy as np
import per
import torch
from torch import nn

torch.set_num_threads(1)  # for small batches of images on a CPU, more threads cost more than they save
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
device = "cuda" if torch.cuda.is_available() else "cpu"

gymnasium.register_envs(ale_py)
env = gymnasium.make("ALE/Pong-v5", frameskip=1)
env = gymnasium.wrappers.AtariPreprocessing(env)  # every fourth frame, 84x84, grey
env = gymnasium.wrappers.FrameStackObservation(env, 4)
buffer = per.ReplayBuffer.for_env(
    env,
    1_000_000,
    fields={"observation": per.Field((84, 84), "uint8", compression="delta")},
    n_step=3,
    gamma=0.99,
    alpha=0.5,
    beta_steps=STEPS // 4,
    arrays="torch",
    seed=7,
)

torch.manual_seed(7)
n_actions = gymnasium.spaces.flatdim(env.action_space)
online, target = (
    nn.Sequential(
        nn.Conv2d(4, 32, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, n_actions),
    ).to(device)
    for _ in range(2)
)
target.load_state_dict(online.state_dict())
optimizer = torch.optim.Adam(online.parameters(), lr=6.25e-5, eps=1.5e-4)
random = np.random.default_rng(7)


def values(network: nn.Module, frames: torch.Tensor) -> torch.Tensor:
    return network(frames.to(device).float() / 255)


observation, _ = env.reset(seed=7)
score, scores = 0.0, []
for step in range(1, STEPS + 1):
    if random.random() < max(0.01, 1 - step / 100_000):
        action = int(random.integers(n_actions))
    else:
        with torch.no_grad():
            action = int(values(online, torch.from_numpy(np.asarray(observation)[None])).argmax())
    next_observation, reward, terminated, truncated, _ = env.step(action)
    buffer.add(
        observation=observation,
        action=action,
        reward=np.sign(float(reward)),
        terminated=terminated,
        truncated=truncated,
        next_observation=next_observation,
    )
    observation, score = next_observation, score + float(reward)
    if terminated or truncated:
        scores.append(score)
        print(f"step {step}: score {score:.0f}, mean of the last 20 {np.mean(scores[-20:]):.1f}", flush=True)
        observation, _ = env.reset()
        score = 0.0

    if step % 4 == 0 and step >= min(20_000, STEPS // 2):
        batch = buffer.sample(32)
        with torch.no_grad():
            best = values(online, batch.next_observation).argmax(1, keepdim=True)
            bootstrap = values(target, batch.next_observation).gather(1, best).squeeze(1).cpu()
        goal = batch.reward + batch.discount * bootstrap
        value = values(online, batch.observation).gather(1, batch.action.to(device)[:, None]).squeeze(1).cpu()
        loss = (batch.weights * nn.functional.smooth_l1_loss(value, goal, reduction="none")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        buffer.update_priorities(batch.ids, goal - value)
    if step % 8000 == 0:
        target.load_state_dict(online.state_dict())

statistics = buffer.stats()
print(f"{statistics.live} transitions in {statistics.memory_bytes / 2**20:.0f} MiB")

"""A car learns to climb a hill from its own steps and, in half of each batch, from demonstrations."""

import sys

import gymnasium
import numpy as np
import per

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 7
SHARE = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5  # of the demonstrations in each batch
STEPS = 6000

# The reward is 100 at the goal. Before, actions cost a little, so whoever never gets there learns to stand still.
env = gymnasium.make("MountainCarContinuous-v0", max_episode_steps=200)
FORCES = [-1.0, 0.0, 1.0]
FIELDS = {"observation": per.Field(2), "action": per.Field(dtype="int64")}

random = np.random.default_rng(SEED)
frequencies = random.normal(size=(2, 256)) * 2.5
phases = random.uniform(0, 6.28, 256)
theta = np.zeros((3, 256))  # Q of each action is linear in 256 random cosines of the observation


def features(observation):
    return np.cos((observation - [-0.3, 0]) / [0.9, 0.07] @ frequencies + phases)


def play(buffer, act, after_step=lambda: None, seed=None):
    """One episode, whose steps go to the buffer. Returns its number of steps and its return."""
    observation, _ = env.reset(seed=seed)
    length, total, ends = 0, 0.0, False
    while not ends:
        action = act(observation)
        next_observation, reward, terminated, truncated, _ = env.step([FORCES[action]])
        buffer.add(
            observation=observation,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_observation=next_observation,
        )
        observation = next_observation
        length, total, ends = length + 1, total + float(reward), terminated or truncated
        after_step()
    return length, total


online, demonstrations = (per.ReplayBuffer(20_000, FIELDS, n_step=5, gamma=0.99, seed=SEED + i) for i in range(2))
for i in range(10):  # a demonstrator who pushes the way the car moves already
    play(demonstrations, lambda observation: 2 if observation[1] > 0 else 0, seed=1000 + i)
play(online, lambda observation: random.integers(3), seed=SEED)
mixture = per.Mixture({"online": (online, 1 - SHARE), "demonstrations": (demonstrations, SHARE)})


def learn():
    batch = mixture.sample(64)  # batch.sources says where each row is from
    x = features(batch.observation)
    value = (x * theta[batch.action]).sum(axis=1)
    bootstrap = (features(batch.next_observation) @ theta.T).max(axis=1)
    td_errors = batch.reward + batch.discount * bootstrap - value
    np.add.at(theta, batch.action, 1e-4 * (batch.weights * td_errors)[:, None] * x)
    mixture.update_priorities(batch, td_errors)  # each row's, in its buffer


def act(observation):
    explores = random.random() < 0.05
    return int(random.integers(3) if explores else (theta @ features(observation)).argmax())


episodes: list[tuple[int, float]] = []  # length and return
while sum(length for length, _ in episodes) < STEPS:
    episodes.append(play(online, act, learn))
goals = sum(total > 50 for _, total in episodes)
print(f"{goals} of {len(episodes)} episodes reached the goal; the last ten returned", end=" ")
print(f"{np.mean([total for _, total in episodes[-10:]]):.0f} on average")

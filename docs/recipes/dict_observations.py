"""A Dict observation of an image and a vector: stored once, stacked when drawn, and returned as a dict."""

import gymnasium
import numpy as np
import per
from gymnasium import spaces


class Camera(gymnasium.Env):
    """An arm that a camera films: `image` is one frame, `joints` are its angles."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (84, 84), np.uint8), "joints": spaces.Box(-np.pi, np.pi, (6,), np.float32)}
    )
    action_space = spaces.Box(-1, 1, (6,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        return self.observe(), float(-np.square(action).sum()), False, self.steps == 40, {}

    def observe(self):
        image = self.np_random.integers(0, 256, (84, 84), np.uint8)
        return {"image": image, "joints": self.np_random.uniform(-1, 1, 6).astype(np.float32)}


env = Camera()
# The fields are observation.image and observation.joints; only the first is stacked, by an option of its field.
fields = {"observation.image": per.Field((84, 84), "uint8", stack=4)}
buffer = per.ReplayBuffer.for_env(env, 2000, fields=fields, seed=7)
observation, _ = env.reset(seed=7)
env.action_space.seed(7)
for _ in range(400):
    action = env.action_space.sample()
    next_observation, reward, terminated, truncated, _ = env.step(action)
    buffer.add(
        observation=observation,
        action=action,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        next_observation=next_observation,
    )
    observation = env.reset()[0] if terminated or truncated else next_observation

batch = buffer.sample(32)
assert batch.observation["image"].shape == (32, 4, 84, 84) and batch.observation["joints"].shape == (32, 6)
# A stack ends with the frame of the step, and the next observation's stack with the frame after it.
np.testing.assert_array_equal(batch.observation["image"][:, 1:], batch.next_observation["image"][:, :-1])
stored = buffer.stats().memory_bytes / buffer.capacity
print(f"{stored:,.0f} bytes a row; both stacks stored would be {2 * 4 * 84 * 84:,} bytes of images alone")

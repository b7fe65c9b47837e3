"""Several environments at a time, with episodes truncated by a time limit."""

import gymnasium
import numpy as np
import per

envs = gymnasium.make_vec("Pendulum-v1", num_envs=4, vectorization_mode="sync", max_episode_steps=50)
# for_env() reads the fields, the number of environments and their autoreset mode: these reset in the step after an end.
buffer = per.ReplayBuffer.for_env(envs, 10_000, n_step=3, gamma=0.9, seed=7)
assert buffer.options["autoreset"] == "next_step"

envs.action_space.seed(7)
observation, info = envs.reset(seed=7)
for _ in range(300):
    action = envs.action_space.sample()
    next_observation, reward, terminated, truncated, info = envs.step(action)
    buffer.add(
        observation=observation,
        action=action,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        next_observation=next_observation,
        info=info,
    )
    observation = next_observation

batch = buffer.sample(256)
# No step of Pendulum is terminal: all windows bootstrap, after fewer steps where the time limit cut them short.
assert not batch.terminated.any() and batch.truncated.any()
np.testing.assert_allclose(batch.discount, np.float32(0.9) ** batch.n_steps, rtol=1e-6)
# The resetting steps were not added: 50 of every 51 calls count.
print(f"{buffer.stats().added} transitions of {buffer.n_envs} environments, {buffer.stats().dropped} resets left out")
print(f"{batch.truncated.mean():.0%} of the windows end at the time limit and keep their bootstrap")

"""A small Q-network learns CartPole with prioritized replay."""

import sys

import gymnasium
import per
import torch

torch.set_num_threads(1)  # threads cost a network this small more than they save
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 15_000
env = gymnasium.make("CartPole-v1")
buffer = per.ReplayBuffer.for_env(env, 10_000, n_step=3, beta_steps=STEPS, arrays="torch", seed=7)
torch.manual_seed(7)
network, target = (
    torch.nn.Sequential(
        torch.nn.Linear(4, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 2)
    )
    for _ in range(2)
)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
env.action_space.seed(7)
returns = [0.0]  # of each episode

observation, _ = env.reset(seed=7)
for step in range(STEPS):
    if torch.rand(()) < max(0.05, 1 - step / 2000):
        action = env.action_space.sample()
    else:
        action = int(network(torch.as_tensor(observation)).argmax())
    next_observation, reward, terminated, truncated, _ = env.step(action)
    buffer.add(
        observation=observation,
        action=action,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        next_observation=next_observation,
    )
    observation = next_observation
    returns[-1] += float(reward)
    if terminated or truncated:
        observation, _ = env.reset()
        returns.append(0.0)
    if step % 1000 == 999:
        print(f"step {step + 1}: mean return of the last 20 episodes {sum(returns[-21:-1]) / 20:.0f}", flush=True)

    if step >= 500:
        batch = buffer.sample(64)
        values = network(batch.observation).gather(1, batch.action[:, None]).squeeze(1)
        with torch.no_grad():
            bootstrap = target(batch.next_observation).amax(1)
        td_errors = batch.reward + batch.discount * bootstrap - values
        losses = torch.nn.functional.smooth_l1_loss(td_errors, torch.zeros(64), reduction="none")
        loss = (batch.weights * losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        buffer.update_priorities(batch.ids, td_errors)
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
                slow.lerp_(fast, 0.01)

stats = buffer.stats()
print(f"{stats.samples} batches drawn; by its weights the last one is as large as {stats.last_effective_size:.0f} rows")

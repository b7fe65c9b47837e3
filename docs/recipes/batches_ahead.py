"""A thread draws the next batches while the network learns from this one."""

import gymnasium
import per
import torch

torch.set_num_threads(1)  # threads cost a network this small more than they save
env = gymnasium.make("CartPole-v1")
buffer = per.ReplayBuffer.for_env(env, 10_000, arrays="torch", seed=7)
network = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)

env.action_space.seed(7)
observation, info = env.reset(seed=7)
for _ in range(1000):
    action = env.action_space.sample()
    next_observation, reward, terminated, truncated, info = env.step(action)
    buffer.add(
        observation=observation,
        action=action,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        next_observation=next_observation,
    )
    observation = env.reset()[0] if terminated or truncated else next_observation

# Each batch lies in one of three slots until the loop asks for the next one. On a machine with a GPU, device="cuda"
# copies batches there during the training step.
with buffer.loader(128, slots=3) as batches:
    for step, batch in enumerate(batches):
        values = network(batch.observation).gather(1, batch.action[:, None]).squeeze(1)
        with torch.no_grad():
            targets = batch.reward + batch.discount * network(batch.next_observation).amax(1)
        td_errors = targets - values
        loss = (batch.weights * td_errors.square()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        buffer.update_priorities(batch.ids, td_errors)
        if step % 50 == 49:
            print(f"batch {step + 1}: loss {loss.item():.3f}", flush=True)
        if step == 199:
            break
print(f"{buffer.stats().beta_step} batches handed out, {buffer.stats().samples} drawn")

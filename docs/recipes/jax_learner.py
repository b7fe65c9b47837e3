"""Double Q-learning in JAX: batches go directly into a jitted step."""

import gymnasium
import jax
import jax.numpy as jnp
import per

GAMMA, BATCH = 0.99, 64
env = gymnasium.make("CartPole-v1")
buffer = per.ReplayBuffer.for_env(env, 10_000, gamma=GAMMA, n_step=3, arrays="jax", seed=7)


def layer(key, inputs, outputs):
    return jax.random.normal(key, (inputs, outputs)) / inputs**0.5, jnp.zeros(outputs)


def values(parameters, observation):
    for weight, bias in parameters[:-1]:
        observation = jax.nn.relu(observation @ weight + bias)
    weight, bias = parameters[-1]
    return observation @ weight + bias


def loss(parameters, target, batch):
    chosen = jnp.take_along_axis(values(parameters, batch.observation), batch.action[:, None], 1).squeeze(1)
    best = values(parameters, batch.next_observation).argmax(1)
    bootstrap = jnp.take_along_axis(values(target, batch.next_observation), best[:, None], 1).squeeze(1)
    td_errors = batch.reward + batch.discount * bootstrap - chosen
    return (batch.weights * td_errors**2).mean(), td_errors


@jax.jit
def learn(parameters, target, batch):
    (_, td_errors), gradients = jax.value_and_grad(loss, has_aux=True)(parameters, jax.lax.stop_gradient(target), batch)
    return jax.tree.map(lambda p, g: p - 1e-3 * g, parameters, gradients), td_errors


first, second = jax.random.split(jax.random.key(7))
parameters = target = [layer(first, 4, 64), layer(second, 64, 2)]
observation, _ = env.reset(seed=7)
env.action_space.seed(7)
for step in range(600):
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
    if step >= 200:
        batch = buffer.sample(BATCH)  # a pytree
        parameters, td_errors = learn(parameters, target, batch)
        buffer.update_priorities(batch.ids, td_errors)
    if step % 100 == 0:
        target = parameters
print(f"{buffer.stats().samples} updates; mean |TD error| of the last {abs(td_errors).mean():.2f}")

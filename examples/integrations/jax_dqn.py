"""Double DQN on CartPole as a single jitted program: environments, network and prioritized buffer.

The buffer is per.jax's, or Flashbax's with --buffer flashbax. Eight environments run in a vmap; the buffer has a lane
for each. The curve is the mean return of the episodes that ended in each tenth of the run.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

N_ENVS = 8
BATCH_SIZE = 128
BETA = 0.4
LEARNING_STARTS = 1_000
GAMMA = 0.99
TIME_LIMIT = 500


class Environment(NamedTuple):
    """CartPole-v1 of Gymnasium (Barto, Sutton and Anderson 1983)."""

    state: jax.Array
    """position, velocity, angle, angular velocity"""
    time: jax.Array


def reset(key: jax.Array) -> Environment:
    return Environment(jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05), jnp.zeros((), jnp.int32))


def move(environment: Environment, action: jax.Array, key: jax.Array) -> tuple[Environment, jax.Array]:
    """The environment after a step, reset if the episode ended, and the flag of that end. The reward is always 1."""
    _, velocity, angle, spin = environment.state
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    pull = (jnp.where(action == 1, 10.0, -10.0) + 0.05 * spin**2 * sine) / 1.1
    spin_up = (9.8 * sine - cosine * pull) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
    speed_up = pull - 0.05 * spin_up * cosine / 1.1
    state = environment.state + 0.02 * jnp.stack([velocity, speed_up, spin, spin_up])
    moved = Environment(state, environment.time + 1)
    ended = (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 0.2095) | (moved.time >= TIME_LIMIT)
    return jax.tree.map(lambda new, old: jnp.where(ended, new, old), reset(key), moved), ended


def network_of(key: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
    shapes = [(4, 64), (64, 64), (64, 2)]
    keys = jax.random.split(key, len(shapes))
    return [(jax.random.normal(k, s) / jnp.sqrt(s[0]), jnp.zeros(s[1])) for k, s in zip(keys, shapes, strict=True)]


def values(network: list[tuple[jax.Array, jax.Array]], observation: jax.Array) -> jax.Array:
    for weight, bias in network[:-1]:
        observation = jax.nn.relu(observation @ weight + bias)
    weight, bias = network[-1]
    return observation @ weight + bias


def of_actions(table: jax.Array, actions: jax.Array) -> jax.Array:
    return jnp.take_along_axis(table, actions[:, None], 1)[:, 0]


def loss(network, target, batch: Any):
    """The weighted mean of the losses, and the TD errors."""
    first, second = batch.experience
    best = values(network, second["observation"]).argmax(1)
    bootstrap = of_actions(values(target, second["observation"]), best)
    # An end is followed by the first observation of the next episode: the flag of `first` masks it.
    goal = 1.0 + GAMMA * jnp.where(first["ended"], 0.0, bootstrap)
    td_errors = of_actions(values(network, first["observation"]), first["action"]) - jax.lax.stop_gradient(goal)
    # Batches of per.jax also have these weights: batch.weights. Flashbax's float32 sums drift: occasionally it draws an
    # empty leaf of probability 0, which gets weight 0.
    probabilities = jnp.where(batch.probabilities > 0, batch.probabilities, jnp.inf)
    weights = (probabilities.min() / probabilities) ** BETA
    huber = jnp.where(jnp.abs(td_errors) < 1, td_errors**2 / 2, jnp.abs(td_errors) - 0.5)
    return (weights * huber).mean(), td_errors


def adam(network, moments, gradient, count, rate: float = 5e-4):
    means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradient)
    squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, moments[1], gradient)
    scale = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    network = jax.tree.map(lambda w, m, v: w - scale * m / (jnp.sqrt(v) + 1e-8), network, means, squares)
    return network, (means, squares)


def train(buffer: Any, n_steps: int, key: jax.Array) -> jax.Array:
    """Returns of the episodes that ended in each step of the environments; 0 for a running episode."""
    key, network_key, reset_key = jax.random.split(key, 3)
    network = network_of(network_key)
    zeros = jax.tree.map(jnp.zeros_like, network)
    environments = jax.vmap(reset)(jax.random.split(reset_key, N_ENVS))
    step_of_one = {"observation": jnp.zeros(4), "action": jnp.zeros((), jnp.int32), "ended": jnp.zeros((), bool)}

    def learn(agent, buffer_state, key, t):
        network, target, moments = agent
        batch = buffer.sample(buffer_state, key)
        gradient, td_errors = jax.grad(loss, has_aux=True)(network, target, batch)
        network, moments = adam(network, moments, gradient, t + 1.0)
        target = jax.tree.map(lambda old, new: old + 0.01 * (new - old), target, network)
        buffer_state = buffer.set_priorities(buffer_state, batch.indices, jnp.abs(td_errors) + 1e-3)
        return (network, target, moments), buffer_state

    def step(carry, t):
        environments, agent, buffer_state, key = carry
        key, explore_key, action_key, reset_key, draw_key = jax.random.split(key, 5)
        observation = environments.state
        epsilon = jnp.clip(1 - t / (0.2 * n_steps), 0.05, 1)
        action = jnp.where(
            jax.random.uniform(explore_key, (N_ENVS,)) < epsilon,
            jax.random.randint(action_key, (N_ENVS,), 0, 2),
            values(agent[0], observation).argmax(1),
        ).astype(jnp.int32)
        lengths = environments.time + 1
        environments, ended = jax.vmap(move)(environments, action, jax.random.split(reset_key, N_ENVS))
        steps = {"observation": observation, "action": action, "ended": ended}
        buffer_state = buffer.add(buffer_state, steps)
        agent, buffer_state = jax.lax.cond(
            buffer.can_sample(buffer_state),
            learn,
            lambda agent, buffer_state, key, t: (agent, buffer_state),
            *(agent, buffer_state, draw_key, t),
        )
        return (environments, agent, buffer_state, key), jnp.where(ended, lengths, 0)

    agent = network, network, (zeros, zeros)
    carry = environments, agent, buffer.init(step_of_one), key
    return jax.lax.scan(step, carry, jnp.arange(n_steps))[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--buffer", choices=["per.jax", "flashbax"], default="per.jax")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20_000, help="of each of the environments")
    parser.add_argument("--short", action="store_true", help="300 steps")
    arguments = parser.parse_args()
    n_steps = 300 if arguments.short else arguments.steps
    library = importlib.import_module(arguments.buffer)
    buffer = library.make_prioritised_flat_buffer(50_000, LEARNING_STARTS, BATCH_SIZE, add_batch_size=N_ENVS)
    run = jax.jit(functools.partial(train, buffer, n_steps)).lower(jax.random.key(arguments.seed)).compile()
    begin = time.perf_counter()
    returns = jax.block_until_ready(run(jax.random.key(arguments.seed)))
    seconds = time.perf_counter() - begin
    for part, each in enumerate(jnp.array_split(returns, 10)):
        print(f"{(part + 1) * n_steps // 10:6d} steps: mean return {each.sum() / jnp.maximum((each > 0).sum(), 1):.1f}")
    print(f"{n_steps} steps in one program: {seconds / n_steps * 1e6:.0f} us each")

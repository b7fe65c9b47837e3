"""Microseconds of a step inside a jitted program, with Flashbax's prioritized buffer and with per.jax's.

    .venvs/jax/bin/python bench/integrations/jax_steps.py

A step adds one environment step to a buffer of 100,000, draws 256 pairs, and sets their priorities; lax.scan runs 100
of them in one program.
"""

from __future__ import annotations

import argparse

import flashbax
import jax
import jax.numpy as jnp
import per.jax
from interleaved import microseconds, print_table

STEPS = 100

EXPERIENCE = {
    "4 float32 (CartPole)": {"observation": jnp.zeros(4), "action": jnp.zeros((), jnp.int32)},
    "17 and 6 float32 (HalfCheetah)": {"observation": jnp.zeros(17), "action": jnp.zeros(6)},
    "84 x 84 uint8": {"observation": jnp.zeros((84, 84), jnp.uint8), "action": jnp.zeros((), jnp.int32)},
}


def program(module, step, capacity: int, batch_size: int):
    """A function that runs STEPS steps per call."""
    buffer = module.make_prioritised_flat_buffer(capacity, batch_size, batch_size)

    def fill(state):
        return jax.lax.fori_loop(0, capacity, lambda _, state: buffer.add(state, step), state)

    def train(state, key):
        state = buffer.add(state, step)
        batch = buffer.sample(state, key)
        state = buffer.set_priorities(state, batch.indices, 1 + batch.probabilities)
        # Uses the whole batch, as a learner does; the compiler would remove it otherwise.
        return state, jax.tree.map(lambda x: x[0], jax.lax.optimization_barrier(batch.experience))

    run = jax.jit(lambda state, keys: jax.lax.scan(train, state, keys), donate_argnums=0)
    keys = jax.random.split(jax.random.key(0), STEPS)
    state = jax.jit(fill, donate_argnums=0)(buffer.init(step))

    def call():
        nonlocal state
        state, drawn = run(state, keys)
        jax.block_until_ready(drawn)

    return call


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacity", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rows", nargs="+", choices=EXPERIENCE, default=list(EXPERIENCE), help="of the table")
    parser.add_argument("--seconds", type=float, default=20, help="of each row of the table")
    options = parser.parse_args()
    rows = {}
    for name in options.rows:
        step = EXPERIENCE[name] | {"reward": jnp.zeros(()), "done": jnp.zeros((), bool)}
        ways = {"Flashbax": flashbax, "libper": per.jax}
        calls = {way: program(module, step, options.capacity, options.batch) for way, module in ways.items()}
        taken = microseconds(calls, seconds=options.seconds)
        rows[name] = {way: value / STEPS for way, value in taken.items()}
    print_table(f"a step, N = {options.capacity}, B = {options.batch}", rows)

"""Priorities of |TD error| chase noise: with random rewards the error never vanishes, and carries no information."""

import numpy as np
import per

# A thousand one-step episodes end with reward 0, and a thousand with the reward of a coin flip: 1 or -1. The true value
# is 0 for both. Once it is learned nothing is left to learn, and noise alone decides the draws.
random = np.random.default_rng(7)
is_noisy = np.arange(2000) % 2 == 1
buffer = per.ReplayBuffer(
    4000, {"observation": per.Field((), "int64"), "noisy": per.Field((), "bool")}, alpha=0.6, seed=7
)
buffer.extend(
    observation=np.arange(2000),
    noisy=is_noisy,
    reward=np.where(is_noisy, random.choice([-1.0, 1.0], 2000), 0.0).astype(np.float32),
    terminated=np.ones(2000, bool),
    truncated=np.zeros(2000, bool),
    next_observation=np.arange(2000) + 10_000,
)
buffer.update_priorities(buffer.live_ids(), td_errors=np.where(is_noisy, 1.0, 0.0).astype(np.float32))

shares = {}
ways: dict[str, per.typing.DrawOptions] = {
    "proportional": {},
    "with a uniform fraction of 0.5": {"uniform_fraction": 0.5},
    "uniform": {"prioritization": "uniform"},
}
for name, options in ways.items():
    options["beta"], options["normalize_weights"] = 1.0, "none"
    batch = buffer.sample(10_000, **options)
    size = batch.weights.sum() ** 2 / np.square(batch.weights).sum()
    shares[name] = batch["noisy"].mean()
    print(f"{name}: {shares[name]:.1%} of the draws are noise; effective batch {size / 10_000:.0%} of the size")
# p^alpha is 1 for noise and (1e-6)^0.6 = 0.00025 for the rest: noise gets 99.97 % of the draws.
assert shares["proportional"] > 0.99 and abs(shares["with a uniform fraction of 0.5"] - 0.75) < 0.02
assert abs(shares["uniform"] - 0.5) < 0.02

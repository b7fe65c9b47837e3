"""Writes the golden checkpoints of this folder in the current format.

    .venv/bin/python tests/golden/make_buffers.py

buffer.per, and the same compressed in buffer_compressed.per: three environments made 20 steps each, in lanes of 9 rows.
Each step increases the position of an environment by 1, and its screen shows the position. Environment 0 never ends an
episode. Every fourth step terminates environment 1; steps 9 and 17 truncate it, with an unknown final observation. Each
of its episodes begins 50 farther on. Environment 2 is moved by 100 before steps 6 and 15, which no flag reports. Then
batches are drawn and a priority is set.

buffer_of_high_ids.per: two environments made 40 steps each, in lanes of 16 rows that begin at row 2^53, as if many
steps had been made before. All values of a step and its reward are its id - 2^54.
"""

import pathlib
import struct

import numpy as np
import xxhash
from read_buffer import sections

N_ENVS, ROWS, STEPS, N_STEP, STACK = 3, 9, 20, 2, 2
BATCHES, BATCH_SIZE = 3, 8
OPTIONS = {
    "n_step": N_STEP,
    "gamma": 0.5,
    "alpha": 0.75,
    "beta": 0.5,
    "beta_final": 0.875,
    "beta_steps": 7,
    "epsilon": 0.125,
    "prioritization": "rank",
    "scheme": "independent",
    "uniform_fraction": 0.25,
    "normalize_weights": "buffer_max",
    "max_priority": "now",
    "on_nan": "error",
    "critics": "max",
    "gather_threads": 2,
    "keep_times_sampled": True,
    "seed": 2**63 + 5,
}
HIGH_ROW = 2**53


def ends(env, t):
    """Flags of a step: terminated, truncated, and True if the next observation is known."""
    if env == 1 and t in (9, 17):
        return False, True, False
    return env == 1 and t % 4 == 3, False, True


def moved(env, t):
    """The distance from the end of step t - 1 to the beginning of step t."""
    if env == 1 and t > 0 and any(ends(env, t - 1)[:2]):
        return 50.0
    return 100.0 if env == 2 and t in (6, 15) else 0.0


def position(env, t):
    """The position before step t."""
    return 1000.0 * env + t + sum(moved(env, s) for s in range(t + 1))


def observation(at):
    screen = np.arange(6, dtype=np.uint8).reshape(2, 3) + np.uint8(at % 200)
    return {"observation.position": np.array([at, -at], np.float32), "observation.screen": screen}


def step(env, t):
    """All fields of a step, the next observation and the reward."""
    at = position(env, t)
    values = observation(at) | {
        "action": np.int64(-(2**40) - at),
        "noise": np.float16(at / 8),
        "legal": np.array([t % 2 == 0, env == 1, True]),
        "advantage": np.full(2, 0.25),
    }
    return values, observation(at + 1), np.float32(at / 2)


def priority(env, t):
    return np.float32(0.5 + env + t)


def rows():
    """All rows of each environment: (t, values, reward, flags) for steps, or (None, observation)."""
    lanes = []
    for env in range(N_ENVS):
        lane, announced = [], None
        starts = True
        for t in range(STEPS):
            values, following, reward = step(env, t)
            if announced is not None and moved(env, t):
                lane[-1][3]["truncated"] = True
                lane.append((None, announced))
                starts = True
            terminated, truncated, is_known = ends(env, t)
            flags = {"starts": starts, "terminated": terminated, "truncated": truncated, "unknown": not is_known}
            lane.append((t, values, reward, flags))
            starts = terminated or truncated
            announced = None if starts else following
            if starts and is_known:
                lane.append((None, following))
        if announced is not None:
            lane.append((None, announced))
        lanes.append(lane)
    return lanes


def rows_there(lane):
    """The numbers of the rows that were not overwritten."""
    return range(max(0, len(lane) - ROWS), len(lane))


def checkpoint_of(contents):
    """The bytes of an uncompressed file with these sections. The inverse of sections()."""
    file, seals = struct.pack("<8sII", b"\x89PER\r\n\x1a\n", 1, 0), b""
    for name, content in contents.items():
        if name == "end":
            content = struct.pack("<Q", xxhash.xxh3_64_intdigest(seals))
        named = name.encode()
        section = struct.pack(f"<I{len(named)}sIQ", len(named), named, 0, len(content)) + content
        seal = struct.pack("<Q", xxhash.xxh3_64_intdigest(section))
        file, seals = file + section + seal, seals + seal
    return file


def filled():
    import per

    fields = {
        "observation.position": per.Field(2),
        "observation.screen": per.Field((2, 3), "uint8", stack=STACK, padding="zero"),
        "action": per.Field((), "int64", compression="delta"),
        "noise": per.Field((), "float16"),
        "legal": per.Field(3, "bool"),
        "advantage": per.Field(2, "float64", default=0.25),
    }
    buffer = per.ReplayBuffer(N_ENVS * ROWS, fields, n_envs=N_ENVS, **OPTIONS)
    for t in range(STEPS):
        steps = [step(env, t) for env in range(N_ENVS)]
        given = {name: np.stack([values[name] for values, _, _ in steps]) for name in fields if name != "advantage"}
        given |= {f"next_{name}": np.stack([following[name] for _, following, _ in steps]) for name in steps[0][1]}
        flags = np.array([ends(env, t) for env in range(N_ENVS)])
        buffer.add(
            **given,
            reward=np.stack([reward for _, _, reward in steps]),
            terminated=flags[:, 0],
            truncated=flags[:, 1],
            next_mask=flags[:, 2],
            priorities=[priority(env, t) for env in range(N_ENVS)],
        )
    for _ in range(BATCHES):
        buffer.sample(BATCH_SIZE)
    ids = buffer.live_ids()
    buffer.update_priorities(ids[:1], priorities=np.float32([40]))
    return buffer


def of_high_ids():
    """Moves the lanes in the file, as no program makes that many steps."""
    import per

    fields = {"observation": per.Field(2), "goal": per.Field(2), "value": per.Field(()), "advantage": per.Field(())}
    buffer = per.ReplayBuffer(32, fields, n_envs=2)
    for t in range(40):
        one = np.arange(2 * t, 2 * t + 2)
        two = np.stack([one, one], 1)
        buffer.add(observation=two, goal=two, value=one, advantage=one, reward=one, terminated=[False] * 2,
                   truncated=[False] * 2, next_observation=two + 2)  # fmt: skip
    contents = sections(bytes(buffer))
    lanes = [struct.unpack("<4qB", contents["lanes"][first : first + 33]) for first in (0, 33)]
    moved = [(*(row + HIGH_ROW for row in rows), state) for *rows, state in lanes]
    return checkpoint_of(contents | {"lanes": b"".join(struct.pack("<4qB", *lane) for lane in moved)})


def main():
    folder = pathlib.Path(__file__).parent
    buffer = filled()
    buffer.save(folder / "buffer.per")
    buffer.save_compression = 3
    buffer.save(folder / "buffer_compressed.per")
    (folder / "buffer_of_high_ids.per").write_bytes(of_high_ids())


if __name__ == "__main__":
    main()

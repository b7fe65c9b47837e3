"""Python writers in processes of their own, beside cpprb's MPPrioritizedReplayBuffer where it is installed.

    python bench/channels.py [WRITERS [STEPS_OF_A_CALL [SECONDS]]]

Each writer gives HalfCheetah's steps, so many a call, while the main process draws batches of 256 and sets their
priorities. Printed are the steps and batches of a second, for each in turn, three times.
"""

import ctypes
import multiprocessing
import sys
import time

import numpy as np
import per

OBSERVATION, ACTION, BATCH, ROWS = 17, 6, 256, 1 << 18
context = multiprocessing.get_context("fork")


def steps_of(n):
    observation = np.zeros((n + 1, OBSERVATION), np.float32)
    return observation[:-1], np.zeros((n, ACTION), np.float32), np.zeros(n, np.float32), observation[1:], np.zeros(n)


def write_to_channel(channel, n, count, is_over):
    observation, action, reward, following, done = steps_of(n)
    flags = done.astype(bool)
    with channel.writer() as writer:
        while not is_over.value:
            writer.extend(
                observation=observation,
                action=action,
                reward=reward,
                next_observation=following,
                terminated=flags,
                truncated=flags,
            )
            count.value += n


def write_to_cpprb(buffer, n, count, is_over):
    observation, action, reward, following, done = steps_of(n)
    while not is_over.value:
        buffer.add(obs=observation, act=action, rew=reward, next_obs=following, done=done)
        count.value += n


def measure(name, writers, learn, counts, is_over, seconds):
    for writer in writers:
        writer.start()
    while sum(count.value for count in counts) < 10 * BATCH:
        time.sleep(0.01)
    before, begin, batches = sum(count.value for count in counts), time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        learn()
        batches += 1
    steps, wall = sum(count.value for count in counts) - before, time.perf_counter() - begin
    is_over.value = True
    for writer in writers:
        writer.join()
    print(f"{name}: {steps / wall:,.0f} steps/s, {batches / wall:,.0f} batches/s", flush=True)


def run_libper(n_writers, n, seconds, counts, is_over):
    fields = {"observation": per.Field(OBSERVATION), "action": per.Field(ACTION)}
    buffer = per.ReplayBuffer(ROWS, fields, n_envs=n_writers)
    channels = [buffer.channel([env]) for env in range(n_writers)]
    writers = [
        context.Process(target=write_to_channel, args=(channel, n, count, is_over))
        for channel, count in zip(channels, counts, strict=True)
    ]

    def learn():
        if len(buffer) > BATCH:
            batch = buffer.sample(BATCH)
            buffer.update_priorities(batch.ids, td_errors=batch.weights)

    measure("libper", writers, learn, counts, is_over, seconds)


def run_cpprb(n_writers, n, seconds, counts, is_over):
    import cpprb

    shapes = {"obs": OBSERVATION, "act": ACTION, "rew": 1, "next_obs": OBSERVATION, "done": 1}
    buffer = cpprb.MPPrioritizedReplayBuffer(ROWS, {name: {"shape": shape} for name, shape in shapes.items()})
    writers = [context.Process(target=write_to_cpprb, args=(buffer, n, count, is_over)) for count in counts]

    def learn():
        batch = buffer.sample(BATCH, 0.4)
        buffer.update_priorities(batch["indexes"], batch["weights"])

    measure("cpprb", writers, learn, counts, is_over, seconds)


def main():
    n_writers, n, seconds = (int(given) for given in (sys.argv[1:] + ["16", "1", "5"][len(sys.argv) - 1 :])[:3])
    for _ in range(3):
        for run in (run_libper, run_cpprb):
            counts = [context.Value(ctypes.c_int64, 0, lock=False) for _ in range(n_writers)]
            try:
                run(n_writers, n, seconds, counts, context.Value(ctypes.c_bool, False, lock=False))
            except ImportError as error:
                print(error)


if __name__ == "__main__":
    main()

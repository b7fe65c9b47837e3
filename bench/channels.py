"""Python writers in separate processes, next to cpprb's MPPrioritizedReplayBuffer and Reverb if they are installed.

    python bench/channels.py [WRITERS [STEPS_OF_A_CALL [SECONDS]]]

Each writer adds HalfCheetah's steps, STEPS_OF_A_CALL per call, while the main process draws batches of 256 and sets
their priorities. Prints the steps and batches per second of each library in turn, three times.
"""

import ctypes
import multiprocessing
import sys
import time

import numpy as np
import per

OBSERVATION, ACTION, BATCH, ROWS = 17, 6, 256, 1 << 18
TABLE, IN_FLIGHT = "steps", 40  # of Reverb; items sent by a writer and not yet confirmed
REVERB_FIELDS = ("observation", "action", "reward", "next_observation", "done")
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


def write_to_reverb(address, n, is_over):
    import reverb

    columns = dict(zip(REVERB_FIELDS, steps_of(n), strict=True))
    with reverb.Client(address).trajectory_writer(num_keep_alive_refs=1) as writer:
        while not is_over.value:
            for t in range(n):
                writer.append({name: column[t] for name, column in columns.items()})
                row = {name: column[-1:] for name, column in writer.history.items()}
                writer.create_item(TABLE, priority=1.0, trajectory=row)
            writer.flush(block_until_num_items=IN_FLIGHT)


def measure(name, writers, learn, written, is_over, seconds):
    for writer in writers:
        writer.start()
    while written() < 10 * BATCH:
        time.sleep(0.01)
    before, begin, batches = written(), time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        learn()
        batches += 1
    steps, wall = written() - before, time.perf_counter() - begin
    is_over.value = True
    for writer in writers:
        writer.join()
    print(f"{name}: {steps / wall:,.0f} steps/s, {batches / wall:,.0f} batches/s", flush=True)


def run_libper(n_writers, n, seconds, is_over):
    fields = {"observation": per.Field(OBSERVATION), "action": per.Field(ACTION)}
    buffer = per.ReplayBuffer(ROWS, fields, n_envs=n_writers)
    counts = counts_of(n_writers)
    channels = [buffer.channel([env]) for env in range(n_writers)]
    writers = [
        context.Process(target=write_to_channel, args=(channel, n, count, is_over))
        for channel, count in zip(channels, counts, strict=True)
    ]

    def learn():
        if len(buffer) > BATCH:
            batch = buffer.sample(BATCH)
            buffer.update_priorities(batch.ids, td_errors=batch.weights)

    measure("libper", writers, learn, lambda: sum(count.value for count in counts), is_over, seconds)


def run_cpprb(n_writers, n, seconds, is_over):
    import cpprb

    counts = counts_of(n_writers)
    shapes = {"obs": OBSERVATION, "act": ACTION, "rew": 1, "next_obs": OBSERVATION, "done": 1}
    buffer = cpprb.MPPrioritizedReplayBuffer(ROWS, {name: {"shape": shape} for name, shape in shapes.items()})
    writers = [context.Process(target=write_to_cpprb, args=(buffer, n, count, is_over)) for count in counts]

    def learn():
        batch = buffer.sample(BATCH, 0.4)
        buffer.update_priorities(batch["indexes"], batch["weights"])

    measure("cpprb", writers, learn, lambda: sum(count.value for count in counts), is_over, seconds)


def run_reverb(n_writers, n, seconds, is_over):
    """The server and its prefetching dataset, in this process. Steps are counted as they arrive."""
    import reverb
    import tensorflow

    columns = dict(zip(REVERB_FIELDS, steps_of(1), strict=True))
    table = reverb.Table(
        TABLE,
        sampler=reverb.selectors.Prioritized(0.6),
        remover=reverb.selectors.Fifo(),
        max_size=ROWS,
        rate_limiter=reverb.rate_limiters.MinSize(BATCH),
        signature={
            name: tensorflow.TensorSpec((None, *column.shape[1:]), column.dtype) for name, column in columns.items()
        },
    )
    server = reverb.Server([table])
    address = f"localhost:{server.port}"
    client = reverb.Client(address)
    spawned = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
    over = spawned.Value(ctypes.c_bool, False, lock=False)
    writers = [spawned.Process(target=write_to_reverb, args=(address, n, over)) for _ in range(n_writers)]
    batches = None

    def learn():
        nonlocal batches
        if batches is None:
            dataset = reverb.TrajectoryDataset.from_table_signature(
                server_address=address, table=TABLE, max_in_flight_samples_per_worker=2 * BATCH
            )
            batches = iter(dataset.batch(BATCH))
        drawn = next(batches)
        probabilities = drawn.info.probability.numpy().ravel()
        weights = (probabilities.min() / probabilities) ** 0.4
        keys = drawn.info.key.numpy().ravel().tolist()
        client.mutate_priorities(TABLE, dict(zip(keys, weights.tolist(), strict=True)))

    def written():
        return client.server_info()[TABLE].rate_limiter_info.insert_stats.completed

    measure("Reverb", writers, learn, written, over, seconds)
    server.stop()


def counts_of(n_writers):
    return [context.Value(ctypes.c_int64, 0, lock=False) for _ in range(n_writers)]


def main():
    n_writers, n, seconds = (int(given) for given in (sys.argv[1:] + ["16", "1", "5"][len(sys.argv) - 1 :])[:3])
    for _ in range(3):
        for run in (run_libper, run_cpprb, run_reverb):
            try:
                run(n_writers, n, seconds, context.Value(ctypes.c_bool, False, lock=False))
            except ImportError as error:
                print(error)


if __name__ == "__main__":
    main()

"""Random walks over every operation of a replay buffer, compared with the naive model after each of them.

The options of a walk are generated so that each pair of values occurs in some walk; a test checks this.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import os
import tempfile

import naive_sequences
import numpy as np
import per
import pytest
from cuda_switch import IS_CUDA
from naive_replay import NaiveReplay, Refused
from replay_subjects import LibraryReplay
from toy_environments import LAYOUTS, ToyEnvironments, ended_at_zero, padded_field, stacked

STEPS = 120

# The first value of each option is the default, which the others are tested beside.
OPTIONS = {
    "n_envs": (1, 3),
    "spare_rows": (1, 0, 7, 30),
    "layout": tuple(LAYOUTS),
    "next_observations": ("always", "never", "sometimes"),
    "n_step": (1, 2, 3, 5),
    "frame_stack": (1, 2, 4),
    "sequences": (None, (1, 0, 1), (3, 0, None), (4, 2, 3), (2, 3, 5)),  # length, burn_in, stride
    "sequence_eta": (0.9, 0.0),
    "gamma": (0.9, 1.0, 0.0),
    "alpha": (0.6, 1.0, 0.0),
    "beta_steps": (0, 9),
    "epsilon": (1e-6, 0.25, 0.0),
    "prioritization": ("proportional", "uniform", "rank"),
    "scheme": ("stratified", "independent", "systematic", "without_replacement"),
    "uniform_fraction": (0.0, 0.3),
    "normalize_weights": ("batch_max", "buffer_max", "none"),
    "max_priority": ("ever", "now"),
    "on_invalid": ("error", "skip"),
    "on_gap": ("cut", "error"),
    "on_nan": ("allow", "error"),
    "autoreset": ("disabled", "next_step", "same_step"),
    "store_next_observation": (False, True),
    "overwrite": (True, False),
    "critics": ("mean", "max"),
    "padding": ("repeat", "zero"),
    "defaults": (None, 5),
    # Age, half-life and, in steps, how far max_age lies above the least. The half-lives are so long that the rounding
    # of the oldest rows' masses is below the tolerance of a comparison, and so short that walks rebase.
    "freshness": (None, ("steps", 4.0, None), ("steps", None, 3), ("versions", 3.0, None), ("versions", 5.5, 2)),
    "uses": (None, "counted", 1, 3),  # a number: limit on the draws of each transition, without replacement
}
# Pairs of (option, value) that exclude each other: creating such a buffer is an error.
EXCLUDED = tuple(
    (("freshness", freshness), ("prioritization", prioritization))
    for freshness in OPTIONS["freshness"][1:]
    if freshness[1] is not None
    for prioritization in ("uniform", "rank")
)
EXCLUDED += tuple((("layout", "ragged"), ("frame_stack", stack)) for stack in OPTIONS["frame_stack"][1:])
# The behaviour of CUDA where the CPU can also refuse a call.
SKIPPING = {"on_invalid": "skip", "on_gap": "cut", "on_nan": "allow", "overwrite": True}
SAMPLE_OPTIONS = ("scheme", "prioritization", "uniform_fraction", "normalize_weights")
LAW = ("weights", "probabilities")  # the arrays of a batch that the draw determines
DRIVER_OPTIONS = ("spare_rows", "layout", "next_observations", "sequences", "padding", "defaults", "freshness", "uses")


def all_pairs(options, excluded, seed):
    """Rows of options in which each allowed pair of values of two options occurs.

    Greedy, from random candidates.
    """
    random = np.random.default_rng(seed)
    names = list(options)
    excluded = {frozenset(pair) for pair in excluded}
    missing = {((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in options[a] for y in options[b]}
    missing = {pair for pair in missing if frozenset(pair) not in excluded}
    rows = []
    while missing:
        (a, x), (b, y) = min(missing, key=repr)
        candidates = []
        while len(candidates) < 30:
            row = {name: options[name][random.integers(len(options[name]))] for name in names} | {a: x, b: y}
            pairs = set(itertools.combinations(row.items(), 2))
            if excluded.isdisjoint(map(frozenset, pairs)):
                candidates.append((len(pairs & missing), row, pairs))
        _, row, pairs = max(candidates, key=lambda candidate: candidate[0])
        rows.append(row)
        missing -= pairs
    return rows


def fields_of(options):
    """The fields of a layout with that padding and, all but observations, with that default."""
    fields = {}
    for name, field in LAYOUTS[options["layout"]].items():
        fields[name] = dataclasses.replace(field, padding=options["padding"])
        is_observation = name.startswith("observation") or field.role == "observation"
        if options["defaults"] is not None and not is_observation and field.max_length is None:
            default = bool(options["defaults"]) if field.dtype == "bool" else options["defaults"]
            fields[name] = dataclasses.replace(fields[name], default=default)
    return fields


def created(kind, options):
    rest = {name: value for name, value in options.items() if name not in DRIVER_OPTIONS}
    fields = fields_of(options)
    stack = max(field.stack or 1 for field in fields.values())
    steps = 1
    if options["sequences"] is not None:
        length, burn_in, stride = options["sequences"]
        rest |= {"sequence_length": length, "burn_in": burn_in, "sequence_stride": stride}
        steps = burn_in + length
    if options["uses"] == "counted":
        rest |= {"keep_times_sampled": True}
    elif options["uses"] is not None:
        rest |= {"max_times_sampled": options["uses"], "scheme": "without_replacement"}
    least = options["n_step"] + max(stack, options["frame_stack"]) + steps - 2 * options["store_next_observation"]
    if options["freshness"] is not None:
        age, half_life, above = options["freshness"]
        rest |= {"age": age, "half_life": half_life}
        rest |= {"max_age": above if above is None or age == "versions" else least + above}
    rows = options["n_step"] + max(stack, options["frame_stack"]) + steps + options["spare_rows"]
    rows -= 2 * options["store_next_observation"]
    if kind is NaiveReplay:
        fields = {name: padded_field(field) for name, field in fields.items()}
    return kind(rows * options["n_envs"], fields, seed=5, **rest)


class Walk:
    def __init__(self, options, seed):
        self.random = np.random.default_rng(seed)
        options = options | (SKIPPING if IS_CUDA else {})
        if IS_CUDA and options["layout"] == "ragged":
            pytest.skip("on CUDA all rows have one length")
        self.options = options
        self.library = created(LibraryReplay, options)
        self.naive = created(NaiveReplay, options)
        self.n_envs = options["n_envs"]
        n, steps = options["n_step"], naive_sequences.steps_of(self.naive)
        lengths = {1, 2, n - 1, n, n + 1, 12, steps - 1, steps, steps + 1, self.naive.burn_in, self.naive.burn_in + 1}
        self.environments = ToyEnvironments(
            self.random,
            self.naive.fields,
            self.n_envs,
            options["autoreset"],
            lengths=sorted(length for length in lengths if length > 0),
        )
        self.seen_ids = []
        self.refusals = 0

    # ---- operations

    def operate(self):
        operations = (
            (self.add_one, 10),
            (self.add_several, 3),
            (self.update, 5),
            (self.cut_some, 0.5),
            (self.set_fields, 1),
            (self.clear, 0.15),
            (self.change_settings, 0.5),
            (self.set_version, 3 * (self.naive.age == "versions")),
            (self.save_and_load, 0.3),
            (self.bad_calls, 1),
        )
        odds = np.array([weight for _, weight in operations])
        operations[self.random.choice(len(operations), p=odds / odds.sum())][0]()

    def both(self, name, *args, **kwargs):
        """The same call to the library and the model; their answers or their refusals must agree."""
        outcomes = []
        for subject in (self.library, self.naive):
            try:
                outcomes.append((None, getattr(subject, name)(*args, **kwargs)))
            except Refused as refusal:
                outcomes.append((refusal.kind, None))
            except per.Error as error:
                outcomes.append((type(error).__name__, None))
        (refused, result), (expected_refused, expected) = outcomes
        assert refused == expected_refused, f"{name}: the library said {refused}, the model {expected_refused}"
        if expected is not None:
            np.testing.assert_array_equal(result, expected)
        return refused, result

    def add_one(self):
        self.add_steps("add", 1)

    def add_several(self):
        most = 2 * self.naive.rows if self.random.random() < 0.2 else 6
        self.add_steps("extend", int(self.random.integers(0 if self.random.random() < 0.1 else 1, most + 1)))

    def add_steps(self, verb, length):
        some = self.random.random() < 0.3
        envs = self.random.permutation(self.n_envs)[: self.random.integers(1, self.n_envs + 1)]
        envs = [int(env) for env in envs] if some else list(range(self.n_envs))
        leave_out = {"always": 0, "never": 1, "sometimes": 0.5}[self.options["next_observations"]]
        leave_out = self.random.random() < leave_out and not self.options["store_next_observation"]
        self.reset_by_hand(envs)
        table = [[self.step_or_none(env, k) for env in envs] for k in range(length)]
        arrays = self.arrays(table, leave_out)
        if some:
            arrays["env_ids"] = envs
        if verb == "add":
            arrays = {name: value if name == "env_ids" else value[0] for name, value in arrays.items()}
        refused, ids = self.both(verb, **arrays)
        if refused is None:
            self.seen_ids += [int(id) for id in np.ravel(ids) if id >= 0]
        else:  # steps that were not added are missing from the trajectories
            self.refusals += 1
            self.both("clear") if refused == "Full" else self.both("cut", envs)

    def step_or_none(self, env, k):
        if self.random.random() < 0.1:
            if self.environments.resets_next[env]:
                self.environments.step(env)  # the user leaves the reset step out
            return None
        seen_as_gap = not self.options["store_next_observation"] and self.options["next_observations"] == "always"
        if k > 0 and seen_as_gap and self.random.random() < 0.03:
            self.reset_in_mid_episode(env)
        return self.environments.step(env)

    def reset_in_mid_episode(self, env):
        if self.environments.in_mid_episode(env):
            self.environments.reset(env)
            return True
        return False

    def reset_by_hand(self, envs):
        """Resets as users do: without a mark if the announced observation reveals it, else with `cut`."""
        for env in envs:
            if self.random.random() < 0.04 and self.reset_in_mid_episode(env):
                announced = self.naive.lanes[env].announced() is not None
                if not announced or self.options["store_next_observation"] or self.random.random() < 0.3:
                    self.both("cut", [env])

    def arrays(self, table, leave_out):
        """Keyword arrays [K, n, ...] for `extend` from a [K][n] table of steps."""
        fields, shape = self.naive.fields, (len(table), len(table[0]) if table else self.n_envs)
        steps = [s for row in table for s in row if s is not None]

        def flags(value, masked):
            return np.array([[masked if s is None else value(s) for s in row] for row in table], bool).reshape(shape)

        values = [[None if s is None else s.values for s in row] for row in table]
        arrays = {
            name: stacked(values, name, field, shape)
            for name, field in fields.items()
            if field.default is None or self.random.random() < 0.5
        }
        arrays["reward"] = np.array([[0 if s is None else s.reward for s in row] for row in table], np.float32)
        arrays["reward"] = arrays["reward"].reshape(shape)
        arrays["terminated"] = flags(lambda s: s.terminated, True)
        arrays["truncated"] = flags(lambda s: s.truncated, False)
        if any(s is None for row in table for s in row) or self.random.random() < 0.1:
            arrays["mask"] = flags(lambda s: True, False)

        ends = any(s.terminated or s.truncated for s in steps)
        same_step = self.options["autoreset"] == "same_step"
        say = (ends and (leave_out or same_step)) or self.random.random() < 0.2
        known = {id(s): not say or self.is_known(s, leave_out) for s in steps}
        if say:
            arrays["next_mask"] = flags(lambda s: known[id(s)], False)
        if not leave_out:
            following = [
                [None if s is None else s.following if known[id(s)] else s.shown for s in row] for row in table
            ]
            for name in self.naive.observations:
                arrays["next_" + name] = stacked(following, name, fields[name], shape)
        if self.options["on_nan"] == "error" and self.random.random() < 0.05:
            self.put_nan(arrays)
            for name in arrays:
                field = fields.get(name.removeprefix("next_"))
                if field is not None and field.max_length is not None:
                    arrays[name] = ended_at_zero(arrays[name], field)
        masked = np.array([[s is None for s in row] for row in table], bool).reshape(shape)
        arrays["reward"][masked] = np.nan
        given = self.given_priorities(shape)
        for values in given.values():
            values[masked] = np.nan
        return arrays | given

    def put_nan(self, arrays):
        """Sets a NaN somewhere in a reward or an observation, which may be masked."""
        names = ["reward", *self.naive.observations, *(f"next_{name}" for name in self.naive.observations)]
        floats = [arrays[name] for name in names if name in arrays and arrays[name].dtype.kind == "f"]
        array = floats[self.random.integers(len(floats))]
        if array.size:
            array.flat[self.random.integers(array.size)] = np.nan

    def is_known(self, step, leave_out):
        if step.terminated or step.truncated:
            return not leave_out and self.random.random() < 0.6
        if self.options["store_next_observation"] or self.options["next_observations"] == "always":
            return True
        return self.random.random() < 0.9

    def given_priorities(self, shape):
        choice = self.random.random()
        if choice < 0.8:
            return {}
        values = self.some_priorities(shape, signed=choice >= 0.9)
        if IS_CUDA:  # their steps are skipped there, where the CPU refuses the call
            values[~np.isfinite(values)] = 1
        return {"priorities" if choice < 0.9 else "td_errors": values}

    def some_priorities(self, shape, signed):
        values = self.random.lognormal(sigma=2, size=shape)
        values[self.random.random(shape) < 0.15] = 0
        if signed:
            values *= self.random.choice([-1, 1], shape)
        if values.size and self.random.random() < 0.1:
            values.flat[self.random.integers(values.size)] = self.random.choice([np.nan, np.inf, -np.inf])
        return values.astype(np.float32)

    def update(self):
        if not self.seen_ids:
            return
        recent = self.seen_ids[-3 * self.naive.capacity :]
        ids = [int(id) for id in self.random.choice(recent, self.random.integers(1, 9))]
        if self.random.random() < 0.3:
            ids = list(dict.fromkeys(ids))
        if self.random.random() < 0.2:
            ids.append(-1)
        lane = self.naive.lanes[0]
        if lane.next_row and self.random.random() < 0.3:
            ids.append(int(self.random.integers(lane.next_row)) * self.n_envs)  # perhaps a final observation's
        self.random.shuffle(ids)
        if self.random.random() < 0.5:
            self.both("update_priorities", ids, priorities=self.some_priorities(len(ids), signed=False))
        else:
            steps = naive_sequences.steps_of(self.naive)
            shape = (len(ids), steps) if steps else (len(ids),)
            if self.random.random() < 0.5:
                shape = (int(self.random.integers(1, 4)), *shape)
            self.both("update_priorities", ids, td_errors=self.some_priorities(shape, signed=True))

    def cut_some(self):
        envs = [env for env in range(self.n_envs) if self.random.random() < 0.5]
        for env in envs:
            self.reset_in_mid_episode(env)
        self.both("cut", envs)

    def set_fields(self):
        plain = [name for name in self.naive.fields if name not in self.naive.observations]
        if not self.seen_ids or not plain:
            return
        ids = [int(id) for id in self.random.choice(self.seen_ids[-2 * self.naive.capacity :], 3)]
        name = str(self.random.choice(plain))
        field = self.naive.fields[name]
        values = self.random.integers(0, 2, (3, *field.shape)).astype(field.dtype)
        if field.max_length is not None:
            values = ended_at_zero(values, field)
        self.both("set", ids, **{name: values})

    def clear(self):
        self.both("clear")

    def set_version(self):
        self.both("set_version", self.naive.version + int(self.random.integers(0, 3)))

    def change_settings(self):
        kind = self.random.choice(["alpha", "beta", "gamma", "n_step"], p=[0.5, 0.2, 0.15, 0.15])
        if kind == "alpha":
            self.both("set_alpha", float(self.random.choice([0, 0.5, 0.6, 1])))
        elif kind == "beta":
            self.both("set_beta", float(self.random.choice([0, 0.5, 1])))
        elif kind == "gamma":
            self.both("set_gamma", float(self.random.choice([0.5, 0.9])))
        else:  # at times more than the rows of a lane allow
            most = self.options["n_step"] + self.options["spare_rows"] + 1
            self.both("set_n_step", int(self.random.integers(1, min(most, 6) + 1)))

    def save_and_load(self):
        """Continues the walk with the loaded buffer, which must draw what the saved one would have drawn."""
        with tempfile.TemporaryDirectory() as folder:
            loaded = self.library.reloaded(os.path.join(folder, "replay.per"))
        if self.naive.live():
            scheme = None if self.naive.max_times_sampled else "stratified"
            drawn = [buffer.sample(1, scheme=scheme) for buffer in (self.library, loaded)]
            self.naive.count_sample(by_schedule=True)
            self.naive.use(int(id) for id in drawn[0]["ids"])
            for name, array in drawn[0].items():
                np.testing.assert_array_equal(drawn[1][name], array, err_msg=name)
        self.library.close()
        self.library = loaded

    def bad_calls(self):
        """Calls that both must refuse, as they must refuse the same; the comparison then sees that nothing changed."""
        if IS_CUDA:
            return
        never_issued = max(lane.next_row for lane in self.naive.lanes) * self.n_envs + self.n_envs
        ids = (list(self.naive.live()) or [-1])[:3]
        bad = np.full(len(ids), 3, np.float32)
        bad[self.random.integers(len(ids))] = self.random.choice([np.nan, np.inf, -1])
        fine = np.ones(len(ids) + 1, np.float32)
        step = self.arrays([[self.environments.step(0)]], leave_out=False)
        step = {name: array[0] for name, array in step.items()}
        observation = self.naive.observations[0]
        calls = (
            ("update_priorities", [*ids, never_issued], {"priorities": fine}),
            ("update_priorities", [-2, *ids], {"td_errors": fine}),
            ("update_priorities", ids, {"priorities": bad}),
            ("cut", [0, self.n_envs], {}),
            ("set", [-1], {observation: step[observation]}),
            ("add", [], step | {"env_ids": [self.n_envs]}),
            ("add", [], {name: value for name, value in step.items() if name != observation} | {"env_ids": [0]}),
            (
                "add",
                [],
                {name: value for name, value in step.items() if not name.startswith("next_")}
                | {"env_ids": [0], "truncated": [True]},
            ),
        )
        name, ids, more = calls[self.random.integers(len(calls))]
        refused, _ = self.both(name, *([ids] if ids else []), **more)
        self.refusals += refused is not None
        self.both("cut", [0])  # the step that was refused is missing from its trajectory

    # ---- comparisons

    def compare(self):
        self.compare_stats()
        if self.random.random() < 0.5:
            self.compare_by_id()
        else:
            self.compare_batch()
            self.compare_windows()

    def compare_stats(self):
        stats, naive = self.library.stats(), self.naive
        expected = dict(naive.counters, capacity=naive.capacity, live=len(naive.live()))
        assert {name: stats[name] for name in expected} == expected
        close = {"total": naive.total(), "max_priority": naive.largest(), "beta": naive.beta}
        close |= {"alpha": naive.alpha, "gamma": naive.gamma}
        for name, value in close.items():
            assert stats[name] == pytest.approx(value, rel=1e-6), name

    def compare_by_id(self):
        ids = sorted(set(self.seen_ids[-3 * self.naive.capacity :]))
        if ids:
            np.testing.assert_allclose(self.library.priorities(ids), self.naive.priorities(ids), rtol=1e-6)
        for with_next in (False, True):
            rows = {}
            for id in ids:
                try:
                    rows[id] = self.naive.plain_row(id, with_next)
                except Refused:
                    if self.random.random() < 0.1:
                        with pytest.raises(per.InvalidArgument):
                            self.library.get_rows([id], with_next)
            if rows:
                self.compare_rows(self.library.get_rows(list(rows), with_next), list(rows.values()))

    def compare_rows(self, batch, rows):
        for name in rows[0]:
            expected = np.stack([row[name] for row in rows])
            if name in ("reward", "discount", "gamma_m", "priorities"):
                np.testing.assert_allclose(batch[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)
            else:
                np.testing.assert_array_equal(batch[name], expected, err_msg=name)

    def compare_batch(self):
        live = self.naive.live()
        if not live:
            with pytest.raises(per.Empty):
                self.library.sample(4)
            return
        asked = self.sample_options(len(live))
        naive = self.naive_with(asked)
        beta = asked.get("beta", naive.beta)
        batch = self.library.sample(**asked)
        self.naive.count_sample(by_schedule="beta" not in asked)
        ids = [int(id) for id in batch["ids"]]
        assert set(ids) <= set(live)
        n_drawn = len(ids) - asked.get("newest", 0)
        compare_weights(naive, {name: np.asarray(batch[name])[:n_drawn] for name in LAW}, ids[:n_drawn], beta)
        compare_newest(naive, {name: np.asarray(batch[name])[n_drawn:] for name in LAW}, ids[n_drawn:])
        self.naive.use(ids)

        places = {id: place for place, id in enumerate(ids)}
        rows = {id: naive.row(id, asked.get("n_step")) for id in places}
        firsts = list(places.values())
        self.compare_rows({name: np.asarray(batch[name])[firsts] for name in rows[ids[0]]}, list(rows.values()))
        for name in rows[ids[0]]:  # each draw of a transition gave the same row
            np.testing.assert_array_equal(batch[name], np.asarray(batch[name])[[places[id] for id in ids]])

    def compare_windows(self):
        """Windows by id, in random order, with ids among them that are not live; this is no draw."""
        random = np.random.default_rng(len(self.seen_ids))
        live = self.naive.live()
        ids = [int(id) for id in random.choice([*live, *self.seen_ids[-20:], -1, 10**12], 12)]
        asked = {
            name: values[random.integers(len(values))]
            for name in SAMPLE_OPTIONS
            if name != "scheme" and random.random() < 0.3 and (values := OPTIONS[name])
        }
        if self.naive.half_life is not None and asked.get("prioritization") == "rank":
            asked.pop("prioritization")
        naive = copy.copy(self.naive)
        for name, value in asked.items():
            setattr(naive, name, value)
        batch = self.library.get_windows(ids, on_invalid="skip", **asked)
        is_live = np.array([id in live for id in ids])
        np.testing.assert_array_equal(batch["ids"], np.where(is_live, ids, -1))
        for name, array in batch.items():
            if name != "ids":
                assert not np.asarray(array)[~is_live].any(), name
        given = {name: np.asarray(array)[is_live] for name, array in batch.items()}
        if len(given["ids"]) == 0:
            return
        self.compare_rows(given, [naive.row(int(id), None) for id in given["ids"]])
        compare_law(naive, given, [int(id) for id in given["ids"]])

    def sample_options(self, live):
        asked = {
            name: values[self.random.integers(len(values))]
            for name in SAMPLE_OPTIONS
            if self.random.random() < 0.15 and (values := OPTIONS[name])
        }
        if self.naive.max_times_sampled:
            asked.pop("scheme", None)
        if self.naive.half_life is not None and asked.get("prioritization") == "rank":
            asked.pop("prioritization")
        if self.random.random() < 0.15:  # what is live stays as the buffer's own n_step says
            asked["n_step"] = int(self.random.integers(1, self.naive.n_step + 1))
        if self.random.random() < 0.3:
            asked["beta"] = float(self.random.choice([0, 0.5, 1]))
        asked["batch_size"] = int(self.random.choice([1, 7, 8 * live]))
        if asked.get("scheme", self.naive.scheme) == "without_replacement":
            drawable = sum(p > 0 for p in self.naive_with(asked).probabilities().values())
            asked["batch_size"] = int(self.random.integers(1, drawable + 1))
        if self.random.random() < 0.2 and not self.naive.max_times_sampled:
            asked["newest"] = int(self.random.integers(0, min(live, asked["batch_size"] - 1) + 1))
        return asked

    def naive_with(self, asked):
        """The naive buffer with the options of a call."""
        naive = copy.copy(self.naive)
        for name in asked.keys() & set(SAMPLE_OPTIONS):
            setattr(naive, name, asked[name])
        return naive


def compare_newest(naive, batch, ids):
    """The rows of a batch that are the newest. Probabilities are those of one draw, if the model knows them."""
    assert ids == sorted(naive.live(), reverse=True)[: len(ids)]
    assert all(batch["weights"] == 1)
    if naive.prioritization != "rank" and naive.scheme != "without_replacement":
        probabilities = naive.probabilities()
        np.testing.assert_allclose(batch["probabilities"], [probabilities[id] for id in ids], rtol=1e-6)


def compare_weights(naive, batch, ids, beta):
    if naive.scheme == "without_replacement":
        assert len(set(ids)) == len(ids)
    if naive.prioritization == "rank" or naive.scheme == "without_replacement":
        # Their probabilities depend on more than the model knows; the weights are those of the given probabilities.
        n_live = len(naive.live())
        raw = np.array([(n_live * float(p)) ** -beta for p in batch["probabilities"]])
        if naive.normalize_weights != "buffer_max":
            divisor = raw.max() if naive.normalize_weights == "batch_max" else 1
            np.testing.assert_allclose(batch["weights"], raw / divisor, rtol=1e-5)
        return
    probabilities = naive.probabilities()
    assert min(probabilities[id] for id in ids) > 0
    np.testing.assert_allclose(batch["probabilities"], [probabilities[id] for id in ids], rtol=1e-6)
    np.testing.assert_allclose(batch["weights"], naive.weights(ids, beta, probabilities), rtol=1e-5)
    if naive.scheme in ("stratified", "systematic") and naive.uniform_fraction == 0:
        # A transition that covers two whole strata is drawn, whatever the random numbers.
        assert {id for id, p in probabilities.items() if p * len(ids) > 2.001} <= set(ids)


def compare_law(naive, batch, ids):
    """Weights and probabilities by id. Those of ranks depend on more than the model knows."""
    is_rank = naive.prioritization == "rank"
    if is_rank:
        if naive.normalize_weights == "buffer_max":
            return
        naive = copy.copy(naive)
        naive.probabilities = lambda: (
            dict.fromkeys(naive.live(), 0.0) | dict(zip(ids, map(float, batch["probabilities"]), strict=True))
        )
    probabilities = naive.probabilities()
    np.testing.assert_allclose(batch["probabilities"], [probabilities[id] for id in ids], rtol=1e-6)
    weights = np.zeros(len(ids))
    possible = [place for place, id in enumerate(ids) if probabilities[id] > 0]
    if possible:
        weights[possible] = naive.weights([ids[place] for place in possible], naive.beta, probabilities)
    np.testing.assert_allclose(batch["weights"], weights, rtol=1e-5)


def walk(options, seed, steps=STEPS):
    walking = Walk(options, seed)
    for number in range(steps):
        try:
            walking.operate()
            walking.compare()
        except AssertionError as error:
            raise AssertionError(f"operation {number} of walk {seed} with {options}: {error}") from error
    walking.library.close()
    return walking


def named(options):
    return "-".join(str(value) for value in options.values())


WALKS = all_pairs(OPTIONS, EXCLUDED, seed=1)


def test_every_pair_of_values_meets_in_a_walk_or_is_refused():
    for (a, xs), (b, ys) in itertools.combinations(OPTIONS.items(), 2):
        for x, y in itertools.product(xs, ys):
            met = any(options[a] == x and options[b] == y for options in WALKS)
            assert met != (((a, x), (b, y)) in EXCLUDED or ((b, y), (a, x)) in EXCLUDED), f"{a}={x}, {b}={y}"
    defaults = {name: values[0] for name, values in OPTIONS.items()}
    for pair in EXCLUDED:
        with pytest.raises(per.Error):
            created(LibraryReplay, defaults | dict(pair))


# On the simulated GPU tests/cpp/replay_model_test.cpp walks with pairs of options, too.
@pytest.mark.parametrize("seed, options", list(enumerate(WALKS)))
@(pytest.mark.long if IS_CUDA else lambda test: test)
def test_every_pair_of_options_agrees_with_the_model(seed, options):
    walk(options, seed)


@pytest.mark.parametrize("name, value", [(name, value) for name, values in OPTIONS.items() for value in values[1:]])
def test_every_option_alone_agrees_with_the_model(name, value):
    defaults = {n: values[0] for n, values in OPTIONS.items()}
    walk(defaults | {name: value, "spare_rows": 7}, seed=1000, steps=STEPS // 2)


def test_walks_meet_ends_cuts_resets_late_updates_and_refusals():
    defaults = {name: values[0] for name, values in OPTIONS.items()} | {"n_envs": 3, "on_invalid": "skip"}
    walks = [walk(defaults | {"autoreset": mode}, seed=8) for mode in OPTIONS["autoreset"]]
    totals = {name: sum(walked.naive.counters[name] for walked in walks) for name in walks[0].naive.counters}
    assert min(totals.values()) >= 5
    assert sum(walked.refusals for walked in walks) > 10

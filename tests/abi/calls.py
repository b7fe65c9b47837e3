"""Makes a valid call of every function of per.h, from its declaration.

World has an attribute or a method for each name of an argument: `ids` are ids of the buffer, `stream` is NULL, and a
struct of options is filled by its _init. A function that is added to per.h is therefore called, too, or fails because
World lacks an argument. Attributes for one function only begin with its name: `replay_cut_count`.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
from typing import Any, NamedTuple

from describe import HEADER
from generate import Declarations

ENVS, STEPS, ROOM = 2, 8, 64
STATE_ROOM = 1 << 20


class Parameter(NamedTuple):
    name: str
    type: Any  # a cffi.CType


# Variants of calls: each is tried as if it were a separate function.
WAYS = {
    "per_replay_sample": ("with_hindsight",),
    "per_replay_get_windows": ("with_hindsight",),
    "per_replay_update_priorities": ("by_priorities", "of_sequences"),
    "per_reader_update_priorities": ("by_priorities", "of_sequences"),
}


class Function(NamedTuple):
    name: str
    parameters: list[Parameter]
    has_status: bool
    way: str = ""

    def __str__(self) -> str:
        return f"{self.name}_{self.way}" if self.way else self.name


class Interface:
    """The functions of a library, as declared in per.h."""

    def __init__(self, library: pathlib.Path) -> None:
        declarations = Declarations(HEADER)
        self.ffi = declarations.layouts
        self.lib = self.ffi.dlopen(str(library))
        self.functions = []
        for node in declarations.functions:
            names = [p.name for p in (node.type.args.params if node.type.args else []) if p.name is not None]
            signature = self.ffi.typeof(getattr(self.lib, node.name))
            parameters = [Parameter(*pair) for pair in zip(names, signature.args, strict=True)]
            has_status = signature.result.cname == "per_status"
            for way in ("", *WAYS.get(node.name, ())):
                self.functions.append(Function(node.name, parameters, has_status, way))

    def call(self, function: Function, arguments: list[Any]) -> int:
        return int(getattr(self.lib, function.name)(*arguments))

    def last_error(self) -> str:
        return self.ffi.string(self.lib.per_last_error()).decode()

    def status_name(self, status: int) -> str:
        return self.ffi.string(self.lib.per_status_name(status)).decode()


class World:
    """Non-empty handles of every kind, and arguments for calls on them.

    Variants:
        "stored"      buffers keep their rows in files; there are two checkpoints that refer to these files: one of
                      `replay`, one of a buffer that was freed
        "copied"      the same, but loading copies the rows into memory
        "streamed"    saves write to a callback, and loads read from one
    """

    # Arguments that are the same for all functions, or for the function in their names.
    count = tree_get_priorities_count = max_steps = 3
    batch_size = coordinator_get_units_count = coordinator_submit_count = 4
    replay_cut_count = writer_cut_count = n_shards = n_sources = 2
    n_fields = 5
    capacity = ROOM
    timeout_ms = -1
    device_index = scheme = drop_last = on_invalid = shard = chooses_anew = measured_scale = scale = status = 0
    measured_reference = reference = 0
    priority = beta = lambda_ = 0.5
    n_epochs = 1
    value_field, advantage_field, return_field = 2, 3, 4
    transitions = episode_length = 10

    def __init__(self, interface: Interface, device: int, variant: str = "") -> None:
        self.interface, self.device, self.variant = interface, device, variant
        is_stored = variant in ("stored", "copied")
        self.ffi, self.lib = interface.ffi, interface.lib
        self.dtypes = {"float": self.lib.PER_FLOAT32, "uint8_t": self.lib.PER_BOOL}
        self.keep: list[Any] = []
        self.outs: list[Any] = []  # pointers to all handles, in the order in which they were made
        self.folder = tempfile.TemporaryDirectory()
        self.storage = self.ffi.NULL
        if is_stored:
            self.storage = self.text(self.folder.name + "/storage")
            os.mkdir(self.folder.name + "/storage")
        self.callbacks()
        lib, null = self.lib, self.ffi.NULL
        self.tree = self.made(lib.per_tree_create, self.tree_options())
        self.ok(self.lib.per_update(self.tree, 3, self.array("int64_t", [1, 4, 7]), self.floats(3), null))
        self.replay, self.sequences, self.lent = self.buffer(0), self.buffer(3), self.buffer(0)
        self.epochs = self.made(lib.per_epochs_create, self.replay, 1, 4, 0, null)
        self.loader = self.made(lib.per_loader_create, self.lent, self.loader_options())
        self.slot = self.ffi.new("int64_t*")
        batch = self.struct("per_batch")
        self.ok(lib.per_loader_next(self.loader, -1, batch, self.slot, null))
        self.path = self.load_path = self.text(f"{self.folder.name}/buffer.per")
        self.ok(lib.per_replay_save(self.replay, self.path, null))
        self.directory = self.text(f"{self.folder.name}/checkpoints")
        self.saved = self.bytes_of(self.replay)
        self.save = self.made(lib.per_replay_save_start, self.replay, self.path, null)
        self.ok(lib.per_save_wait(self.save, -1, null, null))
        self.make_channels()
        self.make_shared_loaders()
        if is_stored:
            self.store()

    def make_channels(self) -> None:
        lib = self.lib
        by_calls = self.channel_options()
        by_calls.moved_by = lib.PER_MOVED_BY_CALLS
        self.channel, self.free_channel, self.pulled_channel = (
            self.made(lib.per_channel_create, self.replay, options)
            for options in (self.channel_options(), self.channel_options(), by_calls)
        )
        self.writer, self.pulled_writer = (
            self.made(lib.per_writer_attach, self.path_of(channel), -1, self.ffi.NULL, 0, 0)
            for channel in (self.channel, self.pulled_channel)
        )
        self.ok(lib.per_writer_flush(self.writer, -1))
        for t in (STEPS, STEPS + 1):  # they stay in the ring; the cut before them is moved to the buffer
            self.ok(lib.per_writer_add(self.pulled_writer, self.steps_at(t), -1))
        self.ok(lib.per_channel_move(self.pulled_channel, 0, self.ffi.new("int64_t*")))
        self.channel_move_channel = self.pulled_channel

    def make_shared_loaders(self) -> None:
        # Shared loaders need buffers on the CPU. `host` has no shared loader; `shared` are the buffers that have one.
        lib, options = self.lib, self.shared_loader_options()
        self.host, *self.shared = (self.buffer(sequence_length, 0) for sequence_length in (0, 0, 3))
        self.shared_loaders = [self.made(lib.per_shared_loader_create, replay, options) for replay in self.shared]
        self.readers = [self.made(lib.per_reader_attach, self.address_of(x)[0], -1) for x in self.shared_loaders]
        self.read_slot = self.ffi.new("int64_t*")
        self.ok(lib.per_reader_next(self.readers[0], -1, self.struct("per_batch"), self.read_slot))
        self.shared_loader_create_replay = self.host
        self.shared_loader_get_address_loader = self.shared_loader_get_statistics_loader = self.shared_loaders[0]
        self.reader, self.reader_update_priorities_of_sequences_reader = self.readers
        self.replay_update_priorities_of_sequences_replay = self.sequences

    def store(self) -> None:
        self.directory = self.storage
        self.ok(self.lib.per_replay_checkpoint(self.replay, self.directory, self.ffi.NULL, self.ffi.NULL))
        self.storage = self.text(self.folder.name + "/freed")
        os.mkdir(self.folder.name + "/freed")
        self.load_path = self.storage
        self.replay_checkpoint_replay = self.sequences  # its file has no name yet
        freed = self.buffer(0)
        self.ok(self.lib.per_replay_checkpoint(freed, self.storage, self.ffi.NULL, self.ffi.NULL))
        self.lib.per_replay_free(freed)
        self.outs.pop()

    def close(self) -> None:
        for out in reversed(self.outs):
            kind = self.ffi.typeof(out).item.item.cname
            getattr(self.lib, f"{kind}_free")(out[0])
        self.folder.cleanup()

    def ok(self, status: int) -> None:
        if status != 0:
            raise SystemExit(f"{self.interface.status_name(status)}: {self.interface.last_error()}")

    def bytes_of(self, replay: Any) -> bytes:
        self.written = bytearray()
        options = self.save_options()
        options.write = self.write
        self.ok(self.lib.per_replay_save(replay, self.ffi.NULL, options))
        return bytes(self.written)

    def state(self) -> list[bytes]:
        """Everything that decides what later calls do.

        The checkpoints of the buffers, the counts of the channel without a thread, the tree's priorities and mass.
        """
        states = []
        for channel in (self.channel, self.free_channel):
            self.ok(self.lib.per_channel_flush(channel, -1))
        figures = self.struct("per_channel_statistics")
        size = self.ffi.sizeof("per_channel_statistics")
        self.ok(self.lib.per_channel_get_statistics(self.pulled_channel, figures, size))
        states.append(f"{figures.waiting} {figures.added} {figures.refused} {figures.gaps}".encode())
        for reader in self.readers:
            self.lib.per_reader_flush(reader, -1)  # unless it was stopped
        for replay in (self.replay, self.sequences, self.lent):
            # Waits for work that a failed call had enqueued. Errors of the device are ignored here.
            self.lib.per_replay_synchronize(replay, self.ffi.NULL)
        states += [
            self.bytes_of(replay) for replay in (self.replay, self.sequences, self.lent, self.host, *self.shared)
        ]
        priorities = self.ffi.new("float[10]")
        description = self.struct("per_tree_description")
        self.ok(self.lib.per_tree_get_priorities(self.tree, 10, self.ffi.NULL, priorities, self.ffi.NULL))
        self.ok(self.lib.per_tree_synchronize(self.tree, self.ffi.NULL))
        self.ok(self.lib.per_tree_describe(self.tree, description, self.ffi.sizeof("per_tree_description")))
        return [*states, bytes(self.ffi.buffer(priorities)), bytes(self.ffi.buffer(description))]

    # ------------------------------------------------------------------------------------------------- arguments

    def arguments(self, function: Function) -> list[Any]:
        return [self.argument(function, parameter) for parameter in function.parameters]

    def argument(self, function: Function, parameter: Parameter) -> Any:
        name = parameter.name
        structs = ("options", "settings", "steps", "batch", "priorities")
        if name in structs and function.name.endswith("_init"):
            return self.kept(self.ffi.new(parameter.type))
        if name == "struct_size":
            return self.ffi.sizeof(function.parameters[-2].type.item)
        for special in (f"{function}_{name}", f"{function.name}_{name}"):
            if hasattr(self, special.removeprefix("per_")):
                return self.value_of(special.removeprefix("per_"))
        if name == "options":
            return self.value_of(parameter.type.item.cname.removeprefix("per_"))
        if name.endswith("_out") and parameter.type.item.kind == "primitive":
            return self.kept(self.ffi.new(f"{parameter.type.item.cname}[{ROOM}]"))
        if name.endswith("_out") and parameter.type.item.kind == "pointer":
            self.outs.append(self.ffi.new(parameter.type))
            return self.outs[-1]
        if name in ("options_out", "statistics_out", "summary_out", "state_out", "description_out"):
            return self.struct(parameter.type.item.cname)
        name = "lambda_" if name == "lambda" else name
        if getattr(self, name, None) is None:
            raise SystemExit(f"{function.name}: no argument is known for {name}")
        return self.value_of(name)

    def value_of(self, name: str) -> Any:
        """An attribute, or the result of a method without arguments."""
        known = getattr(self, name)
        return known() if callable(known) and not isinstance(known, self.ffi.CData) else known

    def ids(self) -> Any:
        return self.array("int64_t", [0, 1, 2])

    def indices(self) -> Any:
        return self.array("int64_t", [1, 4, 7])

    def priorities(self) -> Any:
        return self.floats(3)

    def sources(self) -> Any:
        both = self.kept(self.ffi.new("per_source[2]"))
        both[0].replay, both[1].replay = self.replay, self.lent
        both[0].share = both[1].share = 0.5
        return both + 0

    def source_of(self) -> Any:
        return self.array("int32_t", [0, 1, 0])

    def mixture_sample_batch(self) -> Any:
        batch = self.batch()
        batch.weights, batch.probabilities = self.floats(ROOM), self.floats(ROOM)
        return batch

    def prefix_sums(self) -> Any:
        return self.array("double", [0, 0.5, 1])

    def units(self) -> Any:
        return self.array("uint64_t", [0, 1, 2])

    def replay_get_units_units(self) -> Any:
        return self.array("int64_t", [0, 1, -1])

    def env_ids(self) -> Any:
        return self.array("int64_t", [1, 0])

    def path_of(self, channel: Any) -> Any:
        path = self.ffi.new("char**")
        self.ok(self.lib.per_channel_get_address(channel, path, self.ffi.NULL))
        return path[0]

    def channel_get_address_path_out(self) -> Any:
        return self.kept(self.ffi.new("char**"))

    shared_loader_get_address_path_out = channel_get_address_path_out

    def writer_attach_path(self) -> Any:
        return self.path_of(self.free_channel)

    def writer_attach_fields(self) -> Any:
        return self.field()

    def field_size(self) -> int:
        return self.ffi.sizeof("per_field")

    def address_of(self, loader: Any) -> tuple[Any, int]:
        path, descriptor = self.ffi.new("char**"), self.ffi.new("int32_t*")
        self.ok(self.lib.per_shared_loader_get_address(loader, path, descriptor))
        return path[0], int(descriptor[0])

    def reader_release_slot(self) -> int:
        return int(self.read_slot[0])

    def reader_attach_path(self) -> Any:
        return self.address_of(self.shared_loaders[0])[0]

    def reader_attach_descriptor(self) -> int:
        return self.address_of(self.shared_loaders[0])[1]

    def descriptor(self) -> int:
        descriptor = self.ffi.new("int32_t*")
        self.ok(self.lib.per_channel_get_address(self.free_channel, self.ffi.NULL, descriptor))
        return int(descriptor[0])

    def replay_compute_advantages_count(self) -> int:
        count = self.ffi.new("int64_t*")
        self.bootstraps = self.kept(self.ffi.new(f"int64_t[{ROOM}]"))
        batch = self.struct("per_batch")
        batch.ids = self.bootstraps
        self.ok(self.lib.per_replay_get_bootstraps(self.replay, ROOM, batch, count, self.ffi.NULL))
        return int(count[0])

    def replay_compute_advantages_ids(self) -> Any:
        self.replay_compute_advantages_count()
        return self.bootstraps

    def bootstrap_values(self) -> Any:
        return self.floats(ROOM)

    def stream(self) -> Any:
        return self.ffi.NULL

    context = reward_context = stream

    def loader_release_slot(self) -> int:
        return int(self.slot[0])

    def loader_next_batch_out(self) -> Any:
        return self.struct("per_batch")

    reader_next_batch_out = loader_next_batch_out

    # Each call on a coordinator gets a separate coordinator. Its only shard has reported, and its batch is at the stage
    # that the call needs.

    def coordinator(self) -> Any:
        made = self.made(self.lib.per_coordinator_create, self.replay_options(), 1, self.ffi.NULL)
        self.newest_coordinator = made
        self.ok(self.lib.per_coordinator_report(made, 0, self.summary()))
        todo, scale, reference = self.ffi.new("int32_t*", 1), self.ffi.new("int32_t*"), self.ffi.new("int64_t*")
        while todo[0] != self.lib.PER_SCALE_AGREED:
            self.ok(self.lib.per_coordinator_agree_on_scale(made, 0, todo, scale, reference))
            self.ok(self.lib.per_coordinator_report(made, 0, self.summary(scale[0])))
        self.ok(self.lib.per_coordinator_agree_on_scale(made, 0, todo, scale, reference))
        return made

    def coordinator_get_units_coordinator(self) -> Any:
        made, count = self.coordinator(), self.ffi.new("int64_t*")
        self.ok(self.lib.per_coordinator_draw(made, self.ffi.NULL, 4, count))
        return made

    coordinator_submit_coordinator = coordinator_get_units_coordinator

    def coordinator_finish_coordinator(self) -> Any:
        made, count = self.coordinator_get_units_coordinator(), self.ffi.new("int64_t*")
        masses = self.masses()
        self.ok(self.lib.per_coordinator_submit(made, 4, self.coordinator_submit_ids(), masses, self.ffi.NULL, count))
        return made

    def summary(self, scale: int = 0) -> Any:
        summary = self.struct("per_shard_summary", total_mass=16, live=8, max_priority=1, scale=scale, is_scale_fixed=1)
        summary.measured_scale, summary.measured_low, summary.largest_leaf = scale, 16, 1
        return summary

    def coordinator_submit_ids(self) -> Any:
        return self.array("int64_t", [0, 1, 2, 3])

    def masses(self) -> Any:
        return self.array("uint64_t", [1, 1, 1, 1])

    def first_units(self) -> Any:
        """The units that were drawn: each transition has one unit."""
        shards, units = self.ffi.new("int64_t[4]"), self.ffi.new("int64_t[4]")
        self.ok(self.lib.per_coordinator_get_units(self.newest_coordinator, 4, shards, units))
        return self.array("uint64_t", list(units))

    shard_ids = ids

    def coordinator_create_state(self) -> Any:
        return self.struct("per_coordinator_state")

    # --------------------------------------------------------------------------------------------------- structs

    def struct(self, name: str, **members: Any) -> Any:
        """A struct filled by its _init function, with these members.

        A struct without _init, which is an output, has its size and zeros.
        """
        made = self.kept(self.ffi.new(f"{name}*"))
        init = getattr(self.lib, f"{name}_init", None)
        if init is None:
            made.struct_size = self.ffi.sizeof(name)
        else:
            self.ok(init(made, self.ffi.sizeof(name)))
        for member, value in members.items():
            setattr(made, member, value)
        return made

    def settings(self) -> Any:
        return self.struct("per_replay_settings", alpha=0.5, beta=0.5, gamma=0.5, n_step=1, save_compression=0)

    def tree_options(self, capacity: int = 10) -> Any:
        return self.struct("per_tree_options", capacity=capacity, device=self.device)

    def tree_create_options(self) -> Any:
        """Large enough that the library maps memory for the tree."""
        return self.tree_options(1 << 20)

    def replay_create_options(self) -> Any:
        options = self.replay_options()
        options.capacity = 1 << 20
        return options

    def replay_options(self, sequence_length: int = 0) -> Any:
        options = self.struct("per_replay_options", capacity=60, n_envs=ENVS, device=self.device)
        options.fields, options.n_fields, options.field_size = self.fields_declared(), 5, self.field_size()
        options.sequence_length, options.n_step = sequence_length, 2 if sequence_length == 0 else 1
        options.memory.storage = self.storage
        return options

    def fields_declared(self) -> Any:
        fields = self.kept(self.ffi.new("per_field[5]"))
        for i, name in enumerate(["observation", "goal", "value", "advantage", "returns"]):
            fields[i].name, fields[i].dtype = self.text(name), self.lib.PER_FLOAT32
            if i < 2:
                fields[i].shape, fields[i].ndim = self.array("int64_t", [2]), 1
                is_compressed = self.device == self.lib.PER_CPU and self.storage == self.ffi.NULL
                fields[i].compression = self.lib.PER_COMPRESSION_DELTA if is_compressed else 0
        return fields

    def field(self) -> Any:
        return self.kept(self.fields_declared() + 0)

    def save_options(self) -> Any:
        return self.struct("per_save_options")

    def replay_save_options(self) -> Any:
        options = self.save_options()
        if self.variant == "streamed":
            options.write = self.write
        return options

    def load_options(self) -> Any:
        """Rows in host memory are loaded into files, except in the variant "copied"."""
        options = self.struct("per_load_options", device=self.device)
        if self.variant == "streamed":
            self.at = 0
            options.read = self.read
        elif self.device == self.lib.PER_CPU and self.variant != "copied":
            options.memory.storage = self.storage or self.text(self.folder.name)
        return options

    def replay_save_path(self) -> Any:
        return self.ffi.NULL if self.variant == "streamed" else self.path

    def replay_load_path(self) -> Any:
        return self.ffi.NULL if self.variant == "streamed" else self.load_path

    def sample_options(self) -> Any:
        return self.struct("per_sample_options")

    def sample_options_with_hindsight(self) -> Any:
        return self.struct("per_sample_options", hindsight=self.hindsight_options())

    replay_sample_with_hindsight_options = sample_options_with_hindsight
    replay_get_windows_with_hindsight_options = sample_options_with_hindsight

    def priorities_by(self, member: str, n_steps: int = 0) -> Any:
        given = {member: self.floats(3 * max(n_steps, 1))}
        return self.struct("per_priorities", count=3, ids=self.ids(), n_steps=n_steps, **given)

    def replay_update_priorities_priorities(self) -> Any:
        return self.priorities_by("td_errors")

    def replay_update_priorities_by_priorities_priorities(self) -> Any:
        return self.priorities_by("priorities")

    def replay_update_priorities_of_sequences_priorities(self) -> Any:
        return self.priorities_by("td_errors", 3)

    mixture_update_priorities_priorities = replay_update_priorities_priorities
    reader_update_priorities_priorities = replay_update_priorities_priorities
    reader_update_priorities_by_priorities_priorities = replay_update_priorities_by_priorities_priorities
    reader_update_priorities_of_sequences_priorities = replay_update_priorities_of_sequences_priorities

    def channel_options(self) -> Any:
        return self.struct("per_channel_options", env_ids=self.env_ids(), n_envs=ENVS)

    def loader_options(self) -> Any:
        return self.struct("per_loader_options", batch_size=4, device=self.device)

    def shared_loader_options(self) -> Any:
        return self.struct("per_shared_loader_options", batch_size=4, readers=2)

    def hindsight_options(self) -> Any:
        return self.struct("per_hindsight_options", achieved_field=0, goal_field=1, reward=self.reward)

    def steps(self) -> Any:
        """One step of all environments, after those in the buffer."""
        return self.steps_at(STEPS)

    def steps_at(self, t: int) -> Any:
        fields, next_fields = (self.kept(self.ffi.new("per_array[5]")) for _ in range(2))
        for arrays, first in ((fields, t), (next_fields, t + 1)):
            for i in range(2):
                self.fill(arrays[i], "float", [first + env for env in range(ENVS) for _ in range(2)], [ENVS, 2])
        for i in range(2, 5):
            self.fill(fields[i], "float", [t + env for env in range(ENVS)], [ENVS])
        steps = self.struct("per_steps", fields=fields, next_fields=next_fields, env_ids=self.env_ids(), n_envs=ENVS)
        for name, value in {"reward": 0, "priorities": 1}.items():
            self.fill(getattr(steps, name), "float", [value] * ENVS, [ENVS])
        for name, value in {"terminated": 0, "truncated": 0, "mask": 1, "next_mask": 1}.items():
            self.fill(getattr(steps, name), "uint8_t", [value] * ENVS, [ENVS])
        return steps

    def batch(self) -> Any:
        fields = self.kept(self.ffi.new("void*[5]", [self.floats(ROOM * 8) for _ in range(5)]))
        next_fields = self.kept(self.ffi.new("void*[5]", [fields[0], fields[1], *[self.ffi.NULL] * 3]))
        batch = self.struct("per_batch", fields=fields, next_fields=next_fields)
        for name in ("reward", "discount", "n_steps", "terminated", "truncated", "ids", "priorities", "gamma_m"):
            kind = self.ffi.typeof(getattr(batch, name)).item.cname
            setattr(batch, name, self.array(kind, [0] * ROOM))
        return batch

    batch_out = batch

    def fields(self) -> Any:
        """Fields of per_replay_set()."""
        fields = self.kept(self.ffi.new("per_array[5]"))
        self.fill(fields[2], "float", [0.5] * 3, [3])
        return fields

    # ------------------------------------------------------------------------------------------------- callbacks

    def callbacks(self) -> None:
        self.written = bytearray()
        self.at = 0

        @self.ffi.callback("int64_t(void*, const void*, int64_t)")
        def write(_context: Any, data: Any, size: int) -> int:
            self.written += self.ffi.buffer(data, size)
            return size

        @self.ffi.callback("int64_t(void*, void*, int64_t)")
        def read(_context: Any, out: Any, size: int) -> int:
            piece = self.saved[self.at : self.at + size]
            self.at += len(piece)
            self.ffi.memmove(out, piece, len(piece))
            return len(piece)

        @self.ffi.callback("int32_t(void*, int64_t, const void*, const void*, float*, uint8_t*)")
        def reward(_context: Any, count: int, _achieved: Any, _goals: Any, rewards_out: Any, _ends: Any) -> int:
            for i in range(count):
                rewards_out[i] = 0
            return 0

        self.write, self.read, self.reward = write, read, reward

    # --------------------------------------------------------------------------------------------------- helpers

    def buffer(self, sequence_length: int, device: int | None = None) -> Any:
        options = self.replay_options(sequence_length)
        options.device = self.device if device is None else device
        replay = self.made(self.lib.per_replay_create, options)
        for t in range(STEPS):
            steps = self.steps_at(t)
            self.ok(self.lib.per_replay_add(replay, steps, self.ffi.NULL, self.ffi.NULL))
        self.ok(self.lib.per_replay_synchronize(replay, self.ffi.NULL))
        return replay

    def made(self, create: Any, *arguments: Any) -> Any:
        """A new handle, which close() frees."""
        out = self.ffi.new(self.ffi.typeof(create).args[-1])
        self.ok(create(*arguments, out))
        self.outs.append(out)
        return out[0]

    def kept(self, value: Any) -> Any:
        self.keep.append(value)
        return value

    def array(self, kind: str, values: list[Any]) -> Any:
        return self.kept(self.ffi.new(f"{kind}[]", values))

    def fill(self, array: Any, kind: str, values: list[Any], shape: list[int]) -> None:
        """Fills a per_array."""
        array.data, array.dtype = self.array(kind, values), self.dtypes[kind]
        array.shape, array.ndim = self.array("int64_t", shape), len(shape)

    def floats(self, n: int) -> Any:
        return self.array("float", [0.5] * n)

    def text(self, value: str) -> Any:
        return self.kept(self.ffi.new("char[]", value.encode()))

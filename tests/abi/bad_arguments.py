#!/usr/bin/env python3
"""Tries bad values for every parameter of every function of per.h, and for every field of the structs it reads.

    bad_arguments.py LIBRARY [--device cuda]
    bad_arguments.py LIBRARY --julia [--check]   writes JULIA_TABLE, the numbers that the Julia package passes on, for
                                                 its tests; with --check: fails if the table is stale

One argument of an otherwise valid call (calls.py) is bad. The call must be refused with a message that names the
argument, and must leave all handles unchanged. Rows are generated from the declarations. An argument without a bad
value is an error unless ALLOWED_BY_REASON has it, so new arguments of per.h cannot be forgotten.
"""

from __future__ import annotations

import argparse
import fnmatch
import pathlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from calls import Function, Interface, Parameter, World
from describe import HEADER, golden_path, read_interface, sizes_in

INVALID_ARGUMENT, NO_DEVICE = 1, 7
NAN, INFINITY = float("nan"), float("inf")
NUMBERS: dict[str, dict[str, Any]] = {
    "int64_t": {"negative": -7, "least": -(2**63), "large": 2**62, "largest": 2**63 - 1},
    "int32_t": {"negative": -7, "least": -(2**31), "large": 99, "largest": 2**31 - 1},
    "float": {"negative": -0.5, "NaN": NAN, "infinite": INFINITY},
    "double": {"negative": -0.5, "NaN": NAN, "infinite": INFINITY},
}
STRUCT_SIZES = {"zero": 0, "small": 7, "odd": 4001, "huge": 2**62}
# Invalid entries of the array with this name. On CUDA they are skipped and counted; the call succeeds.
ENTRIES: dict[str, dict[str, Any]] = {
    "indices": {"negative": -1, "large": 10, "largest": 2**63 - 1},
    "source_of": {"negative": -1, "large": 2},
    "ids": {"never issued": 2**50, "largest": 2**63 - 1},
    "env_ids": {"negative": -1, "large": 2, "twice": 0},
    "prefix_sums": {"negative": -1.0, "NaN": NAN, "large": 1e30},
    "units": {"large": 2**62},
    "priorities": {"negative": -1.0, "NaN": NAN, "infinite": INFINITY},
    "td_errors": {"NaN": NAN, "infinite": INFINITY},
    "bootstrap_values": {"NaN": NAN, "infinite": INFINITY},
}
# Outputs of a single number. Only arrays have to be aligned.
SINGLE_NUMBERS = {
    "capacity_out",
    "count_out",
    "scale_out",
    "reference_out",
    "slot_out",
    "todo_out",
    "n_envs_out",
    "first_env_out",
}
SINGLE_NUMBERS |= {"bytes_written_out", "total_out", "written_out", "steps_out", "descriptor_out", "batch_size_out"}
# Pointers to structs whose fields are tried in the functions that take them as an argument.
NOT_ENTERED = {"default_value", "sample", "hindsight", "replay"}

JULIA = pathlib.Path(__file__).resolve().parents[2] / "bindings/julia/PER"
JULIA_TABLE = JULIA / "test/bad_arguments_table.jl"
# Parameters of C that no function of the Julia package has, by the reason.
NOT_IN_JULIA = {
    "it is that of an array": "count length ndim n_fields n_steps n_critics n_envs",
    "it is the type of an array": "dtype",
    "the package writes it": "struct_size field_size reserved",
    "it is a name": "device device_index achieved_field goal_field value_field advantage_field return_field",
    "it is a range": "n_step_min",
    "it is a number of other goals": "fraction",
    "it is an axis of a field": "shape",
    "it is seconds": "timeout_ms",
    "it is a batch": "slot",
    "it is that of the pairs": "n_sources",
}
# Functions whose arguments come from other processes or shards in Julia, and are tested with these.
WITH_OTHERS = re.compile("per_(coordinator_(?!create)|channel_|writer_|shared_loader_|reader_)")
# Arguments that the Julia package creates itself.
MADE_IN_JULIA = {
    ("per_replay_compute_advantages", "ids"),
    ("per_replay_get_live_ids", "capacity"),
    ("per_replay_get_bootstraps", "capacity"),
}

# Patterns of rows (fnmatch) that are valid after all, by the reason.
ALLOWED_BY_REASON = {
    "every value is valid": """
        *.seed, per_epochs_create.drop_last, *.episode_length large*, *.options.beta_steps large*
        per_replay_get_live_ids.capacity large*, per_replay_get_bootstraps.capacity large*
        per_coordinator_report.summary.changes large*, per_coordinator_report.summary.scale_needed
        per_coordinator_agree_on_scale.chooses_anew, per_coordinator_create.state.samples large
        per_coordinator_create.state.beta_step large, per_coordinator_create.state.rescales_below
        per_mixture_*.sources.carry negative, per_mixture_*.sources.carry large
    """,
    "only the caller uses it": "*context",
    "NULL is allowed": """
        *.allocate NULL, *.deallocate NULL, *.storage NULL, *.options.write NULL, *.options.read NULL
        per_*_get_address.*_out NULL, per_replay_checkpoint.bytes_written_out NULL, per_save_wait.*_out NULL
        per_channel_create.options.env_ids NULL, per_shared_loader_create.options.sample NULL
        per_writer_cut.env_ids NULL, per_sample.*_out NULL, per_replay_add.ids_out NULL, per_replay_cut.env_ids NULL
        per_*_add.steps.env_ids NULL, per_field_check.field.name NULL, *.default_value NULL
        per_loader_create.options.sample NULL, per_replay_get_units.*units_out NULL
        per_replay_get_units.masses_out NULL, per_coordinator_finish.weights_out NULL
        per_coordinator_finish.probabilities_out NULL, per_mixture_sample.sources_out NULL
    """,
    "the values of _init are used": """
        per_replay_save*.options NULL, per_replay_checkpoint.options NULL, per_replay_load.options NULL
        per_channel_create.options NULL
    """,
    "it is ignored": """
        per_replay_compute_capacity.options.capacity, per_coordinator_create.options.*field*
        per_coordinator_draw.options.n_step, per_coordinator_create.state.live, per_coordinator_create.state.shards
        per_coordinator_create.state.beta
    """,
    "no device is opened, and CUDA may have that many": """
        per_replay_compute_capacity.options.device_index large*, per_coordinator_create.options.device_index large*
    """,
    "the second cut finds no episode": "per_replay_cut.env_ids twice, per_writer_cut.env_ids twice",
    "NaN leaves the setting unchanged": "per_replay_change_settings.settings.* NaN",
    "the call waits as long as it takes": "*.timeout_ms large*",
    "all steps in the ring are moved": "per_channel_move.max_steps large*",
    "memory may be as large as that": "*.max_heap_bytes large*",
    "the descriptor is used instead": "per_writer_attach.path NULL, per_reader_attach.path NULL",
    "the path is used instead": "per_writer_attach.descriptor, per_reader_attach.descriptor",
    "only the buffer can check it; it refuses the call and counts it": """
        per_reader_*.ids never issued, per_reader_*.ids largest
    """,
    "only the buffer knows which steps are used": """
        per_reader_*_of_sequences.*.td_errors NaN, per_reader_*_of_sequences.*.td_errors infinite
    """,
    "TD errors are given instead": """
        *_update_priorities.priorities.priorities, *_of_sequences.priorities.priorities
    """,
    "priorities are given instead": "*_by_priorities.priorities.td_errors",
    "the options of the buffer are used": """
        per_*sample*.options NULL, per_*windows*.options NULL, per_*_units.options NULL
    """,
    "the value of the schedule is used": """
        per_*sample*.options.beta NaN, per_*windows*.options.beta NaN, per_*_units.options.beta NaN
        per_coordinator_draw.options.beta NaN
    """,
    "the value of the buffer is used": """
        per_*sample*.options.uniform_fraction NaN, per_*windows*.options.uniform_fraction NaN
        per_*_units.options.uniform_fraction NaN
    """,
    "the random numbers of the buffer are used": "*.options.key NULL",
    "it is valid": "per_*sample*.options.hindsight given, per_*windows*.options.hindsight given",
    "NULL stands for all leaves": "per_tree_get_priorities.indices NULL",
    "a scale may be negative": """
        per_replay_summarize.measured_scale negative, per_replay_set_scale.scale negative
        per_coordinator_report.summary.measured_scale negative, per_coordinator_report.summary.scale negative
        per_coordinator_create.state.scale negative
    """,
    "large is a scale, the largest number is PER_SCALE_AUTOMATIC": "per_replay_summarize.measured_scale large*",
    "it is PER_SCALE_AUTOMATIC": """
        per_replay_set_scale.scale largest, per_coordinator_report.summary.measured_scale largest
    """,
    "NULL creates a new coordinator": "per_coordinator_create.state NULL",
    "NULL reports that the shard is gone": "per_coordinator_report.summary NULL",
    "test_coordinator.py tests the limits": """
        per_coordinator_report.summary.*mass, per_coordinator_report.summary.measured_low
        per_coordinator_report.summary.measured_high, per_coordinator_create.state.total_mass
    """,
    "it is a valid scale": """
        per_coordinator_report.summary.measured_scale large, per_coordinator_report.summary.scale large
        per_coordinator_create.state.scale large
    """,
    "the options of the coordinator are used": "per_coordinator_draw.options NULL",
    "the value of the coordinator is used": "per_coordinator_draw.options.uniform_fraction NaN",
    "only the shards know which ids were issued": """
        per_coordinator_submit.ids never issued, per_coordinator_locate.ids never issued
        per_coordinator_locate.ids largest
    """,
    "NULL is allowed with replacement": "per_coordinator_submit.first_units NULL",
    "it may be omitted": """
        *.batch.* NULL, per_*_add.steps.next_fields* NULL, per_*_add.steps.*mask.data NULL
        per_*_add.steps.priorities.data NULL, per_*_add.steps.td_errors.data NULL, per_replay_set.fields.data NULL
    """,
    "the caller vouches for the shape": "per_*_add.*.shape NULL, per_replay_set.*.shape NULL",
}
ALLOWED = {name.strip() for names in ALLOWED_BY_REASON.values() for name in re.split("[,\n]", names) if name.strip()}
# Names in messages of arrays within arrays of fields.
SHOWN = {"steps.fields[0]": "observation", "steps.next_fields[0]": "next_observation", "fields": "value"}

Spoil = Callable[[World, Any], Any]  # turns a valid value into a bad one
Change = Callable[[World, Any], None]  # puts a bad value into a struct or into the arguments


class Row(NamedTuple):
    function: Function
    path: str  # the argument, such as "options.gamma"
    value: str  # such as "NaN"
    spoil: Change  # changes the arguments of a valid call

    def __str__(self) -> str:
        return f"{self.function}.{self.path} {self.value}".rstrip()

    def is_of_missing_device(self, device: int) -> bool:
        if device == 0 or self.function.name == "per_loader_create":  # a loader uses the device of its buffer
            return False
        return self.path.endswith("device_index") and self.value.startswith("large")

    def shown(self) -> str:
        """The words that the message must have."""
        owner, _, name = self.path.rpartition(".")
        if self.path == "steps.n_envs" and self.value.startswith("large"):
            return "env_ids"  # the message says how many entries it has
        array = re.fullmatch(r"(?:steps|fields)(?:\.(\w+))?(\[0\])?", owner)
        if array is None or self.function.name == "per_writer_attach":  # its fields are declarations
            return name
        return SHOWN.get(owner) or array[1] or name


def rows_of(interface: Interface, function: Function) -> Iterator[Row]:
    """All rows of a function. A parameter without bad values has one row with an empty value."""
    for i, parameter in enumerate(function.parameters):
        values = list(bad_values(interface, parameter.type, parameter.name))
        for value, spoil in values:
            yield Row(function, parameter.name, value, at_index(i, spoil))
        if not values:
            yield Row(function, parameter.name, "", lambda _world, _arguments: None)
        if is_filled_in(function, parameter):
            for path, value, change in bad_fields(interface, parameter.type.item):
                if path == "struct_size" or not parameter.name.endswith("_out"):
                    yield Row(function, f"{parameter.name}.{path}", value, within(i, change))
        if function.way == "with_hindsight" and parameter.name == "options":
            for path, value, change in bad_fields(interface, interface.ffi.typeof("per_hindsight_options")):
                yield Row(function, f"options.hindsight.{path}", value, within(i, in_field("hindsight", change)))


def is_filled_in(function: Function, parameter: Parameter) -> bool:
    """True if the parameter is a struct that the caller fills in."""
    if parameter.type.kind != "pointer" or fills_struct(function):
        return False
    return parameter.type.item.kind == "struct" and parameter.type.item.fields is not None


def bad_values(interface: Interface, kind: Any, name: str, with_entries: bool = True) -> Iterator[tuple[str, Spoil]]:
    """Name and Spoil for each bad value of an argument or field of this type."""
    if name == "struct_size":
        yield from numbers(STRUCT_SIZES)
    elif kind.kind in ("primitive", "enum"):
        yield from numbers(NUMBERS.get(kind.cname, {}))
    elif name == "hindsight":
        yield "given", lambda world, _good: world.hindsight_options()
    elif name == "reserved":
        yield "set", lambda world, _good: world.kept(world.ffi.new("int*"))
    elif name == "offsets":  # only arrays of rows of any length may have them
        yield "set", lambda world, _good: world.kept(world.ffi.new("int64_t[2]"))
    elif name == "stream":
        yield "not NULL", lambda world, _good: world.kept(world.ffi.new("int*"))
    elif not name.endswith("context"):
        yield "NULL", lambda world, _good: world.ffi.NULL
        is_array = kind.kind == "pointer" and kind.item.kind == "primitive" and name not in SINGLE_NUMBERS
        if is_array and kind.item.cname != "void" and interface.ffi.sizeof(kind.item) > 1:
            yield "misaligned", misaligned
        if is_array and with_entries:
            for value, entry in ENTRIES.get(name, {}).items():
                yield value, with_first(entry)


def numbers(bad: dict[str, Any]) -> Iterator[tuple[str, Spoil]]:
    yield from ((value, lambda _world, _good, number=number: number) for value, number in bad.items())


def misaligned(world: World, good: Any) -> Any:
    kind = world.ffi.typeof(good)
    return world.ffi.cast(f"{kind.item.cname}*", int(world.ffi.cast("uintptr_t", good)) + 1)


def with_first(entry: Any) -> Spoil:
    def spoil(_world: World, good: Any) -> Any:
        good[0] = entry
        return good

    return spoil


def bad_fields(interface: Interface, struct: Any) -> Iterator[tuple[str, str, Change]]:
    """Path, value and Change for each bad value of a field. Entries of arrays in a batch are outputs: none are bad."""
    for name, field in struct.fields:
        if field.type.kind == "struct":
            for path, value, change in bad_fields(interface, field.type):
                yield f"{name}.{path}", value, in_field(name, change)
            continue
        values = list(bad_values(interface, field.type, name, struct.cname != "per_batch"))
        for value, spoil in values:
            yield name, value, set_field(name, spoil)
        if not values:
            yield name, "", lambda _world, _struct: None
        if field.type.kind == "pointer" and field.type.item.kind == "struct" and name not in NOT_ENTERED:
            for path, value, change in bad_fields(interface, field.type.item):
                yield f"{name}[0].{path}", value, in_field(name, change)


def set_field(name: str, spoil: Spoil) -> Change:
    return lambda world, struct: setattr(struct, name, spoil(world, getattr(struct, name)))


def in_field(name: str, change: Change) -> Change:
    def changed(world: World, struct: Any) -> None:
        if name == "td_errors":  # steps have either priorities or TD errors
            struct.td_errors, struct.priorities = struct.priorities, world.ffi.new("per_array*")[0]
        inner = getattr(struct, name)
        change(world, inner[0] if world.ffi.typeof(inner).kind == "pointer" else inner)

    return changed


def at_index(i: int, spoil: Spoil) -> Change:
    def changed(world: World, arguments: list[Any]) -> None:
        arguments[i] = spoil(world, arguments[i])

    return changed


def within(i: int, change: Change) -> Change:
    def changed(world: World, arguments: list[Any]) -> None:
        change(world, given_one(world, arguments[i]))

    return changed


def given_one(world: World, value: Any) -> Any:
    """The given field of an array of fields; any other value is returned as it is."""
    is_array = isinstance(value, world.ffi.CData) and world.ffi.typeof(value).kind == "array"
    if not is_array or world.ffi.typeof(value).item.kind != "struct":
        return value
    return next(one for one in value if one.data)


def problem_of(world: World, row: Row, before: list[bytes]) -> str | None:
    arguments = world.arguments(row.function)
    row.spoil(world, arguments)
    status = world.interface.call(row.function, arguments)
    message = world.interface.last_error()
    if status != (NO_DEVICE if row.is_of_missing_device(world.device) else INVALID_ARGUMENT):
        return f"is {world.interface.status_name(status)}" + (f": {message}" if status else "")
    if row.shown() not in message:
        return f"is not named: {message}"
    return None if world.state() == before else "has changed a handle"


def problems_of(interface: Interface, device: int) -> Iterator[str]:
    for function in interface.functions:
        world = World(interface, device)
        status = interface.call(function, world.arguments(function)) if function.has_status else 0
        if status != 0:
            yield f"{function}: a good call is {interface.status_name(status)}: {interface.last_error()}"
        world.close()
    yield from sizes_of_results(interface)
    rows = [row for function in interface.functions if function.has_status for row in rows_of(interface, function)]
    unused = set(ALLOWED) - {"per_replay_compute_capacity.options.device_index large*"}  # used with CUDA only
    world = World(interface, device)
    before = world.state()
    n = 0
    for row in rows:
        allowed = [pattern for pattern in ALLOWED if matches(row, pattern)]
        for pattern in allowed:
            unused.discard(pattern)
        if allowed or (device == 1 and is_known_to_the_device(row)):
            continue
        if not row.value:
            yield f"{row}: there is no bad value for it, and none is said to be needed"
            continue
        n += 1
        problem = problem_of(world, row, before)
        if problem:
            yield f"{row}: {problem}"
            before = world.state()
    yield from (f"allowed is {pattern}, which is nothing" for pattern in unused)
    world.close()
    print(f"{n} bad arguments of {len(interface.functions)} functions")


def fills_struct(function: Function) -> bool:
    return bool(function.parameters) and function.parameters[-1].name == "struct_size"


def sizes_of_results(interface: Interface) -> Iterator[str]:
    """Calls that fill a struct accept the sizes that the struct has had, and no other smaller size."""
    had = sizes_in(golden_path(read_interface(HEADER)).read_text())
    world = World(interface, 0)
    for function in interface.functions:
        if function.name.endswith("_init") or not fills_struct(function):
            continue
        sizes = had[function.parameters[-2].type.item.cname]
        for size in range(sizes[-1] + 1):
            status = interface.call(function, [*world.arguments(function)[:-1], size])
            if status != (0 if size in sizes else INVALID_ARGUMENT):
                yield f"{function.name} of {size} bytes is {interface.status_name(status)}"
    world.close()


def julia_table(interface: Interface) -> str:
    """For each parameter of the Julia package: function, name and bad numbers (in an array for entries)."""
    world = World(interface, 0)
    bad: dict[tuple[str, str], dict[str, None]] = {}
    for function in functions_in_julia(interface):
        for row in rows_of(interface, function):
            if not row.value or any(matches(row, pattern) for pattern in ALLOWED):
                continue
            name = row.path.rpartition(".")[2]
            if row.path.startswith("state.") or not is_in_julia(function, name):  # only a coordinator makes a state
                continue
            arguments = world.arguments(function)
            row.spoil(world, arguments)
            number = value_at(world, function, arguments, row.path)
            if isinstance(number, world.ffi.CData):
                if row.value not in ENTRIES.get(name, {}):
                    continue  # Julia takes no pointers
                number = [number[0]]
            shown = str(number).replace("nan", "NaN").replace("inf", "Inf")
            bad.setdefault((function.name, name), {})[shown] = None
    world.close()
    lines = (f"    (:{function}, :{name}, Any[{', '.join(shown)}]),\n" for (function, name), shown in bad.items())
    notice = "# Generated by tests/abi/bad_arguments.py --julia; do not edit.\n"
    return f"{notice}const BAD_ARGUMENTS = [\n{''.join(lines)}]\n"


def functions_in_julia(interface: Interface) -> list[Function]:
    sources = [path.read_text() for path in (JULIA / "src").glob("*.jl") if path.name != "declarations.jl"]
    called = set(re.findall(r"\bper_\w+", "".join(sources)))
    return [f for f in interface.functions if f.has_status and f.name in called and not WITH_OTHERS.match(f.name)]


def is_in_julia(function: Function, name: str) -> bool:
    missing = any(name in names.split() for names in NOT_IN_JULIA.values())
    return not missing and (function.name, name) not in MADE_IN_JULIA


def value_at(world: World, function: Function, arguments: list[Any], path: str) -> Any:
    """The current value of an argument or of a field of it."""
    first, *names = path.replace("[0]", "").split(".")
    value = next(a for a, p in zip(arguments, function.parameters, strict=True) if p.name == first)
    for name in names:
        value = getattr(given_one(world, value), name)
    return value


def matches(row: Row, pattern: str) -> bool:
    """A pattern without a value matches all values."""
    return any(fnmatch.fnmatchcase(str(row), each) for each in (pattern, f"{pattern} *"))


def is_known_to_the_device(row: Row) -> bool:
    """True if a call on CUDA does not fail: any stream is valid, and bad entries of arrays are skipped and counted."""
    array = row.path.removeprefix("priorities.")
    return row.value == "not NULL" or (array != "steps.env_ids" and row.value in ENTRIES.get(array, {}))


def main() -> None:
    parser = argparse.ArgumentParser(description="Try every bad argument of every function.")
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--julia", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.julia:
        table = julia_table(Interface(arguments.library))
        if not arguments.check:
            JULIA_TABLE.write_text(table)
        elif JULIA_TABLE.read_text() != table:
            sys.exit(f"{JULIA_TABLE} is stale: bad_arguments.py LIBRARY --julia renews it")
        return
    problems = list(problems_of(Interface(arguments.library), 1 if arguments.device == "cuda" else 0))
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()

"""
Prioritized experience replay (Schaul et al. 2016, arXiv:1511.05952): the Julia side of `libper`.

[`SumTree`](@ref) holds priorities and draws indices in proportion to them; [`ReplayBuffer`](@ref) stores whole
transitions and draws batches of them with importance-sampling weights.

Everywhere in this package
- tree indices and environments count from 1; ids are the same numbers as in C,
- axes are in reverse C order, so the bytes are the same: a batch of `B` images, `[B, 84, 84]` in C, is an `84×84×B`
  array; the batch is the last axis,
- on CUDA, input and output arrays belong to a library named by the caller, such as CUDA.jl: see [`ReplayBuffer`](@ref),
- options that are omitted keep the library's defaults, which `per.h` documents,
- an error is a [`PERError`](@ref). Its message is the library's, in this package's terms; shapes in it are in C order,
  and entries count from 0, as the message then says.
"""
module PER

import Libdl
import Serialization

export SumTree, update!, sample!, find, priorities, total, reset!
export Field, ReplayBuffer, add!, extend!, cut!, clear!, update_priorities!, set_priorities!, set!, stats, options
export Ragged, lengths, padded
export capacity_for, save, checkpoint, load, get_windows, epochs, advantages!, loader, release!, Hindsight, live_ids
export summarize, set_scale!, raise_max_priority!, get_units, Coordinator
export channel, shared_loader, Mixture
export wait_to_add, wait_to_sample, stop_limiting!
export PERError

include("gc_safe.jl")
include("declarations.jl")
include("library.jl")
include("error.jl")
include("handle.jl")
include("arrays.jl")
include("memory.jl")
include("ragged.jl")
include("options.jl")
include("words.jl")
include("sum_tree.jl")
include("field.jl")
include("replay.jl")
include("checkpoint.jl")
include("add.jl")
include("batch.jl")
include("hindsight.jl")
include("update.jl")
include("epochs.jl")
include("mixture.jl")
include("loader.jl")
include("coordinator.jl")
include("channel.jl")
include("shared_loader.jl")

__init__() = load_library()

end

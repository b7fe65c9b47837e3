# Passes each bad argument that tests/abi/bad_arguments.py derives from per.h's declarations to the function of this
# package that takes it: expects a PERError that names it, and no change.
module BadArguments

using Test
using PER

include("bad_arguments_table.jl")

const FIELDS = (observation = Field(Float32, 2), goal = Field(Float32, 2), value = Field(Float32),
                advantage = Field(Float32), returns = Field(Float32))

# Two environments, of eight steps each.
function filled(; options...)
    buffer = ReplayBuffer(60, FIELDS; n_envs = 2, options...)
    for t in 0:7
        add!(buffer; step_at(t)...)
    end
    return buffer
end

function step_at(t)
    now = Float32[t 10t; t+1 10t+1]
    one = Float32[t, 10t]
    return (observation = now, goal = now, value = one, advantage = one, returns = one, reward = one,
            terminated = falses(2), truncated = falses(2), next_observation = now .+ 1)
end

const TREE = update!(SumTree(10), [2, 5, 8], [0.5, 0.5, 0.5])
const SINGLE_STEPS = filled(n_step = 2)
const SEQUENCES = filled(sequence_length = 3)

function state()
    files = map((SINGLE_STEPS, SEQUENCES)) do buffer
        io = IOBuffer()
        save(buffer, io)
        take!(io)
    end
    return (files, priorities(TREE), total(TREE))
end

# For each function of per.h: good arguments by name, and the call that takes them.
const GOOD = Dict{Symbol,Any}(
    :per_tree_create => ((capacity = 10,), (; capacity, options...) -> SumTree(capacity; options...)),
    :per_update => ((indices = [2, 5, 8], priorities = [1.0, 1.0, 1.0]),
                    (; indices, priorities) -> update!(TREE, indices, priorities)),
    :per_sample => ((batch_size = 4,), (; batch_size, options...) -> sample!(TREE, batch_size; options...)),
    :per_tree_find => ((prefix_sums = [0.0, 0.5, 1.0],), (; prefix_sums) -> find(TREE, prefix_sums)),
    :per_tree_get_priorities => ((indices = [2, 5, 8],), (; indices) -> priorities(TREE, indices)),
    :per_field_check => (NamedTuple(), (; options...) -> Field(Float32, 2; options...)),
    :per_replay_create => ((capacity = 60,), (; capacity, options...) -> ReplayBuffer(capacity, FIELDS; options...)),
    :per_replay_compute_capacity => ((transitions = 10,),
                                 (; transitions, options...) -> capacity_for(transitions; options...)),
    :per_replay_add => ((env_ids = [2, 1],), (; env_ids) -> add!(SINGLE_STEPS; env_ids, step_at(8)...)),
    :per_replay_cut => ((env_ids = [2, 1],), (; env_ids) -> cut!(SINGLE_STEPS, env_ids)),
    :per_replay_sample => ((batch_size = 4,), (; batch_size, options...) -> sample!(
        SINGLE_STEPS, batch_size; hindsight = HINDSIGHT, options...)),
    # Two calls here; the one with the bad argument.
    :per_replay_update_priorities => ((ids = [0, 1, 2], td_errors = [1.0, 1.0, 1.0], priorities = [1.0, 1.0, 1.0]),
                                      (; ids, td_errors, priorities) ->
                                          priorities == [1.0, 1.0, 1.0] ?
                                          update_priorities!(SINGLE_STEPS, ids, td_errors) :
                                          set_priorities!(SINGLE_STEPS, ids, priorities)),
    :per_replay_get_priorities => ((ids = [0, 1, 2],), (; ids) -> priorities(SINGLE_STEPS, ids)),
    :per_replay_get => ((ids = [0, 1, 2],), (; ids) -> get(SINGLE_STEPS, ids)),
    :per_replay_get_windows => ((ids = [0, 1, 2],), (; ids, options...) -> get_windows(
        SINGLE_STEPS, ids; hindsight = HINDSIGHT, options...)),
    :per_replay_set => ((ids = [0, 1, 2],), (; ids) -> set!(SINGLE_STEPS, ids; value = [1, 2, 3])),
    :per_replay_change_settings =>
        (NamedTuple(), (; setting...) -> setproperty!(SINGLE_STEPS, only(keys(setting)), only(values(setting)))),
    :per_replay_wait_to_sample => ((batch_size = 4,), (; batch_size) -> wait_to_sample(SINGLE_STEPS, batch_size)),
    :per_epochs_create => ((n_epochs = 1, batch_size = 4),
                           (; n_epochs, batch_size) -> epochs(SINGLE_STEPS, n_epochs; batch_size)),
    :per_replay_compute_advantages => ((lambda = 0.5, bootstrap_values = [1.0]),
                               (; lambda, bootstrap_values) -> advantages!(
                                   SINGLE_STEPS; bootstrap = batch -> fill(bootstrap_values[1], length(batch.ids)),
                                   lambda)),
    :per_replay_summarize => (NamedTuple(), (; measured...) -> PER.summarize(SINGLE_STEPS; measured...)),
    :per_replay_set_scale => ((scale = 0, reference = 0),
                              (; scale, reference) -> PER.set_scale!(SINGLE_STEPS, scale, reference)),
    :per_replay_raise_max_priority => (NamedTuple(), (; priority) -> PER.raise_max_priority!(SINGLE_STEPS, priority)),
    :per_replay_get_units => ((units = [0, 1, 2],),
                              (; units, options...) -> first(PER.get_units(SINGLE_STEPS, units; options...))),
    :per_coordinator_create => ((capacity = 60, n_shards = 1),
                                (; capacity, n_shards, options...) -> PER.Coordinator(capacity, n_shards; options...)),
    :per_replay_save => (NamedTuple(), (; compression) -> save(SINGLE_STEPS, IOBuffer(); compression)),
    :per_replay_save_start => (NamedTuple(), (; compression) -> mktempdir() do folder
        save(SINGLE_STEPS, joinpath(folder, "buffer"); wait = false, compression)
    end),
    :per_replay_checkpoint => (NamedTuple(), (; compression) -> mktempdir() do folder
        PER.checkpoint(SINGLE_STEPS, folder; compression)
    end),
    :per_replay_load => (NamedTuple(), (; options...) -> mktempdir() do folder
        path = joinpath(folder, "buffer")
        save(SINGLE_STEPS, path)
        load(ReplayBuffer, path; options...)
    end),
    :per_mixture_sample => ((batch_size = 4, share = 0.5, carry = 0, when_empty = :error),
                            (; batch_size, share, carry, when_empty, options...) ->
        sample!(mixture_with(share, carry, when_empty), batch_size; options...)),
    :per_mixture_update_priorities =>
        ((ids = [0, 1], td_errors = [1.0, 1.0], source_of = [1, 1], share = 0.5, carry = 0, when_empty = :error,
          priorities = [1.0, 1.0]),
         (; ids, td_errors, source_of, share, carry, when_empty, priorities) -> begin
             batch, mixture = (ids = ids, sources = source_of), mixture_with(share, carry, when_empty)
             priorities == [1.0, 1.0] ? update_priorities!(mixture, batch, td_errors) :
             set_priorities!(mixture, batch, priorities)
         end),
    :per_loader_create => ((batch_size = 4,),
                           (; batch_size, options...) -> loader(SINGLE_STEPS, batch_size; options...)),
)
function mixture_with(share, carry, when_empty)
    mixture = Mixture(:one => (SINGLE_STEPS, share); when_empty = when_empty)
    mixture.carries = (one = carry,)
    return mixture
end
const HINDSIGHT = Hindsight(:observation, :goal, (achieved, goals) -> zeros(Float32, size(goals, 2)))

const OTHER_NAMES = Dict(:bootstrap_values => "bootstrap", :source_of => "sources")

# Arguments that count from 0 in C and from 1 in this package.
in_julia(name, value) = name in (:indices, :env_ids, :source_of) && value < typemax(Int64) ? value + 1 : value

function spoiled(good, name, value)
    value isa Vector || return merge(good, NamedTuple{(name,)}((value,)))
    array = collect(Any, good[name])
    array[1] = in_julia(name, only(value))
    return merge(good, NamedTuple{(name,)}((map(identity, array),)))
end

function error_of(action)
    try
        action()
    catch error
        return error
    end
    return nothing
end

is_right(error::PERError, name) =
    error.status == PER.PER_ERROR_INVALID_ARGUMENT && occursin(get(OTHER_NAMES, name, string(name)), error.message)
is_right(error, name) = false

@testset "bad arguments of the table are errors that name them and change nothing" begin
    before = state()
    n = 0
    for (called, name, bad) in BAD_ARGUMENTS, value in bad
        haskey(GOOD, called) || (@test (called, "has no call here") === nothing; continue)
        good, call = GOOD[called]
        given = spoiled(good, name, value)
        error = error_of(() -> call(; given...))
        @test (called, name, value, is_right(error, name) ? true : error) === (called, name, value, true)
        after = state()
        @test (called, name, value, after == before) === (called, name, value, true)
        before = after
        n += 1
    end
    @test n > 150
    for (called, (good, call)) in GOOD  # apart from the bad argument they are good
        called in (:per_replay_add, :per_replay_cut) && continue
        isempty(good) && continue
        call(; good...)
    end
end

end

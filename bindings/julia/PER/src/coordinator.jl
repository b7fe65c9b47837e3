"""
    summarize(buffer; measured_scale = nothing, measured_reference = 0)

The integers that determine the draws of a shard, as a struct with the fields of `per_shard_summary` in per.h. With a
`measured_scale` it also sums the masses at that scale, in one pass over the buffer; with a half-life, as if the leaves
had been raised to the `measured_reference`.

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Int32),));

julia> ids = extend!(buffer; observation = 1:4, reward = ones(4), terminated = falses(4), truncated = falses(4));

julia> set_scale!(buffer, 3);

julia> summarize(buffer).total_mass, summarize(buffer).live
(0x0000000000000018, 3)
```
"""
function summarize(buffer::ReplayBuffer; measured_scale = nothing, measured_reference = 0)
    scale = measured_scale === nothing ? PER_SCALE_AUTOMATIC : converted(Int32, "measured_scale", measured_scale)
    reference = converted(Int64, "measured_reference", measured_reference)
    fill(pointer, summary, size) = per_replay_summarize(pointer, scale, reference, summary, size)
    return result_of(fill, per_shard_summary, buffer.handle)
end

"""
    set_scale!(buffer, scale, reference = 0)

Set the scale of `mass(p^alpha) = ceil(p^alpha 2^scale)`. The scale stays until masses become too large for it, or alpha
is set. With `nothing` the buffer chooses the scale. With a half-life, leaves also get the `reference`, if it is larger
than theirs. Returns the buffer.
"""
function set_scale!(buffer::ReplayBuffer, scale, reference = 0)
    chosen = scale === nothing ? PER_SCALE_AUTOMATIC : converted(Int32, "scale", scale)
    wanted = converted(Int64, "reference", reference)
    call(pointer -> per_replay_set_scale(pointer, chosen, wanted), buffer.handle)
    return buffer
end

"""
    raise_max_priority!(buffer, priority; stream)

Raise the largest priority ever to at least this one, as if a transition had been given it. Returns the buffer.
"""
function raise_max_priority!(buffer::ReplayBuffer, priority; stream = nothing)
    queue, value = stream_of(buffer.memory, stream), converted(Float32, "priority", priority)
    call(pointer -> per_replay_raise_max_priority(pointer, value, queue), buffer.handle)
    return buffer
end

"""
    get_units(buffer, units; stream, options...)

The transitions that own units of the total mass, in the form of [`get_windows`](@ref): a batch, their masses and their
first units. A unit is one of `0:total_mass - 1`; `-1 - r` stands for the transition with `r` live transitions before
it. Throws a [`PERError`](@ref) for the first unit that does not exist.
"""
function get_units(buffer::ReplayBuffer, units; stream = nothing, options...)
    queue = stream_of(buffer.memory, stream)
    wanted = numbers(buffer.memory, Int64, "units", units, stream)
    count = length(wanted)
    chosen, n_step = sample_options(buffer, options)
    batch = allocate(buffer, drawn_layout(buffer, rows_of(count), n_step))
    masses, first_units = new_array(buffer.memory, UInt64, (count,)), new_array(buffer.memory, UInt64, (count,))
    filled = with_pointers(buffer, batch) do pointers
        call(buffer.handle) do pointer
            outputs = written(buffer.memory, masses), written(buffer.memory, first_units)
            per_replay_get_units(pointer, chosen, count, wanted, pointers, outputs..., queue)
        end
    end
    return filled, masses, first_units
end

"""
    Coordinator(capacity, n_shards; n_envs, state = nothing, options...)

Draws from several buffers, the shards, as one buffer with all their lanes would: the same ids, transitions, weights and
priorities, bit for bit. The coordinator does not call the buffers; the program passes the messages between coordinator
and shards, as per.h describes. `capacity` and the options are those of the whole buffer; fields are not given. With the
`state` of another coordinator it continues from there. Shards count from 1.

```jldoctest
julia> coordinator = Coordinator(40, 2; n_envs = 4, seed = 3);

julia> shards = map(1:2) do s
           place = PER.shard(coordinator, s)
           buffer = ReplayBuffer(place.capacity, (observation = Field(Int32),); n_envs = place.n_envs)
           extend!(buffer; observation = zeros(Int32, 2, 8), reward = zeros(2, 8), terminated = falses(2, 8),
                   truncated = falses(2, 8))
           buffer
       end;

julia> PER.agree_on_scale!(coordinator, shards);

julia> round = PER.draw!(coordinator, 6);

julia> ids, masses = zeros(Int64, 6), zeros(UInt64, 6);

julia> for s in 1:2
           here = round.shards .== s
           batch, mass, _ = PER.get_units(shards[s], round.units[here])
           ids[here], masses[here] = batch.ids, mass
       end

julia> PER.submit!(coordinator, ids, masses)

julia> PER.finish!(coordinator).weights == ones(6)
true
```
"""
mutable struct Coordinator
    handle::Handle{per_coordinator}
    batch_size::Int

    function Coordinator(capacity, n_shards; state = nothing, options...)
        filled = set_options!(initial(per_replay_options), options)
        set_field!(filled, :capacity, capacity)
        pointer = Ref(Ptr{per_coordinator}(C_NULL))
        begins_as = optional_struct(per_coordinator_state, "state", state)
        check(per_coordinator_create(filled, converted(Int64, "n_shards", n_shards), begins_as, pointer))
        return new(Handle(pointer[]), 0)
    end
end

# A struct as an argument of ccall; NULL for nothing.
optional_struct(::Type{T}, name, given::T) where {T} = Ref(given)
optional_struct(::Type{T}, name, ::Nothing) where {T} = Ptr{T}(C_NULL)
optional_struct(::Type{T}, name, other) where {T} = invalid("$name is a $(typeof(other)); allowed: nothing, $T")

Base.show(io::IO, ::Coordinator) = print(io, "Coordinator()")
Base.close(coordinator::Coordinator) = close(coordinator.handle)
Base.isopen(coordinator::Coordinator) = isopen(coordinator.handle)

"""
    shard(coordinator, s)

The `capacity` and `n_envs` to create that shard with; its environments are those of the whole from `first_env` on.
"""
function shard(coordinator::Coordinator, s)
    capacity, n_envs, first_env = Ref{Int64}(), Ref{Int64}(), Ref{Int64}()
    call(coordinator.handle) do pointer
        per_coordinator_describe_shard(pointer, converted(Int64, "shard", s) - 1, capacity, n_envs, first_env)
    end
    return (capacity = capacity[], n_envs = n_envs[], first_env = first_env[] + 1)
end

"""
    report!(coordinator, s, summary)

Take the summary of a shard, see [`summarize`](@ref PER.summarize). With `nothing` the shard is gone until it reports
again.
"""
function report!(coordinator::Coordinator, s, summary)
    given = optional_struct(per_shard_summary, "summary", summary)
    call(pointer -> per_coordinator_report(pointer, converted(Int64, "shard", s) - 1, given), coordinator.handle)
    return coordinator
end

"""
    agree_on_scale!(coordinator; chooses_anew = false)
    agree_on_scale!(coordinator, buffers; chooses_anew = false)

Bring all shards to the scale that one buffer would have. The first form returns what to do with each available shard
before it reports and this function is called again: `(todo = PER.PER_SCALE_SET, scale, reference)`, ...; or `nothing`
once batches can be drawn. The second form does all of this with buffers of this process; `nothing` stands for a shard
that is gone.
"""
function agree_on_scale!(coordinator::Coordinator; chooses_anew = false)
    todo, scale, reference = Ref{Int32}(), Ref{Int32}(), Ref{Int64}()
    anew = converted(Bool, "chooses_anew", chooses_anew)
    call(pointer -> per_coordinator_agree_on_scale(pointer, anew, todo, scale, reference), coordinator.handle)
    return todo[] == Int32(PER_SCALE_AGREED) ? nothing : (todo = todo[], scale = scale[], reference = reference[])
end

function agree_on_scale!(coordinator::Coordinator, buffers; chooses_anew = false)
    for (s, buffer) in enumerate(buffers)
        report!(coordinator, s, buffer === nothing ? nothing : summarize(buffer))
    end
    asked = agree_on_scale!(coordinator; chooses_anew)
    while asked !== nothing
        sets = asked.todo == Int32(PER_SCALE_SET)
        for (s, buffer) in enumerate(buffers)
            buffer === nothing && continue
            sets && set_scale!(buffer, asked.scale, asked.reference)
            measured_scale = sets ? nothing : asked.scale
            report!(coordinator, s, summarize(buffer; measured_scale, measured_reference = asked.reference))
        end
        asked = agree_on_scale!(coordinator)
    end
    return nothing
end

function next_round(coordinator, count)
    count == 0 && return nothing
    shards, units = Vector{Int64}(undef, count), Vector{Int64}(undef, count)
    call(pointer -> per_coordinator_get_units(pointer, count, shards, units), coordinator.handle)
    return (shards = shards .+ 1, units = units)
end

"""
    draw!(coordinator, batch_size; options...)

Begin a batch and return the shards and units of its first round. Only draws without replacement may need more rounds.
"""
function draw!(coordinator::Coordinator, batch_size; options...)
    chosen = isempty(options) ? C_NULL : set_options!(initial(per_sample_options), options)
    size, count = converted(Int64, "batch_size", batch_size), Ref{Int64}()
    call(pointer -> per_coordinator_draw(pointer, chosen, size, count), coordinator.handle)
    coordinator.batch_size = size
    return next_round(coordinator, count[])
end

"""
    submit!(coordinator, ids, masses, first_units = nothing)

Take the results of [`get_units`](@ref PER.get_units) of the shards for the round, in the order of its units. Returns
the next round, or `nothing` when [`finish!`](@ref PER.finish!) is to be called.
"""
function submit!(coordinator::Coordinator, ids, masses, first_units = nothing)
    arrays = whole_numbers(Int64, "ids", ids), numbers(UInt64, "masses", masses)
    first = first_units === nothing ? C_NULL : numbers(UInt64, "first_units", first_units)
    n = length(arrays[1])
    check_length("masses", arrays[2], n)
    first_units === nothing || check_length("first_units", first, n)
    count = Ref{Int64}()
    call(pointer -> per_coordinator_submit(pointer, n, arrays..., first, count), coordinator.handle)
    return next_round(coordinator, count[])
end

"""
    finish!(coordinator)

End a batch, which counts as drawn from now on. Returns its global `ids`, `weights` and `probabilities`.
"""
function finish!(coordinator::Coordinator)
    n = coordinator.batch_size
    batch = (ids = zeros(Int64, n), weights = zeros(Float32, n), probabilities = zeros(Float32, n))
    call(pointer -> per_coordinator_finish(pointer, n, batch...), coordinator.handle)
    return batch
end

"""
    locate(coordinator, ids)

The shard of each global id, and the id within that shard; 0 and -1 for id -1.
"""
function locate(coordinator::Coordinator, ids)
    given = whole_numbers(Int64, "ids", ids)
    shards, shard_ids = similar(given), similar(given)
    call(coordinator.handle) do pointer
        per_coordinator_locate(pointer, length(given), given, shards, shard_ids)
    end
    return shards .+ 1, shard_ids
end

"""
    whole_ids(coordinator, s, ids)

Convert ids of a shard to global ids; -1 stays -1.
"""
function whole_ids(coordinator::Coordinator, s, ids)
    given = whole_numbers(Int64, "ids", ids)
    out = similar(given)
    call(coordinator.handle) do pointer
        per_coordinator_get_ids(pointer, converted(Int64, "shard", s) - 1, length(given), given, out)
    end
    return out
end

"""
    state(coordinator)

The state to save with the shards: the fields of `per_coordinator_state` in per.h. A `Coordinator` created with it as
`state` and with the same options continues from there.
"""
state(coordinator::Coordinator) = result_of(per_coordinator_get_state, per_coordinator_state, coordinator.handle)

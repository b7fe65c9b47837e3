"""
    law(buffer; measured_scale = nothing)

What draws are made of, in whole numbers: the fields of `per_law` in per.h, as a struct. With a `measured_scale` the
masses at that scale are added up, too, in one pass over the buffer.

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Int32),));

julia> ids = extend!(buffer; observation = 1:4, reward = ones(4), terminated = falses(4), truncated = falses(4));

julia> set_scale!(buffer, 3);

julia> law(buffer).total_mass, law(buffer).live
(0x0000000000000018, 3)
```
"""
function law(buffer::ReplayBuffer; measured_scale = nothing)
    filled = initial(per_law)
    scale = measured_scale === nothing ? PER_SCALE_AUTOMATIC : converted(Int32, "measured_scale", measured_scale)
    call(pointer -> per_replay_law(pointer, scale, filled), buffer.handle)
    return filled[]
end

"""
    set_scale!(buffer, scale)

Set the scale of `mass(p^alpha) = ceil(p^alpha 2^scale)`, which stays until masses are too large for it or alpha is set;
`nothing`: the buffer chooses by itself. Returns the buffer.
"""
function set_scale!(buffer::ReplayBuffer, scale)
    chosen = scale === nothing ? PER_SCALE_AUTOMATIC : converted(Int32, "scale", scale)
    call(pointer -> per_replay_set_scale(pointer, chosen), buffer.handle)
    return buffer
end

"""
    raise_max_priority!(buffer, priority; stream)

Make the largest priority ever at least this one, as if a transition had been given it. Returns the buffer.
"""
function raise_max_priority!(buffer::ReplayBuffer, priority; stream = nothing)
    queue, value = stream_of(buffer.memory, stream), converted(Float32, "priority", priority)
    call(pointer -> per_replay_raise_max_priority(pointer, value, queue), buffer.handle)
    return buffer
end

"""
    get_units(buffer, units; stream, options...)

The transitions that own units of the total mass, as [`get_windows`](@ref) gives those of ids: a batch, their masses and
their first units. Unit `u` is one of `0:total_mass - 1`; `-1 - r` is the transition with `r` live ones before it.
Throws a [`PERError`](@ref) for the first unit that there is not.
"""
function get_units(buffer::ReplayBuffer, units; stream = nothing, options...)
    queue = stream_of(buffer.memory, stream)
    wanted = numbers(buffer.memory, Int64, "units", units, stream)
    count = length(wanted)
    chosen, n_step = sample_options(buffer, options)
    batch = allocate(buffer.memory, drawn_layout(buffer, rows_of(count), n_step))
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
    Coordinator(capacity, n_shards; n_envs, options...)

Draws from several buffers, the shards, as one buffer with all their lanes would: the same ids, transitions, weights and
priorities, bit for bit. It calls none of them; the program carries what the one says to the other, as per.h says.
`capacity` and the options are those of the whole; fields are not given. Shards count from 1.

```jldoctest
julia> coordinator = Coordinator(40, 2; n_envs = 4, seed = 3);

julia> shards = map(1:2) do s
           place = PER.shard(coordinator, s)
           buffer = ReplayBuffer(place.capacity, (observation = Field(Int32),); n_envs = place.n_envs)
           extend!(buffer; observation = zeros(Int32, 2, 8), reward = zeros(2, 8), terminated = falses(2, 8),
                   truncated = falses(2, 8))
           buffer
       end;

julia> PER.settle!(coordinator, shards);

julia> round = PER.draw!(coordinator, 6);

julia> ids, masses = zeros(Int64, 6), zeros(UInt64, 6);

julia> for s in 1:2
           here = round.shards .== s
           batch, mass, _ = PER.get_units(shards[s], round.units[here])
           ids[here], masses[here] = batch.ids, mass
       end

julia> PER.found!(coordinator, ids, masses)

julia> PER.finish!(coordinator).weights == ones(6)
true
```
"""
mutable struct Coordinator
    handle::Handle{per_coordinator}
    batch_size::Int

    function Coordinator(capacity, n_shards; options...)
        filled = set_options!(initial(per_replay_options), options)
        set_field!(filled, :capacity, capacity)
        pointer = Ref(Ptr{per_coordinator}(C_NULL))
        check(per_coordinator_create(filled, converted(Int64, "n_shards", n_shards), pointer))
        return new(Handle(pointer[]), 0)
    end
end

Base.close(coordinator::Coordinator) = close(coordinator.handle)
Base.isopen(coordinator::Coordinator) = isopen(coordinator.handle)

"""
    shard(coordinator, s)

What that shard is to be created with, `capacity` and `n_envs`; its environments are those of the whole from `first_env`
on.
"""
function shard(coordinator::Coordinator, s)
    capacity, n_envs, first_env = Ref{Int64}(), Ref{Int64}(), Ref{Int64}()
    call(coordinator.handle) do pointer
        per_coordinator_shard(pointer, converted(Int64, "shard", s) - 1, capacity, n_envs, first_env)
    end
    return (capacity = capacity[], n_envs = n_envs[], first_env = first_env[] + 1)
end

"""
    tell!(coordinator, s, law)

Take what [`law`](@ref PER.law) says of a shard; `nothing`: it is gone, until it tells of itself again.
"""
function tell!(coordinator::Coordinator, s, told)
    given = told === nothing ? Ptr{per_law}(C_NULL) : Ref(told)
    call(pointer -> per_coordinator_tell(pointer, converted(Int64, "shard", s) - 1, given), coordinator.handle)
    return coordinator
end

"""
    settle!(coordinator; chooses_anew = false)
    settle!(coordinator, buffers; chooses_anew = false)

Bring all shards to the scale that one buffer would have. The first says what to do with each shard that is there before
it tells of itself and this is called again: `(todo = PER.PER_SETTLE_SET, scale)`, ...; or `nothing`, and batches can be
drawn. The second does so with buffers of this process; `nothing` stands for one that is gone.
"""
function settle!(coordinator::Coordinator; chooses_anew = false)
    todo, scale = Ref{Int32}(), Ref{Int32}()
    call(pointer -> per_coordinator_settle(pointer, chooses_anew, todo, scale), coordinator.handle)
    return todo[] == Int32(PER_SETTLED) ? nothing : (todo = todo[], scale = scale[])
end

function settle!(coordinator::Coordinator, buffers; chooses_anew = false)
    for (s, buffer) in enumerate(buffers)
        tell!(coordinator, s, buffer === nothing ? nothing : law(buffer))
    end
    asked = settle!(coordinator; chooses_anew)
    while asked !== nothing
        sets = asked.todo == Int32(PER_SETTLE_SET)
        for (s, buffer) in enumerate(buffers)
            buffer === nothing && continue
            sets && set_scale!(buffer, asked.scale)
            tell!(coordinator, s, law(buffer; measured_scale = sets ? nothing : asked.scale))
        end
        asked = settle!(coordinator)
    end
    return nothing
end

function next_round(coordinator, count)
    count == 0 && return nothing
    shards, units = Vector{Int64}(undef, count), Vector{Int64}(undef, count)
    call(pointer -> per_coordinator_units(pointer, count, shards, units), coordinator.handle)
    return (shards = shards .+ 1, units = units)
end

"""
    draw!(coordinator, batch_size; options...)

Begin a batch: the shards and units of its first round. There is one round; without replacement there may be several.
"""
function draw!(coordinator::Coordinator, batch_size; options...)
    chosen = isempty(options) ? C_NULL : set_options!(initial(per_sample_options), options)
    size, count = converted(Int64, "batch_size", batch_size), Ref{Int64}()
    call(pointer -> per_coordinator_draw(pointer, chosen, size, count), coordinator.handle)
    coordinator.batch_size = size
    return next_round(coordinator, count[])
end

"""
    found!(coordinator, ids, masses, first_units = nothing)

Take what [`get_units`](@ref PER.get_units) of the shards found for the round, in the order of its units. Returns the
next round, or `nothing`: [`finish!`](@ref PER.finish!) comes next.
"""
function found!(coordinator::Coordinator, ids, masses, first_units = nothing)
    arrays = convert(Vector{Int64}, ids), convert(Vector{UInt64}, masses)
    first = first_units === nothing ? C_NULL : convert(Vector{UInt64}, first_units)
    n = length(arrays[1])
    check_length("masses", arrays[2], n)
    first_units === nothing || check_length("first_units", first, n)
    count = Ref{Int64}()
    call(pointer -> per_coordinator_found(pointer, n, arrays..., first, count), coordinator.handle)
    return next_round(coordinator, count[])
end

"""
    finish!(coordinator)

End a batch, which counts from now on: its `ids`, those of the whole, `weights` and `probabilities`.
"""
function finish!(coordinator::Coordinator)
    n = coordinator.batch_size
    batch = (ids = zeros(Int64, n), weights = zeros(Float32, n), probabilities = zeros(Float32, n))
    call(pointer -> per_coordinator_finish(pointer, n, batch...), coordinator.handle)
    return batch
end

"""
    locate(coordinator, ids)

Which shards ids of the whole belong to, and what they are there; 0 and -1 for id -1.
"""
function locate(coordinator::Coordinator, ids)
    given = convert(Vector{Int64}, ids)
    shards, shard_ids = similar(given), similar(given)
    call(coordinator.handle) do pointer
        per_coordinator_locate(pointer, length(given), given, shards, shard_ids)
    end
    return shards .+ 1, shard_ids
end

"""
    whole_ids(coordinator, s, ids)

Ids of the whole, from those of a shard; -1 stays -1.
"""
function whole_ids(coordinator::Coordinator, s, ids)
    given = convert(Vector{Int64}, ids)
    out = similar(given)
    call(coordinator.handle) do pointer
        per_coordinator_ids(pointer, converted(Int64, "shard", s) - 1, length(given), given, out)
    end
    return out
end

"""
    state(coordinator)
    restore!(coordinator, state)

What is to be saved with the shards, the fields of `per_coordinator_status` in per.h; and a coordinator of the same
options made the one that had it, before any shard has told of itself.
"""
function state(coordinator::Coordinator)
    filled = initial(per_coordinator_status)
    call(pointer -> per_coordinator_state(pointer, filled), coordinator.handle)
    return filled[]
end

function restore!(coordinator::Coordinator, known)
    call(pointer -> per_coordinator_restore(pointer, Ref(known)), coordinator.handle)
    return coordinator
end

"""
    Mixture(name => (buffer, share)...)

Draws batches from several buffers, in fixed shares: for learning from demonstrations beside one's own steps (Ball et
al. 2023, "Efficient Online Reinforcement Learning with Offline Data", takes half of each batch from either), or from
one buffer for each task.

The buffers, up to 32, are on one device and have the same fields and, for sequences, the same lengths; all else may
differ. Buffers with `max_times_sampled` are not supported. Each can still be used by itself. Shares are divided by
their sum.

The numbers of rows of a batch are whole numbers. What rounding gives to one buffer, later batches give to the others:
with equal shares, batches of 33 have 17 and 16 rows, then 16 and 17. `mixture.shares` and `mixture.carries`, named
tuples, are the state of a mixture; both can be set, the shares at any time.

Throws a [`PERError`](@ref) if the buffers do not fit together, or a share is not allowed.

```jldoctest
julia> online, demonstrations = ReplayBuffer(50, (observation = Field(Int32),)), ReplayBuffer(50, (observation = Field(Int32),));

julia> for (buffer, first) in ((online, 1), (demonstrations, 1001))
           extend!(buffer; observation = first:first+3, reward = ones(4), terminated = falses(4), truncated = falses(4))
       end

julia> mixture = Mixture(:online => (online, 0.5), :demonstrations => (demonstrations, 0.5));

julia> batch = sample!(mixture, 4);

julia> batch.sources == [1, 1, 2, 2], (batch.observation .> 1000) == [false, false, true, true]
(true, true)

julia> update_priorities!(mixture, batch, [0.5, 1, 2, 0.1]) === mixture
true
```
"""
struct Mixture
    names::Vector{Symbol}
    buffers::Vector{ReplayBuffer}
    sources::Vector{per_source}
    lock::ReentrantLock

    function Mixture(named::Pair...)
        names, buffers, sources = Symbol[], ReplayBuffer[], per_source[]
        for (name, source) in named
            source isa Tuple{ReplayBuffer,Any} || invalid("$name is a $(typeof(source)); allowed: (buffer, share)")
            push!(names, Symbol(name))
            push!(buffers, source[1])
            push!(sources, per_source(C_NULL, converted(Float64, "share of $name", source[2]), 0, 0))
        end
        allunique(names) || invalid("the names of the buffers are $(join(names, ", ")); allowed: each once")
        any(field -> field.name === :sources, Iterators.flatten(buffer.fields for buffer in buffers)) &&
            invalid("field sources has the name of an array of a mixture's batches; allowed: other names")
        mixture = new(names, buffers, sources, ReentrantLock())
        given = initial(per_priorities)
        call_on_sources(mixture) do pointer, count  # checks that the buffers fit together
            per_mixture_update_priorities(pointer, count, given, C_NULL, C_NULL)
        end
        return mixture
    end
end

parts(mixture::Mixture) = getfield(mixture, :names), getfield(mixture, :buffers), getfield(mixture, :sources)

Base.propertynames(::Mixture, private::Bool = false) = (:buffers, :shares, :carries)
function Base.getproperty(mixture::Mixture, name::Symbol)
    names, buffers, sources = parts(mixture)
    total = sum(source -> source.share, sources)
    name === :buffers && return NamedTuple{(names...,)}((buffers...,))
    name === :shares && return NamedTuple{(names...,)}(((source.share / total for source in sources)...,))
    name === :carries && return NamedTuple{(names...,)}(((source.carry for source in sources)...,))
    return invalid("there is no $name in a mixture; there are buffers, shares, carries")
end

function Base.setproperty!(mixture::Mixture, name::Symbol, value)
    names, _, sources = parts(mixture)
    name in (:shares, :carries) || invalid("$name cannot be set; these can: shares, carries")
    value isa NamedTuple && Set(keys(value)) == Set(names) ||
        invalid("$name is $(repr(value)); allowed: a named tuple with $(join(names, ", "))")
    type = name === :shares ? Float64 : Int64
    numbers_of = [converted(type, "$name.$each", value[each]) for each in names]
    changed(k) = name === :shares ? per_source(C_NULL, numbers_of[k], sources[k].carry, 0) :
                 per_source(C_NULL, sources[k].share, numbers_of[k], 0)
    given = initial(per_priorities)
    lock(getfield(mixture, :lock)) do
        before = copy(sources)
        foreach(k -> sources[k] = changed(k), eachindex(sources))
        try
            call_on_sources(mixture) do pointer, count  # checks the numbers
                per_mixture_update_priorities(pointer, count, given, C_NULL, C_NULL)
            end
        catch
            copyto!(sources, before)
            rethrow()
        end
    end
    return value
end

Base.show(io::IO, mixture::Mixture) = print(io, "Mixture", mixture.shares)

# Runs action(pointer to the sources, their number), which returns a status, while all buffers are kept. Errors get the
# names of the buffers.
function call_on_sources(action, mixture)
    names, buffers, sources = parts(mixture)
    lock(getfield(mixture, :lock)) do
        n_held = 0
        try
            for (k, buffer) in enumerate(buffers)
                acquire(buffer.handle)
                n_held = k
                sources[k] = per_source(buffer.handle.pointer, sources[k].share, sources[k].carry, 0)
            end
            GC.@preserve buffers sources check(action(pointer(sources), length(sources)), (source_of = "batch.sources",))
        catch error
            error isa PERError || rethrow()
            named(found) = names[parse(Int, match(r"\d+", found).match) + 1]
            text = replace(error.message, r"(?<![.\w])sources\[\d+\](\.replay)?(?!\w)" => found -> string(named(found)))
            throw(PERError(error.status, text))
        finally
            foreach(buffer -> release(buffer.handle), buffers[1:n_held])
        end
    end
    return nothing
end

"""
    sample!(mixture, batch_size; out, stream, options...)

Draw a batch from all buffers of a [`Mixture`](@ref), first the rows of the first buffer. They are those that each buffer
would draw alone, with `P(i) = share P_k(i)`, where `P_k` is the probability in their own buffer, and weights `(N
P(i))^-beta`, divided by the largest of the batch; `N` is the number of live transitions of all buffers. Without an
explicit `beta`, each row has that of its buffer.

The arrays are those of the buffers, and `sources`: the number of each row's buffer, from 1; on a device from 0, as in
C. The arguments are those of `sample!` for a buffer, but for `key` and `hindsight`; `normalize_weights` may be
`:batch_max` or `:none`. If it throws, no buffer has made a draw.
"""
function sample!(mixture::Mixture, batch_size; out = nothing, stream = nothing, options...)
    first_buffer = first(getfield(mixture, :buffers))
    memory, queue = first_buffer.memory, stream_of(first_buffer.memory, stream)
    count = converted(Int64, "batch_size", batch_size)
    chosen, n_step = sample_options(first_buffer, options)
    layout = push!(drawn_layout(first_buffer, rows_of(count), n_step), (:sources, Int32, (rows_of(count),)))
    all(buffer -> buffer.keeps_times_sampled, getfield(mixture, :buffers)) ||
        filter!(array -> first(array) !== :times_sampled, layout)
    batch = out === nothing ? allocate(memory, layout) : check_layout(memory, out, layout)
    with_pointers(first_buffer, batch) do filled
        call_on_sources(mixture) do pointer, n
            per_mixture_sample(pointer, n, chosen, count, filled, address(memory, batch.sources), queue)
        end
    end
    memory isa HostMemory && (batch.sources .+= Int32(1))
    return batch
end

"""
    update_priorities!(mixture, batch, td_errors; stream)
    set_priorities!(mixture, batch, priorities; stream)

Set the priorities of the rows of a batch from [`sample!`](@ref) of a [`Mixture`](@ref), each in its buffer. If it throws,
no priority of any buffer has changed. Returns the mixture.
"""
function update_priorities!(mixture::Mixture, batch, td_errors; stream = nothing)
    target = first(getfield(mixture, :buffers))
    rows, errors, n_critics, n_steps = given_errors(target, batch.ids, td_errors, stream)
    with_priorities(rows, :td_errors, errors, n_critics, n_steps) do given
        update_sources(mixture, batch, given, stream)
    end
    return mixture
end

function set_priorities!(mixture::Mixture, batch, priorities; stream = nothing)
    target = first(getfield(mixture, :buffers))
    rows, values = given_priorities(target, batch.ids, priorities, stream)
    with_priorities(rows, :priorities, values) do given
        update_sources(mixture, batch, given, stream)
    end
    return mixture
end

function update_sources(mixture, batch, given, stream)
    memory = first(getfield(mixture, :buffers)).memory
    queue = stream_of(memory, stream)
    sources = source_numbers(memory, batch.sources, stream)
    check_length("sources", sources, length(batch.ids))
    call_on_sources(mixture) do pointer, n
        per_mixture_update_priorities(pointer, n, given, sources, queue)
    end
end

source_numbers(memory::HostMemory, sources, stream) = numbers(memory, Int32, "sources", sources .- 1, stream)
source_numbers(memory::DeviceMemory, sources, stream) = numbers(memory, Int32, "sources", sources, stream)

"""
    Mixture(name => (buffer, share)...; when_empty = :error)

Draws batches from several buffers, in fixed shares: for agents that learn from demonstrations as well as from their own
steps (Ball et al. 2023, "Efficient Online Reinforcement Learning with Offline Data", take half of each batch from
each), or from one buffer for each task.

- `name`: a symbol or text, unique
- `buffer`: a [`ReplayBuffer`](@ref), which can still be used by itself. The buffers, up to 32, are on one device and
  have the same fields and, for sequences, the same lengths and `n_step`; all else may differ. Buffers with
  `max_times_sampled` are not supported
- `share`: of each batch, finite and at least 0; shares are divided by their sum
- `when_empty`: what becomes of the share of a buffer while none of its transitions is live: `:error`, or with `:others`
  the other buffers divide it, each in proportion to its own share. On CUDA each draw then waits for the device

The numbers of rows of a batch are whole numbers. What rounding gives to one buffer, later batches give to the others:
with equal shares, batches of 33 have 17 and 16 rows, then 16 and 17.

`mixture.buffers`, `mixture.shares` (with a sum of 1) and `mixture.carries` are named tuples. Carries are what earlier
batches owe each buffer, in units of 2^-32 rows. Shares and carries can be set, shares at any time. They are the state
of a mixture: with both set, a mixture of the saved and loaded buffers continues bit for bit.

Throws a [`PERError`](@ref), also where shares or carries are set, with status `PER.PER_ERROR_INVALID_ARGUMENT` if the
buffers do not fit together or a number is not allowed, and with `PER.PER_ERROR_UNSUPPORTED` for a buffer with
`max_times_sampled`. The mixture is then as it was before.

```jldoctest
julia> online, demonstrations = (ReplayBuffer(50, (observation = Field(Int32),)) for _ in 1:2);

julia> for (buffer, first) in ((online, 1), (demonstrations, 1001))
           extend!(buffer; observation = first:first+3, reward = ones(4), terminated = falses(4), truncated = falses(4))
       end

julia> mixture = Mixture(:online => (online, 3), :demonstrations => (demonstrations, 1))
Mixture(online = 0.75, demonstrations = 0.25)

julia> batch = sample!(mixture, 4);

julia> batch.sources == [1, 1, 1, 2], (batch.observation .> 1000) == [false, false, false, true]
(true, true)

julia> update_priorities!(mixture, batch, [0.5, 1, 2, 0.1]);

julia> mixture.shares = (online = 0.5, demonstrations = 0.5);

julia> sample!(mixture, 4).sources == [1, 1, 2, 2]
true
```
"""
struct Mixture
    names::Vector{Symbol}
    buffers::Vector{ReplayBuffer}
    sources::Vector{per_source}  # their pointers are valid while call_on_sources() runs
    lock::ReentrantLock

    function Mixture(given...; when_empty = :error)
        names, buffers, sources = Symbol[], ReplayBuffer[], per_source[]
        for one in given
            one isa Pair || invalid("an argument is a $(nameof(typeof(one))); allowed: name => (buffer, share)")
            name, source = one
            source isa Tuple{ReplayBuffer,Any} || invalid("$name is a $(typeof(source)); allowed: (buffer, share)")
            push!(names, Symbol(name))
            push!(buffers, source[1])
            share = converted(Float64, "$name.share", source[2])
            push!(sources, per_source(C_NULL, share, 0, choice(:when_empty, when_empty), 0))
        end
        allunique(names) || invalid("the names of the buffers are $(join(names, ", ")); allowed: each once")
        any(field -> field.name === :sources, Iterators.flatten(buffer.fields for buffer in buffers)) &&
            invalid("field sources has the name of an array of a mixture's batches; allowed: other names")
        mixture = new(names, buffers, sources, ReentrantLock())
        check_sources(mixture)
        return mixture
    end
end

parts(mixture::Mixture) = getfield(mixture, :names), getfield(mixture, :buffers), getfield(mixture, :sources)

Base.propertynames(::Mixture, private::Bool = false) = (:buffers, :shares, :carries)
function Base.getproperty(mixture::Mixture, name::Symbol)
    names, buffers, sources = parts(mixture)
    named(values) = NamedTuple{(names...,)}((values...,))
    locked(getfield(mixture, :lock), buffers) do
        name === :buffers && return named(buffers)
        name === :shares && return named(source.share / sum(one -> one.share, sources) for source in sources)
        name === :carries && return named(source.carry for source in sources)
        return invalid("there is no $name in a mixture; there are buffers, shares, carries")
    end
end

function Base.setproperty!(mixture::Mixture, name::Symbol, value)
    names, buffers, sources = parts(mixture)
    name in (:shares, :carries) || invalid("$name cannot be set; these can: shares, carries")
    value isa NamedTuple && Set(keys(value)) == Set(names) ||
        invalid("$name is $(repr(value)); allowed: a named tuple with $(join(names, ", "))")
    type = name === :shares ? Float64 : Int64
    numbers = [converted(type, "$name.$each", value[each]) for each in names]
    changed(source, number) = name === :shares ? changed_source(source; share = number) :
                              changed_source(source; carry = number)
    locked(getfield(mixture, :lock), buffers) do
        before = copy(sources)
        map!(changed, sources, before, numbers)
        try
            check_sources(mixture)
        catch
            copyto!(sources, before)
            rethrow()
        end
    end
    return value
end

Base.show(io::IO, mixture::Mixture) = print(io, "Mixture", map(share -> round(share; sigdigits = 3), mixture.shares))

changed_source(source; replay = C_NULL, share = source.share, carry = source.carry) =
    per_source(replay, share, carry, source.when_empty, 0)

# Throws unless the buffers fit together and the numbers are allowed.
function check_sources(mixture)
    nothing_given = initial(per_priorities)
    call_on_sources(mixture) do sources, count
        per_mixture_update_priorities(sources, count, nothing_given, C_NULL, C_NULL)
    end
end

# Runs action(pointer to the sources, their number), which returns a status, while all buffers are held.
function call_on_sources(action, mixture)
    names, buffers, sources = parts(mixture)
    reworded(message) = with_names(message, names)
    locked(getfield(mixture, :lock), buffers) do
        n_held = 0
        try
            for (k, buffer) in enumerate(buffers)
                isopen(buffer) || invalid("the buffer $(names[k]) was closed")
                acquire(buffer.handle)
                n_held = k
                sources[k] = changed_source(sources[k]; replay = buffer.handle.pointer)
            end
            GC.@preserve buffers sources check(action(pointer(sources), length(sources)), MIXTURE_WORDS, reworded)
        finally
            foreach(buffer -> release(buffer.handle), view(buffers, 1:n_held))
        end
    end
    return nothing
end

# Names here of arguments of the mixture's calls in C.
const MIXTURE_WORDS = (n_sources = "the number of buffers", source_of = "batch.sources")

# A message with the names of the buffers in place of the library's sources[k] and sources[k].replay.
function with_names(message, names)
    name_of(found) = string(names[parse(Int, match(r"\d+", found).match) + 1])
    return replace(message, r"(?<![.\w])sources\[\d+\](\.replay\b)?" => name_of)
end

"""
    sample!(mixture, batch_size; out, stream, options...)

Draw a [`Batch`](@ref PER.Batch) from all buffers of a [`Mixture`](@ref), first the rows of the first buffer, then those
of the second, and so on. They are those that each buffer would draw alone, with `P(i) = share P_k(i)`, where `P_k` is
the probability in their own buffer, and weights `(N P(i))^-beta / max_j (N P(j))^-beta` over the batch; `N` is the
number of live transitions of all buffers, and `beta` that of the row's buffer unless it is given.

Its arrays are those of the buffers' batches (`times_sampled` if all buffers count it), and `sources`: the number of
each row's buffer as `Int32`, from 1; in arrays on a device from 0, as in C.

- `batch_size`: 1 to 2^24, of all buffers together. A buffer that gets no row makes no draw
- `out`: a batch of the same size and mixture to fill and return, instead of a new one
- `stream`: on CUDA; see [`ReplayBuffer`](@ref). `arrays` and `current_stream` are those of the first buffer
- `options`: those of `sample!` for a buffer, for all of them. Without `beta` each row has that of its buffer, whose
  schedule advances. `normalize_weights` is `:batch_max` unless given, or `:none`

Throws a [`PERError`](@ref) with the statuses of `sample!` for any of the buffers, and `PER.PER_ERROR_UNSUPPORTED` for
`normalize_weights = :buffer_max`. No buffer has then made a draw. (On CUDA the rows of a buffer without live
transitions have ids of -1, and [`PER.synchronize`](@ref) of that buffer throws.)

```jldoctest
julia> buffers = [ReplayBuffer(20, (observation = Field(Int32),)) for _ in 1:2];

julia> for buffer in buffers
           extend!(buffer; observation = 1:9, reward = ones(9), terminated = falses(9), truncated = falses(9))
       end

julia> mixture = Mixture(:mine => (buffers[1], 1), :others => (buffers[2], 1));

julia> batches = [sample!(mixture, 3) for _ in 1:2];

julia> [batch.sources for batch in batches] == [[1, 1, 2], [1, 2, 2]]
true
```
"""
function sample!(mixture::Mixture, batch_size; out = nothing, stream = nothing, options...)
    buffers = getfield(mixture, :buffers)
    first_buffer = first(buffers)
    memory, queue = first_buffer.memory, stream_of(first_buffer.memory, stream)
    count = converted(Int64, "batch_size", batch_size)
    get(options, :n_step, nothing) === nothing && check_n_steps(mixture)
    chosen, n_step = sample_options(first_buffer, options)
    layout = push!(drawn_layout(first_buffer, rows_of(count), n_step), (:sources, Int32, (rows_of(count),)))
    all(buffer -> buffer.keeps_times_sampled, buffers) || filter!(array -> first(array) !== :times_sampled, layout)
    batch = out === nothing ? allocate(first_buffer, layout) : check_layout(memory, out, layout)
    drawn = with_pointers(first_buffer, batch) do filled
        call_on_sources(mixture) do sources, n_sources
            per_mixture_sample(sources, n_sources, chosen, count, filled, address(memory, batch.sources), queue)
        end
    end
    memory isa HostMemory && (drawn.sources .+= Int32(1))
    return drawn
end

# Throws unless sequences of the buffers have the same length.
function check_n_steps(mixture)
    names, buffers = getfield(mixture, :names), getfield(mixture, :buffers)
    first(buffers).sequence_steps > 0 || return
    n_steps = [buffer.n_step for buffer in buffers]
    k = findfirst(!=(first(n_steps)), n_steps)
    k === nothing ||
        invalid("n_step of $(names[k]) is $(n_steps[k]), and of $(first(names)) $(first(n_steps)); allowed for " *
                "sequences: the same for all, or n_step as an argument")
end

"""
    update_priorities!(mixture, batch, td_errors; stream)

Set the priorities of the rows of a batch, each in its buffer, as `update_priorities!` of a buffer does. Returns the
mixture.

- `batch`: from [`sample!`](@ref) of this [`Mixture`](@ref); its `ids` and `sources` are used
- `td_errors`: `B`, or `B×critics`; for sequences `T×B` or `T×B×critics`

Throws a [`PERError`](@ref) for the arguments that `update_priorities!` of a buffer refuses. No priority of any buffer
has then changed.

```jldoctest
julia> buffer = ReplayBuffer(20, (observation = Field(Int32),); epsilon = 0);

julia> extend!(buffer; observation = 1:9, reward = ones(9), terminated = falses(9), truncated = falses(9));

julia> mixture = Mixture(:only => (buffer, 1));

julia> batch = sample!(mixture, 2);

julia> update_priorities!(mixture, batch, [-2, 3]);

julia> priorities(buffer, batch.ids) == [2, 3]
true
```
"""
function update_priorities!(mixture::Mixture, batch, td_errors; stream = nothing)
    target = checked_target(mixture, batch)
    rows, errors, n_critics, n_steps = given_errors(target, batch.ids, td_errors, stream)
    with_priorities(rows, :td_errors, errors, n_critics, n_steps) do given
        update_sources(mixture, batch, given, stream)
    end
    return mixture
end

"""
    set_priorities!(mixture, batch, priorities; stream)

Like [`update_priorities!`](@ref), but takes the priorities themselves, finite and not negative.
"""
function set_priorities!(mixture::Mixture, batch, priorities; stream = nothing)
    target = checked_target(mixture, batch)
    rows, values = given_priorities(target, batch.ids, priorities, stream)
    with_priorities(rows, :priorities, values) do given
        update_sources(mixture, batch, given, stream)
    end
    return mixture
end

# The buffer whose memory and lengths are those of the mixture.
function checked_target(mixture, batch)
    hasproperty(batch, :ids) && hasproperty(batch, :sources) ||
        invalid("batch is a $(nameof(typeof(batch))); allowed: a batch of sample!() of a mixture, with ids and sources")
    return first(getfield(mixture, :buffers))
end

function update_sources(mixture, batch, given, stream)
    memory = first(getfield(mixture, :buffers)).memory
    queue = stream_of(memory, stream)
    source_of = slots(memory, "batch.sources", batch.sources, stream, Int32)
    check_length("batch.sources", source_of, length(batch.ids))
    call_on_sources(mixture) do sources, n_sources
        per_mixture_update_priorities(sources, n_sources, given, source_of, queue)
    end
end

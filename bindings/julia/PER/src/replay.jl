"""
    ReplayBuffer(capacity, fields; options...)

Stores the transitions of `n_envs` environments and draws batches of them with probability `P(i) = p_i^alpha / sum_k
p_k^alpha` (section 3.3, equation 1) and importance-sampling weights.

- `capacity`: total number of rows, rounded up to a multiple of `n_envs`. A row holds a step; at the end of an episode
  the final observation takes another row. Once the rows of an environment are full, at least `rows - 1 - ends of
  episodes - (n_step - 1) - (frame_stack - 1)` of them are live transitions; [`capacity_for`](@ref) computes the
  capacity for a given number of transitions
- `fields`: a named tuple of [`Field`](@ref)s, or pairs `name => Field(...)`. `reward` (`Float32`), `terminated` and
  `truncated` always exist
- `options`: those of `per_replay_options` in `per.h`, which also has their defaults: `n_envs`, `n_step`, `gamma`,
  `frame_stack`, `sequence_length`, `burn_in`, `sequence_stride`, `sequence_eta`, `alpha`, `beta`, `beta_final`,
  `beta_steps`, `epsilon`, `uniform_fraction`, `seed`, `store_next_observation`, `overwrite`, `gather_threads`,
  `save_compression` (of saves: 0, or a zstd level from 1 to 19), `samples_per_insert`, `samples_tolerance` and
  `min_size_to_sample` (the rate limiter: see [`wait_to_add`](@ref)), `keep_times_sampled` (counts how often each
  transition is drawn: `times_sampled` of batches), `max_times_sampled` (draws a transition at most that many times,
  with the scheme `:without_replacement`), and the choices
  `scheme` (`:stratified`, `:independent`, `:systematic`, `:without_replacement`),
  `prioritization` (`:proportional`, `:rank`, `:uniform`), `normalize_weights` (`:batch_max`, `:buffer_max`, `:none`),
  `max_priority` (`:ever`, `:now`), `on_invalid` (`:error`, `:skip`), `on_gap` (`:cut`, `:error`),
  `on_nan` (`:allow`, `:error`: a NaN in an observation or a reward is refused),
  `autoreset` (`:disabled`, `:next_step`, `:same_step`), `critics` (`:mean`, `:max`), `age` (`:steps`, `:versions`),
  `device` (`:cpu`, `:cuda`, `"cuda:1"`)
- `half_life`, `age` and `max_age` prefer recent transitions: with a half-life, `P(i)` is in proportion to `p_i^alpha
  2^(-age_i / half_life)`, and transitions of an age above `max_age` are not drawn. Ages count steps that the environment
  has taken since, or with `age = :versions` the versions that `buffer.version = v` has set since
- `storage`: a directory, created if missing: rows lie in a file there and are cached in memory as far as there is room;
  9.7 bytes a row are always in memory. The file has no name and disappears with the buffer. Copied and deserialized
  buffers lie in memory. Not on CUDA. `storage_preallocated = true` allocates the disk space of all rows at once
- `max_heap_bytes`: limit, in bytes, on the memory of fields that are compressed or have rows of any length. A call that
  would exceed it throws `PER.PER_ERROR_FULL` and changes nothing
- `arrays`: on CUDA, the type of the arrays that the buffer returns, on its device: a type such as `CuArray`, allocated
  by `arrays{T}(undef, size)`, or a function of `T` and `size`
- `current_stream`: on CUDA, a function without arguments that returns the stream of calls without a `stream`

With CUDA.jl, on the current device:

    buffer = ReplayBuffer(10^6, fields; device = :cuda, arrays = CuArray, current_stream = CUDA.stream)

A [`loader`](@ref) there also needs a method of [`PER.device_view`](@ref).

Calls on CUDA enqueue their work and return at once. Arrays on the device are read in place, and must be contiguous and
of the documented element types. Arrays in host memory are copied, on the current stream only (`add!` and `extend!`
accept them with any stream). Invalid values are only detected on the device: [`PER.synchronize`](@ref) reports them.
Other array libraries need the methods of [`PER.is_device_array`](@ref), [`PER.device_pointer`](@ref),
[`PER.device_view`](@ref) and [`PER.stream_pointer`](@ref).

`length(buffer)` is the number of live transitions or sequences, which can be drawn. `buffer.capacity` and
`buffer.n_envs` can be read; `buffer.alpha`, `buffer.beta`, `buffer.gamma`, `buffer.n_step` and
`buffer.save_compression` can be read and set, and so can `buffer.version`, which only grows. Setting `beta` ends its
schedule. The garbage collector frees the memory,
or earlier `close(buffer)`, which also closes its channels and shared loaders.

```jldoctest
julia> buffer = ReplayBuffer(1000, (observation = Field(Float32, 4), action = Field(Int64)); seed = 7);

julia> for t in 1:10
           add!(buffer; observation = fill(t, 4), action = t, reward = 1, terminated = t == 10, truncated = false,
                next_observation = fill(t + 1, 4))
       end

julia> length(buffer), buffer.capacity
(10, 1000)

julia> batch = sample!(buffer, 32);

julia> size(batch.observation), size(batch.weights)
((4, 32), (32,))

julia> update_priorities!(buffer, batch.ids, batch.reward .- 1);

julia> close(buffer)
```
"""
struct ReplayBuffer
    handle::Handle{per_replay}
    fields::Vector{FieldLayout}
    n_envs::Int64
    capacity::Int64
    sequence_steps::Int64  # 0: single transitions
    keeps_times_sampled::Bool
    n_step_lock::ReentrantLock
    memory::Memory
    n_adds::Threads.Atomic{Int64}
    warned_of_resets::Threads.Atomic{Bool}
    mean_lengths::Dict{Symbol,Threads.Atomic{Float64}}  # of rows of any length in the last batch, by array
    served::Vector{WeakRef}  # handles of its channels and shared loaders
    served_lock::ReentrantLock

    function ReplayBuffer(handle::Handle{per_replay}, arrays, current_stream)
        options, fields = described(FieldLayout, handle)
        memory = memory_for(options[].device, arrays, current_stream)
        steps = options[].sequence_length == 0 ? 0 : options[].burn_in + options[].sequence_length
        return new(handle, fields, options[].n_envs, options[].capacity, steps, options[].keep_times_sampled == 1,
                   ReentrantLock(), memory, Threads.Atomic{Int64}(0), Threads.Atomic{Bool}(false),
                   Dict(name => Threads.Atomic{Float64}(0) for name in ragged_names(fields)), WeakRef[],
                   ReentrantLock())
    end
end

# The names of the arrays with rows of any length.
ragged_names(fields) =
    [name for field in fields if is_ragged(field.axes) for name in (field.name, field.next_name)]

# The options of a buffer or a writer, and make(field) for each of its fields, while the handle is held.
function described(make, handle, describe = per_replay_describe)
    options = initial(per_replay_options)
    fields = []
    call(handle) do pointer
        status = describe(pointer, options)
        status == PER_OK || return status
        append!(fields, [make(field_at(options[], i)) for i in 1:options[].n_fields])
        return status
    end
    return options, fields
end

# The library's fields are field_size bytes apart.
function field_at(options, i)
    field = Ref(per_field(C_NULL, C_NULL, 0, 0, 0, 0, C_NULL, 0, 0, 0))
    bytes = Ptr{UInt8}(options.fields) + (i - 1) * options.field_size
    GC.@preserve field begin
        target = Ptr{UInt8}(Base.unsafe_convert(Ptr{per_field}, field))
        unsafe_copyto!(target, bytes, min(options.field_size, sizeof(per_field)))
    end
    return field[]
end

ReplayBuffer(; capacity, fields, options...) = ReplayBuffer(capacity, fields; options...)

function ReplayBuffer(capacity, fields; arrays = nothing, current_stream = nothing, storage = nothing, options...)
    filled = set_options!(initial(per_replay_options), options)
    set_field!(filled, :capacity, capacity)
    replay = Ref(Ptr{per_replay}(C_NULL))
    with_storage(filled, storage) do
        with_fields(() -> per_replay_create(filled, replay), filled, fields)
    end
    return ReplayBuffer(Handle(replay[]), arrays, current_stream)
end

# Runs action(), which returns a status, while the options declare these fields.
function with_fields(action, options, fields)
    kept = Any[]
    declarations = per_field[declared!(kept, name, field) for (name, field) in named(fields)]
    set_field!(options, :fields, pointer(declarations))
    set_field!(options, :n_fields, length(declarations))
    set_field!(options, :field_size, sizeof(per_field))
    GC.@preserve kept declarations check(action())
    return nothing
end

named(fields::NamedTuple) = pairs(fields)
named(field::Pair) = (field,)
function named(fields::Union{AbstractDict,AbstractVector,Tuple,Base.Iterators.Pairs})
    all(field -> field isa Union{Pair,Tuple{Any,Any}}, fields) || refuse_fields(fields)
    return fields
end
named(other) = refuse_fields(other)
refuse_fields(given) =
    invalid("fields is a $(typeof(given)); allowed: a named tuple of Fields, or pairs name => Field(...)")

"""
    capacity_for(transitions; episode_length = 0, fields, options...)

The smallest capacity of a [`ReplayBuffer`](@ref) that keeps that many transitions, or sequences, live once the buffer
is full. Without sequences and `store_next_observation` it is `n_envs (t + (t - 1) / episode_length + n_step +
frame_stack)`, with `t` transitions per environment and divisions rounded down.

- `transitions`: 1 to 2^40, of all environments. For a rollout of `K` steps in each of `n_envs` environments, `K *
  n_envs`: the capacity then holds all of it, ends of episodes included, also with `overwrite = false`
- `episode_length`: steps of the shortest episode; 0 if episodes are longer than the rows of an environment
- `fields`: needed if a field sets its own stack
- `options`: those of [`ReplayBuffer`](@ref); options that do not change the result are ignored

```jldoctest
julia> capacity_for(1000; episode_length = 10)
1101

julia> capacity_for(128 * 8; episode_length = 1, n_envs = 8)
2056
```
"""
function capacity_for(transitions; episode_length = 0, fields = NamedTuple(), arrays = nothing,
                      current_stream = nothing, storage = nothing, options...)
    filled = set_options!(initial(per_replay_options), options)
    wanted, shortest = converted(Int64, "transitions", transitions), converted(Int64, "episode_length", episode_length)
    capacity = Ref{Int64}()
    with_fields(() -> per_replay_compute_capacity(filled, wanted, shortest, capacity), filled, fields)
    return capacity[]
end

# Also closes its channels and shared loaders, whose other processes would wait for a buffer that is gone.
function Base.close(buffer::ReplayBuffer)
    close(getfield(buffer, :handle))
    served = lock(() -> map(reference -> reference.value, buffer.served), buffer.served_lock)
    foreach(handle -> handle === nothing || close(handle), served)
    return nothing
end

function add_served!(buffer, handle)
    lock(buffer.served_lock) do
        filter!(reference -> reference.value !== nothing, buffer.served)
        push!(buffer.served, WeakRef(handle))
    end
    return nothing
end

Base.isopen(buffer::ReplayBuffer) = isopen(getfield(buffer, :handle))

function Base.length(buffer::ReplayBuffer)
    live = Ref{Int64}()
    call(pointer -> per_replay_get_live_ids(pointer, 0, C_NULL, live), buffer.handle)
    return live[]
end

"""
    options(buffer)

The current options of the buffer, as a named tuple; `alpha`, `beta`, `gamma` and `n_step` have the values that were set
last. `ReplayBuffer(; options(buffer)...)` creates an empty buffer like it.

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Float32, 2),); n_envs = 3, scheme = :systematic);

julia> buffer.gamma = 0.5;

julia> again = ReplayBuffer(; options(buffer)...);

julia> options(again) == options(buffer), again.capacity, options(again).scheme, again.gamma
(true, 102, :systematic, 0.5)
```
"""
function options(buffer::ReplayBuffer)
    resolved, fields = described(field -> Symbol(unsafe_string(field.name)) => Field(field), buffer.handle)
    names = filter(name -> name !== :device, option_names(per_replay_options))
    values = map(name -> option(name, field_of(resolved[], name)), names)
    path = resolved[].memory.storage
    storage = GC.@preserve buffer path == C_NULL ? nothing : unsafe_string(path)
    return (; capacity = buffer.capacity, fields, NamedTuple{names}(values)..., storage, device = device_of(resolved[]),
            given(buffer.memory)...)
end

device_of(options) = options.device == PER_CPU ? :cpu : "cuda:$(options.device_index)"

function option(name, value)
    haskey(CHOICES, name) && return name_of_choice(name, value)
    return name in FLAGS ? value != 0 : value
end

"""
    live_ids(buffer)

Ids of the live transitions, environment by environment, in chronological order.

```jldoctest
julia> buffer = ReplayBuffer(20, (observation = Field(Int32),));

julia> extend!(buffer; observation = 1:4, reward = 1:4, terminated = falses(4), truncated = falses(4));

julia> live_ids(buffer) == [0, 1, 2]
true
```
"""
function live_ids(buffer::ReplayBuffer)
    count = Ref{Int64}(0)
    ids = Int64[]
    call(pointer -> per_replay_get_live_ids(pointer, 0, C_NULL, count), buffer.handle)
    while count[] > length(ids)  # again if another task added meanwhile
        resize!(ids, count[])
        call(pointer -> per_replay_get_live_ids(pointer, length(ids), ids, count), buffer.handle)
    end
    return resize!(ids, count[])
end

function Base.show(io::IO, buffer::ReplayBuffer)
    isopen(buffer) || return print(io, "ReplayBuffer (closed)")
    names = join((field.name for field in buffer.fields), ", ")
    return print(io, "ReplayBuffer(", buffer.capacity, ", ", names, ") with ", length(buffer), " live transitions")
end

"""
    stats(buffer)

Statistics of the buffer, as a named tuple. Counters count since creation.

$per_replay_statistics_docs
Loggers accept it directly:
`@info "replay" stats(buffer)...` with a logger of TensorBoardLogger.jl.

```jldoctest
julia> stats(ReplayBuffer(10, (observation = Field(Int32),))).max_priority
1.0
```
"""
stats(buffer::ReplayBuffer) =
    figures_of(result_of(per_replay_get_statistics, per_replay_statistics, buffer.handle))

Base.propertynames(::ReplayBuffer, private::Bool = false) =
    (:capacity, :n_envs, :n_step, :alpha, :beta, :gamma, :save_compression, :version)

function Base.getproperty(buffer::ReplayBuffer, name::Symbol)
    name in (:alpha, :beta, :gamma, :version) && return getfield(stats(buffer), name)
    name in (:n_step, :save_compression) && return getfield(options_now(buffer), name)
    return getfield(buffer, name)
end

options_now(buffer::ReplayBuffer) = first(described(identity, buffer.handle))[]

n_step(buffer::ReplayBuffer) = options_now(buffer).n_step

const SETTABLE = (:alpha, :beta, :gamma, :n_step, :save_compression, :version)

function Base.setproperty!(buffer::ReplayBuffer, name::Symbol, value)
    name in SETTABLE || invalid("$name cannot be set; these can: $(join(SETTABLE, ", "))")
    settings = initial(per_replay_settings)
    unchanged = getfield(settings[], name)
    set_field!(settings, name, value)
    given = getfield(settings[], name)
    if isnan(given) || given == unchanged  # C leaves such a setting unchanged
        invalid("$name is $(repr(value)); allowed: $(name === :n_step ? 1 : 0) and above")
    end
    queue = stream_of(buffer.memory, nothing)
    locked(buffer.n_step_lock, (buffer,)) do
        call(pointer -> per_replay_change_settings(pointer, settings, queue), buffer.handle)
    end
    return value
end

"""
    wait_to_add(buffer, count; timeout = Inf)

Wait at most `timeout` seconds until the rate limiter allows `count` more steps, of all environments together. Other
tasks may use the buffer meanwhile.

The limiter counts `a` steps added (without masked ones) and `d` transitions drawn by `sample!` and loaders, since the
buffer was created or cleared. `r`, `e` and `m` are the options `samples_per_insert`, `samples_tolerance` and
`min_size_to_sample` (at least 1). Adding `k` steps is allowed if `floor(r * (a + k - m)) - d <= e`; drawing `b`
transitions is allowed if `a >= m` and `floor(r * (a - m)) - d - b >= -e`. With `r = 0` only draws are limited, by `a >=
m`. A call that is not allowed yet throws a [`PERError`](@ref) with status `PER.PER_ERROR_BUSY`; so does this function
after `timeout` seconds. A call for more than `e` transitions, or for more than `e / r` steps beyond the first `m`, is
never allowed and throws with status `PER.PER_ERROR_INVALID_ARGUMENT`. Hence either an add or a draw is always allowed.
Choose `m` so large that a draw succeeds after `m` steps, and that a prefill by one `extend!` lies within the first `m`
steps. Loaders and channels wait on their own. The add may still be `PER.PER_ERROR_BUSY` if another task adds first:
then wait again.

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Int32),); samples_per_insert = 2, samples_tolerance = 8);

julia> add() = add!(buffer; observation = 1, reward = 1, terminated = false, truncated = false, next_observation = 1);

julia> for step in 1:5
           add()
       end

julia> try
           add()
       catch error
           error.status == PER.PER_ERROR_BUSY
       end
true

julia> sample!(buffer, 8);

julia> wait_to_add(buffer, 4)

julia> stop_limiting!(buffer);
```
"""
wait_to_add(buffer::ReplayBuffer, count; timeout = Inf) =
    wait_for_rate(buffer, per_replay_wait_to_add, converted(Int64, "count", count), timeout)

"""
    wait_to_sample(buffer, batch_size; timeout = Inf)

Wait until the rate limiter allows a draw of `batch_size` transitions: see [`wait_to_add`](@ref).
"""
wait_to_sample(buffer::ReplayBuffer, batch_size; timeout = Inf) =
    wait_for_rate(buffer, per_replay_wait_to_sample, converted(Int64, "batch_size", batch_size), timeout)

function wait_for_rate(buffer, wait, count, timeout)
    options_now(buffer)  # throws while this task saves the buffer, since no wait would end
    return call_in_time(pointer -> wait(pointer, count, 0), buffer.handle, timeout)
end

"""
    stop_limiting!(buffer)

End the limits of `samples_per_insert` and `min_size_to_sample` permanently, and wake all waiters. Returns the buffer.
"""
function stop_limiting!(buffer::ReplayBuffer)
    call(per_replay_stop_limiting, buffer.handle)
    return buffer
end

"""
    clear!(buffer; stream)

Empty the buffer. Ids continue counting; the random state, the maximum priority and the schedule of beta stay. Returns
the buffer.
"""
function clear!(buffer::ReplayBuffer; stream = nothing)
    queue = stream_of(buffer.memory, stream)
    call(pointer -> per_replay_clear(pointer, queue), buffer.handle)
    return buffer
end

function synchronize(buffer::ReplayBuffer; stream = nothing)
    queue = stream_of(buffer.memory, stream)
    call(pointer -> per_replay_synchronize(pointer, queue), buffer.handle)
    return nothing
end

"""
A batch of transitions from [`sample!`](@ref) or [`get`](@ref Base.get(::ReplayBuffer, ::Any)): arrays by property
(`batch.observation`) or by name (`batch[:observation]`, `batch["observation"]`). The last axis counts the transitions;
for sequences the axis before it is time. Fields with `max_length` are [`Ragged`](@ref) arrays of rows. `keys(batch)`
has the names.
"""
struct Batch{T<:NamedTuple}
    arrays::T
end

arrays_of(batch::Batch) = getfield(batch, :arrays)
Base.getproperty(batch::Batch, name::Symbol) = batch[name]
Base.propertynames(batch::Batch, private::Bool = false) = keys(batch)
Base.getindex(batch::Batch, name::AbstractString) = batch[Symbol(name)]
function Base.getindex(batch::Batch, name::Symbol)
    arrays = arrays_of(batch)
    haskey(arrays, name) || invalid("there is no $name in the batch; $(hint_for(batch, name))")
    return arrays[name]
end
# The end of the message for an array that the batch does not have.
function hint_for(batch, name)
    is_left_out = name === :next_observation && haskey(batch, :observation)
    is_left_out || return "there are $(join(keys(batch), ", "))"
    haskey(batch, :mask) || return "next_observations = true reads it"
    return "in sequences the next observation of step t is number t + n_steps[t] of observation"
end
Base.keys(batch::Batch) = keys(arrays_of(batch))
Base.haskey(batch::Batch, name::Symbol) = haskey(arrays_of(batch), name)
Base.haskey(batch::Batch, name::AbstractString) = haskey(batch, Symbol(name))
Base.pairs(batch::Batch) = pairs(arrays_of(batch))

function Base.show(io::IO, batch::Batch)
    described = [string(name, "::", described_array(array)) for (name, array) in pairs(batch)]
    return print(io, "Batch(", join(described, ", "), ")")
end

described_array(array) = string(eltype(array), "[", join(size(array), '×'), "]")
described_array(ragged::Ragged) =
    string(eltype(ragged.values), "[", join((Base.front(size(ragged.values))..., '…', size(ragged)...), '×'), "]")

# The arrays of a batch besides fields and next fields: one number for each transition, and the mask of sequences. These
# are vectors, since code for tuples of that length takes 20 s to compile.
const DRAWN_NUMBERS = Pair{Symbol,DataType}[
    :reward => Float32,
    :discount => Float32,
    :n_steps => Int32,
    :terminated => Bool,
    :truncated => Bool,
    :weights => Float32,
    :ids => Int64,
    :priorities => Float32,
    :probabilities => Float32,
    :gamma_m => Float32,
    :times_sampled => Int32,
]
const ROW_NUMBERS = filter(entry -> !(first(entry) in (:weights, :probabilities)), DRAWN_NUMBERS)
const SEQUENCE_NUMBERS = vcat(DRAWN_NUMBERS, :mask => Bool)
# Arrays with one number for each sequence; the others have one for each step.
const WHOLE_NUMBERS = (:weights, :ids, :priorities, :probabilities, :times_sampled)

frame_axes(field) = field.stack == 1 ? (field.axes...,) : (field.axes..., field.stack)

# (name, element type, size) of each array of a batch of drawn transitions, or of transitions by id: as they were added
# (rows) or with stacks (windows). An axis of any length is `nothing`.
function drawn_layout(buffer, count, n_step)
    buffer.sequence_steps > 0 && return sequence_layout(buffer, count, n_step)
    return batch_layout(buffer, field -> (frame_axes(field)..., count), DRAWN_NUMBERS, count)
end
row_layout(buffer, count) = batch_layout(buffer, field -> (field.axes..., count), ROW_NUMBERS, count)
window_layout(buffer, count) = batch_layout(buffer, field -> (frame_axes(field)..., count), ROW_NUMBERS, count)

function sequence_layout(buffer, count, n_step)
    steps = buffer.sequence_steps
    time_axes(field) = field.observed ? (steps + n_step,) : field.is_state ? () : (steps,)
    size_of(field) = (frame_axes(field)..., time_axes(field)..., count)
    layout = Tuple{Symbol,DataType,Tuple}[(f.name, f.element_type, size_of(f)) for f in buffer.fields]
    append!(
        layout,
        (name, type, name in WHOLE_NUMBERS ? (count,) : (steps, count)) for
        (name, type) in kept_numbers(buffer, SEQUENCE_NUMBERS)
    )
    return layout
end

# The numbers that batches of this buffer have.
kept_numbers(buffer, numbers) =
    buffer.keeps_times_sampled ? numbers : filter(entry -> first(entry) !== :times_sampled, numbers)

function batch_layout(buffer, size_of, numbers, count)
    layout = Tuple{Symbol,DataType,Tuple}[(f.name, f.element_type, size_of(f)) for f in buffer.fields]
    append!(layout, (f.next_name, f.element_type, size_of(f)) for f in buffer.fields if f.observed)
    append!(layout, (name, type, (count,)) for (name, type) in kept_numbers(buffer, numbers))
    return layout
end

function allocate(buffer, layout)
    arrays = Any[
        nothing in size ? Room(type, size, buffer.mean_lengths[name]) : new_array(buffer.memory, type, size) for
        (name, type, size) in layout
    ]
    return Batch(NamedTuple{Tuple(first.(layout))}((arrays...,)))
end

function check_layout(memory, batch::Batch, layout)
    ragged = findfirst(array -> nothing in last(array), layout)
    ragged === nothing ||
        invalid("out is given; not allowed with rows of any length, which $(first(layout[ragged])) has")
    names = first.(layout)
    keys(batch) == Tuple(names) || invalid("out has $(join(keys(batch), ", ")); wanted: $(join(names, ", "))")
    for (array, (name, type, size_wanted)) in zip(values(arrays_of(batch)), layout)
        fits(memory, array, type, size_wanted) && continue
        invalid("out.$name is a $(summary(array)); wanted: $(join(size_wanted, '×')) $type")
    end
    return batch
end
check_layout(memory, other, layout) = invalid("out is a $(typeof(other)), not a batch")

# Runs action(per_batch) with the arrays of the batch. Returns the batch with rows in place of their rooms.
function with_pointers(action, buffer, batch::Batch)
    arrays, memory = arrays_of(batch), buffer.memory
    fields = Ptr{Cvoid}[address(memory, arrays[field.name]) for field in buffer.fields]
    next_fields = Ptr{Cvoid}[
        haskey(arrays, field.next_name) ? address(memory, arrays[field.next_name]) : C_NULL for field in buffer.fields
    ]
    GC.@preserve arrays fields next_fields begin
        filled = initial(per_batch)
        set_field!(filled, :fields, pointer(fields))
        set_field!(filled, :next_fields, pointer(next_fields))
        for (name, _) in kept_numbers(buffer, SEQUENCE_NUMBERS)
            haskey(arrays, name) && set_field!(filled, name, address(memory, arrays[name]))
        end
        isempty(buffer.mean_lengths) && (action(filled); return batch)
        with_room(() -> action(filled), [array for array in arrays if array isa Room])
    end
    return Batch(map(taken!, arrays))
end

"""
    sample!(buffer, batch_size; out, hindsight, stream, options...)

Draw live transitions as a [`Batch`](@ref PER.Batch) with the importance-sampling weights `w_i = (N P(i))^-beta / max_j
(N P(j))^-beta` (section 3.4), `N` being the number of live transitions.

Its arrays: each field `x`, `next_x` of observations, `reward` (the `n_step` return), `discount` (the factor of the
bootstrap value, 0 after a terminal state), `n_steps`, `terminated`, `truncated`, `weights`, `ids`, `priorities`,
`probabilities`, and `gamma_m`: `gamma^m` after a terminal state, too, for learners that leave out the bootstrap value
by `terminated` themselves. With `keep_times_sampled` also `times_sampled`: how often the transition has been drawn since
it was added, this batch included.

Sequences of `T = burn_in + sequence_length` steps have a value for each step, as if the step were drawn alone:
`axes×T×B`. Observations are `axes×(T + n_step)×B`; step `t` bootstraps from number `t + n_steps[t]`. Fields of role
`:recurrent_state` have the value of the first step, `axes×B`. `weights`, `ids`, `priorities`, `probabilities` and
`times_sampled` have one number for each sequence. There is no `next_x`. `mask` is false after the end of the episode,
where all values are 0.

- `out`: a batch of the same size and buffer to fill and return, instead of a new one. A captured CUDA graph needs it.
  Not with rows of any length
- `stream`: on CUDA; see [`ReplayBuffer`](@ref)
- `key`: two integers, such as `[7, 3]`: reproduces the fourth draw of a buffer with seed 7. Counts as one draw of this
  buffer. Not with `hindsight`
- `hindsight`: a [`Hindsight`](@ref), which replaces the goals of some transitions by goals that were reached later. An
  exception of its reward function is rethrown; the call then does not count as a draw
- `options`: `beta`, `uniform_fraction`, `n_step`, `scheme`, `prioritization`, `normalize_weights`, which override the
  buffer's for this call. An explicit `beta` does not advance the schedule. With `n_step = 1:5` an n from `1:5` is drawn
  for each transition or sequence; `n_steps` is the length of its window
- `newest = k`: the last `k` transitions of the batch are not drawn: they are the `k` newest live ones, newest first,
  with weight 1. `newest = 1` is combined experience replay (Zhang and Sutton 2017, section 4)

Throws a [`PERError`](@ref) with status `PER.PER_ERROR_EMPTY` if no transition is live. (On CUDA ids are -1, and
[`PER.synchronize`](@ref) throws it.)

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Int32),); n_step = 2, gamma = 0.5);

julia> extend!(buffer; observation = 1:3, reward = [1, 2, 4], terminated = falses(3), truncated = falses(3));

julia> batch = sample!(buffer, 5);

julia> batch.observation == ones(5), batch.reward == fill(2, 5), batch.next_observation == fill(3, 5)
(true, true, true)

julia> sample!(buffer, 5; out = batch, beta = 1) === batch
true
```
"""
function sample!(
    buffer::ReplayBuffer, batch_size; out = nothing, key = nothing, hindsight = nothing, stream = nothing, options...
)
    queue = stream_of(buffer.memory, stream)
    count = converted(Int64, "batch_size", batch_size)
    chosen, n_step = sample_options(buffer, options)
    seed_and_number = key === nothing ? nothing : numbers(buffer.memory, UInt64, "key", key, stream)
    if seed_and_number !== nothing
        check_length("key", seed_and_number, 2)
        chosen === C_NULL && (chosen = initial(per_sample_options))
        set_field!(chosen, :key, pointer(seed_and_number))
    end
    layout = drawn_layout(buffer, rows_of(count), n_step)
    batch = out === nothing ? allocate(buffer, layout) : check_layout(buffer.memory, out, layout)
    return GC.@preserve seed_and_number with_pointers(buffer, batch) do filled
        call_with_hindsight(buffer, hindsight, chosen) do pointer, given
            per_replay_sample(pointer, given, count, filled, queue)
        end
    end
end

# The options of a call, or C_NULL if it has none, and the n_step that determines the layout of its sequences.
function sample_options(buffer, options)
    chosen = isempty(options) ? C_NULL : set_options!(initial(per_sample_options), options)
    buffer.sequence_steps > 0 || return chosen, 0
    # Always explicit, since the arrays are allocated for this n_step.
    chosen === C_NULL && (chosen = initial(per_sample_options))
    n_step = buffer.n_step
    chosen[].n_step == 0 && set_field!(chosen, :n_step, n_step)
    # The library refuses a larger one.
    return chosen, clamp(chosen[].n_step, 1, n_step)
end

"""
    get_windows(buffer::ReplayBuffer, ids; on_invalid = :error, out, hindsight, stream, options...)

The live transitions of the ids as a [`Batch`](@ref PER.Batch), in the form of [`sample!`](@ref): n-step returns,
stacks, sequences, and the probabilities and weights of one draw with replacement by the current priorities. It does not
count as a draw: the random state, the schedule of `beta` and all statistics stay unchanged. A transition of priority 0,
which is never drawn, has weight 0.

- `ids`: in any order; one may be given several times
- `on_invalid`: an id that is not live is an `:error`, or is skipped with `:skip`: the batch then has id -1 and zeros
  there. On CUDA such ids are always skipped; with `:error` [`PER.synchronize`](@ref) throws
- `out`, `hindsight`, `stream`, `options`: as for `sample!`; the scheme has no effect. With `hindsight`, or a range for
  `n_step`, the call advances the counter of draws, and counts in `samples`

Throws a [`PERError`](@ref) for the first id that is not live, unless such ids are skipped.

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Int32),); n_step = 2, gamma = 0.5);

julia> ids = extend!(buffer; observation = 1:4, reward = [1, 2, 4, 8], terminated = falses(4), truncated = falses(4));

julia> get_windows(buffer, ids[[2, 1]]).reward == [4, 2]
true

julia> get_windows(buffer, ids; on_invalid = :skip).ids == [ids[1], ids[2], -1, -1]
true
```
"""
function get_windows(
    buffer::ReplayBuffer, ids; on_invalid = :error, out = nothing, hindsight = nothing, stream = nothing, options...
)
    queue = stream_of(buffer.memory, stream)
    wanted = numbers(buffer.memory, Int64, "ids", ids, stream)
    count, skips = length(wanted), choice(:on_invalid, on_invalid)
    chosen, n_step = sample_options(buffer, options)
    layout = drawn_layout(buffer, rows_of(count), n_step)
    batch = out === nothing ? allocate(buffer, layout) : check_layout(buffer.memory, out, layout)
    return with_pointers(buffer, batch) do filled
        call_with_hindsight(buffer, hindsight, chosen) do pointer, given
            per_replay_get_windows(pointer, given, skips, count, wanted, filled, queue)
        end
    end
end

"""
    get(buffer::ReplayBuffer, ids; next_observations = true, stream)

The rows of the ids as a [`Batch`](@ref PER.Batch), as they were added: one step and one frame, whatever `n_step` and
`frame_stack`; without `weights` and `probabilities`. Throws a [`PERError`](@ref) for ids that were overwritten, and for
steps without a known next observation: those can only be read with `next_observations = false`, which leaves next
observations out of the batch.

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Int32),));

julia> ids = extend!(buffer; observation = 1:3, reward = [1, 2, 4], terminated = falses(3), truncated = falses(3));

julia> get(buffer, ids[1:2]).reward == [1, 2]
true
```
"""
function Base.get(buffer::ReplayBuffer, ids; next_observations = true, stream = nothing)
    queue = stream_of(buffer.memory, stream)
    wanted = numbers(buffer.memory, Int64, "ids", ids, stream)
    layout = row_layout(buffer, length(wanted))
    if !converted(Bool, "next_observations", next_observations)
        filter!(array -> all(field -> field.next_name != first(array), buffer.fields), layout)
    end
    batch = allocate(buffer, layout)
    return with_pointers(buffer, batch) do filled
        call(pointer -> per_replay_get(pointer, length(wanted), wanted, filled, queue), buffer.handle)
    end
end

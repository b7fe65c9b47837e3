"""
An iterator over batches of all live transitions, returned by [`epochs`](@ref).
"""
struct Epochs
    buffer::ReplayBuffer
    handle::Handle{per_epochs}
    batch_size::Int64
    n_step::Int64
end

"""
    epochs(buffer, count; batch_size, drop_last = false)

An iterator over batches that visits every transition that is live now once per epoch, in `count` epochs of different
random order. Each epoch counts as one draw of the buffer, made by this call: the seed and the earlier draws decide
every order, whatever is drawn in between.

The last batch of an epoch has the remaining transitions; `drop_last` omits it if it is smaller than the others. Batches
have the form of [`sample!`](@ref), with weights 1. Several tasks may share one iterator; each batch is handed out once.

On CUDA the work is enqueued on the current stream of each call.

Throws a [`PERError`](@ref) with status `PER.PER_ERROR_EMPTY` if no transition is live, and while iterating, with
`PER.PER_ERROR_INVALID_ARGUMENT`, for a batch with a transition that is no longer live. (On CUDA the id of such a
transition is -1, the epochs continue, and [`PER.synchronize`](@ref) throws.)

```jldoctest
julia> buffer = ReplayBuffer(20, (observation = Field(Int32),); overwrite = false);

julia> extend!(buffer; observation = 1:6, reward = 1:6, terminated = [zeros(5); 1], truncated = falses(6),
               next_mask = falses(6));

julia> [length(batch.ids) for batch in epochs(buffer, 2; batch_size = 4)] == [4, 2, 4, 2]
true

julia> sort(vcat((batch.reward for batch in epochs(buffer, 1; batch_size = 4))...)) == 1:6
true
```
"""
function epochs(buffer::ReplayBuffer, count; batch_size, drop_last = false)
    size = converted(Int64, "batch_size", batch_size)
    n_epochs = converted(Int64, "count", count)
    drops = converted(Bool, "drop_last", drop_last)
    created, queue = Ref(Ptr{per_epochs}(C_NULL)), stream_of(buffer.memory, nothing)
    # The library refuses to continue epochs of sequences after a change of n_step.
    locked(buffer.n_step_lock, (buffer,)) do
        call(pointer -> per_epochs_create(pointer, n_epochs, size, drops, queue, created), buffer.handle)
        return Epochs(buffer, Handle(created[]), size, buffer.n_step)
    end
end

Base.IteratorSize(::Type{Epochs}) = Base.SizeUnknown()
Base.eltype(::Type{Epochs}) = Batch

function Base.iterate(epochs::Epochs, ::Nothing = nothing)
    batch = allocate(epochs.buffer, drawn_layout(epochs.buffer, epochs.batch_size, epochs.n_step))
    count, queue = Ref{Int64}(0), stream_of(epochs.buffer.memory, nothing)
    batch = with_pointers(epochs.buffer, batch) do filled
        # The epochs do not keep the buffer open; it may be closed meanwhile.
        call(epochs.buffer.handle) do _
            call(pointer -> per_epochs_next(pointer, filled, count, queue), epochs.handle)
            return PER_OK
        end
    end
    return count[] == 0 ? nothing : (first_of(batch, count[]), nothing)
end

# The first transitions of a batch.
function first_of(batch::Batch, count)
    length(batch.ids) == count && return batch
    return Batch(map(array -> first_rows(array, count), arrays_of(batch)))
end
first_rows(array, count) = copy(selectdim(array, ndims(array), 1:count))
function first_rows(ragged::Ragged, count)
    size_wanted = (Base.front(size(ragged))..., count)
    return Ragged(ragged.values, ragged.offsets[1:prod(size_wanted)+1], size_wanted)
end

"""
    advantages!(buffer; value = :value, advantage = :advantage, returns = nothing, lambda = 0.95, bootstrap = nothing)

Write generalised advantage estimates (Schulman et al. 2016, arXiv:1506.02438, equation 16) to the field `advantage`:
`A_t = delta_t + gamma lambda A_(t+1)` with `delta_t = r_t + gamma V(next_t) - V_t`. `V(next_t)` is 0 after a terminal
state, and `A_(t+1)` after any end of an episode. Returns the buffer.

`V_t` is the field `value` as added with the step, and `V(next_t)` that of the next step. Some steps have no next step:
the last step of a truncated episode, and the latest step of a running one. For a [`Batch`](@ref PER.Batch) of such
steps `bootstrap(batch)` computes `V(next_t)` from `batch.next_observation`. `returns` names a field for `A_t + V_t`.
All are plain `Float32` numbers.

```jldoctest
julia> fields = (observation = Field(Int32), value = Field(Float32), advantage = Field(Float32));

julia> buffer = ReplayBuffer(20, fields; gamma = 0.5);

julia> ids = extend!(buffer; observation = 0:2, value = ones(3), advantage = zeros(3), reward = ones(3),
                     next_observation = 1:3, terminated = falses(3), truncated = [false, false, true]);

julia> advantages!(buffer; lambda = 1, bootstrap = batch -> 2 .* batch.next_observation);

julia> get(buffer, ids).advantage == [1.5, 2, 3]
true
```
"""
function advantages!(buffer::ReplayBuffer; value = :value, advantage = :advantage, returns = nothing, lambda = 0.95,
                     bootstrap = nothing)
    for (argument, name) in (("value", value), ("advantage", advantage))
        name === nothing && invalid("$argument is nothing; allowed: the name of a field")
    end
    fields = field_number.(Ref(buffer), ("value", "advantage", "returns"), (value, advantage, returns))
    factor = converted(Float64, "lambda", lambda)
    batch = bootstraps(buffer)
    ids, values = Int64[], Float32[]
    if batch !== nothing
        bootstrap === nothing && invalid("bootstrap is not given: $(length(batch.ids)) steps need the value of their " *
                                         "next observation")
        ids = numbers(buffer.memory, Int64, "ids", batch.ids, nothing)
        values = numbers(buffer.memory, Float32, "bootstrap", bootstrap(batch), nothing)
        check_length("bootstrap", values, length(ids))
    end
    queue = stream_of(buffer.memory, nothing)
    call(buffer.handle, ADVANTAGE_WORDS) do pointer
        per_replay_compute_advantages(pointer, fields..., factor, length(ids), ids, values, queue)
    end
    return buffer
end

# Names here of the arguments of per_replay_compute_advantages().
const ADVANTAGE_WORDS = (
    value_field = "value",
    advantage_field = "advantage",
    return_field = "returns",
    bootstrap_values = "bootstrap's values",
)

# The number of a field in C; -1 for nothing, which the library accepts for an optional field.
field_number(buffer, argument, ::Nothing) = -1
function field_number(buffer, argument, name)
    position = findfirst(field -> field.name === name, buffer.fields)
    position === nothing || return position - 1
    names = join((repr(field.name) for field in buffer.fields), ", ")
    declared = argument == "value" ? "Field(Float32)" : "Field(Float32; default = 0)"
    hint = argument in ("value", "advantage", "returns") ? ", or declare $name = $declared" : ""
    return invalid("$argument is $(repr(name)); allowed: $names$hint")
end

# The steps whose next observations need a value, as a batch; nothing if no step does.
function bootstraps(buffer)
    count, queue = Ref{Int64}(0), stream_of(buffer.memory, nothing)
    size = -1
    local batch
    while count[] > size  # again if another task added meanwhile
        size = count[]
        batch = with_pointers(buffer, allocate(buffer, window_layout(buffer, size))) do filled
            call(pointer -> per_replay_get_bootstraps(pointer, size, filled, count, queue), buffer.handle)
        end
    end
    return count[] == 0 ? nothing : first_of(batch, count[])
end

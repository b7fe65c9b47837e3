"""
    update_priorities!(buffer, ids, td_errors; stream)

Set the priorities of the transitions with these ids to `p = |td_error| + epsilon` (section 3.3). With several critics
`td_errors` is `length(ids)×critics`, and `|td_error|` is the mean over them, or the largest (`critics = :max` of the
buffer). The last of equal ids wins. Transitions that were overwritten meanwhile and ids of -1 are ignored and counted.
Returns the buffer.

For sequences of `T` steps `td_errors` is `T×length(ids)` or `T×length(ids)×critics`, with `sequence_length` instead of
`T` if the burn-in is left out. Then `p = sequence_eta max_t |d_t| + (1 - sequence_eta) mean_t |d_t| + epsilon` over the
steps after the burn-in where the mask is true (Kapturowski et al. 2019, section 2.3).

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Int32),); epsilon = 0);

julia> ids = extend!(buffer; observation = 1:3, reward = [1, 2, 4], terminated = falses(3), truncated = falses(3));

julia> update_priorities!(buffer, ids[1:2], [-3 -1; 2 5]);

julia> priorities(buffer, ids[1:2]) == [2, 3.5]
true
```
"""
function update_priorities!(buffer::ReplayBuffer, ids, td_errors; stream = nothing)
    queue = stream_of(buffer.memory, stream)
    rows, errors, n_critics, n_steps = given_errors(buffer, ids, td_errors, stream)
    with_priorities(rows, :td_errors, errors, n_critics, n_steps) do given
        call(pointer -> per_replay_update_priorities(pointer, given, queue), buffer.handle)
    end
    return buffer
end

# Runs action(given) with a per_priorities that has the values in the member of that name, while ids and values are
# kept.
function with_priorities(action, ids, name, values, n_critics = 1, n_steps = 0)
    GC.@preserve ids values begin
        given = initial(per_priorities)
        set_field!(given, :count, length(ids))
        set_field!(given, :ids, pointer(ids))
        set_field!(given, name, pointer(values))
        set_field!(given, :n_critics, n_critics)
        set_field!(given, :n_steps, n_steps)
        return action(given)
    end
end

# For a buffer or a reader: ids, TD errors, number of critics, and number of steps of each sequence (0 without
# sequences).
function given_errors(target, ids, td_errors, stream)
    rows = numbers(target.memory, Int64, "ids", ids, stream)
    errors = numbers(target.memory, Float32, "td_errors", td_errors, stream)
    n_steps = target.sequence_steps > 0 ? size(errors, 1) : 0
    axis = n_steps > 0 ? 3 : 2
    are_like_ids = n_steps == 0 && ndims(ids) > 1 && size(errors) == size(ids)
    n_critics = ndims(errors) == axis && !are_like_ids ? size(errors, axis) : 1
    check_length("td_errors", errors, max(n_steps, 1) * length(rows) * n_critics)
    return rows, errors, n_critics, n_steps
end

"""
    set_priorities!(buffer, ids, priorities; stream)

Like [`update_priorities!`](@ref), but takes the priorities themselves, finite and not negative.
"""
function set_priorities!(buffer::ReplayBuffer, ids, priorities; stream = nothing)
    queue = stream_of(buffer.memory, stream)
    rows, values = given_priorities(buffer, ids, priorities, stream)
    with_priorities(rows, :priorities, values) do given
        call(pointer -> per_replay_update_priorities(pointer, given, queue), buffer.handle)
    end
    return buffer
end

function given_priorities(target, ids, priorities, stream)
    rows = numbers(target.memory, Int64, "ids", ids, stream)
    values = numbers(target.memory, Float32, "priorities", priorities, stream)
    check_length("priorities", values, length(rows))
    return rows, values
end

"""
    priorities(buffer, ids; stream)

The priorities of the transitions with these ids as `Float32`, before alpha; 0 for those that are not live.
"""
function priorities(buffer::ReplayBuffer, ids; stream = nothing)
    memory, queue = buffer.memory, stream_of(buffer.memory, stream)
    rows = numbers(memory, Int64, "ids", ids, stream)
    values = new_array(memory, Float32, size(rows))
    call(pointer -> per_replay_get_priorities(pointer, length(rows), rows, written(memory, values), queue), buffer.handle)
    return values
end

"""
    set!(buffer, ids; stream, fields...)

Write fields of the transitions with these ids, `axes×length(ids)` each, or rows of any length in the forms of
[`add!`](@ref). Observation fields cannot be written, since rows share them. Rows that were overwritten meanwhile are
ignored and counted. Returns the buffer.

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Int32), advantage = Field(Float32)));

julia> ids = extend!(buffer; observation = 1:3, advantage = zeros(3), reward = ones(3), terminated = falses(3),
                     truncated = falses(3));

julia> set!(buffer, ids[1:2]; advantage = [0.5, 0.25]);

julia> get(buffer, ids[1:2]).advantage == [0.5, 0.25]
true
```
"""
function set!(buffer::ReplayBuffer, ids; stream = nothing, values...)
    queue = stream_of(buffer.memory, stream)
    rows = numbers(buffer.memory, Int64, "ids", ids, stream)
    kept = Any[]
    fields = fill(NO_ARRAY, length(buffer.fields))
    for (name, value) in values
        position = findfirst(field -> field.name === name, buffer.fields)
        position === nothing && invalid("$name cannot be set; " * settable(buffer))
        axes = buffer.fields[position].axes
        fields[position] =
            is_ragged(axes) ? passed_rows!(kept, name, packed(name, value, fixed(axes), (length(rows),))) :
            passed_there!(buffer.memory, kept, name, value, stream)
    end
    GC.@preserve kept begin
        call(pointer -> per_replay_set(pointer, length(rows), rows, fields, queue), buffer.handle)
    end
    return buffer
end

# The fields that set!() takes, for its messages.
function settable(buffer)
    names = [field.name for field in buffer.fields if !field.observed]
    return isempty(names) ? "this buffer has only observations" : "these can: " * join(names, ", ")
end

"""
    add!(buffer; fields..., reward, terminated, truncated, next_fields...)

Add one step of every environment and return its ids, -1 where nothing was added.

Each keyword takes an array whose last axis counts the environments: `observation` of a `Field(UInt8, 84, 84)` is
`84×84×n_envs`. With one environment that axis may be omitted, and scalars are accepted. Rewards, flags and priorities
may be a single number for all environments. Elements are cast as `per.h` describes at `per_array`; flags are Booleans,
or 0 and 1 of any type. Ids have the shape of `reward`, or of the first flag that is an array.

- a field with a `default` may be omitted
- a field with `max_length` takes an array of rows, one for each environment, each `axes×length`: `tokens = [[1, 2], [3,
  4, 5]]`; or a [`Ragged`](@ref). Rows that are equally long may be one array, `axes×length×n_envs`, and with one
  environment the row itself suffices
- `next_observation`, likewise for each observation: the observation after the step. It may be omitted on steps that do
  not end an episode
- `env_ids`: the environments of the arrays, counted from 1; all of them by default
- `mask`: `false` where no step is added
- `next_mask`: `false` where the next observation is not available
- `priorities` or `td_errors` of the transitions; by default they get the largest priority seen so far
- `stream`: on CUDA; see [`ReplayBuffer`](@ref). There ids are always an array

`per_replay_add()` in `per.h` describes what starts, ends and cuts an episode. Warns once if environments seem to reset
differently from the buffer's `autoreset`: their final observations then arrive twice, which
`stats(buffer).suspected_resets` counts.

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Float32, 2), action = Field(Int8)); n_envs = 2);

julia> ids = add!(buffer; observation = [1 2; 3 4], action = Int8[0, 1], reward = [0.5, 0.25],
                  terminated = [false, true], truncated = [false, false], next_observation = [5 6; 7 8]);

julia> ids == [0, 1]
true
```
"""
add!(buffer::ReplayBuffer; stream = nothing, arguments...) = add_steps(buffer, (), arguments, stream)

"""
    extend!(buffer; fields..., reward, terminated, truncated, next_fields...)

Add consecutive steps and return their ids. Takes the keywords of [`add!`](@ref); each array has one more axis, the
last, that counts the steps: `84×84×n_envs×steps`, or `84×84×steps` for one environment. Rows of any length come in an
array of `n_envs×steps` rows, or of `steps` rows for one environment. The number of steps is the last axis of the first
array among `reward`, `terminated` and `truncated`; the others may be one number for all steps.

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Int32),));

julia> ids = extend!(buffer; observation = 1:5, reward = ones(5), terminated = falses(5), truncated = falses(5));

julia> ids == 0:4, length(buffer)
(true, 4)
```
"""
extend!(buffer::ReplayBuffer; stream = nothing, arguments...) =
    add_steps(buffer, time_of_steps(arguments), arguments, stream)

# The number of steps, in a tuple.
function time_of_steps(arguments)
    shape = shape_of_steps(arguments)
    isempty(shape) && invalid("reward, terminated and truncated have no axis of time; " *
                              "allowed for one of them: n_envs×steps, or steps for one environment")
    return shape[end:end]
end

const STEP_ARRAYS = (:reward, :terminated, :truncated, :mask, :next_mask, :priorities, :td_errors)

# The shape of the first array among reward and the flags; () if all are numbers.
function shape_of_steps(arguments)
    for name in (:reward, :terminated, :truncated)
        array = get(arguments, name, nothing)
        array isa AbstractArray && ndims(array) > 0 && return size(array)
    end
    return ()
end

# Repeats a number for each step; returns anything else unchanged.
for_each(number::Number, rows) = prod(rows) == 1 ? number : fill(number, rows)
for_each(other, rows) = other

# `time`: the number of steps in a tuple, or () for one step without a time axis.
function add_steps(buffer::ReplayBuffer, time, arguments, stream)
    memory, queue = buffer.memory, stream_of(buffer.memory, stream)
    kept = Any[]
    steps, rows = given_steps!(kept, buffer, time, arguments)
    shape = shape_of_steps(arguments)
    is_single = isempty(shape) && prod(rows) == 1
    ids = new_array(memory, Int64, !isempty(shape) && prod(shape) == prod(rows) ? shape : rows)
    GC.@preserve kept begin
        call(pointer -> per_replay_add(pointer, steps, written(memory, ids), queue), buffer.handle)
    end
    look_at_resets(memory, buffer)
    return memory isa HostMemory && is_single ? ids[1] : ids
end

# The steps of a call on a buffer or a writer, valid as long as `kept`, and their counts by axis.
function given_steps!(kept, target, time, arguments)
    steps = initial(per_steps)
    fields = fill(NO_ARRAY, length(target.fields))
    next_fields = fill(NO_ARRAY, length(target.fields))
    push!(kept, fields, next_fields)
    listed = get(arguments, :env_ids, nothing)
    env_ids = listed === nothing ? nothing : zero_based(:env_ids, listed)
    rows = (env_ids === nothing ? target.n_envs : length(env_ids), time...)
    if env_ids !== nothing
        push!(kept, env_ids)
        set_field!(steps, :env_ids, pointer(env_ids))
        set_field!(steps, :n_envs, length(env_ids))
    end
    for (name, value) in arguments
        value === nothing && continue
        if name in STEP_ARRAYS
            set_field!(steps, name, passed!(target.memory, kept, name, for_each(value, rows)))
        elseif name !== :env_ids
            place_field!(kept, fields, next_fields, target, name, value, rows)
        end
    end
    set_field!(steps, :length, prod(time))
    set_field!(steps, :fields, pointer(fields))
    set_field!(steps, :next_fields, pointer(next_fields))
    return steps, rows
end

# Warns once if environments seem to reset after most ends in another way than the buffer's `autoreset`. Checks the
# statistics rarely, and never on CUDA, where that would wait for the device.
function look_at_resets(::HostMemory, buffer)
    n_adds = Threads.atomic_add!(buffer.n_adds, 1) + 1
    (n_adds % 256 == 0 || (n_adds < 256 && ispow2(n_adds))) || return nothing
    buffer.warned_of_resets[] && return nothing
    counted = stats(buffer)
    ends = counted.episodes - counted.cuts
    (2 * counted.suspected_resets > ends && counted.suspected_resets >= 3) || return nothing
    Threads.atomic_xchg!(buffer.warned_of_resets, true) && return nothing
    @warn string("after ", counted.suspected_resets, " of ", ends, " ends the next step brought the final observation ",
                 "once more. Either the program does not continue with the observation from the reset, or the ",
                 "environment resets itself, and in another way than the buffer's autoreset says. If it ",
                 "resets in that step, use autoreset = :next_step; if it resets in the step of the end, autoreset = ",
                 ":same_step, and next_mask to say which next observations are final. Ignore this if episodes do ",
                 "begin with the observation that ended the one before")
    return nothing
end
look_at_resets(::DeviceMemory, buffer) = nothing

const NO_ARRAY = per_array(C_NULL, C_NULL, 0, 0, C_NULL)

function place_field!(kept, fields, next_fields, buffer, name, value, rows)
    passed(field) = is_ragged(field.axes) ? passed_rows!(kept, name, packed(name, value, fixed(field.axes), rows)) :
                    passed!(buffer.memory, kept, name, value)
    for (position, field) in enumerate(buffer.fields)
        if name === field.name
            fields[position] = passed(field)
            return nothing
        elseif name === field.next_name && field.observed
            next_fields[position] = passed(field)
            return nothing
        end
    end
    return invalid("there is no field $name; there are $(join(argument_names(buffer), ", "))")
end

function argument_names(buffer)
    names = [field.name for field in buffer.fields]
    append!(names, field.next_name for field in buffer.fields if field.observed)
    return append!(names, (STEP_ARRAYS..., :env_ids))
end

"""
    cut!(buffer; stream)
    cut!(buffer, env_ids; stream)

End the running episodes of all environments, or of those listed (counted from 1), as truncated: the next step of each
starts a new episode. Returns the buffer.
"""
function cut!(buffer::ReplayBuffer, env_ids = nothing; stream = nothing)
    queue = stream_of(buffer.memory, stream)
    lanes = env_ids === nothing ? Int64[] : zero_based("env_ids", env_ids)
    listed = env_ids === nothing ? C_NULL : lanes
    call(pointer -> per_replay_cut(pointer, length(lanes), listed, queue), buffer.handle)
    return buffer
end

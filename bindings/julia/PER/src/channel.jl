"""
    channel(buffer; env_ids, slots, when_full, moved_by)

A channel through shared memory by which another process adds steps to the buffer. Give each writing process its own
channel with its own environments, and create `PER.Writer(channel.path)` there. A thread of the library moves the steps
into the buffer, many at a time.

- `env_ids`: the environments, counted from 1, whose steps are written; the writer counts them from 1 in this order. All
  environments by default
- `slots`: slots of the ring, 2 and more; each holds a step of all these environments, or a cut, such as the one with
  which a writer begins. By default as many as fit in 4 MiB, at least 16
- `when_full`: a writer waits for room (`:waits`), or its steps are dropped and counted (`:drops`)
- `moved_by`: that thread (`:thread`); or there is no thread, and steps enter the buffer only by `PER.move!` and `flush`
  (`:calls`)

`flush(channel; timeout = Inf)` waits until all steps written before the call are in the buffer or were refused; it
throws a [`PERError`](@ref) with status `PER.PER_ERROR_BUSY` after `timeout` seconds. `PER.move!(channel, max_steps)`
moves up to `max_steps` pending steps, as far as the rate limiter allows, and returns their number. `stats(channel)` has
the statistics; counters count since creation.

$per_channel_statistics_docs
`close(channel)` moves the pending steps into the buffer, unless `moved_by` is `:calls`, and ends the channel.

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Float32, 2),); n_envs = 2);

julia> steps = channel(buffer; env_ids = [2]);

julia> writer = PER.Writer(steps.path);

julia> add!(writer; observation = [1, 2], reward = 1, terminated = true, truncated = false, next_observation = [3, 4])

julia> flush(steps)

julia> length(buffer), stats(steps).added
(1, 1)
```
"""
function channel(buffer::ReplayBuffer; env_ids = nothing, slots = nothing, when_full = nothing, moved_by = nothing)
    given = (slots = slots, when_full = when_full, moved_by = moved_by)
    filled = set_options!(initial(per_channel_options), pairs(given))
    lanes = env_ids === nothing ? Int64[] : zero_based(:env_ids, env_ids)
    created = Ref(Ptr{per_channel}(C_NULL))
    local handle
    GC.@preserve lanes begin
        if env_ids !== nothing
            set_field!(filled, :env_ids, pointer(lanes))
            set_field!(filled, :n_envs, length(lanes))
        end
        call(buffer.handle, (n_envs = "number of env_ids",)) do pointer
            status = per_channel_create(pointer, filled, created)
            status == PER_OK && (handle = Handle(created[]; owner = buffer.handle))
            return status
        end
    end
    add_served!(buffer, handle)
    path = Ref{Ptr{UInt8}}(C_NULL)
    call(pointer -> per_channel_get_address(pointer, path, C_NULL), handle)
    return Channel(handle, GC.@preserve handle unsafe_string(path[]))
end

"The channel that [`channel`](@ref) creates."
struct Channel
    handle::Handle{per_channel}
    path::String
end

Base.close(channel::Channel) = close(channel.handle)
Base.isopen(channel::Channel) = isopen(channel.handle)
Base.show(io::IO, channel::Channel) = print(io, "PER.Channel(", repr(channel.path), ")")
Base.flush(channel::Channel; timeout = Inf) =
    call_in_time(pointer -> per_channel_flush(pointer, 0), channel.handle, timeout)

"""
    PER.move!(channel, max_steps = typemax(Int64))

Move pending steps of a [`channel`](@ref) with `moved_by = :calls` into the buffer, as many as `max_steps` and the rate
limiter allow. Does not wait. Returns the number of steps moved. A step of all environments of the channel is moved as a
whole or not at all; masked environments do not count.
"""
function move!(channel::Channel, max_steps = typemax(Int64))
    steps = Ref{Int64}(0)
    most = converted(Int64, "max_steps", max_steps)
    call(pointer -> per_channel_move(pointer, most, steps), channel.handle)
    return steps[]
end

stats(channel::Channel) =
    figures_of(result_of(per_channel_get_statistics, per_channel_statistics, channel.handle))

"""
    PER.Writer(path[, fields])

Attaches to the [`channel`](@ref) with this path, which has one writer at a time. With `fields`, as
[`ReplayBuffer`](@ref) takes them, the fields of the buffer must have the same names, types and sizes.

`add!(writer; ...)`, `extend!(writer; ...)` and `cut!(writer, env_ids)` work as on a buffer, with the environments of
the channel; they return no ids. Each takes a `timeout` in seconds, `Inf` by default: if the ring has no room by then,
it throws a [`PERError`](@ref) with status `PER.PER_ERROR_BUSY`, and nothing was written. `flush(writer; timeout = Inf)`
waits until all steps of this writer are in the buffer. `close(writer)` detaches it.
"""
struct Writer
    handle::Handle{per_writer}
    fields::Vector{FieldLayout}
    n_envs::Int64
    memory::HostMemory
end

function Writer(path::AbstractString, fields = nothing)
    check_path(path)
    created = Ref(Ptr{per_writer}(C_NULL))
    if fields === nothing
        check(per_writer_attach(path, -1, C_NULL, 0, 0, created))
    else
        filled = initial(per_replay_options)
        function attach()
            return per_writer_attach(path, -1, filled[].fields, filled[].n_fields, filled[].field_size, created)
        end
        with_fields(attach, filled, fields)
    end
    handle = Handle(created[])
    options, layouts = described(FieldLayout, handle, per_writer_describe)
    return Writer(handle, layouts, options[].n_envs, memory_for(PER_CPU, nothing, nothing))
end

Base.close(writer::Writer) = close(writer.handle)
Base.isopen(writer::Writer) = isopen(writer.handle)
Base.show(io::IO, writer::Writer) =
    print(io, "PER.Writer(", join((field.name for field in writer.fields), ", "), isopen(writer) ? ")" : "), closed")
Base.flush(writer::Writer; timeout = Inf) =
    call_in_time(pointer -> per_writer_flush(pointer, 0), writer.handle, timeout)

add!(writer::Writer; timeout = Inf, arguments...) = write_steps(writer, (), arguments, timeout)
extend!(writer::Writer; timeout = Inf, arguments...) =
    write_steps(writer, time_of_steps(arguments), arguments, timeout)

function write_steps(writer, time, arguments, timeout)
    kept = Any[]
    steps, _ = given_steps!(kept, writer, time, arguments)
    GC.@preserve kept begin
        call_in_time(pointer -> per_writer_add(pointer, steps, 0), writer.handle, timeout)
    end
end

function cut!(writer::Writer, env_ids = nothing; timeout = Inf)
    lanes = env_ids === nothing ? Int64[] : zero_based("env_ids", env_ids)
    listed = env_ids === nothing ? C_NULL : lanes
    call_in_time(pointer -> per_writer_cut(pointer, length(lanes), listed, 0), writer.handle, timeout)
    return writer
end

# Polls action(pointer), which does not wait, until its status is not busy or the timeout passes. Waiting in C would
# block the garbage collector.
function call_in_time(action, handle, timeout)
    deadline = time() + seconds_of(timeout)
    while true
        is_late = time() >= deadline
        is_busy = Ref(false)
        call(handle) do pointer
            status = action(pointer)
            is_busy[] = status == PER_ERROR_BUSY && !is_late
            return is_busy[] ? PER_OK : status
        end
        is_busy[] || return nothing
        sleep(0.001)
    end
end

# The IO of a call that writes or reads a checkpoint, and the exception it threw.
mutable struct Stream
    io::IO
    failure::Any  # nothing, or the exception
end

# Runs action(context), which returns a status, and rethrows an exception of the IO.
function with_stream(action, io)
    stream = Stream(io, nothing)
    status = GC.@preserve stream calling_back(() -> action(pointer_from_objref(stream)))
    stream.failure === nothing || throw(stream.failure)
    return status
end

# The result of action(io), or -1 if it throws.
function passed(action, context)
    return gc_unsafe() do
        stream = unsafe_pointer_to_objref(context)::Stream
        try
            return Int64(interruptible(() -> action(stream.io)))::Int64
        catch error
            stream.failure = error
            return Int64(-1)
        end
    end
end

write_bytes(context::Ptr{Cvoid}, bytes::Ptr{Cvoid}, size::Int64)::Int64 =
    passed(io -> unsafe_write(io, Ptr{UInt8}(bytes), UInt(size)), context)

function read_bytes(context::Ptr{Cvoid}, bytes_out::Ptr{Cvoid}, size::Int64)::Int64
    return passed(context) do io
        given = read(io, size)
        GC.@preserve given unsafe_copyto!(Ptr{UInt8}(bytes_out), pointer(given), min(length(given), size))
        return length(given)
    end
end

"""
A save in the background, returned by [`save`](@ref) with `wait = false`: a thread of the library writes the file.
Dropping the object does not stop it.

- `wait(save; timeout = Inf)` waits at most `timeout` seconds until the file is in place and on the disk. It throws a
  [`PERError`](@ref) with status `PER.PER_ERROR_BUSY` if the save is still running then, or with the save's own error.
- `isready(save)`: true if the save has ended, with a file or with an error.
- `PER.progress(save)`: the fraction of the rows written, 0 to 1.
"""
struct Save
    handle::Handle{per_save}
end

function Base.wait(save::Save; timeout = Inf)
    deadline = time() + seconds_of(timeout)
    # Other tasks run meanwhile.
    while time() < deadline && !isready(save)
        sleep(0.001)
    end
    return call(pointer -> per_save_wait(pointer, 0, C_NULL, C_NULL), save.handle)
end

# The status of the save, without waiting: its result, or busy.
function look(save, written_out, total_out)
    found = Ref{Int32}()
    call(save.handle) do pointer
        found[] = per_save_wait(pointer, 0, written_out, total_out)
        return found[] == PER_ERROR_INVALID_ARGUMENT ? found[] : PER_OK
    end
    return found[]
end

Base.isready(save::Save) = look(save, C_NULL, C_NULL) != PER_ERROR_BUSY

function progress(save::Save)
    written, total = Ref{Int64}(0), Ref{Int64}(0)
    look(save, written, total)
    return total[] > 0 ? written[] / total[] : 1.0
end

Base.show(io::IO, save::Save) = print(io, "Save(", isready(save) ? "done" : "$(round(Int, 100progress(save))) %", ")")

"""
    save(buffer, path; wait = true, compression)
    save(buffer, io; compression)

Write the whole buffer to a file, so that a loaded one continues bit for bit. If `path` is a symbolic link, its target
is replaced. A replaced file keeps its mode. `compression`, 0 or a zstd level from 1 to 19, overrides the buffer's
`save_compression`.

With `wait = false` it returns a [`PER.Save`](@ref): a thread of the library writes the file, a bit-identical snapshot
of the buffer at the call, whatever is added, drawn or updated meanwhile. Closing the buffer waits for the end of the
save.

An `IO` gets the same bytes, from its current position; it may hold several buffers and other data. The bytes are a
consistent snapshot: other threads that use the buffer wait for the end. Other tasks that run on this thread while the
IO waits may use any buffer but this one, which throws a [`PERError`](@ref) with status `PER.PER_ERROR_BUSY`. An
exception of the IO is rethrown, and the bytes written until then are not a checkpoint.

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Int32),));

julia> extend!(buffer; observation = 1:5, reward = ones(5), terminated = falses(5), truncated = falses(5));

julia> path = tempname();

julia> save(buffer, path)

julia> loaded = load(ReplayBuffer, path);

julia> sample!(loaded, 8).ids == sample!(buffer, 8).ids
true

julia> rm(path)
```
"""
function save(buffer::ReplayBuffer, path::AbstractString; wait = true, compression = nothing)
    check_path(path)
    options = save_options(compression)
    converted(Bool, "wait", wait) || return start_save(buffer, path, options)
    call(pointer -> per_replay_save(pointer, path, options), buffer.handle)
    return nothing
end

function start_save(buffer, path, options)
    save = Ref(Ptr{per_save}(C_NULL))
    call(pointer -> per_replay_save_start(pointer, path, options, save), buffer.handle)
    return Save(Handle(save[]))
end

function save(buffer::ReplayBuffer, io::IO; compression = nothing)
    options = save_options(compression)
    set_field!(options, :write, @cfunction(write_bytes, Int64, (Ptr{Cvoid}, Ptr{Cvoid}, Int64)))
    call(buffer.handle) do pointer
        with_stream(io) do context
            set_field!(options, :context, context)
            return per_replay_save(pointer, C_NULL, options)
        end
    end
    return nothing
end

# C's -1, which stands for the buffer's own compression, is not accepted here.
function save_options(compression)
    options = initial(per_save_options)
    compression === nothing && return options
    set_field!(options, :compression, compression)
    compression == -1 && invalid("compression is -1; allowed: nothing, 0 to 19")
    return options
end

# Default timeout of calls that wait for a checkpoint directory, in seconds.
const directory_timeout = PER_DIRECTORY_TIMEOUT_MS / 1000

# Repeats action(timeout_ms), which waits that long for a directory, until its status is not busy or the timeout passes.
# A busy status that comes sooner has another reason. Other tasks run in between.
function in_turn(action, timeout)
    slice_ms = 10
    deadline = time() + seconds_of(timeout)
    while true
        is_late = time() >= deadline
        timeout_ms = is_late ? 0 : slice_ms
        began = time_ns()
        status = action(timeout_ms)
        is_early = time_ns() - began < 1_000_000 * timeout_ms
        (status != PER_ERROR_BUSY || is_late || is_early) && return status
        sleep(0.001)
    end
end

"""
    checkpoint(buffer, directory; timeout = 60, compression)

Write an incremental checkpoint into a directory: only the rows added since the last one there, the priorities, and
other state that changed. Return the number of bytes written. [`load`](@ref) takes the directory.

The directory is created if missing, and takes at most about twice the size of the file of [`save`](@ref). At any time,
also after a kill or a power failure, it holds this checkpoint or the previous one, complete. If it is the buffer's
`storage`, rows stay in their file: [`load`](@ref) with the same `storage` continues from them.

Calls for one directory are serialised, also between processes. Throws a [`PERError`](@ref) with status
`PER.PER_ERROR_BUSY` if the directory is not free within `timeout` seconds. Other threads may use the buffer meanwhile.
`compression` is that of [`save`](@ref).

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Int32),));

julia> directory = mktempdir();

julia> checkpoint(buffer, directory) > 0
true

julia> length(load(ReplayBuffer, directory))
0
```
"""
function checkpoint(buffer::ReplayBuffer, directory::AbstractString; timeout = directory_timeout, compression = nothing)
    check_path(directory, "directory")
    options = save_options(compression)
    written = Ref{Int64}()
    call(buffer.handle) do pointer
        in_turn(timeout) do timeout_ms
            set_field!(options, :timeout_ms, timeout_ms)
            return per_replay_checkpoint(pointer, directory, options, written)
        end
    end
    return written[]
end

"""
    load(ReplayBuffer, path; device = :cpu, arrays, current_stream, max_heap_bytes, storage, storage_preallocated = false,
         timeout = 60)
    load(ReplayBuffer, io; device = :cpu, arrays, current_stream, max_heap_bytes)

The buffer that [`save`](@ref) wrote to a file, or [`checkpoint`](@ref) into a directory. From an `IO` it reads the
bytes of one buffer, and no more. With `storage` rows lie in a file in that directory; see [`ReplayBuffer`](@ref). A
buffer from an `IO` lies in memory. `max_heap_bytes` is that of [`ReplayBuffer`](@ref).

While another call writes to the checkpoint directory it waits, at most `timeout` seconds, and then throws a
[`PERError`](@ref) with status `PER.PER_ERROR_BUSY`.
"""
function load(
    ::Type{ReplayBuffer},
    path::AbstractString;
    storage = nothing,
    storage_preallocated = false,
    timeout = directory_timeout,
    options...,
)
    check_path(path)
    filled = set_options!(initial(per_load_options), pairs((; storage_preallocated)))
    return with_storage(filled, storage) do
        load(filled; options...) do replay
            return in_turn(timeout) do timeout_ms
                set_field!(filled, :timeout_ms, timeout_ms)
                return per_replay_load(path, filled, replay)
            end
        end
    end
end

function load(::Type{ReplayBuffer}, io::IO; storage = nothing, storage_preallocated = false, options...)
    storage === nothing || invalid("storage is $(repr(storage)); allowed: nothing, as an IO is read")
    storage_preallocated === false ||
        invalid("storage_preallocated is $(repr(storage_preallocated)); allowed: false, as an IO is read")
    filled = initial(per_load_options)
    set_field!(filled, :read, @cfunction(read_bytes, Int64, (Ptr{Cvoid}, Ptr{Cvoid}, Int64)))
    return load(filled; options...) do replay
        with_stream(io) do context
            set_field!(filled, :context, context)
            return per_replay_load(C_NULL, filled, replay)
        end
    end
end

function load(action::Function, filled; device = :cpu, arrays = nothing, current_stream = nothing,
              max_heap_bytes = nothing, others...)
    isempty(others) || invalid("there is no option $(first(keys(others))); there are device, arrays, current_stream, " *
                               "max_heap_bytes, and for a path storage, storage_preallocated, timeout")
    set_options!(filled, pairs((; device, max_heap_bytes)))
    replay = Ref(Ptr{per_replay}(C_NULL))
    check(action(replay))
    return ReplayBuffer(Handle(replay[]), arrays, current_stream)
end

# A copied or serialized buffer continues independently, bit for bit and on its own device. Loaders and epochs stay with
# the original.
function bytes_of(buffer)
    io = IOBuffer()
    save(buffer, io)
    return take!(io)
end

device(buffer) = device_of(first(described(identity, buffer.handle))[])

Base.deepcopy_internal(buffer::ReplayBuffer, copies::IdDict) = get!(copies, buffer.handle) do
    load(ReplayBuffer, IOBuffer(bytes_of(buffer)); device = device(buffer), given(buffer.memory)...)
end

function Serialization.serialize(serializer::Serialization.AbstractSerializer, buffer::ReplayBuffer)
    # A buffer that is met again is written once.
    Serialization.serialize_cycle_header(serializer, buffer) && return nothing
    Serialization.serialize(serializer, bytes_of(buffer))
    Serialization.serialize(serializer, (device = device(buffer), given(buffer.memory)...))
    return nothing
end

function Serialization.deserialize(serializer::Serialization.AbstractSerializer, ::Type{ReplayBuffer})
    bytes = Serialization.deserialize(serializer)
    options = Serialization.deserialize(serializer)
    buffer = load(ReplayBuffer, IOBuffer(bytes); options...)
    Serialization.deserialize_cycle(serializer, buffer)
    return buffer
end

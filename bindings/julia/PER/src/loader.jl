"""
An endless iterator over prefetched batches, returned by [`loader`](@ref). [`take!`](@ref Base.take!(::PER.Loader)),
[`release!`](@ref), `close` and `isopen` also accept it, on any task.
"""
struct Loader
    buffer::ReplayBuffer
    handle::Handle{per_loader}
    batch_size::Int64
    n_step::Int64  # of sequences
    n_slots::Int64
    lock::ReentrantLock
    batches::Vector{Union{Nothing,Batch}}  # by slot, made when it is first handed out
    turns::Vector{Int64}                   # by slot: the number of the batch handed out, or 0
    n_turns::Base.RefValue{Int64}
    latest::Base.RefValue{Tuple{Int64,Int64}}  # slot and turn of the batch that a loop was given last; (0, 0): none
    memory::Memory  # where the batches lie
end

"""
    loader(buffer, batch_size; slots = 3, device, gather_on_device = false, arrays, current_stream, options...)
    loader(action, buffer, batch_size; slots = 3, device, gather_on_device = false, arrays, current_stream, options...)

An endless iterator over batches that a thread of the library draws ahead, into memory that is reused. `options` are
those of [`sample!`](@ref), for every batch. The second form calls `action(batches)` and closes the loader.

Creating it requests `slots` batches, and handing one out requests the next: up to `slots` batches are drawn before
updates made with the latest one take effect. Every other call on the buffer waits for the draws requested before it.
The same seed and calls give the same batches for the same `slots`, and those of `sample!` if nothing changes in
between.

Requesting the next batch releases the previous one, also that of an earlier loop, whose arrays are then overwritten:
copy anything that must last longer. The caller may hold at most `slots` batches at a time;
[`take!`](@ref Base.take!(::PER.Loader)) leaves releasing them to the caller. A buffer has one loader at a time, until
`close(batches)`.

Batches lie in the memory of the buffer. From a buffer in host memory, `device = :cuda` or `"cuda:1"` hands them out in
the memory of a CUDA device; the copies overlap with earlier work. Neither `take!` nor `release!` waits for the device.
`arrays` and `current_stream` are then those of [`ReplayBuffer`](@ref), by default the buffer's own if it is on a
device, and the array library needs a method of [`PER.device_view`](@ref).

With `gather_on_device = true` the device itself copies the frames of large fields (1 KiB and more) out of the rows in
host memory, which are pinned until the loader is closed. The batches are the same. `add!` and `set!` may wait
until the device has read frames that they overwrite.

Throws a [`PERError`](@ref) with status `PER.PER_ERROR_BUSY` if the buffer already has a loader, with
`PER.PER_ERROR_UNSUPPORTED` without that method or if the device does not support `gather_on_device`, and while
iterating the errors of `sample!`. Iteration uses the current stream.

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Int32),));

julia> extend!(buffer; observation = 1:9, reward = 1:9, terminated = falses(9), truncated = falses(9));

julia> loader(buffer, 32) do batches
           for (step, batch) in zip(1:4, batches)
               update_priorities!(buffer, batch.ids, batch.reward)
           end
       end

julia> stats(buffer).beta_step
4
```
"""
function loader(buffer::ReplayBuffer, batch_size; slots = nothing, device = nothing, gather_on_device = nothing,
                arrays = nothing, current_stream = nothing, options...)
    filled = initial(per_loader_options)
    set_field!(filled, :batch_size, batch_size)
    set_options!(filled, pairs((slots = slots, device = device, gather_on_device = gather_on_device)))
    device === nothing && set_device!(filled, buffer)
    memory = loader_memory(buffer.memory, filled[].device, arrays, current_stream)
    chosen = set_options!(initial(per_sample_options), options)
    if buffer.sequence_steps > 0 && chosen[].n_step == 0
        set_field!(chosen, :n_step, buffer.n_step)  # the slots are laid out for it
    end
    n_step = chosen[].n_step
    check_views(memory, drawn_layout(buffer, filled[].batch_size, n_step))
    created = Ref(Ptr{per_loader}(C_NULL))
    local handle
    GC.@preserve chosen begin
        set_field!(filled, :sample, Base.unsafe_convert(Ptr{per_sample_options}, chosen))
        call(buffer.handle) do pointer
            status = per_loader_create(pointer, filled, created)
            status == PER_OK && (handle = Handle(created[]; owner = buffer.handle))
            return status
        end
    end
    n_slots = filled[].slots
    batches = Vector{Union{Nothing,Batch}}(nothing, n_slots + 1)
    turns = zeros(Int64, n_slots + 1)
    return Loader(buffer, handle, filled[].batch_size, n_step, n_slots, ReentrantLock(), batches, turns, Ref(0),
                  Ref((0, 0)), memory)
end

# Sets the device to that of the buffer.
function set_device!(filled, buffer)
    options = initial(per_replay_options)
    call(pointer -> per_replay_describe(pointer, options), buffer.handle)
    set_field!(filled, :device, options[].device)
    set_field!(filled, :device_index, options[].device_index)
    return nothing
end

loader_memory(::HostMemory, device, arrays, current_stream) = memory_for(device, arrays, current_stream)
loader_memory(own::DeviceMemory, device, arrays, current_stream) =
    device == PER_CPU ? memory_for(device, arrays, current_stream) :
    memory_for(device, something(arrays, own.arrays), something(current_stream, own.current_stream, Some(nothing)))

function loader(action, buffer::ReplayBuffer, batch_size; options...)
    batches = loader(buffer, batch_size; options...)
    try
        return action(batches)
    finally
        close(batches)
    end
end

Base.close(loader::Loader) = close(loader.handle)
Base.isopen(loader::Loader) = isopen(loader.handle)
Base.show(io::IO, loader::Loader) =
    print(io, "Loader(", loader.batch_size, ", ", loader.n_slots, " slots", isopen(loader) ? ")" : ", closed)")

Base.IteratorSize(::Type{Loader}) = Base.IsInfinite()
Base.eltype(::Type{Loader}) = Batch

# The state: the slot and turn of the previous batch. At its beginning a loop releases the last batch of the one before.
function Base.iterate(loader::Loader, (slot, turn) = loader.latest[])
    slot == 0 || lock(() -> loader.turns[slot] == turn && give_back(loader, slot, nothing), loader.lock)
    slot = hand_out(loader, Inf, nothing)
    state = (slot, loader.turns[slot])
    loader.latest[] = state
    return loader.batches[slot], state
end

"""
    take!(loader; timeout = Inf, stream)

The next batch of a [`loader`](@ref), which the caller holds until [`release!`](@ref). Throws a [`PERError`](@ref) with
status `PER.PER_ERROR_BUSY` after `timeout` seconds if the batch is still being drawn, if the rate limiter does not
allow it yet, or if the caller holds `slots` batches. On CUDA, work enqueued on `stream` from now on sees the whole
batch.

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Int32),));

julia> extend!(buffer; observation = 1:9, reward = 1:9, terminated = falses(9), truncated = falses(9));

julia> batches = loader(buffer, 32);

julia> batch = take!(batches);

julia> length(batch.ids)
32

julia> release!(batches, batch)

julia> close(batches)
```
"""
Base.take!(loader::Loader; timeout = Inf, stream = nothing) = loader.batches[hand_out(loader, timeout, stream)]

"""
    release!(loader, batch; stream)

Return the memory of a batch to its [`loader`](@ref), which writes a later batch into it: on CUDA, once the work
enqueued on `stream` so far is done.
"""
function release!(loader::Loader, batch::Batch; stream = nothing)
    lock(loader.lock) do
        slot = findfirst(made -> made === batch, loader.batches)
        slot !== nothing && loader.turns[slot] != 0 || invalid("batch is none that this loader has out")
        give_back(loader, slot, stream)
    end
    return nothing
end

# Requires the lock.
function give_back(loader, slot, stream)
    queue = stream_of(loader.memory, stream)
    call(pointer -> per_loader_release(pointer, slot - 1, queue), loader.handle)
    loader.turns[slot] = 0
    return nothing
end

# The slot of the next batch. A call of the library may only wait for the library's thread, which does not run Julia
# code. If all slots are held, it would wait for another Julia task, and block the garbage collector.
function hand_out(loader::Loader, timeout, stream)
    deadline = time() + seconds_of(timeout)
    while true
        left = max(deadline - time(), 0.0)
        slot = lock(loader.lock) do
            is_full = count(!=(0), loader.turns) == loader.n_slots
            is_full && left > 0 && isopen(loader) ? nothing : hand_out_now(loader, is_full ? 0.0 : left, stream)
        end
        slot === nothing || return slot
        options_now(loader.buffer)  # throws while this task saves the buffer, since no wait would end
        sleep(0.001)
    end
end

# Requires the lock. Returns nothing if the rate limiter does not allow a draw yet and time is left.
function hand_out_now(loader, left, stream)
    filled, queue = initial(per_batch), stream_of(loader.memory, stream)
    timeout_ms = left == Inf ? -1 : ceil(Int64, 1000 * min(left, 1e9))
    place = Ref{Int64}(-1)
    # The loader does not keep the buffer open; it may be closed meanwhile.
    call(loader.buffer.handle) do _
        call(loader.handle) do pointer
            status = per_loader_next(pointer, timeout_ms, filled, place, queue)
            status == PER_ERROR_BUSY && left > 0 && return PER_OK
            status == PER_OK || return status
            try
                enter_turn(loader, place[] + 1, filled[])
            catch
                per_loader_release(pointer, place[], queue)  # else the slot would be lost
                rethrow()
            end
            return status
        end
        return PER_OK
    end
    return place[] < 0 ? nothing : place[] + 1
end

function enter_turn(loader, slot, filled)
    if loader.batches[slot] === nothing || has_rows_of_any_length(loader.buffer)
        loader.batches[slot] = slot_batch(loader, loader.buffer, filled)
    end
    loader.n_turns[] += 1
    loader.turns[slot] = loader.n_turns[]
    return nothing
end

# The arrays of a slot, views of its memory. `buffer` has the fields: a buffer, or a reader itself.
function slot_batch(loader, buffer, filled)
    pointers = Dict{Symbol,Ptr{Cvoid}}()
    for (i, field) in enumerate(buffer.fields)
        pointers[field.name] = unsafe_load(filled.fields, i)
        pointers[field.next_name] = unsafe_load(filled.next_fields, i)
    end
    layout = drawn_layout(buffer, loader.batch_size, loader.n_step)
    arrays = Any[
        slot_array(loader, type, get(() -> getfield(filled, name), pointers, name), size)
        for (name, type, size) in layout
    ]
    return Batch(NamedTuple{Tuple(first.(layout))}((arrays...,)))
end

has_rows_of_any_length(buffer) = any(field -> is_ragged(field.axes), buffer.fields)

function slot_array(loader, ::Type{T}, pointer, size) where {T}
    nothing in size || return held_array(loader, T, pointer, size)
    axes, places = parted(size)
    rows = unsafe_load(Ptr{per_ragged}(pointer))
    values = held_array(loader, T, rows.values, (axes..., rows.total))
    return Ragged(values, held_array(loader, Int64, Ptr{Cvoid}(rows.offsets), (prod(places) + 1,)), places)
end

# An array in a loader's memory, which is not freed before the array.
function held_array(loader, ::Type{T}, pointer, size) where {T}
    array, handle = view_of(loader.memory, T, pointer, size), loader.handle
    hold(handle)
    finalizer(_ -> release(handle), memory_of(array))
    return array
end

# The object that lives as long as an array's memory is in use. Since Julia 1.11 that is its Memory, of which reshape()
# makes another Array.
memory_of(array) = array
@static if VERSION >= v"1.11"
    memory_of(array::Array) = array.ref.mem
end

"""
    shared_loader(buffer, batch_size; readers, slots = 2, options...)

A loader for several processes, with batches prefetched into shared memory. Give each process the `path` and create
`PER.Reader(loader.path)` there, an iterator over batches that are not copied. Each batch goes to one reader, in the
order of the requests; together the readers get the batches of a [`loader`](@ref) with as many slots. Readers send
priorities back. The slots of a reader that dies are freed.

- `readers`: maximum number of readers attached at a time
- `slots`: maximum number of batches that each reader may hold at a time
- `options`: those of [`sample!`](@ref), for every batch

It is the only loader of its buffer, which is in host memory. `stats(loader)` has the statistics; counters count since
creation.

$per_shared_loader_statistics_docs
`close(loader)` applies the priorities that readers have sent, and ends the loader.

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Int32),));

julia> extend!(buffer; observation = 1:9, reward = 1:9, terminated = falses(9), truncated = falses(9));

julia> batches = shared_loader(buffer, 32; readers = 2);

julia> reader = PER.Reader(batches.path);

julia> for (step, batch) in zip(1:4, reader)
           update_priorities!(reader, batch.ids, batch.reward)
       end

julia> flush(reader)

julia> stats(batches).handed, stats(batches).updates
(4, 4)
```
"""
function shared_loader(buffer::ReplayBuffer, batch_size; readers, slots = nothing, options...)
    filled = initial(per_shared_loader_options)
    set_field!(filled, :batch_size, batch_size)
    set_options!(filled, pairs((readers = readers, slots = slots)))
    chosen = set_options!(initial(per_sample_options), options)
    created = Ref(Ptr{per_shared_loader}(C_NULL))
    local handle
    GC.@preserve chosen begin
        set_field!(filled, :sample, Base.unsafe_convert(Ptr{per_sample_options}, chosen))
        call(buffer.handle) do pointer
            status = per_shared_loader_create(pointer, filled, created)
            status == PER_OK && (handle = Handle(created[]; owner = buffer.handle))
            return status
        end
    end
    add_served!(buffer, handle)
    path = Ref{Ptr{UInt8}}(C_NULL)
    call(pointer -> per_shared_loader_get_address(pointer, path, C_NULL), handle)
    return SharedLoader(handle, GC.@preserve handle unsafe_string(path[]))
end

"The shared loader that [`shared_loader`](@ref) creates."
struct SharedLoader
    handle::Handle{per_shared_loader}
    path::String
end

Base.close(loader::SharedLoader) = close(loader.handle)
Base.isopen(loader::SharedLoader) = isopen(loader.handle)
Base.show(io::IO, loader::SharedLoader) = print(io, "PER.SharedLoader(", repr(loader.path), ")")

stats(loader::SharedLoader) =
    figures_of(result_of(per_shared_loader_get_statistics, per_shared_loader_statistics, loader.handle))

"""
    PER.Reader(path)

Attaches to the [`shared_loader`](@ref) with this path: an endless iterator over batches, which are not copied.
Requesting the next batch releases the previous one, whose arrays are then overwritten: copy anything that must last
longer. `take!(reader; timeout = Inf)` and [`release!`](@ref) leave releasing to the caller.

`update_priorities!(reader, ids, td_errors; timeout = Inf)` and `set_priorities!(reader, ids, priorities; timeout =
Inf)` send priorities back, which are applied a little later; `flush(reader; timeout = Inf)` waits until they are
applied. Each call throws a [`PERError`](@ref) with status `PER.PER_ERROR_BUSY` after `timeout` seconds. `close(reader)`
returns all batches.
"""
struct Reader
    handle::Handle{per_reader}
    fields::Vector{FieldLayout}
    sequence_steps::Int64
    keeps_times_sampled::Bool
    batch_size::Int64
    n_step::Int64  # of sequences
    memory::HostMemory
    lock::ReentrantLock
    batches::Dict{Int64,Batch}  # by slot, created with the slot's first batch
    turns::Dict{Int64,Int64}    # the number of its batch, by slot that is out
    n_turns::Base.RefValue{Int64}
    latest::Base.RefValue{Tuple{Int64,Int64}}  # slot and turn of the batch that a loop was given last; (-1, 0): none
end

function Reader(path::AbstractString)
    check_path(path)
    created = Ref(Ptr{per_reader}(C_NULL))
    check(per_reader_attach(path, -1, created))
    handle, size = Handle(created[]), Ref{Int64}(0)
    describe(pointer, options) = per_reader_describe(pointer, options, size)
    options, layouts = try
        described(FieldLayout, handle, describe)
    catch
        close(handle)  # otherwise it stays attached until it is collected
        rethrow()
    end
    steps = options[].sequence_length > 0 ? options[].burn_in + options[].sequence_length : 0
    memory = memory_for(PER_CPU, nothing, nothing)
    counts = options[].keep_times_sampled == 1
    return Reader(handle, layouts, steps, counts, size[], options[].n_step, memory, ReentrantLock(), Dict(), Dict(),
                  Ref(0), Ref((-1, 0)))
end

Base.close(reader::Reader) = close(reader.handle)
Base.isopen(reader::Reader) = isopen(reader.handle)
Base.show(io::IO, reader::Reader) =
    print(io, "PER.Reader(", join((field.name for field in reader.fields), ", "), isopen(reader) ? ")" : "), closed")
Base.flush(reader::Reader; timeout = Inf) =
    call_in_time(pointer -> per_reader_flush(pointer, 0), reader.handle, timeout)

Base.IteratorSize(::Type{Reader}) = Base.IsInfinite()
Base.eltype(::Type{Reader}) = Batch

# The state: the slot and turn of the previous batch. At its beginning a loop releases the last batch of the one before.
function Base.iterate(reader::Reader, (slot, turn) = reader.latest[])
    lock(() -> get(reader.turns, slot, 0) == turn != 0 && give_back(reader, slot), reader.lock)
    batch, slot, turn = hand_out(reader, Inf)
    reader.latest[] = (slot, turn)
    return batch, (slot, turn)
end

Base.take!(reader::Reader; timeout = Inf) = first(hand_out(reader, timeout))

function release!(reader::Reader, batch::Batch)
    lock(reader.lock) do
        slots = [slot for slot in keys(reader.turns) if reader.batches[slot] === batch]
        isempty(slots) && invalid("batch is none that this reader has out")
        give_back(reader, only(slots))
    end
    return nothing
end

# Requires the lock.
function give_back(reader::Reader, slot)
    call(pointer -> per_reader_release(pointer, slot), reader.handle)
    delete!(reader.turns, slot)
    return nothing
end

# The next batch, its slot, and its turn.
function hand_out(reader::Reader, timeout)
    filled, taken, place, turn = initial(per_batch), Ref{Batch}(), Ref{Int64}(-1), Ref(0)
    call_in_time(reader.handle, timeout) do pointer
        lock(reader.lock) do
            status = per_reader_next(pointer, 1, filled, place)  # one millisecond usually suffices
            status == PER_OK || return status
            try
                has_rows_of_any_length(reader) && delete!(reader.batches, place[])
                taken[] = get!(() -> slot_batch(reader, reader, filled[]), reader.batches, place[])
                turn[] = reader.n_turns[] += 1
                reader.turns[place[]] = turn[]
            catch
                per_reader_release(pointer, place[])  # else the slot would be lost
                rethrow()
            end
            return status
        end
    end
    return taken[], place[], turn[]
end

function update_priorities!(reader::Reader, ids, td_errors; timeout = Inf)
    rows, errors, n_critics, n_steps = given_errors(reader, ids, td_errors, nothing)
    with_priorities(rows, :td_errors, errors, n_critics, n_steps) do given
        call_in_time(pointer -> per_reader_update_priorities(pointer, given, 0), reader.handle, timeout)
    end
    return reader
end

function set_priorities!(reader::Reader, ids, priorities; timeout = Inf)
    rows, values = given_priorities(reader, ids, priorities, nothing)
    with_priorities(rows, :priorities, values) do given
        call_in_time(pointer -> per_reader_update_priorities(pointer, given, 0), reader.handle, timeout)
    end
    return reader
end

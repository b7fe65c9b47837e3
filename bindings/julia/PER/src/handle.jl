# A handle of the library: tree, buffer, epochs, loader, reader, save, channel or writer. Freed once, by close(), by the
# last call that still runs on another thread then, or by the garbage collector.
mutable struct Handle{T}
    pointer::Ptr{T}
    users::Threads.Atomic{Int}  # running calls, and 1 until close()
    closed::Threads.Atomic{Bool}
    owner::Union{Nothing,Handle}  # what must be freed after it

    function Handle(pointer::Ptr{T}; owner = nothing) where {T}
        handle = new{T}(pointer, Threads.Atomic{Int}(1), Threads.Atomic{Bool}(false), owner)
        owner === nothing || hold(owner)
        return finalizer(close, handle)
    end
end

noun(::Handle{per_tree}) = "tree"
noun(::Handle{per_replay}) = "buffer"
noun(::Handle{per_epochs}) = "handle of epochs"
noun(::Handle{per_loader}) = "loader"
noun(::Handle{per_save}) = "save"
noun(::Handle{per_coordinator}) = "coordinator"
noun(::Handle{per_channel}) = "channel"
noun(::Handle{per_writer}) = "writer"
noun(::Handle{per_shared_loader}) = "shared loader"
noun(::Handle{per_reader}) = "reader"

free(tree::Ptr{per_tree}) = per_tree_free(tree)
free(replay::Ptr{per_replay}) = per_replay_free(replay)
free(epochs::Ptr{per_epochs}) = per_epochs_free(epochs)
free(loader::Ptr{per_loader}) = per_loader_free(loader)
free(save::Ptr{per_save}) = per_save_free(save)
free(coordinator::Ptr{per_coordinator}) = per_coordinator_free(coordinator)
free(channel::Ptr{per_channel}) = per_channel_free(channel)
free(writer::Ptr{per_writer}) = per_writer_free(writer)
free(loader::Ptr{per_shared_loader}) = per_shared_loader_free(loader)
free(reader::Ptr{per_reader}) = per_reader_free(reader)

# The part of close() that runs at once, even while calls still use the handle.
stop(pointer) = nothing
stop(loader::Ptr{per_loader}) = per_loader_stop(loader)
stop(reader::Ptr{per_reader}) = per_reader_stop(reader)

Base.isopen(handle::Handle) = !handle.closed[]

function Base.close(handle::Handle)
    Threads.atomic_xchg!(handle.closed, true) && return nothing
    stop(handle.pointer)
    release(handle)
    return nothing
end

# Keeps the memory until release(), even if the handle is closed meanwhile. The caller must already hold the handle.
hold(handle::Handle) = Threads.atomic_add!(handle.users, 1)

function acquire(handle::Handle)
    users = handle.users[]
    while users > 0 && isopen(handle)
        seen = Threads.atomic_cas!(handle.users, users, users + 1)
        seen == users && return nothing
        users = seen
    end
    return invalid("the $(noun(handle)) was closed")
end

function release(handle::Handle)
    if Threads.atomic_sub!(handle.users, 1) == 1
        free(handle.pointer)
        handle.owner === nothing || release(handle.owner)
    end
    return nothing
end

# Runs action(pointer), which returns a status. `arguments`: see check().
function call(action, handle::Handle, arguments = NamedTuple())
    acquire(handle)
    try
        GC.@preserve handle check(action(handle.pointer), arguments)
    finally
        release(handle)
    end
end

# A copy of the pointer would dangle, and a serialized one is meaningless. Buffers are copied by their contents
# (checkpoint.jl).
refuse_copy(handle) =
    throw(PERError(PER_ERROR_UNSUPPORTED, "a $(noun(handle)) can be neither copied nor serialized"))
Base.deepcopy_internal(handle::Handle, ::IdDict) = refuse_copy(handle)
Serialization.serialize(::Serialization.AbstractSerializer, handle::Handle) = refuse_copy(handle)

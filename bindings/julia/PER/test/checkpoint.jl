import Serialization

function filled(n)
    buffer = ReplayBuffer(40, (observation = Field(Int32), action = Field(Float32, 2)); n_step = 2, seed = 3)
    walk(buffer, n)
    return buffer
end

function walk(buffer, n)
    for t in 1:n
        add!(buffer; observation = t, action = [t, 2t], reward = t, terminated = t % 6 == 0, truncated = false,
             next_observation = t % 6 == 0 ? -1 : t + 1)
    end
end

bytes_of(buffer) = take!(let io = IOBuffer(); save(buffer, io); io end)

# True if both continue alike.
function same_from_here(buffer, other)
    good = stats(buffer) == stats(other) && options(buffer) == options(other)
    for _ in 1:2
        batches = sample!(buffer, 16), sample!(other, 16)
        good &= all(batches[1][name] == batches[2][name] for name in keys(batches[1]))
        foreach(replay -> walk(replay, 5), (buffer, other))
    end
    return good
end

# An IO that reads and writes at most `most` bytes at a time, and then fails.
mutable struct Narrow <: IO
    io::IOBuffer
    most::Int
    n_calls::Int
    fails_at::Int  # the number of the call; 0: none
end

function next_size(io::Narrow)
    io.n_calls += 1
    io.n_calls == io.fails_at && throw(DomainError(io.n_calls, "mine"))
    return io.most
end

Base.unsafe_write(io::Narrow, bytes::Ptr{UInt8}, n::UInt) = unsafe_write(io.io, bytes, min(n, UInt(next_size(io))))
Base.read(io::Narrow, n::Integer) = read(io.io, min(n, next_size(io)))

@testset "an IO gets the bytes of a file and gives them back" begin
    buffer = filled(30)
    path = tempname()
    save(buffer, path)
    @test read(path) == bytes_of(buffer)
    open(io -> (@test save(buffer, io) === nothing), path, "w")
    loaded = open(io -> load(ReplayBuffer, io), path)
    rm(path)
    @test same_from_here(buffer, loaded)
end

@testset "a save may be compressed in another way than its buffer" begin
    buffer = filled(30)
    compressed(level) = take!(let io = IOBuffer(); save(buffer, io; compression = level); io end)
    @test compressed(0) == compressed(nothing) == bytes_of(buffer)
    @test is_invalid(thrown(() -> compressed(20)), "compression is 20: allowed are 0 .. 19")
    @test is_invalid(thrown(() -> compressed(-1)), "compression is -1; allowed: nothing, 0 to 19")
    found = thrown(() -> compressed(1)).status
    @test found in (PER.PER_OK, PER.PER_ERROR_UNSUPPORTED)  # as libper was built with zstd or without
    if found == PER.PER_OK
        loaded = load(ReplayBuffer, IOBuffer(compressed(1)))
        @test compressed(1) != bytes_of(buffer) == bytes_of(loaded)
    end
end

@testset "a directory gets what it does not hold, and gives the buffer back" begin
    directory = joinpath(mktempdir(), "run")
    buffer = ReplayBuffer(10_000, (observation = Field(Float32, 20),); seed = 3)
    add_many(n) = extend!(
        buffer; observation = Float32.((1:20) .+ (1:n)'), reward = 1:n, terminated = falses(n), truncated = falses(n),
    )
    add_many(8_000)
    whole = checkpoint(buffer, directory)
    @test whole > 8_000 * 20 * 4
    add_many(100)
    @test checkpoint(buffer, directory) < whole / 2
    @test bytes_of(load(ReplayBuffer, directory)) == bytes_of(buffer)
    @test thrown(() -> checkpoint(buffer, joinpath(directory, "manifest.per"))).status == PER.PER_ERROR_IO
    @test occursin("NUL", sprint(showerror, thrown(() -> checkpoint(buffer, "a\0b"))))
end

@testset "calls wait for a directory that another has locked, and no longer than they may" begin
    directory = joinpath(mktempdir(), "run")
    buffer = ReplayBuffer(100, (observation = Field(Int32),); storage = mkpath(directory))
    checkpoint(buffer, directory)
    shared, alone = 1, 2  # LOCK_SH, LOCK_EX
    folder = ccall(:open, Cint, (Cstring, Cint), directory, 0)
    lock(operation) = @test ccall(:flock, Cint, (Cint, Cint), folder, operation) == 0
    lock(shared)
    for timeout in (0, 0.03)
        error = thrown(() -> checkpoint(buffer, directory; timeout))
        @test error.status == PER.PER_ERROR_BUSY && occursin(directory, error.message)
    end
    @test length(load(ReplayBuffer, directory; timeout = 0)) == 0
    lock(alone)
    @test occursin("cannot be read yet", thrown(() -> load(ReplayBuffer, directory; timeout = 0)).message)
    # Other tasks continue, and one of them unlocks it.
    unlocking = @async ccall(:close, Cint, (Cint,), folder)
    @test checkpoint(buffer, directory; timeout = Inf) > 0
    @test fetch(unlocking) == 0
    # It does not wait if waiting would change nothing.
    @test occursin("has its rows", thrown(() -> load(ReplayBuffer, directory; storage = directory, timeout = Inf)).message)
end

@testset "a save in the background has the buffer of its start" begin
    buffer, path = filled(30), tempname()
    for _ in 1:3
        expected = bytes_of(buffer)
        background = save(buffer, path; wait = false)
        walk(buffer, 20)
        @test wait(background) === nothing
        @test isready(background) && PER.progress(background) == 1 && string(background) == "Save(done)"
        @test read(path) == expected != bytes_of(buffer)
    end
    background = save(buffer, path; wait = false)
    @test thrown(() -> wait(background; timeout = -1)).message == "timeout is -1; allowed: seconds >= 0"
    close(buffer)
    @test wait(background; timeout = 0) === nothing
    @test thrown(() -> save(filled(3), joinpath(path, "missing"); wait = false)).status == PER.PER_ERROR_IO
    @test thrown(() -> deepcopy(background)).message == "a save can be neither copied nor serialized"
    rm(path)
end

@testset "an IO may hold several buffers and what else" begin
    io = IOBuffer()
    buffers = filled.((0, 5, 30))
    for buffer in buffers
        write(io, "mine")
        save(buffer, io)
    end
    write(io, "end")
    seekstart(io)
    for buffer in buffers
        @test String(read(io, 4)) == "mine"
        @test stats(load(ReplayBuffer, io)) == stats(buffer)
    end
    @test read(io, String) == "end"
end

@testset "an IO may take and give less than it is asked to" begin
    buffer = filled(30)
    io = Narrow(IOBuffer(), 7, 0, 0)
    save(buffer, io)
    @test take!(copy(io.io)) == bytes_of(buffer)
    seekstart(io.io)
    @test same_from_here(buffer, load(ReplayBuffer, io))
end

@testset "what an IO throws passes through and changes nothing" begin
    buffer = filled(30)
    before = bytes_of(buffer)
    for call in (1, 2, 5)
        for action in (io -> save(buffer, io), io -> load(ReplayBuffer, io))
            error = try
                action(Narrow(IOBuffer(copy(before); read = true, write = true), 100, 0, call))
            catch error
                error
            end
            @test error isa DomainError && error.val == call
        end
    end
    @test bytes_of(buffer) == before
    @test thrown(() -> save(buffer, Narrow(IOBuffer(), 0, 0, 0))).status == PER.PER_ERROR_CALLBACK
end

@testset "bytes that end early or are damaged are refused" begin
    bytes = bytes_of(filled(5))
    for bad in (bytes[1:end-1], bytes[1:4], UInt8[], [bytes[1:99]; bytes[100] ⊻ 0x01; bytes[101:end]])
        @test thrown(() -> load(ReplayBuffer, IOBuffer(bad))).status == PER.PER_ERROR_CORRUPT_FILE
    end
    @test is_invalid(thrown(() -> load(ReplayBuffer, IOBuffer(bytes); device = :gpu)), "device is :gpu")
end

# An IO that uses buffers while it is written to, and closes the handles in `closed`.
struct Meddling <: IO
    buffer::ReplayBuffer
    other::ReplayBuffer
    statuses::Vector{Int32}
    closed::Vector{Any}
end

function Base.unsafe_write(io::Meddling, ::Ptr{UInt8}, n::UInt)
    push!(io.statuses, thrown(() -> length(io.buffer)).status, thrown(() -> walk(io.buffer, 1)).status)
    length(io.other)
    foreach(close, io.closed)
    return n
end

@testset "a buffer that is being saved is busy for its IO, and others are not" begin
    io = Meddling(filled(30), filled(5), Int32[], [])
    before = stats(io.buffer)
    save(io.buffer, io)
    @test !isempty(io.statuses) && all(io.statuses .== PER.PER_ERROR_BUSY)
    @test stats(io.buffer) == before
end

@testset "what an IO closes is closed after the save" begin
    buffer = filled(30)
    channels = channel(buffer)
    io = Meddling(buffer, filled(5), Int32[], [channels, loader(buffer, 4)])
    writer = PER.Writer(channels.path)
    save(buffer, io)
    @test is_invalid(thrown(() -> cut!(writer)), "the channel was closed")
    loader(batches -> @test(length(first(batches).ids) == 4), buffer, 4)
end

@testset "copied and serialized buffers go on by themselves" begin
    buffer = filled(30)
    @test same_from_here(buffer, deepcopy(buffer))
    pair = deepcopy([buffer, buffer])
    @test pair[1].handle === pair[2].handle !== buffer.handle
    io = IOBuffer()
    Serialization.serialize(io, (buffer = buffer, pair = [buffer, buffer], more = ["more"]))
    found = Serialization.deserialize(seekstart(io))
    @test found.more == ["more"] && same_from_here(buffer, found.buffer)
    @test all(again -> again.handle === found.buffer.handle !== buffer.handle, found.pair)
    close(found.buffer)
    @test length(buffer) > 0
    for action in (deepcopy, closed -> Serialization.serialize(IOBuffer(), closed))
        @test is_invalid(thrown(() -> action(found.buffer)), "the buffer was closed")
    end
end

@testset "rows lie in a file" begin
    folder = mktempdir()
    buffer, twin = filled(30), ReplayBuffer(40, (observation = Field(Int32), action = Field(Float32, 2)); n_step = 2,
                                            seed = 3, storage = folder)
    walk(twin, 30)
    @test options(twin).storage == folder && options(buffer).storage === nothing
    @test bytes_of(buffer) == bytes_of(twin) && isempty(readdir(folder))
    path = joinpath(folder, "saved")
    save(buffer, path)
    loaded = load(ReplayBuffer, path; storage = folder, storage_preallocated = true)
    @test options(loaded).storage == folder && options(loaded).storage_preallocated
    @test bytes_of(loaded) == bytes_of(buffer)
    @test thrown(() -> ReplayBuffer(; options(twin)..., storage = joinpath(folder, "none", "below"))).status ==
          PER.PER_ERROR_IO
    @test occursin("without a NUL", invalid_message(() -> ReplayBuffer(; options(twin)..., storage = "a\0b")))
    @test options(deepcopy(twin)).storage === nothing
    from_io(; place...) = load(ReplayBuffer, IOBuffer(bytes_of(buffer)); place...)
    @test is_invalid(thrown(() -> from_io(storage = folder)), "allowed: nothing, as an IO is read")
    @test is_invalid(thrown(() -> from_io(storage_preallocated = true)), "storage_preallocated is true; allowed: false")
end

@testset "rows stay in their file where a checkpoint is in its directory" begin
    folder = mktempdir()
    buffer = ReplayBuffer(40, (observation = Field(Int32), action = Field(Float32, 2)); n_step = 2, seed = 3,
                          storage = folder)
    walk(buffer, 30)
    written = checkpoint(buffer, folder)
    @test written > 0 && sort(first.(split.(readdir(folder), '-'))) == ["manifest.per", "pack", "rows"]
    expected = bytes_of(buffer)
    busy = thrown(() -> load(ReplayBuffer, folder; storage = folder))
    @test busy.status == PER.PER_ERROR_BUSY && occursin("a buffer has its rows already", busy.message)
    @test bytes_of(load(ReplayBuffer, folder)) == expected
    close(buffer)
    loaded = load(ReplayBuffer, folder; storage = folder)
    @test bytes_of(loaded) == expected && options(loaded).storage == folder
    walk(loaded, 30)
    @test bytes_of(load(ReplayBuffer, folder)) == expected
    checkpoint(loaded, folder)
    @test bytes_of(load(ReplayBuffer, folder)) == bytes_of(loaded)
    close(loaded)
end

@testset "fields are compressed" begin
    buffers = map((:none, :delta)) do kind
        fields = (observation = Field(Float32, 20, 8; compression = kind), action = Field(Int16))
        return ReplayBuffer(60, fields; n_step = 2, seed = 3)
    end
    observations = zeros(Float32, 20, 8, 101)
    for t in 1:101
        observations[:, 1 + t % 8, t] .= t
    end
    for buffer in buffers
        extend!(buffer; observation = observations[:, :, 1:100], next_observation = observations[:, :, 2:101],
                action = Int16.(1:100), reward = 1:100, terminated = falses(100), truncated = falses(100))
    end
    batches = map(buffer -> sample!(buffer, 16), buffers)
    @test all(name -> batches[1][name] == batches[2][name], (:ids, :observation, :next_observation, :reward))
    kinds(buffer) = [field.compression for (_, field) in options(buffer).fields]
    @test map(kinds, buffers) == ([:none, :none], [:delta, :none])
    @test kinds(deepcopy(buffers[2])) == [:delta, :none]
    @test bytes_of(deepcopy(buffers[2])) == bytes_of(buffers[2])
    @test is_invalid(thrown(() -> Field(Float32, 20; compression = :zip)), "compression is :zip; allowed: :none, :delta")
    @test is_invalid(thrown(() -> Field(Int16; compression = :delta)), "its frame has 2 bytes")
    @test options(ReplayBuffer(; options(buffers[2])...)).fields == options(buffers[2]).fields
end

const LOADED_FIELDS = (observation = Field(Float32, 2), action = Field(Int64), flag = Field(Bool))

function loaded(rows; options...)
    buffer = ReplayBuffer(rows + 60, LOADED_FIELDS; seed = 4, options...)
    steps!(buffer, 1:rows)
    return buffer
end

function steps!(buffer, numbers)
    n = length(numbers)
    extend!(buffer; observation = [Float32(t) for axis in 1:2, t in numbers], action = collect(numbers),
            flag = isodd.(numbers), reward = collect(numbers), terminated = falses(n), truncated = falses(n))
end

same(batch, expected) = all(batch[name] == expected[name] for name in keys(expected)) && keys(batch) == keys(expected)

@testset "a loader's batches are those of sample!" begin
    for slots in (1, 3)
        options = (n_step = 3, frame_stack = 2, beta_steps = 10)
        buffer, twin = loaded(300; options...), loaded(300; options...)
        loader(buffer, 32; slots = slots) do batches
            for (step, batch) in zip(1:20, batches)
                @test same(batch, sample!(twin, 32))
                @test buffer.beta == twin.beta
            end
        end
        @test stats(buffer).beta_step in (20, 21)  # zip may ask for one more
    end
    buffer, twin = loaded(300), loaded(300)
    chosen = (scheme = :without_replacement, beta = 1, normalize_weights = :none)
    loader(buffer, 16; chosen...) do batches
        @test same(take!(batches), sample!(twin, 16; chosen...))
    end
end

@testset "handing out asks for the next batch before what is done then" begin
    slots, count = 3, 2000
    buffer, twin = loaded(300), loaded(300)
    ahead = [sample!(twin, count) for _ in 1:slots]
    batches = loader(buffer, count; slots = slots)
    for (step, batch) in zip(1:30, batches)
        expected = popfirst!(ahead)
        push!(ahead, sample!(twin, count))
        for each in (buffer, twin)
            update_priorities!(each, expected.ids, expected.reward .% (step + 1))
            step % 4 == 0 && steps!(each, 300 + step:300 + step)
        end
        @test same(batch, expected)
    end
    close(batches)
end

@testset "slots are used again, and those out are not written" begin
    batches = loader(loaded(300), 8; slots = 3)
    held = [take!(batches), take!(batches)]
    copies = [deepcopy(PER.arrays_of(batch)) for batch in held]
    places = Set(pointer(batch.ids) for (step, batch) in zip(1:20, batches))
    @test length(places) <= 2 && isdisjoint(places, [pointer(batch.ids) for batch in held])
    @test all(PER.arrays_of(batch) == copy for (batch, copy) in zip(held, copies))
    foreach(batch -> release!(batches, batch), held)
    @test is_invalid(thrown(() -> release!(batches, held[1])), "batch is none that this loader has out")
    @test is_invalid(thrown(() -> release!(batches, sample!(loaded(10), 8))), "batch is none")
    close(batches)
end

@testset "with every slot out a loader is busy, or waits for another task" begin
    batches = loader(loaded(300), 8; slots = 2)
    held = [take!(batches), take!(batches)]
    @test thrown(() -> take!(batches; timeout = 0)).status == PER.PER_ERROR_BUSY
    @test thrown(() -> take!(batches; timeout = 0.02)).status == PER.PER_ERROR_BUSY
    waiting = @async take!(batches)
    sleep(0.01)
    @test !istaskdone(waiting)
    release!(batches, held[1])
    @test length(fetch(waiting).ids) == 8
    close(batches)
end

@testset "an empty buffer is an error, and then not" begin
    buffer, twin = loaded(0), loaded(0)
    loader(buffer, 8) do batches
        for _ in 1:5
            @test thrown(() -> take!(batches)).status == PER.PER_ERROR_EMPTY
        end
        steps!(buffer, 1:50)
        steps!(twin, 1:50)
        for _ in 1:3
            batch = take!(batches)
            @test same(batch, sample!(twin, 8))
            release!(batches, batch)
        end
    end
end

@testset "a buffer has one loader at a time" begin
    buffer = loaded(300)
    first = loader(buffer, 8)
    @test repr(first) == "Loader(8, 3 slots)"
    @test thrown(() -> loader(buffer, 8)).status == PER.PER_ERROR_BUSY
    batch = take!(first)
    close(first)
    close(first)
    @test repr(first) == "Loader(8, 3 slots, closed)"
    loader(batches -> (@test length(take!(batches).ids) == 16), buffer, 16)
    @test length(batch.ids) == 8
    @test thrown(() -> take!(first)).message == "the loader was closed"
end

@testset "a loop releases the last batch of the loop before" begin
    batches = loader(loaded(300), 8; slots = 2)
    for _ in 1:4
        @test length([length(batch.ids) for (_, batch) in zip(1:3, batches)]) == 3
        @test length(first(batches).ids) == 8
    end
    held = [take!(batches) for _ in 1:1]
    @test thrown(() -> take!(batches; timeout = 0)).status == PER.PER_ERROR_BUSY
    foreach(batch -> release!(batches, batch), held)
    @test length(first(batches).ids) == 8
    close(batches)
end

@testset "a timeout is a number of seconds" begin
    batches = loader(loaded(300), 8)
    for timeout in (NaN, -1)
        @test is_invalid(thrown(() -> take!(batches; timeout = timeout)), "timeout is $timeout; allowed: seconds >= 0")
    end
    close(batches)
end

@testset "bad arguments of a loader are errors" begin
    buffer = loaded(300)
    @test is_invalid(thrown(() -> loader(buffer, 0)), "batch_size is 0")
    @test is_invalid(thrown(() -> loader(buffer, 2.5)), "batch_size is 2.5")
    @test is_invalid(thrown(() -> loader(buffer, 8; slots = 0)), "slots is 0")
    @test is_invalid(thrown(() -> loader(buffer, 8; device = :tpu)), "device is :tpu")
    @test is_invalid(thrown(() -> loader(buffer, 8; device = :cuda)), "arrays is not given")
    @test is_invalid(thrown(() -> loader(buffer, 8; current_stream = () -> C_NULL)), "current_stream is given")
    @test is_invalid(thrown(() -> loader(buffer, 8; beta = -1)), "beta is -1")
    @test is_invalid(thrown(() -> loader(buffer, 8; scheme = :sorted)), "scheme is :sorted")
    loader(take!, buffer, 8)  # none of them was taken for the buffer's one
    close(buffer)
    @test thrown(() -> loader(buffer, 8)).message == "the buffer was closed"
end

@testset "arrays may outlive loader and buffer" begin
    function array_of_a_loader()
        batches = loader(loaded(300), 500)
        return take!(batches).observation
    end
    array = array_of_a_loader()
    copied = copy(array)
    for _ in 1:5
        GC.gc()
        sample!(loaded(300), 500)
    end
    @test array == copied
    fill!(array, 1)
end

# Julia's collector stops all of Julia's threads; the loader's is not one of them.
@testset "the garbage collector and a loader do not wait for each other" begin
    script = """
    buffer = ReplayBuffer(2000, (observation = Field(Float32, 50),))
    extend!(buffer; observation = ones(Float32, 50, 1900), reward = ones(1900), terminated = falses(1900),
            truncated = falses(1900))
    for round in 1:20
        batches = loader(buffer, 512; slots = 2)
        tasks = map(1:2) do _
            Threads.@spawn for step in 1:50
                batch = take!(batches)
                junk = [rand(100) for _ in 1:20]
                update_priorities!(buffer, batch.ids, batch.reward .+ length(junk))
                step % 10 == 0 && GC.gc(false)
                release!(batches, batch)
            end
        end
        foreach(wait, tasks)
        close(batches)
    end
    print("done ", stats(buffer).beta_step)
    """
    @test output_of(script; threads = 2) == "done 2000"
end

# On the simulated GPU, where device memory is host memory. Seed 0: each call does its work at once.
const SIMULATED = normpath(joinpath(@__DIR__, "../../../../build/libper_simulated.so"))
if isfile(SIMULATED)
    @testset "batches in the memory of a device are those of sample!" begin
        script = """
        function filled()
            buffer = ReplayBuffer(300, (observation = Field(Float32, 2), flag = Field(Bool)); seed = 4)
            extend!(buffer; observation = ones(Float32, 2, 200), flag = isodd.(1:200), reward = 1:200,
                    terminated = falses(200), truncated = falses(200))
            return buffer
        end
        buffer, twin = filled(), filled()
        asked = Ref(0)
        on_device(type, size) = Array{type}(undef, size)
        PER.device_view(::typeof(on_device), ::Type{T}, pointer, size) where {T} =
            unsafe_wrap(Array, Ptr{T}(pointer), size)
        stream() = (asked[] += 1; C_NULL)
        n_right = 0
        loader(buffer, 32; slots = 2, device = "cuda:0", arrays = on_device, current_stream = stream) do batches
            for step in 1:20
                batch, expected = take!(batches), sample!(twin, 32)
                global n_right += all(batch[name] == expected[name] for name in keys(expected))
                release!(batches, batch)
            end
        end
        print(n_right, " ", asked[])
        """
        withenv("LIBPER_PATH" => SIMULATED, "PER_SIMULATOR_SEED" => "0") do
            @test output_of(script) == "20 40"
        end
    end
else
    @warn "no build/libper_simulated.so: no loaders on CUDA are tested"
end

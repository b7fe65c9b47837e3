import InteractiveUtils
import Serialization

const PACKAGE = normpath(joinpath(@__DIR__, ".."))

# The output of a script in a new Julia process, with this package and `threads` threads, which Julia 1.5 limits to the
# number of cores. A crash is an error, and so is a script that takes five minutes.
function output_of(script; threads = 1)
    text = "using PER\n" * read(joinpath(@__DIR__, "thrown.jl"), String) * script
    output = open(`$(Base.julia_cmd()) -t $threads --startup-file=no --project=$PACKAGE -e $text`)
    limit = Timer(_ -> kill(output, Base.SIGKILL), 300)
    text = read(output, String)
    close(limit)
    success(output) || error("the script failed")
    return text
end

@testset "a closed handle is an error to use and harmless to close again" begin
    tree = update!(SumTree(4), 1:4, ones(4))
    buffer = ReplayBuffer(20, (observation = Field(Int32),))
    add!(buffer; observation = 1, reward = 0, terminated = false, truncated = false, next_observation = 2)
    batch = sample!(buffer, 2)
    @test isopen(tree) && isopen(buffer)
    for _ in 1:3
        close(tree)
        close(buffer)
    end
    @test !isopen(tree) && !isopen(buffer)
    for action in (
        () -> total(tree),
        () -> length(tree),
        () -> priorities(tree),
        () -> sample!(tree, 2),
        () -> update!(tree, [1], [1]),
        () -> length(buffer),
        () -> buffer.alpha,
        () -> buffer.alpha = 1,
        () -> sample!(buffer, 2),
        () -> sample!(buffer, 2; out = batch),
        () -> add!(buffer; observation = 1, reward = 0, terminated = false, truncated = false),
        () -> update_priorities!(buffer, batch.ids, [1, 1]),
        () -> save(buffer, "replay.per"),
    )
        @test thrown(action).message in ("the tree was closed", "the buffer was closed")
    end
    @test thrown(() -> total(tree)).message == "the tree was closed"
    @test thrown(() -> length(buffer)).message == "the buffer was closed"
    # Batches are the caller's.
    @test batch.observation == [1, 1]
end

@testset "trees, epochs and loaders are neither copied nor serialized" begin
    tree = SumTree(4)
    buffer = ReplayBuffer(20, (observation = Field(Int32),))
    add!(buffer; observation = 1, reward = 0, terminated = true, truncated = false, next_observation = 2)
    handles = tree, epochs(buffer, 1; batch_size = 1), loader(buffer, 1)
    for action in (deepcopy, handle -> Serialization.serialize(IOBuffer(), handle)), handle in handles
        error = thrown(() -> action(handle))
        @test error.status == PER.PER_ERROR_UNSUPPORTED
        @test occursin(r"^a (tree|handle of epochs|loader) can be neither copied nor serialized$", error.message)
    end
    close(handles[3])
end

address_space_bytes() = parse(Int, split(read("/proc/self/statm", String))[1]) * 4096

@testset "the garbage collector frees what nobody holds" begin
    # 300 trees of 1e6 leaves, 4.6 MB each, and as many buffers of 9 MB and more: 4 GB if none were freed.
    before = address_space_bytes()
    most = 0
    for round in 1:300
        update!(SumTree(10^6), [10^6], [1])
        ReplayBuffer(10^6, (observation = Field(Int32),))
        if round % 10 == 0
            GC.gc()
            most = max(most, address_space_bytes() - before)
        end
    end
    @test most < 10^9
end

# An array that collects garbage, and overwrites what that freed, whenever an element is read.
struct CollectingArray <: AbstractVector{Float32}
    numbers::Vector{Float32}
end

Base.size(array::CollectingArray) = size(array.numbers)

function Base.getindex(array::CollectingArray, i::Int)
    GC.gc()
    foreach(length -> fill(NaN, length), repeat(1:16, 20))
    return array.numbers[i]
end

@testset "what a call has made of its first arguments lives while it reads the others" begin
    buffer = ReplayBuffer(100, (observation = Field(Float64, 2), action = Field(Int8, 3)); n_envs = 2)
    ids = add!(buffer; observation = Any[1.5 3.5; 2.5 4.5], action = Any[Int8(row + env) for row in 1:3, env in 1:2],
               next_observation = Any[5.5 7.5; 6.5 8.5], terminated = BitArray([true, false]),
               truncated = [false, false], reward = CollectingArray([1, 2]))
    rows = get(buffer, ids)
    @test rows.observation == [1.5 3.5; 2.5 4.5] && rows.next_observation == [5.5 7.5; 6.5 8.5]
    @test rows.action == [2 3; 3 4; 4 5]
    @test rows.reward == [1, 2] && rows.terminated == [true, false]
end

@testset "arrays live as long as the calls that use them" begin
    # One thread collects garbage all the time; the other passes unreferenced temporary arrays, and checks the results.
    script = """
    wrong = Threads.Atomic{Int}(0)
    function play(rounds)
        buffer = ReplayBuffer(1000, (observation = Field(Float64, 3), action = Field(Int8)); n_envs = 2, seed = 1)
        for t in 1:rounds
            add!(buffer; observation = [Float32(t + row) for row in 1:3, env in 1:2], action = Any[Int8(1), Int8(2)],
                 reward = [t, 2t], terminated = BitArray([t % 7 == 0, false]), truncated = [false, false],
                 next_observation = [Float32(t + 1 + row) for row in 1:3, env in 1:2])
            batch = sample!(buffer, 8; n_step = 1)
            update_priorities!(buffer, batch.ids, abs.(Float64.(batch.reward)) ./ 100)
            all(batch.observation .== [batch.reward[b] / batch.action[b] + row for row in 1:3, b in 1:8]) ||
                Threads.atomic_add!(wrong, 1)
        end
    end
    Threads.@threads for thread in 1:2
        thread == 1 ? play(2000) : foreach(_ -> GC.gc(false), 1:2000)
    end
    print(wrong[], " wrong")
    """
    @test output_of(script; threads = 2) == "0 wrong"
end

@testset "errors caught inside the library reach Julia, also of memory" begin
    # The limit makes an allocation inside the library fail for real, whatever the machine has.
    script = """
    bytes = parse(UInt64, split(read("/proc/self/statm", String))[1]) * 4096 + UInt64(2)^28
    ccall(:setrlimit, Cint, (Cint, Ptr{UInt64}), 9, [bytes, bytes]) == 0 || error("no limit was set")
    tree = update!(SumTree(4), [1], [1])
    statuses = [
        thrown(() -> SumTree(10^9)).status,
        thrown(() -> ReplayBuffer(10^9, (observation = Field(Float32, 4),))).status,
        thrown(() -> SumTree(10^9)).status,
        thrown(() -> sample!(SumTree(2), 1)).status,
        thrown(() -> update!(tree, [5], [1])).status,
    ]
    print(statuses, " ", total(tree))
    """
    memory, empty, argument = PER.PER_ERROR_OUT_OF_MEMORY, PER.PER_ERROR_EMPTY, PER.PER_ERROR_INVALID_ARGUMENT
    @test output_of(script) == "$(Int32[memory, memory, memory, empty, argument]) 1.0"
end

@testset "threads share a tree, and each has its own errors" begin
    script = """
    tree = update!(SumTree(1000), 1:1000, ones(1000))
    wrong = Threads.Atomic{Int}(0)
    Threads.@threads for thread in 1:4
        for round in 1:500
            update!(tree, [round % 1000 + 1, thread], [round, 1])
            all(1 .<= sample!(tree, 16).indices .<= 1000) || Threads.atomic_add!(wrong, 1)
            index = 1000 + 10 * thread + round % 10
            error = thrown(() -> update!(tree, [index], [1]))
            is_invalid(error, "indices[0] is \$(index - 1)") || Threads.atomic_add!(wrong, 1)
        end
    end
    print(wrong[], " wrong")
    """
    @test output_of(script; threads = 4) == "0 wrong"
end

@testset "closing a tree while other threads use it is safe" begin
    script = """
    outcomes = [Set{String}() for _ in 1:4]
    for round in 1:200
        tree = update!(SumTree(100), 1:100, ones(100))
        Threads.@threads for thread in 1:4
            for call in 1:20
                thread == 4 && call == 5 && close(tree)
                push!(outcomes[thread], thrown(() -> sample!(tree, 64)).message)
            end
        end
    end
    print(join(sort(collect(union(outcomes...))), "; "))
    """
    @test output_of(script; threads = 4) == "nothing was thrown; the tree was closed"
end

@testset "threads share mixtures of the same buffers, in any order, until a buffer is closed" begin
    script = """
    outcomes = [Set{String}() for _ in 1:4]
    for round in 1:50
        buffers = [ReplayBuffer(100, (observation = Field(Int32),); seed) for seed in 1:3]
        for buffer in buffers
            extend!(buffer; observation = 1:60, reward = 1:60, terminated = falses(60), truncated = falses(60))
        end
        named = [Symbol(:b, k) => (buffers[k], k) for k in 1:3]
        mixtures = [Mixture(named...), Mixture(reverse(named)...)]
        Threads.@threads for thread in 1:4
            for call in 1:20
                thread == 4 && call == 10 && round % 2 == 0 && close(buffers[3])
                mixture = mixtures[thread % 2 + 1]
                push!(outcomes[thread], thrown(() -> begin
                    batch = sample!(mixture, 7)
                    batch.observation == batch.reward || error("rows of different transitions")
                    update_priorities!(mixture, batch, batch.reward)
                    abs(sum(mixture.shares) - 1) < 1e-9 && sum(mixture.carries) == 0 || error("a torn state")
                end).message)
            end
        end
    end
    print(join(sort(collect(union(outcomes...))), "; "))
    """
    outcomes = split(output_of(script; threads = 4), "; ")
    # The name is missing if the buffer is closed while a call begins.
    @test outcomes in (["nothing was thrown", "the buffer b3 was closed"],
                       ["nothing was thrown", "the buffer b3 was closed", "the buffer was closed"])
end

# To collect garbage, as functions that C calls do here, Julia stops all threads. Meanwhile another thread waits, in a
# call, for the buffer that they are called for.
Sys.CPU_THREADS > 1 && @testset "functions that C calls collect garbage while other threads wait for the buffer" begin
    output = output_of("""
        struct Collecting <: IO end
        Base.unsafe_write(::Collecting, ::Ptr{UInt8}, n::UInt) = (GC.gc(false); n)
        function relabel(achieved, goals)
            GC.gc(false)
            return achieved .== goals
        end
        buffer = ReplayBuffer(1000, (observation = Field(Float32), goal = Field(Float32)))
        extend!(buffer; observation = 1:100, next_observation = 2:101, goal = fill(7, 100), reward = zeros(100),
                terminated = falses(100), truncated = (1:100) .== 100)
        calls = Dict(
            "save" => () -> save(buffer, Collecting()),
            "copy" => () -> deepcopy(buffer),
            "relabel" => () -> sample!(buffer, 8; hindsight = Hindsight(:observation, :goal, relabel)),
        )
        sample!(buffer, 4)
        for name in ("save", "copy", "relabel")
            calls[name]()
            done = Threads.Atomic{Bool}(false)
            draws = Threads.Atomic{Int}(0)
            Threads.@threads for part in 1:2
                if part == 1
                    while draws[] < 30
                        calls[name]()
                    end
                    done[] = true
                else
                    while !done[]
                        sample!(buffer, 4)
                        draws[] += 1
                    end
                end
            end
            println(name)
        end
    """; threads = 2)
    @test output == "save\ncopy\nrelabel\n"
end

# The other thread waits in C, with a lock of the package, for the buffer that is being saved.
@testset "what another thread waits in is busy for the IO of a save" begin
    output = output_of("""
        struct Using <: IO
            use::Any
        end
        Base.unsafe_write(io::Using, ::Ptr{UInt8}, n::UInt) = (io.use(); n)
        buffer, other = (ReplayBuffer(100, (observation = Field(Float32),)) for _ in 1:2)
        for each in (buffer, other)
            extend!(each; observation = 1:9, reward = ones(9), terminated = falses(9), truncated = falses(9))
        end
        mixture = Mixture(:buffer => (buffer, 1), :other => (other, 1))
        for use in (() -> sample!(mixture, 4), () -> mixture.shares = (buffer = 1, other = 2), () -> buffer.alpha = 0.5,
                    () -> epochs(buffer, 1; batch_size = 4))
            use()
            statuses, waiting = Int32[], Ref{Any}(nothing)
            save(buffer, Using() do
                if waiting[] === nothing
                    waiting[] = Threads.@spawn use()
                    started = time()
                    while time() < started + 0.3  # so that it most likely waits
                    end
                end
                push!(statuses, thrown(use).status)
            end)
            wait(waiting[])
            println(all(statuses .== PER.PER_ERROR_BUSY))
        end
    """; threads = 2)
    @test output == "true\n"^4
end

@testset "an interrupt during a save, most likely within C, ends it and leaves the buffer usable" begin
    output = output_of("""
        Base.exit_on_sigint(false)
        struct Sink <: IO end
        Base.unsafe_write(::Sink, ::Ptr{UInt8}, n::UInt) = n
        buffer = ReplayBuffer(40000, (observation = Field(Float32, 256),))
        data, no = Float32.(rand(1:9, 256, 40000)), falses(40000)
        extend!(buffer; observation = data, reward = ones(40000), terminated = no, truncated = no)
        save(buffer, Sink(); compression = 1)
        try
            run(`sh -c "sleep 0.5; kill -INT \$(getpid())"`, wait = false)
            save(buffer, Sink(); compression = 19)
        catch error
            println(typeof(error))
        end
        println(length(sample!(buffer, 4).ids))
    """)
    @test output == "InterruptException\n4\n"
end

# From 1.9 on, Julia stops at a collection before it runs such a function.
VERSION < v"1.9" && @testset "functions that C calls touch nothing of Julia's outside of gc_unsafe()" begin
    of_reward = (Ptr{Cvoid}, Int64, Ptr{Cvoid}, Ptr{Cvoid}, Ptr{Float32}, Ptr{UInt8})
    of_io = (Ptr{Cvoid}, Ptr{Cvoid}, Int64)
    for (action, types) in ((PER.write_bytes, of_io), (PER.read_bytes, of_io), (PER.answer, of_reward))
        code = sprint(io -> InteractiveUtils.code_llvm(io, action, types))
        @test occursin("without_inlining", code) && !occursin(r"gcframe|jl_apply|jl_box|jl_invoke", code)
    end
end

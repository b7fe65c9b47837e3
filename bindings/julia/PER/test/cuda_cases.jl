# Trees and buffers on CUDA match those on the CPU, draw by draw. Run by cuda.jl in a separate process.
using Test
using PER

include("thrown.jl")
include("device_array.jl")

const CUDA_OPTIONS = (device = :cuda, arrays = DeviceArray, current_stream = () -> DeviceStream(C_NULL))

on_device(array::AbstractArray) = DeviceArray(Array(array))
host(array::DeviceArray) = array.host

@testset "trees" begin
    tree, expected = SumTree(1000; seed = 3, CUDA_OPTIONS...), SumTree(1000; seed = 3)
    for turn in 1:3
        indices, values = [(37 * i * turn) % 1000 for i in 0:199], Float32[i % 17 + turn for i in 0:199]
        update!(expected, indices .+ 1, values)
        turn == 2 ? update!(tree, indices .+ 1, values) : update!(tree, on_device(indices), on_device(values))
        for scheme in (:stratified, :independent, :systematic, :without_replacement)
            draw, wanted = (sample!(each, 20; beta = 0.5, scheme = scheme) for each in (tree, expected))
            @test host(draw.indices) .+ 1 == wanted.indices
            @test host(draw.priorities) == wanted.priorities && host(draw.weights) == wanted.weights
            @test host(priorities(tree, draw.indices)) == wanted.priorities
        end
        @test host(priorities(tree)) == priorities(expected) && total(tree) == total(expected)
        sums = [0, total(tree) / 2]
        @test host(find(tree, on_device(sums); stream = C_NULL)) .+ 1 == find(expected, sums)
    end
    @test total(reset!(tree; stream = DeviceStream(C_NULL))) == 0
    PER.synchronize(tree)
end

@testset "what is wrong with values is reported once" begin
    tree = SumTree(4; CUDA_OPTIONS...)
    @test host(sample!(tree, 2).indices) == [-1, -1]
    @test thrown(() -> PER.synchronize(tree)).status == PER.PER_ERROR_EMPTY
    update!(tree, on_device([9, 0]), on_device(Float32[1, 2]))
    @test occursin("1 entries", invalid_message(() -> PER.synchronize(tree)))
    PER.synchronize(tree)
    @test host(priorities(tree)) == [2, 0, 0, 0]
end

@testset "arrays and streams must be known" begin
    @test occursin("arrays is not given", invalid_message(() -> SumTree(4; device = :cuda)))
    tree = SumTree(4; device = :cuda, arrays = DeviceArray)
    @test occursin("stream is not given", invalid_message(() -> update!(tree, [1], [1])))
    @test update!(tree, on_device([0]), on_device(Float32[1]); stream = 0) === tree
    @test thrown(() -> SumTree(4; CUDA_OPTIONS..., device = "cuda:7")).status == PER.PER_ERROR_NO_DEVICE
end

const FIELDS = (observation = Field(Float32, 3), action = Field(Int32))

function steps(first, length, n_envs)
    time = [Float32(first + t) for _ in 1:n_envs, t in 1:length]
    observation = Float32[axis * time[env, t] + env for axis in 1:3, env in 1:n_envs, t in 1:length]
    return (observation = observation, action = Int32.(time), reward = time ./ 4, terminated = time .% 10 .== 9,
            truncated = time .% 7 .== 3, next_observation = observation .+ Float32[1, 2, 3])
end

same(batch, wanted) = keys(batch) == keys(wanted) && all(host(batch[name]) == wanted[name] for name in keys(wanted))

# The statistics that are equal on every device; the memory size is not.
counted(buffer) = (; stats(buffer)..., memory_bytes = 0)

function pair(; options...)
    try
        return (ReplayBuffer(200, FIELDS; seed = 5, n_envs = 2, CUDA_OPTIONS..., options...),
                ReplayBuffer(200, FIELDS; seed = 5, n_envs = 2, options...))
    catch error
        error isa PERError && error.status == PER.PER_ERROR_UNSUPPORTED || rethrow()
        @info "skipped: $(error.message)"
        return nothing
    end
end

@testset "buffers with $options" for options in (
    (n_step = 1,),
    (n_step = 3, uniform_fraction = 0.25, beta_steps = 5),
    (frame_stack = 2, normalize_weights = :buffer_max),
    (prioritization = :rank, scheme = :independent),
    (scheme = :without_replacement, max_priority = :now),
    (sequence_length = 4, burn_in = 1, sequence_stride = 2),
)
    buffers = pair(; options...)
    buffers === nothing && continue
    buffer, expected = buffers
    for turn in 1:4
        run = steps(8 * turn, 8, 2)
        ids = turn == 2 ? extend!(buffer; run...) : extend!(buffer; map(on_device, run)...)
        @test host(ids) == extend!(expected; run...)
        batch, wanted = sample!(buffer, 8), sample!(expected, 8)
        @test same(batch, wanted)
        td_errors = wanted.reward .- 3
        update_priorities!(buffer, batch.ids, on_device(td_errors))
        update_priorities!(expected, wanted.ids, td_errors)
        @test host(priorities(buffer, batch.ids)) == priorities(expected, wanted.ids)
        for (each, ids) in ((buffer, batch.ids), (expected, wanted.ids))
            set_priorities!(each, ids, fill(Float32(turn), 8))
            set!(each, ids; action = fill(Int32(turn), 8))
        end
        @test same(sample!(buffer, 8; out = batch, stream = nothing), sample!(expected, 8; out = wanted))
        @test same(get(buffer, wanted.ids[1:1]), get(expected, wanted.ids[1:1]))
        @test same(get_windows(buffer, batch.ids), get_windows(expected, wanted.ids))
        @test same(get_windows(buffer, [-1, 0]; on_invalid = :skip), get_windows(expected, [-1, 0]; on_invalid = :skip))
        @test live_ids(buffer) == live_ids(expected) && counted(buffer) == counted(expected)
    end
    for (batch, wanted) in zip(epochs(buffer, 1; batch_size = 16), epochs(expected, 1; batch_size = 16))
        @test length(batch.ids) == length(wanted.ids) && collect(batch.reward) == wanted.reward
    end
    cut!(buffer, [1]), cut!(expected, [1])
    @test counted(buffer) == counted(expected)
    PER.synchronize(buffer)
    clear!(buffer)
    @test length(buffer) == 0
end

# The same mixture of two buffers on the device and on the CPU; nothing if the device does not support the options.
function pair_of_mixtures(; options...)
    pairs_of_buffers = [pair(; seed = seed, alpha = 0.2seed, options...) for seed in 1:2]
    any(isnothing, pairs_of_buffers) && return nothing
    for (seed, buffers) in enumerate(pairs_of_buffers)
        run = steps(40seed, 20, 2)
        extend!(buffers[1]; map(on_device, run)...)
        extend!(buffers[2]; run...)
    end
    return Tuple(Mixture((Symbol(:b, seed) => (pairs_of_buffers[seed][k], 3 - seed) for seed in 1:2)...) for k in 1:2)
end

# On the device sources count from 0.
same_mixed(batch, wanted) =
    keys(batch) == keys(wanted) && host(batch.sources) .+ 1 == wanted.sources &&
    all(host(batch[name]) == wanted[name] for name in keys(wanted) if name !== :sources)

@testset "mixtures with $options" for options in (
    (n_step = 3,),
    (scheme = :without_replacement, keep_times_sampled = true),
    (sequence_length = 4, burn_in = 1, sequence_stride = 2),
)
    mixtures = pair_of_mixtures(; options...)
    mixtures === nothing && continue
    mixture, expected = mixtures
    batch, wanted = sample!(mixture, 8), sample!(expected, 8)
    for turn in 1:4
        @test same_mixed(batch, wanted) && mixture.carries == expected.carries
        td_errors = wanted.reward .- 3
        @test update_priorities!(expected, wanted, td_errors) === expected
        # Arrays on the device; and arrays in host memory, whose sources count from 1.
        isodd(turn) ? update_priorities!(mixture, batch, on_device(td_errors); stream = C_NULL) :
        update_priorities!(mixture, (ids = wanted.ids, sources = wanted.sources), td_errors)
        set_priorities!(mixture, (ids = batch.ids[1:1], sources = [1]), [turn])
        set_priorities!(expected, (ids = wanted.ids[1:1], sources = [1]), [turn])
        @test all(host(priorities(there, live_ids(here))) == priorities(here, live_ids(here))
                  for (there, here) in zip(mixture.buffers, expected.buffers))
        @test sample!(mixture, 8; out = batch) === batch && sample!(expected, 8; out = wanted) === wanted
    end
    @test map(counted, values(mixture.buffers)) == map(counted, values(expected.buffers))
    devices = :a => (mixture.buffers.b1, 1), :b => (expected.buffers.b1, 1)
    @test occursin("b is on another device than that of a", invalid_message(() -> Mixture(devices...)))
    # Only the device sees that there is no such buffer; the first one counts the entry.
    rejected = stats(mixture.buffers.b1).rejected_updates
    set_priorities!(mixture, (ids = batch.ids[1:2], sources = on_device(Int32[0, 2])), [1, 1])
    @test stats(mixture.buffers.b1).rejected_updates == rejected + 1
    @test occursin("1 ids named no row", invalid_message(() -> PER.synchronize(mixture.buffers.b1)))
    PER.synchronize(mixture.buffers.b2)
end

@testset "loaders hand out arrays of the device" begin
    buffers = pair()
    if buffers !== nothing
        there, expected = buffers
        here = ReplayBuffer(200, FIELDS; seed = 5, n_envs = 2)
        run = steps(1, 40, 2)
        foreach(buffer -> extend!(buffer; run...), (there, here, expected))
        all_batches = (loader(there, 8), loader(here, 8; CUDA_OPTIONS...), loader(expected, 8))
        for turn in 1:6
            drawn, copied, wanted = map(take!, all_batches)
            @test typeof(drawn.ids) == typeof(copied.ids) != typeof(wanted.ids)
            @test same(drawn, wanted) && same(copied, wanted)
            ids = copy(wanted.ids)
            foreach(buffer -> set_priorities!(buffer, ids, fill(Float32(turn), 8)), (there, here, expected))
            foreach(release!, all_batches, (drawn, copied, wanted))
        end
        foreach(close, all_batches)
        @test counted(there) == counted(expected)
        error = thrown(() -> loader(there, 8; device = :cpu))
        @test error.status == PER.PER_ERROR_INVALID_ARGUMENT && occursin("for the loader of", error.message)
    end
end

@testset "frames of large fields are gathered by the device" begin
    fields = (observation = Field(UInt8, 40, 30), plan = Field(Float32, 300), action = Field(Int64))
    here, expected = (ReplayBuffer(60, fields; seed = 5, frame_stack = 2, n_step = 2) for _ in 1:2)
    frames(first, n) = UInt8[(first + t + x) % 251 for x in 1:40, _ in 1:30, t in 1:n]
    add_run!(first, n) = foreach((here, expected)) do buffer
        extend!(buffer; observation = frames(first, n), plan = Float32[first + t + x for x in 1:300, t in 1:n],
                action = first .+ (1:n), reward = first .+ (1:n), terminated = (first .+ (1:n)) .% 9 .== 0,
                truncated = falses(n), next_observation = frames(first + 1, n))
    end
    add_run!(0, 80)
    both = (loader(here, 8; CUDA_OPTIONS..., gather_on_device = true), loader(expected, 8))
    for turn in 1:10
        drawn, wanted = map(take!, both)
        @test same(drawn, wanted)
        add_run!(80 + 3turn, 3)
        foreach(release!, both, (drawn, wanted))
    end
    foreach(close, both)
    error = thrown(() -> loader(here, 8; gather_on_device = true))
    @test error.status == PER.PER_ERROR_INVALID_ARGUMENT && occursin("gather_on_device is 1: device is", error.message)
    @test occursin("allowed: true, false", thrown(() -> loader(here, 8; gather_on_device = 1)).message)
end

# Allocates arrays, but cannot view existing memory.
function without_views end
without_views(type, size) = DeviceArray{type}(undef, size)

# Creates views until it fails.
const VIEWS_FAIL = Ref(false)
function failing_views end
failing_views(type, size) = DeviceArray{type}(undef, size)
function PER.device_view(::typeof(failing_views), ::Type{T}, pointer, size) where {T}
    VIEWS_FAIL[] && error("no view")
    return DeviceArray(unsafe_wrap(Array, Ptr{T}(pointer), size))
end

filled_for_loaders(arrays) =
    extend_all!(ReplayBuffer(200, FIELDS; seed = 5, n_envs = 2, CUDA_OPTIONS..., arrays = arrays))
extend_all!(buffer) = (extend!(buffer; steps(1, 40, 2)...); buffer)

@testset "a loader whose arrays have no views is refused before it has drawn" begin
    buffer = filled_for_loaders(without_views)
    error = thrown(() -> loader(buffer, 8))
    @test error.status == PER.PER_ERROR_UNSUPPORTED && occursin("no PER.device_view for without_views", error.message)
    @test stats(buffer).samples == 0
    close(loader(buffer, 8; CUDA_OPTIONS...))  # the one refused was none of the buffer's
end

# A batch, or another error than that it is still being drawn: the library does not wait for a slot that is lost.
function take_drawn!(batches)
    for _ in 1:5000
        try
            return take!(batches; timeout = 0)
        catch error
            error isa PERError && error.status == PER.PER_ERROR_BUSY || rethrow()
            sleep(0.001)
        end
    end
    error("there is no batch to take")
end

@testset "a batch of which no arrays can be made gives its slot back" begin
    buffer = filled_for_loaders(failing_views)
    loader(buffer, 8; slots = 2) do batches
        VIEWS_FAIL[] = true
        for _ in 1:5
            @test_throws ErrorException("no view") take_drawn!(batches)
        end
        VIEWS_FAIL[] = false
        held = [take_drawn!(batches), take_drawn!(batches)]
        @test thrown(() -> take!(batches; timeout = 0)).status == PER.PER_ERROR_BUSY
        foreach(batch -> release!(batches, batch), held)
    end
end

@testset "files go from one device to the other" begin
    buffers = pair()
    if buffers !== nothing
        buffer, expected = buffers
        run = steps(1, 40, 2)
        extend!(buffer; map(on_device, run)...), extend!(expected; run...)
        path = tempname()
        save(expected, path)
        @test same(sample!(load(ReplayBuffer, path; CUDA_OPTIONS...), 8), sample!(expected, 8))
        save(buffer, path)
        @test load(ReplayBuffer, path) |> live_ids == live_ids(buffer)
        rm(path)
        io = IOBuffer()
        save(buffer, io)
        @test load(ReplayBuffer, seekstart(io)) |> live_ids == live_ids(buffer)
        copied = deepcopy(buffer)
        @test options(copied) == options(buffer) && same(sample!(copied, 8), sample!(buffer, 8))
    end
end

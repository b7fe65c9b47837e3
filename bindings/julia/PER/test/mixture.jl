import Serialization

const MIXED = (observation = Field(Float32, 2), action = Field(Int32))
const SHARES = [0.5, 0.3, 0.2]

# Steps, priorities and options that differ from buffer to buffer.
function mixed(seed, n; options...)
    buffer = ReplayBuffer(200, MIXED; seed, alpha = 0.3 + 0.1 * seed, beta = 0.2 * seed, beta_steps = 10, options...)
    ids = extend!(buffer; observation = [Float32(10seed + t * axis) for axis in 1:2, t in 1:n], action = 1:n,
                  reward = sin.(seed .* (1:n)), terminated = falses(n), truncated = falses(n))
    set_priorities!(buffer, ids[1:n-1], abs.(cos.(seed .* (1:n-1))))
    return buffer
end

three_buffers(; options...) = (mixed(1, 60; options...), mixed(2, 30; options...), mixed(3, 9; options...))
mixture_of(buffers) = Mixture(:online => (buffers[1], 5), :offline => (buffers[2], 3), :rest => (buffers[3], 2))
counts_of(batch) = [count(==(k), batch.sources) for k in 1:3]

function saved(buffer)
    io = IOBuffer()
    save(buffer, io)
    return take!(io)
end

# The rows that the twins of the buffers draw alone, in the numbers of this batch.
function drawn_alone(twins, batch; options...)
    numbers = counts_of(batch)
    parts = [sample!(twins[k], numbers[k]; normalize_weights = :none, options...) for k in 1:3 if numbers[k] > 0]
    return Dict(name => cat((part[name] for part in parts)...; dims = ndims(parts[1][name])) for name in keys(parts[1]))
end

function same_rows(batch, alone)
    own = (:weights, :probabilities, :sources)
    return issubset(keys(alone), keys(batch)) &&
           all(batch[name] == alone[name] for name in keys(batch) if !(name in own)) && issorted(batch.sources)
end

@testset "rows are those of the buffers, weights those of the union: $options" for options in (
    (scheme = :stratified, beta = 0.7),
    (scheme = :independent, prioritization = :rank, beta = 0.7),
    (scheme = :systematic, uniform_fraction = 0.25, beta = 0.7),
    (scheme = :without_replacement, beta = 0.7),
    (beta = 0.7, normalize_weights = :none),
    (normalize_weights = :none,),
    (normalize_weights = nothing,),  # each row has the beta of its buffer's schedule
)
    buffers, twins = three_buffers(), three_buffers()
    mixture = mixture_of(buffers)
    n_live = sum(length, twins)
    @test n_live == 59 + 29 + 8
    for size in (20, 7, 1, 20)
        betas = haskey(options, :beta) ? fill(options.beta, 3) : [twin.beta for twin in twins]
        batch = sample!(mixture, size; options...)
        alone = drawn_alone(twins, batch; options..., normalize_weights = :none)
        @test same_rows(batch, alone) && length(batch.sources) == size && eltype(batch.sources) === Int32
        probabilities = SHARES[batch.sources] .* Float64.(alone[:probabilities])
        least = get(options, :normalize_weights, nothing) === :none ? 1 / n_live : minimum(probabilities)
        weights = (probabilities ./ least) .^ -betas[batch.sources]
        @test isapprox(batch.probabilities, probabilities; rtol = 1e-6)
        @test isapprox(batch.weights, weights; rtol = 3e-6)
    end
    @test map(saved, buffers) == map(saved, twins)
end

@testset "updates find their buffers, in any order" begin
    buffers, twins = three_buffers(; epsilon = 0.125), three_buffers(; epsilon = 0.125)
    mixture = mixture_of(buffers)
    for turn in 1:4
        batch = sample!(mixture, 20)
        drawn_alone(twins, batch)
        values = Float32.(sin.(turn .* (1:20))) .* [1 2]
        order = [7i % 20 + 1 for i in 0:19]
        given = (ids = batch.ids[order], sources = batch.sources[order])
        update! = isodd(turn) ? update_priorities! : set_priorities!
        isodd(turn) || (values = abs.(values[:, 1]))
        @test update!(mixture, given, values) === mixture
        for k in 1:3
            update!(twins[k], given.ids[given.sources.==k], selectdim(values, 1, given.sources .== k))
        end
    end
    @test map(saved, buffers) == map(saved, twins)
end

@testset "shares are exact in the long run and can be changed" begin
    buffers = three_buffers()
    mixture = mixture_of(buffers)
    @test mixture.shares == (online = 0.5, offline = 0.3, rest = 0.2)
    @test mixture.carries == (online = 0, offline = 0, rest = 0)
    @test mixture.buffers.offline === buffers[2] && propertynames(mixture) == (:buffers, :shares, :carries)
    totals = sum(counts_of(sample!(mixture, 7)) for _ in 1:100)
    @test all(abs.(totals .- 700 .* SHARES) .< 1)
    mixture.shares = (rest = 1, offline = 3, online = 0)
    @test mixture.shares == (online = 0, offline = 0.75, rest = 0.25)
    totals = sum(counts_of(sample!(mixture, 7)) for _ in 1:100)
    @test all(abs.(totals .- 700 .* [0, 0.75, 0.25]) .< 2)
    halves = Mixture("a" => (buffers[1], 1), "b" => (buffers[2], 1))
    @test [counts_of(sample!(halves, 33)) for _ in 1:4] == [[17, 16, 0], [16, 17, 0], [17, 16, 0], [16, 17, 0]]
    @test sprint(show, Mixture(:a => (buffers[1], 1), :b => (buffers[2], 2))) == "Mixture(a = 0.333, b = 0.667)"
end

@testset "a mixture continues from its shares, carries and saved buffers, and so does a copy" begin
    mixture = mixture_of(three_buffers())
    mixture.shares = (online = 1, offline = 3, rest = 0.013)
    sample!(mixture, 7)
    @test any(!iszero, mixture.carries) && sum(mixture.carries) == 0
    resumed = mixture_of(map(buffer -> load(ReplayBuffer, IOBuffer(saved(buffer))), values(mixture.buffers)))
    resumed.shares, resumed.carries = mixture.shares, mixture.carries
    io = IOBuffer()
    Serialization.serialize(io, mixture)
    copies = resumed, deepcopy(mixture), Serialization.deserialize(seekstart(io))
    for _ in 1:5
        batch = sample!(mixture, 7)
        for copied in copies
            again = sample!(copied, 7)
            @test all(again[name] == batch[name] for name in keys(batch))
        end
    end
end

@testset "a batch given as out is filled again" begin
    mixture, twin = mixture_of(three_buffers()), mixture_of(three_buffers())
    batch = sample!(mixture, 8)
    sources = batch.sources
    fresh = [sample!(twin, 8) for _ in 1:2][2]
    @test sample!(mixture, 8; out = batch) === batch && batch.sources === sources
    @test all(batch[name] == fresh[name] for name in keys(fresh))
    of_buffer = sample!(mixture.buffers.online, 8)
    @test is_invalid(thrown(() -> sample!(mixture, 8; out = of_buffer)), "out has observation")
    @test is_invalid(thrown(() -> sample!(mixture, 9; out = batch)), "out.observation is a 2×8 ")
    @test sample!(mixture, 8).sources == sample!(twin, 8).sources
end

@testset "sequences" begin
    options = (sequence_length = 3, sequence_stride = 1, burn_in = 1, n_step = 2)
    buffers, twins = three_buffers(; options...), three_buffers(; options...)
    mixture = mixture_of(buffers)
    for n_step in (2, 1)
        batch = sample!(mixture, 10; n_step)
        @test size(batch.observation) == (2, 4 + n_step, 10) && size(batch.sources) == (10,)
        @test same_rows(batch, drawn_alone(twins, batch; n_step))
        update_priorities!(mixture, batch, ones(4, 10))
        foreach(k -> update_priorities!(twins[k], batch.ids[batch.sources.==k], ones(4, counts_of(batch)[k])), 1:3)
    end
    @test map(saved, buffers) == map(saved, twins)
    buffers[3].n_step = 1
    @test is_invalid(thrown(() -> sample!(mixture, 10)), "n_step of rest is 1, and of online 2; allowed for sequences:")
    @test size(sample!(mixture, 10; n_step = 1).observation) == (2, 5, 10)
end

@testset "times_sampled is there if all buffers count it" begin
    counting(counts) = Mixture((Symbol(:b, k) => (mixed(k, 9; keep_times_sampled = counts[k]), 1) for k in 1:2)...)
    batch = sample!(counting([true, true]), 30)
    @test [count(==((id, k)), zip(batch.ids, batch.sources)) for (id, k) in zip(batch.ids, batch.sources)] ==
          batch.times_sampled
    for counts in ([true, false], [false, true])
        @test !haskey(sample!(counting(counts), 30), :times_sampled)
    end
end

@testset "errors name the buffers, and change nothing" begin
    buffers = three_buffers()
    mixture = mixture_of(buffers)
    batch = sample!(mixture, 4)
    before, state = map(saved, buffers), (mixture.shares, mixture.carries)
    of_buffer = sample!(deepcopy(buffers[1]), 4)
    other, empty = ReplayBuffer(9, (observation = Field(Float32, 2),)), ReplayBuffer(9, MIXED)
    named_sources = ReplayBuffer(9, (observation = Field(Float32), sources = Field(Float32)))
    limited = mixed(1, 9; samples_per_insert = 1, samples_tolerance = 100, min_size_to_sample = 60)
    given(; ids = batch.ids, sources = batch.sources) = (; ids, sources)
    for (action, message) in (
        (() -> Mixture(), r"^the number of buffers is 0: allowed are 1 .. 32$"),
        (() -> Mixture((Symbol(:b, k) => (empty, 1) for k in 1:33)...), r"^the number of buffers is 33: "),
        (() -> Mixture(buffers[1]), r"^an argument is a ReplayBuffer; allowed: name => \(buffer, share\)$"),
        (() -> Mixture(:a => buffers[1]), r"^a is a ReplayBuffer; allowed: \(buffer, share\)$"),
        (() -> Mixture(:a => (buffers[1], "1")), r"^a.share is \"1\", which is no Float64$"),
        (() -> Mixture(:a => (buffers[1], -1)), r"^a.share is -1: must be finite and >= 0$"),
        (() -> Mixture(:a => (buffers[1], 0)), r"^the shares of all sources add up to 0: must be finite and > 0$"),
        (() -> Mixture(:a => (buffers[1], 1), :a => (buffers[2], 1)), r"^the names of the buffers are a, a; .* once$"),
        (() -> Mixture(:a => (buffers[1], 1), :b => (buffers[1], 1)), r"^b is that of a: each source needs its own"),
        (() -> Mixture(:a => (buffers[1], 1), :b => (other, 1)), r"^b has 1 fields, and that of a has 2: all must "),
        (() -> Mixture(:a => (buffers[1], 1), :b => (mixed(1, 9; sequence_length = 2), 1)),
         r"^sequence_length of b is 2, and of a 0: must be the same$"),
        (() -> Mixture(:a => (named_sources, 1)), r"^field sources has the name of an array of a mixture's batches"),
        (() -> (mixture.shares = (online = 1,)), r"^shares is .*; allowed: a named tuple with online, offline, rest$"),
        (() -> (mixture.shares = [1, 1, 1]), r"^shares is \[1, 1, 1\]; allowed: a named tuple with "),
        (() -> (mixture.shares = (online = 1, offline = NaN, rest = 0)), r"^offline.share is NaN: must be finite"),
        (() -> (mixture.shares = (online = 0, offline = 0, rest = 0)), r"^the shares of all sources add up to 0"),
        (() -> (mixture.carries = (online = 0, offline = 1 + 2^40, rest = 0)), r"^offline.carry is 1099511627777: "),
        (() -> (mixture.carries = (online = 0.5, offline = 0, rest = 0)), r"^carries.online is 0.5, which is no "),
        (() -> (mixture.names = 1), r"^names cannot be set; these can: shares, carries$"),
        (() -> mixture.names, r"^there is no names in a mixture; there are buffers, shares, carries$"),
        (() -> sample!(mixture, 0), r"^batch_size is 0: allowed are 1 .. 16777216$"),
        (() -> sample!(mixture, 4; key = [1, 2]), r"^there is no option key; there are beta, "),
        (() -> sample!(mixture, 4; n_step = 9), r"^n_step is 9: allowed is 1"),
        (() -> update_priorities!(mixture, batch.ids, ones(4)), r"^batch is a Array; allowed: a batch of sample!\(\) "),
        (() -> update_priorities!(mixture, of_buffer, ones(4)), r"^batch is a Batch; allowed: .* ids and sources$"),
        (() -> update_priorities!(mixture, batch, [1, 2]), r"^td_errors has 2 entries; allowed: 4$"),
        (() -> set_priorities!(mixture, batch, [1, 2]), r"^priorities has 2 entries; allowed: 4$"),
        (() -> update_priorities!(mixture, given(sources = [1, 2]), ones(4)), r"^batch.sources has 2 entries; "),
        (() -> update_priorities!(mixture, given(sources = ["1", 2, 3, 4]), ones(4)), r"^batch.sources has an entry "),
        (() -> update_priorities!(mixture, given(sources = [1, 2, 3, 4]), ones(4)),
         r"^batch.sources\[3\] is 3: allowed are 0 .. 2 \(counting from 0, as C does\)$"),
        (() -> update_priorities!(mixture, given(sources = [1, 0, 3, 3]), ones(4)), r"^batch.sources\[1\] is -1: "),
        (() -> update_priorities!(mixture, given(ids = [0, 0, 0, 99]), ones(4)), r"^rest: ids\[3\] is 99: never issued"),
        (() -> update_priorities!(mixture, batch, [1, 2, 3, NaN]), r"^rest: td_errors\[3\] gives the priority NaN"),
        (() -> set_priorities!(mixture, batch, [1, 2, -3, 1]), r"^offline: priorities\[2\] is -3"),
    )
        text = invalid_message(action)
        @test (message, occursin(message, text) ? "" : text) == (message, "")
    end
    twice = mixed(1, 9; max_times_sampled = 2, scheme = :without_replacement)
    for (action, status) in (
        (() -> sample!(Mixture(:a => (buffers[1], 1), :b => (empty, 1)), 4), PER.PER_ERROR_EMPTY),
        (() -> sample!(Mixture(:a => (buffers[1], 1), :b => (limited, 1)), 4), PER.PER_ERROR_BUSY),
        (() -> sample!(mixture, 4; normalize_weights = :buffer_max), PER.PER_ERROR_UNSUPPORTED),
        (() -> Mixture(:a => (buffers[1], 1), :b => (twice, 1)), PER.PER_ERROR_UNSUPPORTED),
    )
        @test thrown(action).status == status
    end
    @test map(saved, buffers) == before && (mixture.shares, mixture.carries) == state
end

@testset "a closed buffer is named, and the others stay usable" begin
    buffers = three_buffers()
    mixture = mixture_of(buffers)
    batch, state = sample!(mixture, 4), (mixture.shares, mixture.carries)
    close(buffers[2])
    for action in (
        () -> sample!(mixture, 4),
        () -> sample!(mixture, 4; out = batch),
        () -> update_priorities!(mixture, batch, ones(4)),
        () -> set_priorities!(mixture, batch, ones(4)),
        () -> (mixture.shares = (online = 1, offline = 1, rest = 1)),
        () -> mixture_of(buffers),
    )
        @test is_invalid(thrown(action), "the buffer offline was closed")
    end
    @test (mixture.shares, mixture.carries) == state
    @test length(sample!(buffers[1], 4).ids) == 4
    foreach(close, buffers)  # no call of the mixture has kept a buffer open
    @test all(buffer -> buffer.handle.users[] == 0, buffers)
end

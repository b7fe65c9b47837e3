const MIXED = (observation = Field(Float32, 2), action = Field(Int32))

# Steps and priorities that differ from buffer to buffer.
function mixed(seed, n; options...)
    buffer = ReplayBuffer(200, MIXED; seed, alpha = 0.3 + 0.1 * seed, options...)
    ids = extend!(buffer; observation = [Float32(10seed + t * axis) for axis in 1:2, t in 1:n], action = 1:n,
                  reward = sin.(seed .* (1:n)), terminated = falses(n), truncated = falses(n))
    set_priorities!(buffer, ids[1:n-1], abs.(cos.(seed .* (1:n-1))))
    return buffer
end

three_buffers(; options...) = (mixed(1, 60; options...), mixed(2, 30; options...), mixed(3, 9; options...))
mixture_of(buffers) = Mixture(:online => (buffers[1], 5), :offline => (buffers[2], 3), :rest => (buffers[3], 2))

function saved(buffer)
    io = IOBuffer()
    save(buffer, io)
    return take!(io)
end

@testset "rows are those of the buffers, weights those of the union, and updates find their buffers: $scheme" for scheme in
    (:stratified, :independent, :systematic, :without_replacement)
    buffers, twins = three_buffers(), three_buffers()
    mixture = mixture_of(buffers)
    for size in (20, 7, 1, 20)
        batch = sample!(mixture, size; scheme = scheme, beta = 0.7)
        counts = [count(==(k), batch.sources) for k in 1:3]
        @test issorted(batch.sources) && sum(counts) == size
        parts = [sample!(twins[k], counts[k]; scheme = scheme, beta = 0.7, normalize_weights = :none) for k in 1:3 if counts[k] > 0]
        for name in (:observation, :next_observation)
            @test batch[name] == hcat((part[name] for part in parts)...)
        end
        for name in (:action, :reward, :discount, :n_steps, :terminated, :ids, :priorities, :gamma_m)
            @test batch[name] == vcat((part[name] for part in parts)...)
        end
        alone = vcat((part.probabilities for part in parts)...)
        probabilities = Float64[0.5, 0.3, 0.2][batch.sources] .* alone
        @test batch.probabilities ≈ probabilities rtol = 1e-6
        @test batch.weights ≈ (probabilities ./ minimum(probabilities)) .^ -0.7 rtol = 3e-6
        errors = Float32.(1:size)
        update_priorities!(mixture, batch, errors)
        foreach(k -> update_priorities!(twins[k], batch.ids[batch.sources .== k], errors[batch.sources .== k]), 1:3)
        @test set_priorities!(mixture, batch, errors) === mixture
        foreach(k -> set_priorities!(twins[k], batch.ids[batch.sources .== k], errors[batch.sources .== k]), 1:3)
    end
    @test map(saved, buffers) == map(saved, twins)
end

@testset "shares are exact in the long run, can be changed, and resume" begin
    buffers = three_buffers()
    mixture = mixture_of(buffers)
    @test mixture.shares == (online = 0.5, offline = 0.3, rest = 0.2)
    @test mixture.carries == (online = 0, offline = 0, rest = 0)
    @test mixture.buffers.offline === buffers[2]
    totals = sum([count(==(k), sample!(mixture, 7).sources) for k in 1:3] for _ in 1:100)
    @test all(abs.(totals .- 700 .* [0.5, 0.3, 0.2]) .< 1)
    halves = Mixture("a" => (buffers[1], 1), "b" => (buffers[2], 1))
    seen = [count(==(1), sample!(halves, 33).sources) for _ in 1:2]
    resumed = Mixture(:a => (buffers[1], 9), :b => (buffers[2], 1))
    resumed.shares, resumed.carries = halves.shares, halves.carries
    append!(seen, [count(==(1), sample!(resumed, 33).sources) for _ in 1:2])
    @test seen == [17, 16, 17, 16]
    halves.shares = (b = 1.0, a = 0.0)
    @test all(==(2), sample!(halves, 5).sources)
    batch = sample!(halves, 5)
    @test sample!(halves, 5; out = batch) === batch && sprint(show, halves) == "Mixture(a = 0.0, b = 1.0)"
end

@testset "batches have times_sampled if all buffers keep them" begin
    keeping, other = mixed(1, 60; keep_times_sampled = true), mixed(2, 30)
    for pairs in ((:a => (keeping, 1), :b => (other, 1)), (:b => (other, 1), :a => (keeping, 1)))
        @test !haskey(sample!(Mixture(pairs...), 4), :times_sampled)
    end
    @test haskey(sample!(Mixture(:a => (keeping, 1)), 4), :times_sampled)
end

@testset "sequences" begin
    mixture = mixture_of(three_buffers(; sequence_length = 3, burn_in = 1, n_step = 2))
    batch = sample!(mixture, 10)
    @test size(batch.observation) == (2, 6, 10) && size(batch.sources) == (10,)
    update_priorities!(mixture, batch, ones(Float32, 4, 10))
end

@testset "errors name the buffers, and change nothing" begin
    buffers = three_buffers()
    mixture = mixture_of(buffers)
    before = map(saved, buffers)
    batch = sample!(mixture, 4)
    after = map(saved, buffers)
    @test before != after
    other = ReplayBuffer(9, (observation = Field(Float32, 2),))
    empty = ReplayBuffer(9, MIXED)
    for (action, words) in (
        (() -> Mixture(), "n_sources is 0"),
        (() -> Mixture(:a => buffers[1]), "a is a ReplayBuffer"),
        (() -> Mixture(:a => (buffers[1], -1)), "a.share is -1"),
        (() -> Mixture(:a => (buffers[1], 1), :a => (buffers[2], 1)), "each once"),
        (() -> Mixture(:a => (buffers[1], 1), :b => (buffers[1], 1)), "b is that of a"),
        (() -> Mixture(:a => (buffers[1], 1), :b => (other, 1)), "b has 1 fields, and that of a has 2"),
        (() -> (mixture.shares = (online = 1,)), "shares is"),
        (() -> (mixture.shares = (online = 0, offline = 0, rest = 0)), "add up to 0"),
        (() -> (mixture.carries = (online = typemax(Int64), offline = 0, rest = 0)), "online.carry is"),
        (() -> (mixture.names = 1), "names cannot be set; these can: shares, carries"),
        (() -> mixture.names, "there is no names in a mixture"),
        (() -> sample!(mixture, 0), "batch_size is 0"),
        (() -> update_priorities!(mixture, batch, [1, 2]), "td_errors has 2 entries; allowed: 4"),
        (() -> update_priorities!(mixture, (ids = batch.ids, sources = [1, 2, 3, 4]), ones(4)), "batch.sources[3] is 3"),
        (() -> update_priorities!(mixture, batch, [1, 2, 3, NaN]), "td_errors[3]"),
    )
        @test occursin(words, invalid_message(action))
    end
    @test thrown(() -> sample!(Mixture(:a => (buffers[1], 1), :b => (empty, 1)), 4)).status == PER.PER_ERROR_EMPTY
    @test thrown(() -> sample!(mixture, 4; normalize_weights = :buffer_max)).status == PER.PER_ERROR_UNSUPPORTED
    @test map(saved, buffers) == after && mixture.shares == (online = 0.5, offline = 0.3, rest = 0.2)
    close(buffers[1])
    @test occursin("closed", invalid_message(() -> sample!(mixture, 4)))
end

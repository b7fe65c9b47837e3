# Two buffers that draw as one: the same ids, weights and rewards as one buffer with all environments.

const LAWS = (
    (scheme = :stratified,),
    (scheme = :without_replacement,),
    (half_life = 0.3,),
    (half_life = 0.7, age = :versions, max_age = 9, scheme = :without_replacement),
)

@testset "shards draw what one buffer draws with $law" for law in LAWS
    fields, law_of_all = (observation = Field(Float32),), (n_envs = 4, seed = 5, law...)
    whole = ReplayBuffer(160, fields; law_of_all...)
    coordinator = Coordinator(160, 2; law_of_all...)
    shards = map(1:2) do s
        place = PER.shard(coordinator, s)
        @test place == (capacity = 80, n_envs = 2, first_env = 2s - 1)
        ReplayBuffer(place.capacity, fields; law..., n_envs = place.n_envs)
    end
    PER.agree_on_scale!(coordinator, shards)
    lanes = (1:2, 3:4)
    for t in 1:30
        if haskey(law, :age)
            foreach(buffer -> buffer.version = 2t, (whole, shards...))
        end
        step(envs) = (
            observation = zeros(Float32, length(envs)),
            reward = Float32.(10t .+ envs),
            terminated = falses(length(envs)),
            truncated = falses(length(envs)),
        )
        ids = add!(whole; step(1:4)...)
        for s in 1:2
            raise_max_priority!(shards[s], PER.state(coordinator).max_priority)
            @test PER.whole_ids(coordinator, s, add!(shards[s]; step(lanes[s])...)) == ids[lanes[s]]
        end
        PER.agree_on_scale!(coordinator, shards)
        t < 3 && continue
        batch = sample!(whole, 6)
        round = PER.draw!(coordinator, 6)
        while round !== nothing
            found = zeros(Int64, length(round.units)), zeros(UInt64, length(round.units)), zeros(UInt64, length(round.units))
            for s in 1:2
                here = round.shards .== s
                rows, masses, first_units = get_units(shards[s], round.units[here])
                found[1][here], found[2][here], found[3][here] = rows.ids, masses, first_units
            end
            round = PER.submit!(coordinator, found...)
        end
        drawn = PER.finish!(coordinator)
        @test drawn.ids == batch.ids
        @test drawn.weights == batch.weights
        @test drawn.probabilities == batch.probabilities
        errors = Float32.(1:6) .^ 3 .* (t % 7 == 0 ? 1.0f12 : 1.0f0)
        update_priorities!(whole, batch.ids, errors)
        owners, local_ids = PER.locate(coordinator, drawn.ids)
        for s in 1:2
            here = owners .== s
            update_priorities!(shards[s], local_ids[here], errors[here])
            @test get_windows(shards[s], local_ids[here]).reward == batch.reward[here]
        end
        PER.agree_on_scale!(coordinator, shards)
    end
    known = PER.state(coordinator)
    @test known.shards == 2
    @test known.reference == summarize(whole).reference
    @test (known.reference > 68) == haskey(law, :half_life)
    again = Coordinator(160, 2; state = known, law_of_all...)
    @test PER.state(again).samples == known.samples
    for (action, words) in (
        (() -> PER.submit!(coordinator, [1.5], [1]), "ids has elements of type Float64; allowed: integers"),
        (() -> PER.submit!(coordinator, [1], [-1]), "masses has an entry that is no UInt64"),
        (() -> PER.locate(coordinator, "3"), "ids is a String, not an array"),
        (() -> PER.whole_ids(coordinator, 1, [0.5]), "ids has elements of type Float64; allowed: integers"),
        (() -> PER.report!(coordinator, 1, 3), "summary is a Int64; allowed: nothing, "),
        (() -> PER.shard(coordinator, 0), r"shard is -1: .*counting from 0"),
        (() -> PER.submit!(Coordinator(160, 2; n_envs = 2), [1], [1]), "draw!() comes first"),
        (() -> Coordinator(160, 2; state = 3), "state is a Int64; allowed: nothing, "),
        (() -> PER.agree_on_scale!(coordinator; chooses_anew = "no"), "chooses_anew is \"no\", which is no Bool"),
    )
        @test is_invalid(thrown(action), words)
    end
    PER.report!(coordinator, 2, nothing)
    @test PER.state(coordinator).shards == 1
    close(coordinator)
    @test !isopen(coordinator)
end

@testset "a scale is set, and refused where masses do not fit" begin
    buffer = ReplayBuffer(10, (observation = Field(Float32),); alpha = 1)
    extend!(buffer; observation = zeros(4), reward = zeros(4), terminated = falses(4), truncated = falses(4))
    set_scale!(buffer, 3)
    told = summarize(buffer; measured_scale = 1)
    @test (told.total_mass, told.scale, told.is_scale_fixed, told.measured_low) == (24, 3, 1, 6)
    @test_throws PERError set_scale!(buffer, 60)
    set_scale!(buffer, nothing)
    @test summarize(buffer).is_scale_fixed == 0
end

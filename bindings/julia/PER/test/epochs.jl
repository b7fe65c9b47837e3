const GOLDEN_EPOCHS = joinpath(@__DIR__, "..", "..", "..", "..", "tests", "golden", "epochs.csv")
const VALUED = (observation = Field(Int32), value = Field(Float32), advantage = Field(Float32), target = Field(Float32))

# Steps 0 to n - 1 of one environment: their ids are the same numbers.
function walked(n; fields = (observation = Field(Int32),), options...)
    buffer = ReplayBuffer(2n + 5, fields; options...)
    others = NamedTuple{filter(!=(:observation), keys(fields))}(map(_ -> zeros(n), Base.tail(values(fields))))
    extend!(buffer; observation = 0:n-1, next_observation = 1:n, reward = ones(n), terminated = falses(n),
            truncated = falses(n), others...)
    return buffer
end

@testset "epochs are those of the golden table" begin
    lines = readlines(GOLDEN_EPOCHS)
    @test length(lines) == 12
    walk = nothing
    for line in lines
        words = split(line, ',')
        n, draws, epoch = parse.(Int, words[2:4])
        if epoch == 0
            buffer = ReplayBuffer(50, (observation = Field(Int32),); seed = parse(UInt64, words[1]))
            extend!(buffer; observation = 0:n-1, next_observation = 1:n, reward = zeros(n), terminated = falses(n),
                    truncated = falses(n))
            foreach(_ -> sample!(buffer, 5), 1:draws)
            walk = epochs(buffer, 3; batch_size = 4)
        end
        ids = Int[]
        while length(ids) < n
            append!(ids, iterate(walk)[1].ids)
        end
        @test ids == parse.(Int, words[6:end])
    end
end

@testset "every transition comes once an epoch" begin
    buffer = walked(10)
    batches = collect(epochs(buffer, 2; batch_size = 4))
    @test [length(batch.ids) for batch in batches] == [4, 4, 2, 4, 4, 2]
    @test eltype(batches) == PER.Batch
    for epoch in (batches[1:3], batches[4:6])
        @test sort(vcat((batch.ids for batch in epoch)...)) == 0:9
    end
    for batch in batches
        @test batch.observation == batch.ids && batch.next_observation == batch.ids .+ 1
        @test all(batch.weights .== 1) && all(batch.probabilities .== 0.1f0)
    end
    @test [length(batch.ids) for batch in epochs(buffer, 2; batch_size = 4, drop_last = true)] == [4, 4, 4, 4]
    @test stats(buffer).samples == 4
end

@testset "bad arguments of epochs, and rows that died, are errors" begin
    buffer = walked(10)
    @test is_invalid(thrown(() -> epochs(buffer, 0; batch_size = 4)), "n_epochs is 0")
    @test is_invalid(thrown(() -> epochs(buffer, 1.5; batch_size = 4)), "count is 1.5")
    @test is_invalid(thrown(() -> epochs(buffer, 1; batch_size = -1)), "batch_size is -1")
    @test is_invalid(thrown(() -> epochs(buffer, 1; batch_size = 11, drop_last = true)), "batch_size is 11")
    empty = ReplayBuffer(10, (observation = Field(Int32),))
    @test thrown(() -> epochs(empty, 1; batch_size = 1)).status == PER.PER_ERROR_EMPTY
    walk = epochs(buffer, 1; batch_size = 4)
    clear!(buffer)
    @test is_invalid(thrown(() -> iterate(walk)), "not live any more")
    close(buffer)
    @test thrown(() -> iterate(walk)).message == "the buffer was closed"
    @test thrown(() -> epochs(buffer, 1; batch_size = 1)).message == "the buffer was closed"
end

@testset "epochs hold their buffer" begin
    walk = epochs(walked(1000), 1; batch_size = 100)
    GC.gc()
    walked(1000)
    @test sort(vcat((batch.ids for batch in walk)...)) == 0:999
end

@testset "advantages by hand" begin
    buffer = walked(3; fields = VALUED, gamma = 0.5)
    asked = Int[]
    critic(batch) = (append!(asked, batch.ids); 2 .* batch.next_observation)
    @test advantages!(buffer; lambda = 0.5, returns = :target, bootstrap = critic) === buffer
    @test asked == [2]
    rows = get(buffer, 0:2)
    # 1 + 6/2; then 1 + a quarter of the rest.
    @test rows.advantage == [1.5, 2, 4] && rows.target == rows.advantage
    @test is_invalid(thrown(() -> advantages!(buffer)), "bootstrap is not given: 1 steps need")
    of_two = batch -> [1, 2]
    @test is_invalid(thrown(() -> advantages!(buffer; bootstrap = of_two)), "bootstrap has 2 entries; allowed: 1")
    @test is_invalid(thrown(() -> advantages!(buffer; value = :v)), "value is :v; allowed: :observation")
    @test is_invalid(thrown(() -> advantages!(buffer; value = :v)), ", or declare v = Field(Float32)")
    @test is_invalid(thrown(() -> advantages!(buffer; returns = :r)), ", or declare r = Field(Float32; default = 0)")
    @test is_invalid(thrown(() -> advantages!(buffer; lambda = 2, bootstrap = critic)), "lambda is 2")
    same_field = thrown(() -> advantages!(buffer; returns = :value, bootstrap = critic))
    @test is_invalid(same_field, "returns and value are both \"value\"")
    @test get(buffer, 0:2).advantage == [1.5, 2, 4]
end

const GOLDEN_HINDSIGHT = joinpath(@__DIR__, "..", "..", "..", "..", "tests", "golden", "hindsight.csv")
const GOALS = (observation = Field(Int64), goal = Field(Int64))

# An episode of n steps: after step t it is at t + 1, the last one is truncated.
function episode(n; fields = GOALS, priorities = ones(n), options...)
    buffer = ReplayBuffer(60, fields; options...)
    extend!(buffer; observation = 0:n-1, next_observation = 1:n, goal = fill(-1, n), reward = 0:n-1,
            terminated = falses(n), truncated = (1:n) .== n, priorities = Float32.(priorities))
    return buffer
end

@testset "goals are those of the golden table" begin
    lines = readlines(GOLDEN_HINDSIGHT)
    @test length(lines) == 6
    for line in lines
        words = split(line, ',')
        n, step, draws, k = parse.(Int, words[3:6])
        buffer = episode(n; priorities = (0:n-1) .== step, seed = parse(UInt64, words[1]))
        foreach(_ -> sample!(buffer, 5), 1:draws)
        hindsight = Hindsight("observation", :goal, (achieved, goal) -> achieved .== goal; strategy = words[2], k = k)
        batch = sample!(buffer, 16; hindsight = hindsight)
        @test all(batch.ids .== step) && batch.goal == parse.(Int, words[8:end])
        @test batch.reward == ifelse.(batch.goal .== -1, step, batch.goal .== step + 1)
    end
end

@testset "rewards and flags of all steps of a window" begin
    buffer = episode(10; n_step = 3, gamma = 0.5, seed = 2)
    asked = []
    function reward(achieved, goal)
        push!(asked, (achieved, goal))
        return ifelse.(achieved .== goal, 8, 0), achieved .== goal
    end
    batch = sample!(buffer, 40; hindsight = Hindsight(:observation, :goal, reward; strategy = :final, k = Inf))
    @test length(asked) == 1 && length(asked[1][1]) == sum(min.(10 .- batch.ids, 3))
    @test all(batch.goal .== 10) && all(asked[1][2] .== 10)
    reaches = batch.ids .>= 7
    @test batch.terminated == reaches && !any(batch.truncated)
    @test batch.n_steps == min.(10 .- batch.ids, 3)
    @test batch.reward == ifelse.(reaches, 8 .* 0.5f0 .^ (9 .- batch.ids), 0)
    @test batch.discount == ifelse.(reaches, 0, 0.125f0)
    @test batch.gamma_m == 0.5f0 .^ batch.n_steps
end

@testset "windows by id get the goals of a draw of the same ids" begin
    buffer, twin = episode(10; n_step = 3, seed = 2), episode(10; n_step = 3, seed = 2)
    hindsight = Hindsight(:observation, :goal, (achieved, goal) -> achieved .== goal)
    batch = sample!(twin, 40; hindsight = hindsight, beta = 0.5)
    windows = get_windows(buffer, batch.ids; hindsight = hindsight, beta = 0.5)
    @test all(windows[name] == batch[name] for name in keys(batch))
    @test stats(buffer).samples == 1 && stats(buffer).beta_step == 0
    failing = Hindsight(:observation, :goal, (achieved, goal) -> throw(DomainError(7, "no goal")))
    @test_throws DomainError get_windows(buffer, batch.ids; hindsight = failing)
    @test stats(buffer).samples == 1
end

@testset "arrays of several axes keep them" begin
    fields = (observation = Field(Float32, 2, 3), goal = Field(Float32, 2, 3))
    buffer = ReplayBuffer(20, fields)
    states = reshape(Float32.(1:24), 2, 3, 4)
    extend!(buffer; observation = states, next_observation = states .+ 0.5f0, goal = zero(states), reward = zeros(4),
            terminated = trues(4), truncated = falses(4))
    sizes = []
    reward(achieved, goal) = (push!(sizes, size(achieved), size(goal)); fill(1, size(goal)[end]))
    batch = sample!(buffer, 8; hindsight = Hindsight(:observation, :goal, reward; k = Inf))
    @test sizes == [(2, 3, 8), (2, 3, 8)]
    @test batch.goal == batch.next_observation && all(batch.reward .== 1)
end

@testset "what a reward function throws passes through, and the call is no draw" begin
    buffer, twin = episode(10; seed = 4), episode(10; seed = 4)
    failing = Hindsight(:observation, :goal, (achieved, goal) -> throw(DomainError(7, "no goal")))
    @test_throws DomainError sample!(buffer, 20; hindsight = failing)
    short = Hindsight(:observation, :goal, (achieved, goal) -> [1])
    @test is_invalid(thrown(() -> sample!(buffer, 20; hindsight = short)), "what reward gave as rewards has 1 entries")
    words = Hindsight(:observation, :goal, (achieved, goal) -> "none")
    @test is_invalid(thrown(() -> sample!(buffer, 20; hindsight = words)), "what reward gave as rewards is a String")
    three = Hindsight(:observation, :goal, (achieved, goal) -> (ones(20), trues(20), 3))
    @test is_invalid(thrown(() -> sample!(buffer, 20; hindsight = three)), "reward gave a tuple of 3; allowed: rewards")
    @test stats(buffer) == stats(twin)
    @test sample!(buffer, 20).ids == sample!(twin, 20).ids
end

@testset "a reward function may use the buffer" begin
    buffer = episode(10)
    function reward(achieved, goal)
        sample!(buffer, 5)
        return zeros(length(goal))
    end
    sample!(buffer, 20; hindsight = Hindsight(:observation, :goal, reward))
    @test stats(buffer).samples == 2
end

@testset "bad arguments of hindsight" begin
    buffer = episode(10)
    reward(achieved, goal) = achieved .== goal
    refused(arguments...; options...) =
        thrown(() -> sample!(buffer, 4; hindsight = Hindsight(arguments..., reward; options...)))
    @test is_invalid(refused(:position, :goal), "achieved is :position; allowed: :observation, :goal")
    @test is_invalid(refused(:goal, :observation), "achieved is \"goal\": must be an observation")
    @test is_invalid(refused(:observation, :goal; strategy = :past), "strategy is :past; allowed: :future, :final")
    @test is_invalid(refused(:observation, :goal; k = -1), "k is -1; allowed: >= 0")
    @test is_invalid(refused(:observation, :goal; k = NaN), "k is NaN")
    @test is_invalid(thrown(() -> sample!(buffer, 4; hindsight = reward)), "no Hindsight")
    @test stats(buffer).samples == 0
end

@testset "live_ids are those that can be drawn" begin
    buffer = ReplayBuffer(30, (observation = Field(Int64),); n_envs = 2)
    extend!(buffer; observation = [1 1; 2 2; 3 3]', reward = zeros(2, 3), terminated = falses(2, 3),
            truncated = falses(2, 3))
    @test live_ids(buffer) == [0, 2, 1, 3]
    @test live_ids(ReplayBuffer(30, (observation = Field(Int64),))) == Int64[]
end

@testset "what cannot be is refused where a Hindsight or a Field is made" begin
    reward(achieved, goal) = achieved .== goal
    for (action, words) in (
        (() -> Hindsight(:observation, :goal, reward; strategy = :best), "strategy is :best; allowed: :future, :final"),
        (() -> Hindsight(:observation, :goal, reward; k = -1), "k is -1; allowed: >= 0"),
        (() -> Hindsight(:observation, :goal, reward; k = NaN), "k is NaN; allowed: >= 0"),
        (() -> Hindsight(:observation, :goal, reward; k = "four"), "k is \"four\""),
        (() -> Field(String), "element_type is String; allowed: Bool, UInt8"),
        (() -> Field(Float32; role = :wrong), "role is :wrong; allowed: :default, :plain"),
    )
        @test occursin(words, invalid_message(action))
    end
    @test Hindsight(:observation, :goal, reward; strategy = "final", k = Inf).strategy === :final
end

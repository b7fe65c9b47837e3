# A replay in which every number encodes its origin: environment e at its step t observes an image derived from e and t,
# and a final observation is the image of the step that would have followed.
const ENVS, STEPS, N_STEP, GAMMA = 3, 60, 3, 0.5f0
image(env, t) = UInt8[t + 10 * row + 80 * column + env for row in 0:3, column in 0:1]
reward(env, t) = Float32(env + t / 8)
# Environment e ends an episode every 4 + e steps, by a terminal state and by a time limit in turn.
ends(env, t) = t % (4 + env) == 0
terminates(env, t) = ends(env, t) && isodd(t ÷ (4 + env))

function filled_buffer(; options...)
    fields = (observation = Field(UInt8, 4, 2), action = Field(Int32, 2))
    buffer = ReplayBuffer(1000, fields; n_envs = ENVS, gamma = GAMMA, seed = 11, options...)
    place = Dict{Int64,Tuple{Int,Int}}()
    for t in 1:STEPS
        ids = add!(buffer; observation = cat((image(env, t) for env in 1:ENVS)...; dims = 3),
                   action = [env * t * sign for sign in (1, -1), env in 1:ENVS],
                   reward = [reward(env, t) for env in 1:ENVS],
                   terminated = [terminates(env, t) for env in 1:ENVS],
                   truncated = [ends(env, t) && !terminates(env, t) for env in 1:ENVS],
                   next_observation = cat((image(env, t + 1) for env in 1:ENVS)...; dims = 3))
        foreach(env -> place[ids[env]] = (env, t), 1:ENVS)
    end
    return buffer, place
end

@testset "a batch holds the transitions that were added, with n-step returns" begin
    buffer, place = filled_buffer(n_step = N_STEP)
    # Windows of the latest steps are incomplete, unless they contain an end.
    complete(env, t) = any(k -> ends(env, t + k), 0:N_STEP-1) || t + N_STEP - 1 <= STEPS
    @test length(buffer) == count(complete(env, t) for env in 1:ENVS, t in 1:STEPS)
    batch = sample!(buffer, 2000; scheme = :independent)
    @test size(batch.observation) == size(batch.next_observation) == (4, 2, 2000)
    @test size(batch.action) == (2, 2000)
    for b in 1:2000
        env, t = place[batch.ids[b]]
        m = something(findfirst(k -> ends(env, t + k), 0:N_STEP-1), N_STEP)
        last_step = t + m - 1
        @test batch.observation[:, :, b] == image(env, t)
        @test batch.next_observation[:, :, b] == image(env, t + m)
        @test batch.action[:, b] == [env * t, -env * t]
        @test batch.reward[b] == sum(GAMMA^k * reward(env, t + k) for k in 0:m-1)
        @test batch.n_steps[b] == m
        @test batch.discount[b] == (terminates(env, last_step) ? 0 : GAMMA^m)
        @test batch.gamma_m[b] == GAMMA^m
        @test batch.terminated[b] == terminates(env, last_step)
        @test batch.truncated[b] == (ends(env, last_step) && !terminates(env, last_step))
    end
    @test length(unique(batch.ids)) == length(buffer)
    @test batch.priorities == ones(2000) && batch.weights == ones(2000)
    @test batch.probabilities ≈ fill(1 / length(buffer), 2000)
end

@testset "n_step of a call may be smaller than the buffer's" begin
    buffer, place = filled_buffer(n_step = N_STEP)
    batch = sample!(buffer, 100; n_step = 1)
    @test batch.n_steps == ones(100)
    @test batch.reward == [reward(place[id]...) for id in batch.ids]
end

@testset "stacked frames lie on the axis before the last, the oldest first" begin
    fields = (observation = Field(UInt8, 2), position = Field(Int16; role = :observation, stack = 1))
    buffer = ReplayBuffer(100, fields; frame_stack = 3, n_step = 2)
    frames = UInt8[t + 100 * row for row in 0:1, t in 1:6]
    # An episode of four steps, then one of two.
    ids = extend!(buffer; observation = frames, position = Int16.(1:6), reward = zeros(6),
                  terminated = [t == 4 for t in 1:6], truncated = falses(6),
                  next_observation = frames .+ 0x01, next_position = Int16.(2:7))
    batch = sample!(buffer, 200)
    @test size(batch.observation) == size(batch.next_observation) == (2, 3, 200)
    @test size(batch.position) == (200,)
    first_frame(t) = t < 5 ? 1 : 5
    stack(first, t) = UInt8[max(first, t - age) + 100 * row for row in 0:1, age in 2:-1:0]
    for b in 1:200
        t = findfirst(==(batch.ids[b]), ids)
        @test batch.observation[:, :, b] == stack(first_frame(t), t)
        @test batch.next_observation[:, :, b] == stack(first_frame(t), t + batch.n_steps[b])
        @test batch.position[b] == t && batch.next_position[b] == t + batch.n_steps[b]
    end
    @test sort(unique(batch.ids)) == ids[1:5]
    @test size(get(buffer, ids).observation) == (2, 6)
end

@testset "the bytes are those that C gives" begin
    buffer, _ = filled_buffer()
    ids = Int64[4, 0, 17]
    rows = get(buffer, ids)
    bytes = zeros(UInt8, 3 * 8)
    pointers = [Ptr{Cvoid}(pointer(bytes)), C_NULL]
    filled = PER.initial(PER.per_batch)
    GC.@preserve bytes pointers begin
        PER.set_field!(filled, :fields, pointer(pointers))
        PER.call(handle -> PER.per_replay_get(handle, 3, ids, filled, C_NULL), buffer.handle)
    end
    @test vec(rows.observation) == bytes
    # C's [B, 2, 4]: row 1, second plane, third element.
    @test rows.observation[3, 2, 1] == bytes[1*4+2+1]
end

@testset "windows by id are those of a draw" begin
    for options in ((n_step = N_STEP,), (frame_stack = 2, n_step = 2), (sequence_length = 3, burn_in = 1))
        buffer, _ = filled_buffer(; options..., beta = 0.7)
        ids = live_ids(buffer)
        set_priorities!(buffer, ids, Float32.(1:length(ids)))
        batch = sample!(buffer, 40)
        before = stats(buffer)
        windows = get_windows(buffer, batch.ids)
        @test keys(windows) == keys(batch) && all(windows[name] == batch[name] for name in keys(batch))
        uniform = (prioritization = :uniform, normalize_weights = :none, beta = 1)
        @test get_windows(buffer, batch.ids; out = windows, uniform...) === windows
        @test windows.weights == ones(40) && windows.probabilities ≈ fill(1 / length(buffer), 40)
        @test stats(buffer) == before
        skipped = get_windows(buffer, [batch.ids[1], -1, 10^9]; on_invalid = :skip)
        @test skipped.ids == [batch.ids[1], -1, -1] && skipped.weights == [1, 0, 0]
        @test skipped.reward[:, 1] == batch.reward[:, 1] || ndims(batch.reward) == 1
        @test all(iszero, selectdim(skipped.observation, ndims(skipped.observation), 2:3))
        @test is_invalid(thrown(() -> get_windows(buffer, [ids[1], -1])), "ids[1] is -1: no live")
        @test is_invalid(thrown(() -> get_windows(buffer, ids; on_invalid = :ignore)), "on_invalid is :ignore")
    end
end

@testset "get gives rows as they were added" begin
    buffer, place = filled_buffer(n_step = N_STEP)
    ids = [id for (id, (_, t)) in place if t < STEPS]
    rows = get(buffer, ids)
    @test rows.ids == ids && rows.n_steps == ones(length(ids))
    for (b, id) in enumerate(ids)
        env, t = place[id]
        @test rows.observation[:, :, b] == image(env, t) && rows.next_observation[:, :, b] == image(env, t + 1)
        @test rows.reward[b] == reward(env, t)
        @test rows.terminated[b] == terminates(env, t)
    end
    @test !haskey(rows, :weights)
    @test is_invalid(thrown(() -> get(buffer, [10^9])), "ids[0] is 1000000000: never issued; ids so far are 0 .. ")
    unknown = ReplayBuffer(10, (observation = Field(Float32),))
    ids = extend!(unknown; observation = 1:3, reward = [1, 2, 4], terminated = falses(3), truncated = falses(3))
    @test is_invalid(thrown(() -> get(unknown, ids)), "must be read with next_observations = false")
    rows = get(unknown, ids; next_observations = false)
    @test is_invalid(thrown(() -> rows.next_observation), "next_observations = true reads it")
    @test rows.observation == 1:3 && rows.reward == [1, 2, 4] && !haskey(rows, :next_observation)
    @test isempty(get(buffer, Int[]).ids)
end

@testset "a batch given as out is filled again" begin
    buffer, _ = filled_buffer()
    twin, _ = filled_buffer()
    out = sample!(buffer, 16)
    observation = out.observation
    sample!(twin, 16)
    @test sample!(buffer, 16; out = out) === out
    @test out.observation === observation
    fresh = sample!(twin, 16)
    @test all(out[name] == fresh[name] for name in keys(out))

    @test is_invalid(thrown(() -> sample!(buffer, 17; out = out)), "out.observation is a 4×2×16 ")
    @test is_invalid(thrown(() -> sample!(buffer, 16; out = get(buffer, out.ids))), "out has observation")
    @test is_invalid(thrown(() -> sample!(buffer, 16; out = (1, 2))), "out is a ")
    push!(out.ids, 5)
    @test is_invalid(thrown(() -> sample!(buffer, 16; out = out)), "out.ids is a 17-element ")
    # Failed calls did not count as draws.
    @test sample!(buffer, 16).ids == sample!(twin, 16).ids
end

@testset "a batch names its arrays" begin
    buffer, _ = filled_buffer()
    batch = sample!(buffer, 2)
    @test keys(batch) == (:observation, :action, :next_observation, :reward, :discount, :n_steps, :terminated,
                          :truncated, :weights, :ids, :priorities, :probabilities, :gamma_m)
    @test propertynames(batch) == keys(batch)
    @test batch["action"] === batch[:action] === batch.action
    @test is_invalid(thrown(() -> batch.next_action), "there is no next_action in the batch; there are observation")
    @test occursin("observation::UInt8[4×2×2]", repr(batch))
end

@testset "weights follow equation 3.4" begin
    buffer = ReplayBuffer(100, (observation = Field(Int8),); alpha = 1, beta = 1)
    extend!(buffer; observation = Int8[1, 2], reward = [0, 0], terminated = falses(2), truncated = falses(2),
            next_observation = Int8[2, 3], priorities = [1, 3])
    # Four strata of a total of 4: the first is row 0, the others row 1.
    batch = sample!(buffer, 4)
    @test batch.ids == [0, 1, 1, 1]
    @test batch.probabilities ≈ [0.25, 0.75, 0.75, 0.75]
    @test batch.weights ≈ [1, 1 / 3, 1 / 3, 1 / 3]
    @test sample!(buffer, 4; beta = 0).weights == ones(4)
end

@testset "options of a call are checked" begin
    buffer, _ = filled_buffer()
    @test is_invalid(thrown(() -> sample!(buffer, 0)), "batch_size is 0")
    @test is_invalid(thrown(() -> sample!(buffer, -1)), "batch_size is -1")
    @test is_invalid(thrown(() -> sample!(buffer, 1; beta = -1)), "beta")
    @test is_invalid(thrown(() -> sample!(buffer, 1; scheme = :sorted)), ":stratified")
    @test is_invalid(thrown(() -> sample!(buffer, 1; n_step = 2)), "n_step")
    @test is_invalid(thrown(() -> sample!(buffer, 1; alpha = 1)), "there is no option alpha; there are beta")
end

@testset "a buffer without live transitions is empty" begin
    buffer = ReplayBuffer(100, (observation = Field(Int8),))
    @test thrown(() -> sample!(buffer, 1)).status == PER.PER_ERROR_EMPTY
end

@testset "early stacks repeat the first frame, or begin with zeros" begin
    for (padding, before) in ((nothing, 1), (:repeat, 1), (:zero, 0))
        buffer = ReplayBuffer(20, (observation = Field(Int32; padding = padding),); frame_stack = 3)
        extend!(buffer; observation = 1:4, reward = zeros(4), terminated = falses(4), truncated = falses(4),
                next_observation = 2:5)
        batch = sample!(buffer, 16)
        first = findfirst(==(0), batch.ids)
        @test batch.observation[:, first] == [before, before, 1]
        @test batch.next_observation[:, first] == [before, 1, 2]
    end
end

const GOLDEN_N_STEPS = joinpath(@__DIR__, "..", "..", "..", "..", "tests", "golden", "n_steps.csv")

@testset "an n_step for each transition is that of the golden table" begin
    lines = readlines(GOLDEN_N_STEPS)
    @test length(lines) == 6
    for line in lines
        words = split(line, ',')
        least, most, draws = parse.(Int, words[2:4])
        buffer = ReplayBuffer(200, (observation = Field(Int32),); seed = parse(UInt64, words[1]), n_step = most)
        extend!(buffer; observation = 1:120, reward = ones(120), terminated = falses(120), truncated = falses(120))
        foreach(_ -> sample!(buffer, 5), 1:draws)
        batch = sample!(buffer, 16; n_step = least:most)
        @test batch.n_steps == parse.(Int, words[6:end])
        @test batch.next_observation == batch.observation .+ batch.n_steps
    end
end

@testset "a key of a draw is a seed and a number of draws" begin
    filled(seed) = (
        buffer = ReplayBuffer(100, (observation = Field(Int32),); seed);
        extend!(buffer; observation = 1:60, reward = ones(60), terminated = falses(60), truncated = falses(60)); buffer
    )
    twin, buffer = filled(7), filled(1)
    expected = [sample!(twin, 16).ids for _ in 1:3]
    for number in (2, 0, 1, 1)
        @test sample!(buffer, 16; key = [7, number]).ids == expected[number+1]
    end
    @test stats(buffer).samples == 4
    @test is_invalid(thrown(() -> sample!(buffer, 4; key = [7])), "key has 1 entries; allowed: 2")
    @test is_invalid(thrown(() -> sample!(buffer, 4; key = [7, -1])), "key has an entry that is no UInt64")
    @test is_invalid(thrown(() -> loader(identity, buffer, 4; key = [7, 1])), "there is no option key")
end

@testset "the newest transitions are in the batch" begin
    filled() = (
        buffer = ReplayBuffer(100, (observation = Field(Int32),));
        extend!(buffer; observation = 1:60, reward = ones(60), terminated = falses(60), truncated = falses(60)); buffer
    )
    buffer, twin = filled(), filled()
    batch = sample!(buffer, 16; newest = 3)
    newest = sort(live_ids(buffer); rev = true)[1:3]
    @test batch.ids == [sample!(twin, 13).ids; newest]
    @test batch.weights[14:16] == [1, 1, 1]
    @test is_invalid(thrown(() -> sample!(buffer, 4; newest = 4)), "newest is 4: allowed are 0 .. 3")
    @test occursin("newest is 1: allowed in a loader is 0", thrown(() -> loader(identity, buffer, 4; newest = 1)).message)
end

@testset "ranges of n_step" begin
    filled() = extend_running!(ReplayBuffer(200, (observation = Field(Int32),); n_step = 5))
    extend_running!(buffer) = (
        extend!(buffer; observation = 1:60, reward = ones(60), terminated = falses(60), truncated = falses(60)); buffer
    )
    buffer, twin = filled(), filled()
    @test get_windows(buffer, 0:19; n_step = 2:5).n_steps != get_windows(buffer, 0:19; n_step = 2:5).n_steps
    @test stats(buffer).samples == 2
    foreach(_ -> sample!(twin, 4), 1:2)
    loader(buffer, 16; n_step = 2:5) do batches
        for (batch, _) in zip(batches, 1:3)
            @test batch.n_steps == sample!(twin, 16; n_step = 2:5).n_steps
        end
    end
    @test is_invalid(thrown(() -> sample!(buffer, 4; n_step = 1:6)), "n_step is 6: allowed are 1 .. 5")
    @test is_invalid(thrown(() -> sample!(buffer, 4; n_step = 0:3)), "n_step is 0:3; allowed: ranges from 1")
    @test is_invalid(thrown(() -> sample!(buffer, 4; n_step = 3:2)), "n_step is 3:2; allowed: ranges from 1")
    @test is_invalid(thrown(() -> ReplayBuffer(9, (observation = Field(Int32),); n_step = 1:3)), "n_step")
    @test is_invalid(thrown(() -> sample!(buffer, 4; n_step_min = 1)), "there is no option n_step_min")
end

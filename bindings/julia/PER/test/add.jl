const FLAG_FIELDS = (observation = Field(Int32), action = Field(Int16))

@testset "a scalar step of one environment has a scalar id" begin
    buffer = ReplayBuffer(100, FLAG_FIELDS)
    first_id = add!(buffer; observation = 5, action = 1, reward = 0.5, terminated = false, truncated = false)
    second_id = add!(buffer; observation = 6, action = 2, reward = 1, terminated = 0, truncated = false)
    @test (first_id, second_id) === (0, 1)
    @test length(buffer) == 1
    rows = get(buffer, [first_id])
    @test rows.observation == [5] && rows.next_observation == [6] && rows.action == [1] && rows.reward == [0.5]
end

@testset "the axis of environments may be left out for one environment only" begin
    image = reshape(UInt8.(1:6), 2, 3)
    flags = (terminated = false, truncated = false)
    buffer = ReplayBuffer(100, (observation = Field(UInt8, 2, 3),))
    @test add!(buffer; observation = image, reward = 1, next_observation = image .+ 0x01, flags...) === 0
    @test add!(buffer; observation = reshape(image .+ 0x01, 2, 3, 1), reward = [1], terminated = [false],
               truncated = [false], next_observation = reshape(image, 2, 3, 1)) == [1]
    @test get(buffer, [0, 1]).observation == cat(image, image .+ 0x01; dims = 3)

    several = ReplayBuffer(100, (observation = Field(UInt8, 2, 3),); n_envs = 2)
    given = (observation = image, reward = [1, 1], terminated = falses(2), truncated = falses(2))
    @test occursin("observation", invalid_message(() -> add!(several; given...)))
    @test stats(several).added == 0 && stats(buffer).added == 2
end

@testset "environments are listed from 1" begin
    buffer = ReplayBuffer(300, FLAG_FIELDS; n_envs = 3)
    none = falses(2)
    # id = step of the environment * 3 + environment, counted from 0.
    @test add!(buffer; env_ids = [3, 1], observation = [30, 10], action = Int16[3, 1], reward = [0, 0],
               terminated = none, truncated = none) == [2, 0]
    @test add!(buffer; env_ids = 3, observation = 31, action = Int16(3), reward = 0, terminated = false,
               truncated = false) === 5
    @test get(buffer, [2]).next_observation == [31]
    for (env_ids, words) in (([0, 1], "env_ids[0] is -1"), ([1, 4], "env_ids[1] is 3"), ([2, 2], "env_ids"))
        error = thrown() do
            add!(buffer; env_ids = env_ids, observation = [1, 1], action = Int16[1, 1], reward = [0, 0],
                 terminated = none, truncated = none)
        end
        @test is_invalid(error, words) && is_invalid(error, "counting from 0")
    end
    @test is_invalid(thrown(() -> cut!(buffer, [4])), "env_ids[0] is 3")
    # Flags of all environments are no list of them.
    @test is_invalid(thrown(() -> cut!(buffer, trues(3))), "env_ids has elements of type Bool; allowed: integers")
    @test stats(buffer).cuts == 0
    @test is_invalid(thrown(() -> update!(SumTree(4), [true], [2])), "indices has elements of type Bool")
end

@testset "messages say how C counts and orders axes where they do so, and only there" begin
    buffer = ReplayBuffer(30, (observation = Field(Float32, 4), action = Field(Int8)); n_envs = 2, overwrite = false)
    steps(n) = (observation = ones(4, 2, n), action = ones(Int8, 2, n), reward = ones(2, n), terminated = falses(2, n),
                truncated = falses(2, n))
    message(; changes...) = thrown(() -> extend!(buffer; merge(steps(3), (; changes...))...)).message
    axes, counts = "axes in C's order, the reverse of Julia's", "counting from 0, as C does"
    for (text, words, notes) in (
        (message(observation = ones(2, 4, 3)), "observation has shape (3, 4, 2): expected is (3, 2, 4)", " ($axes)"),
        (message(action = fill(300, 2, 3)), "action[0, 0] is 300", " ($counts; $axes)"),
        (message(td_errors = fill(NaN, 2, 3)), "step 0 of environment 0", " ($counts)"),
        (thrown(() -> extend!(buffer; steps(40)...)).message, "clear!() empties the buffer, capacity_for() computes",
         " ($counts)"),
        (thrown(() -> priorities(buffer, [7])).message, "ids[0] is 7: never issued", " ($counts)"),
        (message(action = nothing), "action is missing: every step needs it, as the field has no default", ""),
        (message(action = fill("", 2, 3)), "action has elements of type String", ""),
        (message(action = fill(0.5, 2, 3)), "has element type Float64", ""),
    )
        @test occursin(words, text) && endswith(text, notes) && (notes != "" || !occursin(" C", text))
    end
end

@testset "scalar rewards, flags and priorities are those of every environment" begin
    fields = (observation = Field(Int64),)
    given, twin = (ReplayBuffer(60, fields; n_envs = 3, seed = 1, epsilon = 0) for _ in 1:2)
    for t in 1:3
        step = (observation = fill(t, 3), next_observation = fill(t + 1, 3))
        @test add!(given; step..., reward = 0.5, terminated = t == 3, truncated = false, mask = true, priorities = 2) ==
              add!(twin; step..., reward = fill(0.5, 3), terminated = fill(t == 3, 3), truncated = falses(3),
                   priorities = fill(2, 3)) == 3 * (t - 1) .+ (0:2)
    end
    run = (observation = fill(9, 3, 2), next_observation = fill(9, 3, 2))
    flags = [false true; false true; false true]
    ids = extend!(given; run..., reward = 2, terminated = false, truncated = flags, td_errors = -1)
    @test ids == extend!(twin; run..., reward = fill(2, 3, 2), terminated = falses(3, 2), truncated = flags,
                         td_errors = fill(-1, 3, 2))
    @test size(ids) == (3, 2) && stats(given) == stats(twin)
    batches = sample!.((given, twin), 64)
    @test all(batches[1][name] == batches[2][name] for name in keys(batches[1]))
    pair = (observation = [1, 1], next_observation = [2, 2], reward = 0, terminated = false, truncated = false)
    @test size(add!(given; pair..., env_ids = [1, 3])) == (2,)
    message = invalid_message(() -> extend!(given; run..., reward = 0, terminated = false, truncated = false))
    @test occursin("reward, terminated and truncated have no axis of time", message)
    one = ReplayBuffer(60, fields)
    @test extend!(one; observation = 1:4, reward = 1, terminated = false, truncated = [0, 0, 0, 1],
                  next_mask = false) == 0:3
    @test get(one, 0:2).reward == [1, 1, 1]
end

@testset "masked environments add nothing" begin
    buffer = ReplayBuffer(300, FLAG_FIELDS; n_envs = 3)
    ids = add!(buffer; observation = [1, 2, 3], action = Int16[1, 2, 3], reward = [1, NaN, 3], terminated = falses(3),
               truncated = falses(3), mask = [true, false, true])
    @test ids == [0, -1, 2]
end

@testset "a final observation that is not available is marked by next_mask" begin
    buffer = ReplayBuffer(100, FLAG_FIELDS)
    add!(buffer; observation = 1, action = Int16(0), reward = 4, terminated = true, truncated = false,
         next_mask = false)
    batch = sample!(buffer, 3)
    @test batch.observation == batch.next_observation == [1, 1, 1]
    @test batch.discount == zeros(3)
end

@testset "given priorities and TD errors become priorities" begin
    buffer = ReplayBuffer(100, FLAG_FIELDS; epsilon = 0.5)
    step = (observation = [1, 2], action = Int16[0, 0], reward = [0, 0], terminated = falses(2), truncated = falses(2),
            next_observation = [2, 3])
    ids = extend!(buffer; step..., priorities = [0.25, 4])
    @test priorities(buffer, ids) == [0.25, 4]
    ids = extend!(buffer; step..., td_errors = [-2, 3])
    @test priorities(buffer, ids) == [2.5, 3.5]
    @test is_invalid(thrown(() -> extend!(buffer; step..., priorities = [1, 1], td_errors = [1, 1])), "priorities")
end

@testset "extend! does what adding step by step does" begin
    steps, envs = 7, 2
    observation = reshape(1:2*envs*steps, 2, envs, steps)
    action = reshape(Int16.(1:envs*steps), envs, steps)
    reward = reshape((1:envs*steps) ./ 8, envs, steps)
    terminated = [step % 3 == 0 && env == 1 for env in 1:envs, step in 1:steps]
    truncated = [step % 4 == 0 && env == 2 for env in 1:envs, step in 1:steps]
    fields = (observation = Field(Float32, 2), action = Field(Int16))
    at_once, one_by_one = (ReplayBuffer(100, fields; n_envs = envs, seed = 3) for _ in 1:2)
    ids = extend!(at_once; observation = observation, action = action, reward = reward, terminated = terminated,
                  truncated = truncated, next_observation = observation .+ 100)
    for step in 1:steps
        @test ids[:, step] == add!(one_by_one; observation = observation[:, :, step], action = action[:, step],
                                   reward = reward[:, step], terminated = terminated[:, step],
                                   truncated = truncated[:, step], next_observation = observation[:, :, step] .+ 100)
    end
    @test size(ids) == (envs, steps)
    @test stats(at_once) == stats(one_by_one)
    batches = sample!.((at_once, one_by_one), 50)
    @test all(batches[1][name] == batches[2][name] for name in keys(batches[1]))
end

@testset "one environment leaves out its axis in extend!" begin
    buffer = ReplayBuffer(100, (observation = Field(UInt8, 2, 2),))
    images = reshape(UInt8.(1:20), 2, 2, 5)
    ids = extend!(buffer; observation = images, reward = 1:5, terminated = falses(5), truncated = falses(5))
    @test ids == 0:4
    @test get(buffer, ids[1:4]).observation == images[:, :, 1:4]
    @test is_invalid(thrown(() -> extend!(buffer; observation = images)), "reward")
    @test is_invalid(thrown(() -> extend!(buffer; observation = images, reward = 1)), "reward")
end

@testset "empty runs change nothing" begin
    buffer = ReplayBuffer(100, FLAG_FIELDS)
    ids = extend!(buffer; observation = Int32[], action = Int16[], reward = Float32[], terminated = Bool[],
                  truncated = Bool[])
    @test ids == Int64[] && stats(buffer).added == 0
end

@testset "every element type is stored and comes back as it is" begin
    bits(x) = reinterpret(UInt8, vec(x))
    bfloat16 = reinterpret(PER.BFloat16, UInt16[0x3f80, 0xc0a0, 0x7f7f])  # 1, -5 and the largest
    given = (
        a = [true, false, true],
        b = UInt8[0, 1, 255],
        c = Int8[-128, 0, 127],
        d = UInt16[0, 1, 65535],
        e = Int16[-32768, 0, 32767],
        f = UInt32[0, 1, typemax(UInt32)],
        g = Int32[typemin(Int32), 0, typemax(Int32)],
        h = UInt64[0, 1, typemax(UInt64)],
        i = Int64[typemin(Int64), 0, typemax(Int64)],
        j = Float16[-0.0, 1.5, 65504],
        k = collect(bfloat16),
        l = Float32[-0.0, 1.5f-45, floatmax(Float32)],
        m = [-0.0, 5e-324, floatmax(Float64)],
    )
    fields = Pair{Symbol,Field}[name => Field(eltype(values)) for (name, values) in pairs(given)]
    buffer = ReplayBuffer(100, [fields; :observation => Field(Int8)])
    ids = extend!(buffer; given..., observation = Int8[1, 2, 3], reward = zeros(3), terminated = falses(3),
                  truncated = falses(3), next_observation = Int8[2, 3, 4])
    rows = get(buffer, ids)
    for (name, values) in pairs(given)
        @test eltype(rows[name]) == eltype(values)
        @test bits(rows[name]) == bits(values)
    end
end

@testset "any array is taken, and cast as the library casts" begin
    flags = (terminated = falses(3), truncated = BitArray([false, false, false]))
    step = (action = Int16[0, 0, 0], reward = 1:3)
    for observation in (
        [1, 2, 3],
        Int8[1, 2, 3],
        1:3,
        Any[1, 2, 3],
        view([9, 1, 2, 3], 2:4),
        view([1 9; 2 9; 3 9], :, 1),
        view([1 9 2 9 3 9], 1, 1:2:5),
        reinterpret(Int32, UInt32[1, 2, 3]),
    )
        buffer = ReplayBuffer(100, FLAG_FIELDS)
        extend!(buffer; observation = observation, step..., flags...)
        @test get(buffer, 0:1).observation == [1, 2]
    end
    buffer = ReplayBuffer(100, FLAG_FIELDS)
    for (observation, words) in (
        ([1.0, 2, 3], "observation"),
        ([1, 2, 2^31], "observation"),
        ([1//1, 2//1, 3//1], "observation has elements of type Rational{Int64}; allowed: Bool, UInt8"),
        (["1", "2", "3"], "observation has elements of type String"),
        ((1, 2, 3), "observation is a Tuple{"),
        ([1, 2], "observation"),
        ([1 2; 3 4; 5 6], "observation"),
    )
        @test is_invalid(thrown(() -> extend!(buffer; observation = observation, step..., flags...)), words)
    end
    @test stats(buffer).added == 0
end

@testset "missing and unknown names are named" begin
    buffer = ReplayBuffer(100, FLAG_FIELDS)
    step = (observation = 1, action = Int16(0), reward = 0, terminated = false, truncated = false)
    for name in keys(step)
        present = filter(entry -> first(entry) !== name, collect(pairs(step)))
        @test is_invalid(thrown(() -> add!(buffer; present...)), string(name))
    end
    error = thrown(() -> add!(buffer; step..., actoin = 1))
    @test is_invalid(error, "there is no field actoin; there are observation, action, next_observation, reward")
    @test is_invalid(thrown(() -> add!(buffer; step..., next_action = 1)), "next_action")
    @test stats(buffer).added == 0
end

@testset "cut! ends the running episodes" begin
    buffer = ReplayBuffer(300, FLAG_FIELDS; n_envs = 2)
    step = (action = Int16[0, 0], reward = [0, 0], terminated = falses(2), truncated = falses(2))
    add!(buffer; observation = [1, 2], next_observation = [3, 4], step...)
    @test cut!(buffer, [2]) === buffer
    @test stats(buffer).cuts == 1
    @test get(buffer, [0, 1]).truncated == [false, true]
    cut!(buffer)
    @test stats(buffer).cuts == 2
    @test get(buffer, [0, 1]).truncated == [true, true]
end

@testset "a full lane that must not be overwritten is an error" begin
    buffer = ReplayBuffer(4, FLAG_FIELDS; overwrite = false)
    step(t) = add!(buffer; observation = t, action = Int16(0), reward = 0, terminated = false, truncated = false)
    status = PER.PER_OK
    for t in 1:5
        status = thrown(() -> step(t)).status
        status == PER.PER_OK || break
    end
    @test status == PER.PER_ERROR_FULL
end

# Episodes of one step, each of which begins with 0 and ends with `last`.
function add_episodes!(buffer, count, last)
    for _ in 1:count
        add!(buffer; observation = 0, reward = 1, terminated = true, truncated = false, next_observation = last)
    end
end

@testset "a reset that nobody told of is counted, and warned of once" begin
    fields = (observation = Field(Int32),)
    for mode in (:disabled, :next_step)
        buffer = ReplayBuffer(100, fields; autoreset = mode)
        @test_logs (:warn, r"after \d of \d ends the next step brought the final observation once more") begin
            add_episodes!(buffer, 600, 0)
        end
        @test stats(buffer).suspected_resets > 200
    end
    buffer = ReplayBuffer(100, fields)
    @test_logs add_episodes!(buffer, 600, 1)
    @test stats(buffer).suspected_resets == 0
end

@testset "NaN is refused where it was asked for" begin
    buffer = ReplayBuffer(10, (observation = Field(Float32),); on_nan = :error)
    step = (observation = 1.0, reward = 0, terminated = false, truncated = false, next_observation = 2.0)
    for name in (:observation, :reward, :next_observation)
        nan = merge(step, NamedTuple{(name,)}((NaN,)))
        @test startswith(invalid_message(() -> add!(buffer; nan...)), "$name is NaN: must be a number")
    end
    @test stats(buffer).added == 0 && add!(buffer; step...) == 0
end

@testset "a field with a default may be left out" begin
    fields = (observation = Field(Int32), advantage = Field(Float32; default = 0.5),
              flag = Field(Bool; default = true), counts = Field(UInt8, 3, 2; default = 7),
              table = Field(Int16, 3, 2; default = [1 2; 3 4; 5 6]), half = Field(PER.BFloat16; default = 2))
    buffer = ReplayBuffer(20, fields)
    step = (reward = 0, terminated = false, truncated = false)
    add!(buffer; observation = 1, step..., next_observation = 2)
    add!(buffer; observation = 2, advantage = 4, step..., next_observation = 3)
    rows = get(buffer, [0, 1])
    @test rows.advantage == [0.5, 4] && rows.flag == [true, true] && rows.counts == fill(7, 3, 2, 2)
    @test rows.table[:, :, 1] == rows.table[:, :, 2] == [1 2; 3 4; 5 6]
    @test Float32.(rows.half) == [2, 2]
    @test occursin("observation is missing", thrown(() -> add!(buffer; step...)).message)
end

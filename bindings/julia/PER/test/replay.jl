const ONE_FIELD = (observation = Field(Int32),)

function add_steps!(buffer, steps)
    extend!(buffer; observation = steps, reward = zero(steps), terminated = falses(length(steps)),
            truncated = falses(length(steps)), next_observation = steps .+ 1)
end

@testset "options that are not given are the library's" begin
    options = Ref{PER.per_replay_options}()
    PER.check(PER.per_replay_options_init(options, sizeof(PER.per_replay_options)))
    buffer = ReplayBuffer(10, ONE_FIELD)
    @test buffer.capacity == 10
    for name in (:alpha, :beta, :gamma, :n_step, :n_envs)
        @test getproperty(buffer, name) == getfield(options[], name)
    end
end

@testset "every option reaches the library" begin
    given = (n_envs = 2, seed = 5, n_step = 3, gamma = 0.5, alpha = 0.7, beta = 0.3, beta_final = 0.9, beta_steps = 7,
             epsilon = 0.125, max_priority = :now, on_invalid = "skip", on_gap = :error, on_nan = :error,
             autoreset = :same_step, normalize_weights = :batch_max, scheme = :independent, overwrite = false, frame_stack = 2,
             samples_per_insert = 0.5, samples_tolerance = 7, min_size_to_sample = 9)
    buffer = ReplayBuffer(20, ONE_FIELD; given..., device = :cpu, burn_in = nothing)
    options = PER.initial(PER.per_replay_options)
    PER.call(pointer -> PER.per_replay_describe(pointer, options), buffer.handle)
    numbers = (max_priority = PER.PER_MAX_NOW, on_invalid = PER.PER_INVALID_SKIP, on_gap = PER.PER_GAP_ERROR,
               on_nan = PER.PER_NAN_ERROR, autoreset = PER.PER_AUTORESET_SAME_STEP, normalize_weights = PER.PER_BATCH_MAX,
               scheme = PER.PER_INDEPENDENT, overwrite = 0)
    for (name, value) in pairs(merge(given, numbers))
        @test PER.field_of(options[], name) == value
    end
end

@testset "options make a buffer like the one that they are of" begin
    fields = ["observation.a" => Field(UInt8, 4, 3), "state" => Field(Float64; role = :recurrent_state), "x" => Field(Bool),
              "advantage" => Field(Float32, 2; default = [1, 2.5]), "value" => Field(Int64; default = 3, padding = :zero)]
    given = (n_envs = 3, sequence_length = 3, burn_in = 2, frame_stack = 2, overwrite = false, seed = typemax(UInt64),
             scheme = :systematic, critics = :max, beta_steps = 10, alpha = 0.5)
    buffer = ReplayBuffer(100, fields; given...)
    buffer.alpha, buffer.gamma, buffer.beta, buffer.n_step = 0.25, 0.5, 0.125, 2
    found = options(buffer)
    for (name, value) in pairs(merge(given, (alpha = 0.25, gamma = 0.5, beta = 0.125, beta_steps = 0, n_step = 2)))
        @test (name, found[name]) == (name, value)
    end
    @test found.capacity == 102 && found.device === :cpu && found.on_gap === :cut && found.sequence_stride == 3
    declared = ["observation.a" => Field(UInt8, 4, 3; role = :observation, stack = 2),
                "state" => Field(Float64; role = :recurrent_state, stack = 1), "x" => Field(Bool; role = :plain, stack = 1),
                "advantage" => Field(Float32, 2; role = :plain, stack = 1, default = Float32[1, 2.5]),
                "value" => Field(Int64; role = :plain, stack = 1, default = 3, padding = :zero)]
    declared = [name => Field(field.element_type, field.axes...; role = field.role, stack = field.stack,
                              default = field.default, padding = something(field.padding, :repeat), compression = :none)
                for (name, field) in declared]
    @test [string(name) => field for (name, field) in found.fields] == declared
    @test options(ReplayBuffer(; found...)) == found
end

@testset "names of fields may be any text" begin
    buffer = ReplayBuffer(10, ["observation" => Field(Int32), "walker/joints pos" => Field(Int32), "größe" => Field(Int32)])
    path = tempname()
    names = Symbol("walker/joints pos"), :größe
    extend!(buffer; observation = 1:3, reward = 1:3, terminated = falses(3), truncated = falses(3),
            NamedTuple{names}((4:6, 7:9))...)
    save(buffer, path)
    rows = get(load(ReplayBuffer, path), 0:1)
    rm(path)
    @test rows[names[1]] == rows["walker/joints pos"] == [4, 5] && rows.größe == [7, 8]
    error = thrown(() -> ReplayBuffer(10, ["observation\0" => Field(Int32)]))
    @test error isa PERError && occursin("\"observation\\0\"; allowed: names without a NUL", error.message)
end

@testset "statistics are described as per.h has them" begin
    of_stats = [doc for (binding, docs) in Base.Docs.meta(PER) for doc in values(docs.docs) if binding.var === :stats]
    text = join(only(of_stats).text)
    for name in fieldnames(PER.per_replay_statistics)[2:end]
        @test occursin(Regex("^- `$name`: \\S+ \\S", "m"), text)
    end
end

@testset "fields are named tuples or pairs, and their shapes reversed in C" begin
    declared = Field(Float32, 5, 3)
    for fields in ((observation = declared,), ["observation" => declared], :observation => declared,
                   Dict(:observation => declared), (:observation => declared,))
        buffer = ReplayBuffer(10, fields)
        options = PER.initial(PER.per_replay_options)
        PER.call(pointer -> PER.per_replay_describe(pointer, options), buffer.handle)
        field = unsafe_load(options[].fields)
        @test unsafe_string(field.name) == "observation"
        @test [unsafe_load(field.shape, i) for i in 1:field.ndim] == [3, 5]
        @test field.dtype == PER.PER_FLOAT32 && field.role == PER.PER_ROLE_OBSERVATION
    end
end

@testset "several observations have a next observation each" begin
    fields = ["observation.image" => Field(UInt8, 2), "position" => Field(Float32; role = :observation)]
    buffer = ReplayBuffer(10, fields)
    arrays = Dict(Symbol("observation.image") => UInt8[1 2; 3 4], :position => [0.5, 1.5],
                  Symbol("next_observation.image") => UInt8[2 9; 4 9], :next_position => [1.5, 2.5])
    ids = extend!(buffer; arrays..., reward = [0, 0], terminated = falses(2), truncated = falses(2))
    rows = get(buffer, ids)
    @test all(rows[name] == array for (name, array) in arrays)
end

@testset "bad declarations and options are PERErrors" begin
    for (action, words) in (
        (() -> ReplayBuffer(0, ONE_FIELD), "capacity is 0"),
        (() -> ReplayBuffer(10, NamedTuple()), "the number of fields is 0"),
        (() -> ReplayBuffer(10, (action = Field(Int8),)), "observation"),
        (() -> ReplayBuffer(10, (observation = Field(Int8), reward = Field(Int8))), "reward"),
        (() -> ReplayBuffer(10, (observation = Int8,)), "field observation is a DataType, not a Field"),
        (() -> ReplayBuffer(10, (observation = Field(Int8; default = 0),)), "default of field \"observation\" is given"),
        (() -> ReplayBuffer(10, ONE_FIELD; n_step = 65), "n_step is 65"),
        (() -> ReplayBuffer(10, ONE_FIELD; n_step = 0.5), "n_step is 0.5"),
        (() -> ReplayBuffer(10, ONE_FIELD; gamma = 1.5), "gamma is 1.5"),
        (() -> ReplayBuffer(10, ONE_FIELD; alfa = 1), "there is no option alfa; there are overwrite, n_envs"),
        (() -> ReplayBuffer(10, ONE_FIELD; struct_size = 1), "there is no option struct_size"),
        (() -> ReplayBuffer(10, ONE_FIELD; autoreset = :never), "autoreset is :never; allowed: :disabled"),
        (() -> ReplayBuffer(10, ONE_FIELD; overwrite = "no"), "overwrite is \"no\"; allowed: true, false"),
        (() -> ReplayBuffer(10, ONE_FIELD; store_next_observation = 2), "is 2; allowed: true, false"),
        (() -> ReplayBuffer(10, ONE_FIELD; burn_in = 3), "burn_in is 3: must be 0 where sequence_length is not given"),
    )
        @test occursin(words, invalid_message(action))
    end
end

@testset "what is no field or directory is named" begin
    for (given, words) in ((Field(Float32), "fields is a Field"), (nothing, "fields is a Nothing"),
                           ([Field(Float32)], "allowed: a named tuple of Fields, or pairs"))
        @test occursin(words, invalid_message(() -> ReplayBuffer(100, given)))
    end
    @test occursin("storage is 3; allowed: the path", invalid_message(() -> ReplayBuffer(9, FLAG_FIELDS; storage = 3)))
    for source in ("nowhere", IOBuffer())
        @test occursin("there is no option bogus; there are device",
                       invalid_message(() -> load(ReplayBuffer, source; bogus = 3)))
    end
end

@testset "fields are equal if what they declare is" begin
    default = Float32[1, NaN]
    field = Field(Float32, 2; default = default)
    default[1] = 9
    @test field == Field(Float32, 2; default = [1, NaN]) && field != Field(Float32, 2; default = [9, NaN])
    half = Field(PER.BFloat16; default = PER.BFloat16(1.5f0))
    @test half == Field(PER.BFloat16; default = PER.BFloat16(1.5f0)) && haskey(Dict(half => 1), half)
end

@testset "a field that cannot be fails where it is made" begin
    for (action, words) in (
        (() -> Field(Float32, -1), "shape is (-1,): allowed are axes of 1 and above (axes in C's order"),
        (() -> Field(Float32, 0, 3), "shape is (3, 0): allowed are axes of 1 and above"),
        (() -> Field(Int8, ones(Int, 9)...), "the number of axes is 9: allowed are 0 .. 8"),
        (() -> Field(Int8, 2.5), "an axis of a field is 2.5"),
        (() -> Field(ComplexF32), "element_type is Complex"),
        (() -> Field(Int8; role = :obs), "role is :obs; allowed: :default, :plain, :observation, :recurrent_state"),
        (() -> Field(Int8; padding = :ones), "padding is :ones; allowed: :repeat, :zero"),
        (() -> Field(Int8; default = 300), "default is 300"),
        (() -> Field(Int8, 2; default = [1, 2, 3]), "default has shape (3,)"),
        (() -> Field(Int8; role = :observation, default = 0), "default is given"),
        (() -> Field(Int8; stack = 65), "stack is 65: allowed are 0 .. 64"),
        (() -> Field(Int8; stack = 2^40), "stack is 1099511627776"),
    )
        @test occursin(words, invalid_message(action))
    end
    error = thrown(() -> Field(Float64, 2^40, 2^40))
    @test error.status == PER.PER_ERROR_OUT_OF_MEMORY && occursin("2^63 - 1 bytes a row", error.message)
    @test Field(Int8, 3; role = "plain", stack = 2) === Field(Int8, 3; role = :plain, stack = 2)
end

@testset "errors speak Julia" begin
    # No C terms: constants, functions, arguments and types.
    speaks_julia(text) = !occursin(r"PER_|per_\w+\(|NULL|_field|n_fields|next_fields|ndim|dtype|float\d|\bint\d", text)
    step = (observation = 1, reward = 0, terminated = false, truncated = false)
    ended = (step..., terminated = true)
    told(options, steps...) = thrown() do
        buffer = ReplayBuffer(5, ONE_FIELD; options...)
        foreach(step -> add!(buffer; step...), steps)
    end
    gap = (step..., next_observation = 5)
    full = ntuple(_ -> step, 6)
    goals = ReplayBuffer(10, (observation = Field(Int32), goal = Field(Int32), value = Field(Float32)))
    advantages(; names...) = thrown(() -> advantages!(goals; bootstrap = batch -> [0], names...))
    extend!(goals; observation = 1:3, goal = 1:3, value = 1:3, reward = 1:3, terminated = falses(3),
            truncated = falses(3), next_observation = 2:4)
    for (error, words) in (
        (told((autoreset = :same_step,), ended), "(autoreset is :same_step)"),
        (told((on_gap = :error,), gap, step), "(on_gap is :error)"),
        (told((on_nan = :error,), (step..., reward = NaN)), "is NaN: must be a number (on_nan is :error)"),
        (told((overwrite = false,), full...), "and overwrite is false"),
        (told((), (step..., observation = 0.5)), "Float64: allowed are Bool and integers, as the field is Int32"),
        (told((), (step..., observation = 2^40)), "2147483647 (Int32)"),
        (advantages(value = :goal, advantage = :value), "value is \"goal\""),
        (advantages(advantage = :value), "advantage and value are both \"value\""),
        (thrown(() -> sample!(goals, 2; hindsight = Hindsight(:goal, :goal, ==))), "achieved is \"goal\""),
        (thrown(() -> ReplayBuffer(10, NamedTuple())), "the number of fields is 0"),
    )
        @test occursin(words, error.message) && speaks_julia(error.message)
    end
    for (enum, constants) in pairs(PER.enums), constant in keys(constants)
        enum === :per_status || @test speaks_julia(PER.in_julia("$constant", NamedTuple()))
    end
    @test PER.in_julia("\"PER_RANK\" is PER_RANK", NamedTuple()) == "\"PER_RANK\" is :rank"
end

@testset "capacity_for keeps so many live" begin
    @test capacity_for(1000; episode_length = 10) == capacity_for(1000; episode_length = 10, storage = "/a") == 1101
    # By the formula of per.h: 2 (500 + 499 / 10 + 3 + 4), divisions rounded down.
    @test capacity_for(1000; episode_length = 10, n_envs = 2, n_step = 3, frame_stack = 4) == 2 * (500 + 49 + 3 + 4)
    fields = (observation = Field(Int32; stack = 3),)
    capacity = capacity_for(20; episode_length = 4, fields = fields, n_step = 2, device = :cpu, alpha = nothing)
    buffer = ReplayBuffer(capacity, fields; n_step = 2)
    least = typemax(Int)
    for step in 1:200
        add!(buffer; observation = step, reward = 0, terminated = step % 4 == 0, truncated = false,
             next_observation = step % 4 == 0 ? -step : step + 1)
        step > capacity && (least = min(least, length(buffer)))
    end
    @test least == 20
    rows = capacity_for(4 * 2; episode_length = 1, n_envs = 2)
    rollout = ReplayBuffer(rows, ONE_FIELD; n_envs = 2, overwrite = false)
    extend!(rollout; observation = ones(Int, 2, 4), reward = 0, terminated = trues(2, 4), truncated = false,
            next_observation = fill(2, 2, 4))
    @test length(rollout) == 8
    @test is_invalid(thrown(() -> capacity_for(0)), "transitions is 0")
    @test is_invalid(thrown(() -> capacity_for(10; colour = 1)), "there is no option colour")
    @test is_invalid(thrown(() -> capacity_for(10.5)), "transitions is 10.5")
end

@testset "a device that is not there is an error with the reason" begin
    error = thrown(() -> ReplayBuffer(10, ONE_FIELD; device = :cuda))
    @test error.status == PER.PER_ERROR_NO_DEVICE && !isempty(error.message)
end

@testset "alpha, beta, gamma and n_step can be read and set" begin
    buffer = ReplayBuffer(20, ONE_FIELD; beta_steps = 2, beta = 0.5, beta_final = 1, alpha = 1)
    ids = add_steps!(buffer, 1:4)
    set_priorities!(buffer, ids, [1, 2, 3, 4])
    sample!(buffer, 2)
    @test buffer.beta == 0.75
    buffer.beta = 0.25
    sample!(buffer, 2)
    @test buffer.beta == 0.25
    @test stats(buffer).total ≈ 10
    buffer.alpha = 0
    @test buffer.alpha == 0 && stats(buffer).total ≈ 4
    buffer.alpha = 2
    @test stats(buffer).total ≈ 30
    buffer.gamma = 0.25
    buffer.n_step = 2
    @test buffer.gamma == 0.25 && buffer.n_step == 2
    # The fourth step's window of two is not complete.
    @test length(buffer) == 3
    @test is_invalid(thrown(() -> buffer.alpha = -1), "alpha is -1")
    @test is_invalid(thrown(() -> buffer.gamma = "x"), "gamma is \"x\"")
    @test is_invalid(thrown(() -> buffer.capacity = 5),
                     "capacity cannot be set; these can: alpha, beta, gamma, n_step, save_compression, version")
    @test propertynames(buffer) == (:capacity, :n_envs, :n_step, :alpha, :beta, :gamma, :save_compression, :version)
    @test buffer.save_compression == 0
    @test is_invalid(thrown(() -> buffer.save_compression = 20), "save_compression is 20")
    buffer.save_compression = 0
end

@testset "priorities decay by versions, and old ones end" begin
    buffer = ReplayBuffer(20, ONE_FIELD; alpha = 1, half_life = 2, age = :versions, max_age = 4)
    for version in 0:6
        buffer.version = version
        add_steps!(buffer, version:version)
    end
    @test buffer.version == 6 && length(buffer) == 5
    P = get_windows(buffer, live_ids(buffer)).probabilities
    @test P ≈ 2 .^ (-(4:-1:0) / 2) / sum(2 .^ (-(4:-1:0) / 2))
    @test is_invalid(thrown(() -> buffer.version = 5), "version is 5")
    @test is_invalid(thrown(() -> ReplayBuffer(20, ONE_FIELD; half_life = 3, prioritization = :rank)), "half_life")
end

@testset "stats count what happened" begin
    buffer = ReplayBuffer(20, ONE_FIELD; alpha = 1)
    add_steps!(buffer, 1:4)
    add_steps!(buffer, 9:9)
    sample!(buffer, 2)
    counted = stats(buffer)
    @test (counted.live, counted.added, counted.cuts, counted.episodes, counted.samples) == (5, 5, 1, 1, 1)
    @test counted.total ≈ 5 && counted.max_priority == 1
    # One of five strata each: all transitions, the oldest of five steps and an end ago.
    sample!(buffer, 5; scheme = :systematic)
    update_priorities!(buffer, [0, 1], [1, 2])
    counted = stats(buffer)
    @test (counted.last_batch_size, counted.last_max_age, counted.updates) == (5, 5, 2)
    @test counted.last_mean_age ≈ (5 + 4 + 3 + 2 + 0) / 5 && counted.last_effective_size ≈ 5
    @test counted.last_duplicates == 0
    # A row takes a number of 4 bytes, reward and flags, padding of 13 bytes to 16, and its part of what keeps
    # priorities.
    bytes(rows) = stats(ReplayBuffer(rows, ONE_FIELD)).memory_bytes
    @test 4 + 6 + 3 + 8 < (bytes(200_000) - bytes(100_000)) / 100_000 <= 4 + 6 + 3 + 9
end

@testset "clear! empties the buffer and ids go on" begin
    buffer = ReplayBuffer(20, ONE_FIELD)
    last_id = add_steps!(buffer, 1:4)[end]
    @test clear!(buffer) === buffer
    @test length(buffer) == 0
    @test add_steps!(buffer, 7:7)[1] > last_id
end

@testset "the same seed and calls give the same ids" begin
    draws = map((5, 5, 6)) do seed
        buffer = ReplayBuffer(200, ONE_FIELD; seed = seed)
        add_steps!(buffer, 1:150)
        vcat(sample!(buffer, 32).ids, sample!(buffer, 32; scheme = :independent).ids)
    end
    @test draws[1] == draws[2] != draws[3]
end

@testset "a loaded buffer continues bit for bit" begin
    pose = Field(Float64; role = :observation)
    fields = ["observation" => Field(UInt8, 2, 3), "value" => Field(PER.BFloat16), "pose" => pose]
    buffer = ReplayBuffer(40, fields; n_envs = 2, n_step = 2, frame_stack = 2, beta_steps = 9, seed = 3)
    step(buffer, t) = add!(buffer; observation = UInt8[t + row + 9env for row in 1:2, _ in 1:3, env in 1:2],
                           value = Float32[t, -t], pose = [0.5t, 0.25t], reward = [t, 2t],
                           terminated = [t % 5 == 0, false], truncated = [false, t % 7 == 0], next_mask = falses(2))
    foreach(t -> step(buffer, t), 1:30)
    update_priorities!(buffer, sample!(buffer, 8).ids, 1:8)
    mktempdir() do folder
        path = joinpath(folder, "replay.per")
        @test save(buffer, path) === nothing
        loaded = load(ReplayBuffer, path)
        @test stats(loaded) == stats(buffer)
        for t in 31:45
            @test step(loaded, t) == step(buffer, t)
            batches = sample!(loaded, 8), sample!(buffer, 8)
            @test keys(batches[1]) == keys(batches[2])
            @test all(batches[1][name] == batches[2][name] for name in keys(batches[1]))
            foreach((replay, batch) -> update_priorities!(replay, batch.ids, batch.reward), (loaded, buffer), batches)
        end
        write(path, "not a replay")
        @test thrown(() -> load(ReplayBuffer, path)).status == PER.PER_ERROR_CORRUPT_FILE
        error = thrown(() -> load(ReplayBuffer, joinpath(folder, "nothing.per")))
        @test error.status == PER.PER_ERROR_IO && occursin("No such file", error.message)
        @test thrown(() -> save(buffer, joinpath(folder, "nowhere", "replay.per"))).status == PER.PER_ERROR_IO
        @test is_invalid(thrown(() -> load(ReplayBuffer, path; device = :gpu)), "device is :gpu")
        @test is_invalid(thrown(() -> save(buffer, path * "\0x")), "paths without a NUL")
        @test is_invalid(thrown(() -> load(ReplayBuffer, path * "\0x")), "paths without a NUL")
        @test is_invalid(thrown(() -> PER.Writer(path * "\0x")), "paths without a NUL")
        @test is_invalid(thrown(() -> PER.Reader(path * "\0x")), "paths without a NUL")
        @test readdir(folder) == ["replay.per"] && read(path, String) == "not a replay"
    end
end

# 40 steps of two environments whose lanes begin at row 2^53: the reward of a row is its id - 2^54, and Float64 has no
# odd numbers there.
@testset "ids beyond 2^53 are exact" begin
    buffer = load(ReplayBuffer, joinpath(@__DIR__, "..", "..", "..", "..", "tests", "golden", "buffer_of_high_ids.per"))
    first_id = Int64(2)^54
    live = live_ids(buffer)
    @test live == [first_id + 50 + 2row + env for env in 0:1 for row in 0:14]
    batch = sample!(buffer, 256)
    @test eltype(batch.ids) == Int64 && batch.ids .- first_id == batch.reward
    set_priorities!(buffer, live, 1:length(live))
    @test priorities(buffer, live) == 1:length(live)
    @test get(buffer, live).reward == live .- first_id
    @test stats(buffer).stale_updates == 0
end

@testset "buffers show what they are" begin
    buffer = ReplayBuffer(20, (observation = Field(Int8), action = Field(Int8)))
    @test repr(buffer) == "ReplayBuffer(20, observation, action) with 0 live transitions"
    close(buffer)
    @test repr(buffer) == "ReplayBuffer (closed)"
end

@testset "the rate limiter keeps adds and draws in step" begin
    buffer = ReplayBuffer(100, (observation = Field(Float32),); samples_per_insert = 2, samples_tolerance = 8,
                          min_size_to_sample = 3)
    add() = add!(buffer; observation = 1, reward = 1, terminated = false, truncated = false, next_observation = 1)
    is_busy(error, message) = error isa PERError && error.status == PER.PER_ERROR_BUSY && occursin(message, error.message)
    @test is_busy(thrown(() -> sample!(buffer, 4)), "before 3 steps are added (min_size_to_sample); 0 are so far")
    @test is_busy(thrown(() -> wait_to_sample(buffer, 4; timeout = 0.01)), "before 3 steps")
    foreach(_ -> add(), 1:7)
    @test is_busy(thrown(add), "7 steps are added, 0 transitions drawn")
    @test is_busy(thrown(() -> wait_to_add(buffer, 1; timeout = 0)), "steps of the call are 1")
    @test is_invalid(thrown(() -> wait_to_add(buffer, 5)), "steps of the call are 5")
    @test is_invalid(thrown(() -> sample!(buffer, 9)), "batch_size is 9")
    # In C these stand for options that are not given.
    for given in ((beta = NaN,), (uniform_fraction = NaN32,), (n_step = 0,))
        @test is_invalid(thrown(() -> sample!(buffer, 2; given...)), r"is (NaN|0); allowed")
    end
    @test is_invalid(thrown(() -> Field(Float32; stack = 0)), "stack is 0; allowed: 1 and above")
    @test is_invalid(thrown(() -> get(buffer, [0]; next_observations = nothing)), "next_observations is nothing")
    # Iterating over a loader waits for the adds of another task, and prefetches as far as allowed.
    sample!(buffer, 8)
    drawn = @async loader(batches -> [length(batch.ids) for (_, batch) in zip(1:4, batches)], buffer, 8; slots = 1)
    for _ in 1:12
        wait_to_add(buffer, 1; timeout = 60)
        add()
    end
    @test fetch(drawn) == fill(8, 4)
    @test stop_limiting!(buffer) === buffer
    foreach(_ -> add(), 1:50)
    wait_to_add(buffer, 1000)
    @test options(buffer).samples_per_insert == 0
end

@testset "transitions are counted, and drawn so often and no more" begin
    make(; options...) = ReplayBuffer(100, (observation = Field(Float32),); options...)
    add(buffer, n) = extend!(buffer; observation = 1:n, reward = zeros(n), terminated = falses(n),
                             truncated = falses(n), next_observation = (1:n) .+ 1)
    counted = make(keep_times_sampled = true)
    add(counted, 3)
    batch = sample!(counted, 30)
    @test eltype(batch.times_sampled) == Int32
    @test all(batch.times_sampled[i] == count(==(batch.ids[i]), batch.ids) for i in 1:30)
    @test sum(get_windows(counted, 0:2).times_sampled) == 30 == sum(get(counted, 0:2).times_sampled)
    plain = make()
    add(plain, 3)
    @test !haskey(sample!(plain, 2), :times_sampled)
    twice = make(max_times_sampled = 2, scheme = :without_replacement)
    add(twice, 8)
    @test [unique(sample!(twice, 8).times_sampled) for _ in 1:2] == [[1], [2]]
    @test length(twice) == 0
    @test is_invalid(thrown(() -> make(max_times_sampled = 1)), "scheme is ")
    @test is_invalid(thrown(() -> sample!(twice, 1; scheme = :independent)), "max_times_sampled")
end

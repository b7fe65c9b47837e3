# Fields with max_length: rows of any length. The contents of a step are functions of its environment and its number, so
# every row of a batch can be computed again from its id.
const MOST_POINTS, MOST_TOKENS = 5, 11
const RAGGED_FIELDS = (observation = Field(Float32, 2, nothing; max_length = MOST_POINTS),
                       tokens = Field(Int16, nothing; max_length = MOST_TOKENS), action = Field(Int32))

# Every length from 0 to the largest comes up.
n_points(env, t) = mod(5t + env, MOST_POINTS + 1)
n_tokens(env, t) = mod(7t + env, MOST_TOKENS + 1)
points(env, t) = Float32[1000env + 10t + k + axis / 4 for axis in 1:2, k in 1:n_points(env, t)]
tokens(env, t) = Int16[1000env + 10t + k for k in 1:n_tokens(env, t)]

# Every episode has `episode` steps and ends by a limit. No episode begins with the final observation of another.
ends(t, episode) = mod(t, episode) == 0
points_after(env, t, episode) = ends(t, episode) ? -points(env, t + 1) : points(env, t + 1)

# Steps `times` of all environments.
function steps_of(times, n_envs, episode = 1000)
    rows(make) = [make(env, t) for env in 1:n_envs, t in times]
    return (observation = rows(points), tokens = rows(tokens),
            next_observation = rows((env, t) -> points_after(env, t, episode)), action = rows((env, t) -> t),
            reward = rows((env, t) -> 1), terminated = falses(n_envs, length(times)),
            truncated = rows((env, t) -> ends(t, episode)))
end

function ragged_buffer(times; n_envs = 1, episode = 1000, capacity = 60, options...)
    buffer = ReplayBuffer(capacity, RAGGED_FIELDS; n_envs, seed = 5, options...)
    isempty(times) || extend!(buffer; steps_of(times, n_envs, episode)...)
    return buffer
end

env_of(id, n_envs) = Int(mod(id, n_envs)) + 1

# True if all rows are those of the batch's ids; action is the step.
function are_rows_of_ids(batch, n_envs, episode = 1000)
    return all(enumerate(batch.ids)) do (i, id)
        env, t = env_of(id, n_envs), batch.action[i]
        return batch.observation[i] == points(env, t) && batch.tokens[i] == tokens(env, t) &&
               batch.next_observation[i] == points_after(env, t + batch.n_steps[i] - 1, episode)
    end
end

saved_bytes(buffer) = take!(let io = IOBuffer(); save(buffer, io); io end)

@testset "rows of every length come back, also once lanes wrap around" begin
    for n_envs in (1, 3), n_step in (1, 3), store_next_observation in (false, true)
        episode = n_envs == 1 ? 9 : 1000
        buffer = ragged_buffer(1:0; n_envs, n_step, store_next_observation)
        seen, t = Set{Int}(), 0
        for round in 1:60
            times = t+1:t+mod(7round, 12)
            t = last(times)
            if length(times) == 1
                step = map(array -> array[:, 1], steps_of(times, n_envs, episode))
                add!(buffer; step...)
            else
                extend!(buffer; steps_of(times, n_envs, episode)...)
            end
            length(buffer) == 0 && continue
            batch = sample!(buffer, 16)
            @test are_rows_of_ids(batch, n_envs, episode)
            union!(seen, lengths(batch.tokens))
        end
        @test t * n_envs > 3 * buffer.capacity && stats(buffer).cuts == 0
        @test seen == Set(0:MOST_TOKENS)
    end
end

@testset "a batch has rows as Ragged" begin
    buffer = ragged_buffer(1:20)
    batch = sample!(buffer, 8)
    @test batch.observation isa Ragged && batch.observation isa AbstractVector
    @test eltype(batch.observation.values) === Float32 && eltype(batch.tokens.values) === Int16
    @test size(batch.observation) == size(batch.tokens) == (8,)
    @test size(batch.observation.values) == (2, sum(lengths(batch.observation)))
    @test batch.tokens.offsets == cumsum([0; lengths(batch.tokens)])
    @test lengths(batch.tokens) == [n_tokens(1, t) for t in batch.action]
    @test batch.tokens[2] isa SubArray && parent(batch.tokens[2]) === batch.tokens.values
    @test collect(batch.observation) == [points(1, t) for t in batch.action]
    @test occursin("observation::Float32[2×…×8], tokens::Int16[…×8], action::Int32[8]", repr(batch))
end

@testset "a batch that needs more room is drawn once" begin
    buffer, twin = (ragged_buffer(1:30; keep_times_sampled = true, beta_steps = 100) for _ in 1:2)
    get(twin, fill(4, 200))  # rows of another mean length, so that the twin starts with another room
    for n in (1, 40, 3)
        batches = sample!.((buffer, twin), n)
        @test all(batches[1][name] == batches[2][name] for name in keys(batches[1]))
        @test are_rows_of_ids(batches[1], 1)
    end
    @test stats(buffer) == stats(twin) && stats(buffer).samples == 3
end

@testset "rows are taken in several forms" begin
    three = [Int16[t, 2t, 3t] for t in 1:4]
    two = [rand(Float32, 2, 3) for _ in 1:4]
    flat(rows) = reduce(hcat, rows)
    offsets = [0, 3, 6, 9, 12]
    given(observation, tokens; size = (4,)) =
        (; observation, tokens, action = reshape(1:prod(size), size), reward = zeros(size), terminated = falses(size),
         truncated = falses(size))
    function bytes(add; n_envs)
        buffer = ReplayBuffer(60, RAGGED_FIELDS; n_envs)
        add(buffer)
        return saved_bytes(buffer)
    end
    for (n_envs, size, add) in ((1, (4,), extend!), (1, (1, 4), extend!), (4, (4,), add!), (2, (2, 2), extend!))
        expected = bytes(buffer -> add(buffer; given(reshape(two, size), reshape(three, size); size)...); n_envs)
        for (observation, tokens) in (
            (Ragged(flat(two), offsets, size), Ragged(vcat(three...), offsets, size)),
            (reshape(flat(two), 2, 3, size...), reshape(flat(three), 3, size...)),
            (reshape(Any[two...], size), reshape(map(row -> Any[row...], three), size)),
            (map(row -> view([row row], :, 1:3), reshape(two, size)),
             map(row -> view(row, 1:1:3), reshape(three, size))),
            (reshape(map(row -> row', map(permutedims, two)), size), reshape([Int8.(three[1]), three[2:4]...], size)),
        )
            @test bytes(buffer -> add(buffer; given(observation, tokens; size)...); n_envs) == expected
        end
    end
    # One step of one environment needs no vector around its row.
    one = ReplayBuffer(60, RAGGED_FIELDS)
    flags = (reward = 0, terminated = false, truncated = false)
    for (observation, tokens) in ((two[1], three[1]), ([two[1]], [three[1]]), (zeros(2, 0), Int16[]), ([], [[]]))
        add!(one; observation, tokens, action = 1, flags...)
    end
    rows = get(one, 0:3; next_observations = false)
    @test collect(rows.observation) == [two[1], two[1], zeros(2, 0), zeros(2, 0)]
    @test collect(rows.tokens) == [three[1], three[1], [], []]
    # Rows of a batch are rows to add.
    again = ReplayBuffer(60, RAGGED_FIELDS)
    extend!(again; given(rows.observation, rows.tokens)...)
    @test get(again, 0:3; next_observations = false).observation == rows.observation
    # Element types are cast as those of other fields are, and rows may differ in theirs.
    extend!(again; given(two, [Int8[1], [300], UInt16[7], Any[]])...)
    @test collect(get(again, 4:7; next_observations = false).tokens) == [[1], [300], [7], []]
    # A run may be empty.
    @test extend!(again; given(zeros(Float32, 2, 4, 0), []; size = (0,))...) == Int64[]
end

@testset "masked rows are not read" begin
    buffer = ReplayBuffer(60, RAGGED_FIELDS; n_envs = 3, on_nan = :error)
    step = (tokens = [Int16[1], Int16[1, 2], Int16[]], action = 1:3, reward = zeros(3), terminated = falses(3),
            truncated = falses(3))
    rows = [ones(2, 1), fill(NaN, 2, 4), zeros(2, 0)]
    @test is_invalid(thrown(() -> add!(buffer; observation = rows, step...)), "observation[1, 0] is NaN")
    @test add!(buffer; observation = rows, step..., mask = [true, false, true]) == [0, -1, 2]
    found = get(buffer, [0, 2]; next_observations = false)
    @test collect(found.observation) == rows[[1, 3]] && collect(found.tokens) == step.tokens[[1, 3]]
end

@testset "another observation than announced is a gap" begin
    for (given, cuts) in (([1 2; 3 4], 0), ([1 2; 3 5], 1), ([1 2 0; 3 4 0], 1), (zeros(2, 0), 1))
        buffer = ReplayBuffer(60, RAGGED_FIELDS)
        step = (tokens = Int16[], action = 1, reward = 0, terminated = false, truncated = false)
        add!(buffer; observation = zeros(2, 1), next_observation = [1 2; 3 4], step...)
        add!(buffer; observation = given, next_observation = zeros(2, 2), step...)
        @test stats(buffer).cuts == cuts
    end
end

@testset "rows are read and set by id" begin
    buffer = ragged_buffer(1:20; n_step = 3)
    rows = get(buffer, [8, 3, 9, 3])
    @test rows.ids == [8, 3, 9, 3] && are_rows_of_ids(rows, 1)
    @test !haskey(get(buffer, [3]; next_observations = false), :next_observation)
    windows = get_windows(buffer, [19, 4, -1]; on_invalid = :skip)
    @test windows.ids == [-1, 4, -1] && windows.n_steps[2] == 3
    @test lengths(windows.tokens) == [0, n_tokens(1, 5), 0] && windows.next_observation[2] == points(1, 8)
    @test isempty(get(buffer, Int64[]).tokens) && isempty(get_windows(buffer, Int64[]).observation)
    # The last entry of an id counts.
    @test set!(buffer, [8, 3, 9, 3]; tokens = [Int8[7, -7], Int8[1, 2, 3], Int8[], Int8[4, 5]]) === buffer
    @test collect(get(buffer, [8, 3, 9]).tokens) == [[7, -7], [4, 5], []]
    set!(buffer, 3; tokens = 1:MOST_TOKENS)
    set!(buffer, [8, 9]; tokens = Ragged([1, 2, 3], [0, 3, 3]))
    @test collect(get(buffer, [3, 8, 9]).tokens) == [1:MOST_TOKENS, [1, 2, 3], []]
    set!(buffer, [8, 9]; tokens = [1 3; 2 4])
    @test collect(get(buffer, [8, 9]).tokens) == [[1, 2], [3, 4]]
    @test get(buffer, 7).tokens[1] == tokens(1, 8)
    clear!(buffer)
    set!(buffer, [8]; tokens = [[1]])
    @test stats(buffer).stale_updates == 1
end

@testset "rows of sequences count steps first" begin
    T, n_step = 4, 2
    for episode in (1000, 6)
        buffer = ragged_buffer(1:80; n_envs = 2, n_step, episode, sequence_length = 3, burn_in = 1, sequence_stride = 1)
        batch = sample!(buffer, 16)
        @test size(batch.observation) == (T + n_step, 16) && size(batch.tokens) == (T, 16)
        for i in 1:16
            env, t, n = env_of(batch.ids[i], 2), batch.action[1, i], count(batch.mask[:, i])
            left = episode - mod(t - 1, episode)  # transitions of the episode
            @test n == min(T, left)
            for k in 1:T+n_step
                @test batch.observation[k, i] == (k == 1 ? points(env, t) : k - 1 <= left ?
                                                  points_after(env, t + k - 2, episode) : zeros(2, 0))
            end
            @test all(batch.tokens[k, i] == (k <= n ? tokens(env, t + k - 1) : []) for k in 1:T)
        end
        @test lengths(batch.tokens)[:, 3] == length.(batch.tokens[:, 3])
        @test size(padded(batch.observation)) == (2, maximum(lengths(batch.observation)), T + n_step, 16)
        walked = collect(epochs(buffer, 1; batch_size = 30))
        @test sort(vcat((part.ids for part in walked)...)) == sort(live_ids(buffer))
        @test all(size(part.tokens) == (T, length(part.ids)) for part in walked)
        @test all(part.tokens[1, end] == tokens(env_of(part.ids[end], 2), part.action[1, end]) for part in walked)
    end
    fields = (observation = Field(Int32), state = Field(Float32, nothing; max_length = 3, role = :recurrent_state))
    buffer = ReplayBuffer(60, fields; sequence_length = 2, sequence_stride = 1)
    extend!(buffer; observation = 0:9, state = [fill(t, mod(t, 4)) for t in 0:9], reward = zeros(10),
            terminated = falses(10), truncated = falses(10))
    batch = sample!(buffer, 8)
    @test size(batch.state) == (8,) && collect(batch.state) == [fill(t, mod(t, 4)) for t in batch.observation[1, :]]
end

@testset "every row comes once an epoch" begin
    buffer = ragged_buffer(1:11)
    batches = collect(epochs(buffer, 2; batch_size = 4))
    @test [length(batch.tokens) for batch in batches] == [4, 4, 3, 4, 4, 3]
    @test all(batch -> are_rows_of_ids(batch, 1), batches)
    @test length(batches[3].tokens.values) == last(batches[3].tokens.offsets) == sum(lengths(batches[3].tokens))
    units, _ = PER.get_units(buffer, [-1, -3])
    @test units.ids == [0, 2] && are_rows_of_ids(units, 1)
end

@testset "a critic gets the rows that advantages bootstrap from" begin
    fields = (; RAGGED_FIELDS..., value = Field(Float32), advantage = Field(Float32; default = 0))
    buffer = ReplayBuffer(60, fields; n_envs = 2, gamma = 0.5)
    extend!(buffer; steps_of(1:9, 2, 4)..., value = zeros(2, 9))
    asked = Int[]
    function critic(batch)
        @test are_rows_of_ids(batch, 2, 4)
        append!(asked, batch.action)
        return lengths(batch.next_observation)
    end
    advantages!(buffer; lambda = 0, bootstrap = critic)
    @test asked == [4, 8, 9, 4, 8, 9]
    ids = live_ids(buffer)[[4, 8, 9]]
    @test get(buffer, ids).advantage == [1 + n_points(1, t + 1) / 2 for t in (4, 8, 9)]
end

@testset "hindsight leaves rows of any length as they are" begin
    fields = (observation = Field(Int32), goal = Field(Int32), tokens = Field(Int16, nothing; max_length = MOST_TOKENS))
    buffer = ReplayBuffer(60, fields; seed = 3)
    extend!(buffer; observation = 0:29, goal = fill(-1, 30), tokens = [tokens(1, t) for t in 0:29], reward = zeros(30),
            next_observation = 1:30, terminated = falses(30), truncated = falses(30))
    n_calls = 0
    hindsight = Hindsight(:observation, :goal, (achieved, goal) -> (n_calls += 1; achieved .== goal))
    batch = sample!(buffer, 16; hindsight)
    @test collect(batch.tokens) == [tokens(1, t) for t in batch.observation] && any(batch.goal .!= -1)
    @test n_calls == 1
    goals = Hindsight(:observation, :tokens, (achieved, goal) -> achieved)
    error = thrown(() -> sample!(buffer, 4; hindsight = goals))
    @test error.status == PER.PER_ERROR_UNSUPPORTED
    @test occursin("goal is \"tokens\": goals of any length cannot be replaced", error.message)
end

@testset "loaded and copied buffers have the same rows" begin
    for (n_envs, compression) in ((1, 0), (3, 1))
        buffer = ragged_buffer(1:70; n_envs, episode = 11, capacity = 90)
        path, directory = tempname(), mktempdir()
        found = thrown(() -> save(buffer, path; compression))
        found.status == PER.PER_ERROR_UNSUPPORTED && save(buffer, path)  # libper was built without zstd
        checkpoint(buffer, directory)
        expected = get(buffer, live_ids(buffer))
        @test are_rows_of_ids(expected, n_envs, 11)
        for loaded in (load(ReplayBuffer, path), load(ReplayBuffer, directory), deepcopy(buffer))
            @test options(loaded) == options(buffer) && saved_bytes(loaded) == saved_bytes(buffer)
            rows = get(loaded, live_ids(loaded))
            @test all(rows[name] == expected[name] for name in keys(expected))
            extend!(loaded; steps_of(71:80, n_envs, 11)...)
            @test are_rows_of_ids(sample!(loaded, 32), n_envs, 11)
        end
        rm(path)
    end
end

@testset "loaders have the rows of the buffer" begin
    for options in ((;), (sequence_length = 4, n_step = 2))
        buffer, shared, twin = (ragged_buffer(1:50; episode = 9, options...) for _ in 1:3)
        batches = shared_loader(shared, 8; readers = 1)
        reader = PER.Reader(batches.path)
        loader(buffer, 8; slots = 3) do loaded
            for (_, batch, read) in zip(1:6, loaded, reader)
                expected = sample!(twin, 8)
                for got in (batch, read)
                    @test got.observation isa Ragged && keys(got) == keys(expected)
                    @test all(name -> got[name] == expected[name], keys(expected))
                end
            end
            kept = take!(loaded)
            rows = copy(kept.tokens)
            foreach(_ -> release!(loaded, take!(loaded)), 1:4)
            @test kept.tokens == rows
        end
        close(reader)
    end
end

@testset "writers bring the rows into the buffer" begin
    buffer, twin = ragged_buffer(1:0; n_envs = 2), ragged_buffer(1:0; n_envs = 2)
    steps = channel(buffer; slots = 4)
    writer = PER.Writer(steps.path, RAGGED_FIELDS)
    for t in 1:2:29
        extend!(writer; steps_of(t:t+1, 2, 9)...)
        extend!(twin; steps_of(t:t+1, 2, 9)...)
    end
    flush(steps)
    @test are_rows_of_ids(sample!(buffer, 32), 2, 9)
    @test live_ids(buffer) == live_ids(twin)
    longer = merge(RAGGED_FIELDS, (tokens = Field(Int16, nothing; max_length = MOST_TOKENS + 1),))
    close(writer)
    error = thrown(() -> PER.Writer(steps.path, longer))
    @test is_invalid(error, "max_length of field \"tokens\" is 12: in the buffer it is 11")
end

@testset "mixtures join the rows of their buffers" begin
    a, b, empty = ragged_buffer(1:20; episode = 9), ragged_buffer(31:60; episode = 9), ragged_buffer(1:0)
    mixture = Mixture(:a => (a, 1), :b => (b, 1))
    for count in (1, 8, 64, 3)
        batch = sample!(mixture, count)
        @test batch.tokens isa Ragged && are_rows_of_ids(batch, 1, 9)
    end
    error = thrown(() -> sample!(Mixture(:a => (a, 1), :empty => (empty, 1)), 8))
    @test error.status == PER.PER_ERROR_EMPTY && occursin("empty: no transition is live", error.message)
    gives_way = Mixture(:a => (a, 1), :empty => (empty, 1); when_empty = :others)
    batch = sample!(gives_way, 8)
    @test batch.sources == fill(1, 8) && are_rows_of_ids(batch, 1, 9)
    gives_way.shares = (a = 0.25, empty = 0.75)
    @test sample!(gives_way, 8).sources == fill(1, 8)
    error = thrown(() -> Mixture(:a => (a, 1); when_empty = :drops))
    @test is_invalid(error, "when_empty is :drops; allowed: :error, :others")
end

@testset "memory for rows has a limit" begin
    buffer = ReplayBuffer(4000, RAGGED_FIELDS; max_heap_bytes = 150_000)
    @test options(buffer).max_heap_bytes == 150_000
    error = thrown(() -> foreach(_ -> extend!(buffer; steps_of(1:500, 1)...), 1:8))
    @test error.status == PER.PER_ERROR_FULL && occursin("of max_heap_bytes, 150000, are left", error.message)
    @test stats(buffer).added in 500:500:3500
    path = tempname()
    save(buffer, path)
    error = thrown(() -> load(ReplayBuffer, path; max_heap_bytes = 1000))
    @test error.status == PER.PER_ERROR_FULL
    @test length(load(ReplayBuffer, path; max_heap_bytes = 300_000)) == length(buffer)
end

@testset "options declare rows of any length again" begin
    buffer = ragged_buffer(1:0)
    observation, tokens, action = last.(options(buffer).fields)
    @test (observation.axes, observation.max_length) == ((2, nothing), MOST_POINTS)
    @test (tokens.axes, tokens.max_length) == ((nothing,), MOST_TOKENS)
    @test (action.axes, action.max_length) == ((), nothing)
    @test options(ReplayBuffer(; options(buffer)...)) == options(buffer)
    longer = Field(Int16, nothing; max_length = MOST_TOKENS + 1)
    @test longer != RAGGED_FIELDS.tokens == Field(Int16, nothing; max_length = MOST_TOKENS)
    @test hash(longer) != hash(RAGGED_FIELDS.tokens)
end

@testset "bad declarations are named" begin
    for name in (:td_errors, :env_ids, :stream, :timeout)
        fields = NamedTuple{(:observation, name)}((Field(Int32), Field(Float32; default = 0)))
        @test is_invalid(thrown(() -> ReplayBuffer(10, fields)), "field $name has the name of an argument of add!")
    end
    for (declare, words) in (
        (() -> Field(Int32, nothing), "max_length is not given; needed, as the last axis is nothing"),
        (() -> Field(Int32, 3; max_length = 4), "max_length is 4; allowed if the last axis is nothing"),
        (() -> Field(Int32; max_length = 4), "max_length is 4; allowed if the last axis is nothing"),
        (() -> Field(Int32, nothing, 3), "an axis of a field is nothing"),
        (() -> Field(Int32, nothing, nothing; max_length = 4), "an axis of a field is nothing"),
        (() -> Field(Int32, nothing; max_length = 0), "max_length is 0; allowed: 1 and above"),
        (() -> Field(Int32, nothing; max_length = -1), "max_length is -1: allowed are 0 .. "),
        (() -> Field(Int32, nothing; max_length = 1 << 40), "max_length is 1099511627776: allowed are 0 .. 536870911"),
        (() -> Field(Int32, nothing; max_length = 2.5), "max_length is 2.5, which is no Int64"),
    )
        @test is_invalid(thrown(declare), words)
    end
end

@testset "uses without rows of any length are refused by name" begin
    field(; element_type = Int32, options...) = Field(element_type, nothing; max_length = 4, options...)
    fields = (observation = Field(Int32), tokens = field())
    buffer = ReplayBuffer(60, fields)
    extend!(buffer; observation = 0:9, tokens = [fill(1, mod(t, 5)) for t in 0:9], reward = zeros(10),
            terminated = falses(10), truncated = falses(10))
    before = stats(buffer)
    for (action, words) in (
        (() -> field(stack = 2), "stack is 2: must be 1 with max_length"),
        (() -> field(default = 0), "default is given: must not be with max_length"),
        (() -> field(element_type = Int64, compression = :delta), "compression is given: must not be with max_length"),
        (() -> ReplayBuffer(60, fields; storage = mktempdir()), "max_length of field \"tokens\" is 4"),
    )
        error = thrown(action)
        @test (words, error.message, error.status) == (words, error.message, PER.PER_ERROR_UNSUPPORTED)
        @test occursin(words, error.message)
    end
    on_device = thrown(() -> ReplayBuffer(60, fields; device = :cuda, arrays = Array))
    @test on_device.status in (PER.PER_ERROR_UNSUPPORTED, PER.PER_ERROR_NO_DEVICE)
    batch = sample!(buffer, 4)
    message = "out is given; not allowed with rows of any length, which tokens has"
    @test is_invalid(thrown(() -> sample!(buffer, 4; out = batch)), message)
    @test is_invalid(thrown(() -> get_windows(buffer, batch.ids; out = batch)), message)
    @test stats(buffer).samples == before.samples + 1
end

@testset "bad rows are named and change nothing" begin
    buffer = ragged_buffer(1:5; n_envs = 2)
    good = map(array -> array[:, 1], steps_of(6:6, 2))
    before = saved_bytes(buffer)
    for (name, rows, words) in (
        (:tokens, [[1]], "number of rows of tokens is 1; allowed: 2"),
        (:tokens, [[1], [2], [3]], "number of rows of tokens is 3; allowed: 2"),
        (:tokens, Ragged([1, 2], [0, 1, 1, 2]), "number of rows of tokens is 3; allowed: 2"),
        (:tokens, Int[], "number of rows of tokens is 1; allowed: 2"),
        (:tokens, [1, 2], "number of rows of tokens is 1; allowed: 2"),
        (:tokens, ones(Int, 3, 3), "number of rows of tokens is 3; allowed: 2"),
        (:tokens, 7, "tokens is a Int64; allowed: an array of rows, or a Ragged"),
        (:tokens, "ab", "tokens is a String; allowed: an array of rows, or a Ragged"),
        (:tokens, [[1], ones(Int, 2, 2)], "tokens[2] is a 2×2 "),
        (:tokens, [[1], ["a"]], "tokens has elements of type Any"),
        (:tokens, [[1], [2.5]], "tokens has element type Float64"),
        (:tokens, [[1], [40_000]], "is 40000"),
        (:tokens, [[1], collect(1:12)], "tokens: row 1 has 12 values: at most max_length, 11, are allowed"),
        (:tokens, Ragged([1, 2], [0, 2, 1]), "tokens.offsets[2] is 1: allowed is 2 "),
        (:tokens, Ragged([1, 2], [0, 1, 3]), "tokens.offsets[2] is 3: allowed are 1 .. 2"),
        (:tokens, nothing, "tokens is missing"),
        (:observation, [ones(2, 1), ones(3, 1)], "observation has values of sizes (2,) and (3,); allowed: one size"),
        (:observation, [ones(3, 1), ones(3, 1)], "observation has shape (2, 3): expected is (n, 2), for n values"),
        (:observation, [ones(2), ones(2, 1)], "observation[1] is a 2-element "),
        (:observation, [1, 2], "observation is a 2-element "),
        (:observation, ones(2, 3), "number of rows of observation is 1; allowed: 2"),
        (:next_observation, [ones(2, 1)], "number of rows of next_observation is 1; allowed: 2"),
    )
        error = thrown(() -> add!(buffer; good..., NamedTuple{(name,)}((rows,))...))
        @test (words, error.message, is_invalid(error, words)) == (words, error.message, true)
    end
    run = steps_of(6:8, 2)
    @test is_invalid(thrown(() -> extend!(buffer; run..., tokens = permutedims(run.tokens))),
                     "number of rows of tokens is 3×2; allowed: 2×3")
    @test is_invalid(thrown(() -> set!(buffer, [0, 1]; tokens = [[1]])), "number of rows of tokens is 1; allowed: 2")
    @test is_invalid(thrown(() -> set!(buffer, [0]; tokens = [1:12])), "row 0 has 12 values")
    @test is_invalid(thrown(() -> set!(buffer, [0]; observation = [ones(2, 1)])), "observation")
    @test saved_bytes(buffer) == before
end

@testset "Ragged is an array of rows" begin
    ragged = Ragged([1 2 3 4; 5 6 7 8], [0, 1, 1, 4])
    @test length(ragged) == 3 && size(ragged) == (3,) && eltype(ragged) <: SubArray
    @test ragged[1] == reshape([1, 5], 2, 1) && ragged[2] == zeros(2, 0) && ragged[3] == [2 3 4; 6 7 8]
    @test [size(row, 2) for row in ragged] == lengths(ragged) == [1, 0, 3]
    @test ragged == Ragged([9 1 2 3 4; 9 5 6 7 8], [1, 2, 2, 5]) != Ragged([1 2 3 4; 5 6 7 8], [0, 1, 2, 4])
    @test_throws BoundsError(ragged, (4,)) ragged[4]
    @test_throws BoundsError ragged[0]
    ragged[3][1, 1] = 20
    @test ragged.values[1, 2] == 20
    own = copy(ragged)
    @test own isa Ragged && own == ragged && own.values !== ragged.values
    grid = Ragged(1:6, [0, 1, 3, 3, 6], (2, 2))
    @test size(grid) == (2, 2) && grid[2, 1] == [2, 3] && grid[1, 2] == [] && lengths(grid) == [1 0; 2 3]
    @test isempty(Ragged(Int[], [0])) && padded(Ragged(Int[], [0])) == zeros(Int, 0, 0)
    @test occursin("3-element Ragged(::Array{Int64,2}", summary(ragged)) || VERSION >= v"1.6"
    for (make, words) in (
        (() -> Ragged([1, 2], Int[]), "offsets has 0 entries"),
        (() -> Ragged([1, 2], [0, 1, 2], (3,)), "offsets has 3 entries; allowed: 1 more than rows, 3"),
        (() -> Ragged([1, 2], [0, 0.5]), "offsets has an entry that is no Int64"),
        (() -> padded(Ragged([1, 2, 3], [0, 5])), "offsets are not ascending from 0 to 3, the number of values"),
        (() -> padded(Ragged([1, 2, 3], [2, 1, 3])), "offsets are not ascending"),
        (() -> padded(Ragged([1, 2, 3], [-1, 3])), "offsets are not ascending"),
        (() -> Ragged(fill(1), [0]), "values has no axes"),
    )
        @test is_invalid(thrown(make), words)
    end
end

@testset "arrays of a batch can be read once its slot has grown" begin
    buffer = ReplayBuffer(10, (observation = Field(Int32), tokens = Field(Float32, nothing; max_length = 2_000_000)))
    put(n) = add!(buffer; observation = 1, tokens = fill(1f0, n), reward = 0, terminated = true, truncated = false,
                  next_observation = 2)
    put(100_000)
    batches = loader(buffer, 2; slots = 2)
    old = take!(batches)
    values, n = old.tokens.values, length(old.tokens.values)
    release!(batches, old)
    clear!(buffer)
    put(1_500_000)
    foreach(_ -> release!(batches, take!(batches)), 1:5)
    @test length(values) == n == 200_000 && all(isfinite, values)
    close(batches)
end

@testset "padded rows have one length" begin
    halves = reinterpret(PER.BFloat16, UInt16[0x3f80, 0xc0a0, 0x7f7f])
    @test reinterpret(UInt16, padded(Ragged(halves, [0, 1, 3]))) == [0x3f80 0xc0a0; 0x0000 0x7f7f]
    ragged = Ragged([1 2 3 4; 5 6 7 8], [0, 1, 1, 4])
    @test padded(ragged) == cat([1 0 0; 5 0 0], zeros(Int, 2, 3), [2 3 4; 6 7 8]; dims = 3)
    @test padded(ragged; length = 4, value = -1)[1, :, :] == [1 -1 2; -1 -1 3; -1 -1 4; -1 -1 -1]
    @test padded(Ragged(Float32[1, 2, 3], [1, 2, 3])) == Float32[2 3]
    grid = padded(Ragged(1:6, [0, 1, 3, 3, 6], (2, 2)))
    @test grid[:, 2, 1] == [2, 3, 0] && grid[:, 1, 2] == [0, 0, 0] && grid[:, 2, 2] == [4, 5, 6]
    @test is_invalid(thrown(() -> padded(ragged; length = 2)), "length is 2; allowed: 3 and above")
    @test is_invalid(thrown(() -> padded(ragged; value = 0.5)), "value is 0.5, which is no Int64")
end

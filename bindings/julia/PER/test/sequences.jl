# Sequences in Julia's order: time is the axis before the batch axis. Their contents are tested in C.

const SEQUENCE_FIELDS =
    (observation = Field(Float32, 2), action = Field(Int64), state = Field(Float32, 3; role = :recurrent_state))

# Steps 1 .. count of one episode, whose last step is terminated; observation t is [t, -t], the state 10 t.
function filled_with_sequences(count; options...)
    buffer = ReplayBuffer(40, SEQUENCE_FIELDS; sequence_length = 3, burn_in = 1, epsilon = 0, options...)
    extend!(buffer; observation = vcat((1:count)', -(1:count)'), action = 1:count, state = 10 .* ones(3) * (1:count)',
            next_observation = vcat((2:count+1)', -(2:count+1)'), reward = ones(count),
            terminated = [falses(count - 1); true], truncated = falses(count))
    return buffer
end

@testset "arrays of sequences" begin
    buffer = filled_with_sequences(6; n_step = 2, gamma = 0.5)
    @test length(buffer) == 2
    batch = sample!(buffer, 16)
    @test size(batch.observation) == (2, 6, 16) && size(batch.action) == (4, 16) && size(batch.state) == (3, 16)
    @test size(batch.reward) == size(batch.mask) == (4, 16) && size(batch.weights) == (16,)
    @test eltype(batch.mask) === Bool && !haskey(batch, :next_observation)
    first, second = findfirst(==(0), batch.ids), findfirst(==(3), batch.ids)
    @test batch.observation[1, :, first] == 1:6 && batch.observation[2, :, first] == -(1:6)
    @test batch.observation[1, :, second] == [4, 5, 6, 7, 0, 0]
    @test batch.action[:, second] == [4, 5, 6, 0] && batch.state[:, second] == fill(40, 3)
    @test batch.mask[:, first] == trues(4) && batch.mask[:, second] == [true, true, true, false]
    @test batch.reward[:, second] == [1.5, 1.5, 1, 0] && batch.n_steps[:, second] == [2, 2, 1, 0]
    @test batch.gamma_m[:, second] == [0.25, 0.25, 0.5, 0]
    @test batch.discount[:, second] == [0.25, 0, 0, 0] && batch.terminated[:, second] == [false, true, true, false]
    @test is_invalid(thrown(() -> batch.next_observation),
                     "in sequences the next observation of step t is number t + n_steps[t] of observation")
    @test sample!(buffer, 16; out = batch) === batch
    @test size(sample!(buffer, 4; n_step = 1).observation) == (2, 5, 4)
    @test_throws PERError sample!(buffer, 16; out = batch, n_step = 1)
    for n_step in (3, 10^13)
        @test is_invalid(thrown(() -> sample!(buffer, 4; n_step)), "n_step is $n_step")
    end
    buffer.n_step = 1
    @test size(sample!(buffer, 4).observation) == (2, 5, 4)
    @test vec(get(buffer, [1]).next_observation) == [3, -3]
end

@testset "observations that no step bootstraps from are zeros" begin
    buffer = filled_with_sequences(8; sequence_length = 1, burn_in = 0, n_step = 4)
    batch = sample!(buffer, 64)
    @test batch.observation[1, :, findfirst(==(1), batch.ids)] == [2, 0, 0, 0, 6]
    @test batch.observation[1, :, findfirst(==(6), batch.ids)] == [7, 0, 9, 0, 0]
end

@testset "priorities of sequences" begin
    buffer = filled_with_sequences(6; sequence_eta = 0.75)
    update_priorities!(buffer, [0, 3], [9.0 9.0; 1 -3; -4 1; 2.5 NaN])
    @test priorities(buffer, [0, 3]) == [0.75 * 4 + 0.25 * 2.5, 0.75 * 3 + 0.25 * 2]
    update_priorities!(buffer, [3], reshape([9.0, 1, 3, 9, 9, -3, 1, 9], 4, 1, 2))
    @test priorities(buffer, [3]) == [2]
    @test_throws PERError update_priorities!(buffer, [0, 3], [1.0, 2])
    # Without the burn-in.
    update_priorities!(buffer, [0, 3], [1.0 -3; -4 1; 2.5 NaN])
    @test priorities(buffer, [0, 3]) == [0.75 * 4 + 0.25 * 2.5, 0.75 * 3 + 0.25 * 2]
    update_priorities!(buffer, [3], reshape([1.0, 3, 9, -3, 1, 9], 3, 1, 2))
    @test priorities(buffer, [3]) == [2]
    @test_throws PERError update_priorities!(buffer, [0, 3], ones(2, 2))
end

@testset "epochs of sequences" begin
    buffer = filled_with_sequences(9)
    @test [size(batch.observation) for batch in epochs(buffer, 1; batch_size = 2)] == [(2, 5, 2), (2, 5, 1)]
    walk = epochs(buffer, 1; batch_size = 2)
    buffer.n_step = 2
    @test_throws PERError iterate(walk)
end

@testset "sequences drawn ahead" begin
    buffer, twin = filled_with_sequences(9; n_step = 2, seed = 5), filled_with_sequences(9; n_step = 2, seed = 5)
    loader(buffer, 4; n_step = 1) do batches
        for (_, batch) in zip(1:5, batches)
            expected = sample!(twin, 4; n_step = 1)
            @test keys(batch) == keys(expected)
            @test all(batch[name] == expected[name] for name in keys(batch))
        end
    end
end

@testset "sequences after loading" begin
    buffer = filled_with_sequences(9)
    path = tempname()
    save(buffer, path)
    loaded = load(ReplayBuffer, path)
    @test sample!(loaded, 8).observation == sample!(buffer, 8).observation
    rm(path)
end

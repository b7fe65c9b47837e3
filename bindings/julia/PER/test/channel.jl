# Steps through a channel, also from another process.
@testset "channel" begin
    fields = (observation = Field(Float32, 2), action = Field(Int32))
    step(t) = (observation = [t, t], action = t, reward = t, terminated = false, truncated = false,
               next_observation = [t + 1, t + 1])

    @testset "steps come into the environments of the channel" begin
        buffer = ReplayBuffer(100, fields; n_envs = 3)
        steps = channel(buffer; env_ids = [3, 1], slots = 16)
        writer = PER.Writer(steps.path, fields)
        @test writer.n_envs == 2
        extend!(writer; observation = ones(2, 1, 5), action = ones(Int, 1, 5), reward = ones(1, 5),
                terminated = falses(1, 5), truncated = falses(1, 5), env_ids = [2])
        cut!(writer, [2])
        flush(writer)
        flush(steps; timeout = 10)
        @test live_ids(buffer) == [0, 3, 6, 9]
        @test stats(steps).added == 5 && stats(steps).slots == 16
        @test_throws PERError PER.Writer(steps.path)
        close(writer)
        @test stats(steps).attached == 0
        @test_throws PERError add!(writer; step(0)...)
    end

    @testset "fields that differ are named" begin
        buffer = ReplayBuffer(100, fields)
        steps = channel(buffer)
        error = try PER.Writer(steps.path, (observation = Field(Float64, 2), action = Field(Int32))) catch e; e end
        @test error isa PERError && occursin("field \"observation\"", error.message)
    end

    @testset "a closed channel is told to its writer, and a full one" begin
        buffer = ReplayBuffer(100, fields)
        steps = channel(buffer; slots = 2, when_full = :drops)
        writer = PER.Writer(steps.path)
        add!(writer; step(1)...)
        @test_throws PERError extend!(writer; observation = ones(2, 2), action = ones(Int, 2), reward = ones(2),
                                      terminated = falses(2), truncated = falses(2), timeout = 0)
        close(steps)
        @test length(buffer) == 1
        @test_throws PERError add!(writer; step(2)...)
    end

    @testset "a buffer is closed with its channels and shared loaders" begin
        buffer = ReplayBuffer(100, fields)
        steps, batches = channel(buffer), shared_loader(buffer, 2; readers = 1)
        writer, reader = PER.Writer(steps.path), PER.Reader(batches.path)
        close(buffer)
        @test !isopen(steps) && !isopen(batches)
        @test is_invalid(thrown(() -> add!(writer; step(1)...)), "the channel was closed")
        @test is_invalid(thrown(() -> take!(reader)), "the shared loader was closed")
    end

    @testset "steps come in by calls, and not by themselves" begin
        buffer = ReplayBuffer(100, fields)
        steps = channel(buffer; slots = 4, moved_by = :calls)
        writer = PER.Writer(steps.path)
        foreach(t -> add!(writer; step(t)...), 1:3)
        @test_throws PERError add!(writer; step(4)..., timeout = 0)
        @test length(buffer) == 0
        @test PER.move!(steps, 2) == 2 && length(buffer) == 2
        @test_throws PERError PER.move!(steps, -1)
        @test PER.move!(steps) == 1 && PER.move!(steps) == 0
        add!(writer; step(4)...)
        flush(steps)
        @test length(buffer) == 4
        add!(writer; step(5)...)
        close(steps)
        @test length(buffer) == 4
        @test_throws PERError PER.move!(channel(buffer))
        @test_throws PERError channel(buffer; moved_by = :others)
    end

    @testset "another process" begin
        buffer = ReplayBuffer(100, fields)
        steps = channel(buffer)
        program = """
            using PER
            writer = PER.Writer($(repr(steps.path)))
            for t in 0:9
                add!(writer; observation = [t, t], action = t, reward = t, terminated = false, truncated = false,
                     next_observation = [t + 1, t + 1])
            end
            """
        run(`$(Base.julia_cmd()) --project=$(Base.active_project()) --startup-file=no -e $program`)
        flush(steps)
        @test length(buffer) == 10
        @test stats(buffer).cuts == 0
    end
end

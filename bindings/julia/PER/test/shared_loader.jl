# Batches to readers through shared memory, also in another process.
@testset "shared loader" begin
    function filled(; options...)
        buffer = ReplayBuffer(100, (observation = Field(Float32, 2), action = Field(Int32)); seed = 3, options...)
        extend!(buffer; observation = [10i + j for j in 1:2, i in 1:40], action = 1:40, reward = 1:40,
                terminated = falses(40), truncated = falses(40))
        return buffer
    end
    same(batch, expected) = keys(batch) == keys(expected) && all(name -> batch[name] == expected[name], keys(batch))

    @testset "one reader gets what the buffer draws" begin
        for options in ((;), (sequence_length = 4, burn_in = 2, n_step = 2))
            buffer, twin = filled(; options...), filled(; options...)
            batches = shared_loader(buffer, 8; readers = 1)
            reader = PER.Reader(batches.path)
            for (_, batch) in zip(1:5, reader)
                @test same(batch, sample!(twin, 8))
            end
            @test stats(batches).handed == 5
            close(reader)
            @test stats(batches).attached == 0
        end
    end

    @testset "priorities come back" begin
        buffer = filled()
        batches = shared_loader(buffer, 8; readers = 2, slots = 1)
        reader = PER.Reader(batches.path)
        batch = take!(reader)
        @test_throws PERError take!(reader; timeout = 0.05)
        set_priorities!(reader, [1, 2], [3, 5])
        flush(reader)
        @test priorities(buffer, [1, 2]) == [3, 5]
        update_priorities!(reader, [1, 2], [1 3; 2 6])
        flush(reader; timeout = 10)
        @test priorities(buffer, [1, 2]) ≈ [2, 4] atol = 0.01
        release!(reader, batch)
        @test_throws PERError release!(reader, batch)
        @test same(take!(reader), batch) isa Bool
        @test_throws PERError update_priorities!(reader, [1, 2], [1, NaN])
        @test_throws PERError update_priorities!(reader, [1, 2], [1, 2, 3])
        close(batches)
        @test_throws PERError take!(reader)
        close(reader)
        @test_throws PERError flush(reader)
    end

    @testset "bad arguments are named" begin
        buffer = filled()
        error = try shared_loader(buffer, 8; readers = 0) catch e; e end
        @test error isa PERError && occursin("readers is 0", error.message)
        @test_throws PERError PER.Reader("/dev/null")
    end

    @testset "another process" begin
        buffer = filled()
        batches = shared_loader(buffer, 8; readers = 1)
        program = """
            using PER
            reader = PER.Reader($(repr(batches.path)))
            for (_, batch) in zip(1:10, reader)
                update_priorities!(reader, batch.ids, batch.reward)
            end
            flush(reader)
            """
        run(`$(Base.julia_cmd()) --project=$(Base.active_project()) --startup-file=no -e $program`)
        @test stats(batches).updates == 10
        @test stats(buffer).updates > 0
    end
end

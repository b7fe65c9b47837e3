function buffer_of_four(; options...)
    buffer = ReplayBuffer(100, (observation = Field(Int32), advantage = Field(Float32, 2)); options...)
    ids = extend!(buffer; observation = 1:4, advantage = zeros(2, 4), reward = zeros(4), terminated = falses(4),
                  truncated = falses(4), next_observation = 2:5)
    return buffer, ids
end

@testset "TD errors become priorities |td_error| + epsilon" begin
    buffer, ids = buffer_of_four(epsilon = 0.5)
    @test update_priorities!(buffer, ids, [-1, 2.5, 0, 0.25]) === buffer
    @test priorities(buffer, ids) == [1.5, 3, 0.5, 0.75]
    @test stats(buffer).max_priority == 3
    # The last of equal ids wins.
    update_priorities!(buffer, Int32[0, 0], Float16[9, 1])
    @test priorities(buffer, reverse(ids)) == [0.75, 0.5, 3, 1.5]
end

@testset "several critics give the mean of absolute TD errors" begin
    buffer, ids = buffer_of_four(epsilon = 0)
    update_priorities!(buffer, ids, [1 -3; -2 -2; 0 1; 8 0])
    @test priorities(buffer, ids) == [2, 2, 0.5, 4]
end

@testset "errors that broadcast to a square are refused" begin
    buffer, ids = buffer_of_four()
    @test_throws PERError update_priorities!(buffer, fill(first(ids), 17), ones(Float32, 17) .- zeros(Float32, 1, 17))
end

@testset "the largest of several critics' absolute TD errors if the buffer says so" begin
    buffer, ids = buffer_of_four(epsilon = 0.5, critics = :max)
    update_priorities!(buffer, ids, [1 -3; -2 -2; 0 1; 8 0])
    @test priorities(buffer, ids) == [3.5, 2.5, 1.5, 8.5]
end

@testset "set_priorities! sets priorities themselves" begin
    buffer, ids = buffer_of_four(epsilon = 0.5)
    @test set_priorities!(buffer, ids, [0, 2, 3, 4]) === buffer
    @test priorities(buffer, ids) == [0, 2, 3, 4]
    @test !(0 in sample!(buffer, 200).ids)
end

@testset "late updates are ignored and counted" begin
    buffer = ReplayBuffer(4, (observation = Field(Int32),))
    run(first) = extend!(buffer; observation = first:first+2, reward = zeros(3), terminated = falses(3),
                         truncated = falses(3))
    old = run(1)
    run(4)
    run(7)
    update_priorities!(buffer, [old[1], -1], [50, 50])
    set_priorities!(buffer, [old[2]], [50])
    @test stats(buffer).stale_updates == 3
    @test stats(buffer).max_priority == 1
end

@testset "bad updates are PERErrors and change nothing" begin
    buffer, ids = buffer_of_four()
    before = priorities(buffer, ids)
    for (action, words) in (
        (() -> update_priorities!(buffer, [0, 77], [5, 5]), "ids[1] is 77"),
        (() -> update_priorities!(buffer, [0, -2], [5, 5]), "ids[1] is -2"),
        (() -> update_priorities!(buffer, [0, 1], [5, NaN]), "td_errors[1] gives the priority NaN"),
        (() -> update_priorities!(buffer, [0, 1], [5, Inf]), "td_errors[1] gives the priority Inf"),
        (() -> update_priorities!(buffer, [0, 1], [5]), "td_errors has 1 entries; allowed: 2"),
        (() -> update_priorities!(buffer, [0, 1], [5 5 5]), "td_errors has 3 entries; allowed: 6"),
        (() -> update_priorities!(buffer, [0.5], [5]), "ids has elements of type Float64; allowed: integers"),
        (() -> update_priorities!(buffer, Float32[0], [0]), "ids has elements of type Float32; allowed: integers"),
        (() -> set_priorities!(buffer, [true, false], [5, 6]), "ids has elements of type Bool; allowed: integers"),
        (() -> set_priorities!(buffer, [0, 1], [5, -1]), "priorities[1] is -1"),
        (() -> set_priorities!(buffer, [0, 1], [5, 5, 5]), "priorities has 3 entries; allowed: 2"),
        (() -> priorities(buffer, [77]), "ids[0] is 77"),
        (() -> set!(buffer, [0]; observation = [9]), "observation"),
        (() -> set!(buffer, [0]; advantages = [9 9]), "advantages cannot be set; these can: advantage"),
        (() -> set!(buffer, [77]; advantage = ones(2, 1)), "ids[0] is 77"),
        (() -> set!(buffer, [0]; advantage = ones(3, 1)), "advantage"),
    )
        @test occursin(words, invalid_message(action))
    end
    @test priorities(buffer, ids) == before
    @test get(buffer, ids).advantage == zeros(2, 4)
end

@testset "TD errors may have the shape of the ids" begin
    buffer, ids = buffer_of_four(epsilon = 0)
    update_priorities!(buffer, reshape(ids, 2, 2), [5 6; 7 8])
    @test priorities(buffer, ids) == [5, 7, 6, 8]
end

@testset "empty updates change nothing" begin
    buffer, ids = buffer_of_four()
    update_priorities!(buffer, [], [])
    update_priorities!(buffer, Float64[], Float64[])
    set_priorities!(buffer, Int[], Float32[])
    set!(buffer, Int[]; advantage = zeros(2, 0))
    @test priorities(buffer, ids) == ones(4) && isempty(priorities(buffer, Int[]))
end

@testset "invalid entries are skipped and counted if the buffer says so" begin
    buffer, ids = buffer_of_four(on_invalid = :skip, epsilon = 0)
    update_priorities!(buffer, ids, [2, NaN, Inf, 3])
    @test priorities(buffer, ids) == [2, 1, 1, 3]
    @test stats(buffer).rejected_updates == 2
end

@testset "set! writes fields of rows" begin
    buffer, ids = buffer_of_four()
    @test set!(buffer, ids[[3, 1]]; advantage = [30 10; 31 11]) === buffer
    @test get(buffer, ids).advantage == [10 0 30 0; 11 0 31 0]
    # -1 is ignored and counted, as in updates.
    set!(buffer, [-1]; advantage = ones(2, 1))
    @test stats(buffer).stale_updates == 1
end

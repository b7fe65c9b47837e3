@testset "indices count from 1" begin
    tree = update!(SumTree(3; seed = 1), [1, 3], [1, 3])
    @test length(tree) == 3
    @test total(tree) === 4.0
    @test priorities(tree) == Float32[1, 0, 3]
    @test priorities(tree, [3, 1, 3]) == Float32[3, 1, 3]
    @test find(tree, [0.0, 0.999, 1.0, 3.999]) == [1, 1, 3, 3]
    # Four strata of a total of 4: the first is leaf 1, the others leaf 3.
    draw = sample!(tree, 4; beta = 1)
    @test draw.indices == [1, 3, 3, 3]
    @test draw.priorities == Float32[1, 3, 3, 3]
    @test draw.weights == Float32[1, 1 / 3, 1 / 3, 1 / 3]
    @test sample!(tree, 4).weights == ones(4)
end

@testset "of equal indices the last one wins" begin
    @test priorities(update!(SumTree(2), [2, 2, 2], [5, 7, 1])) == [0, 1]
end

@testset "priorities follow a naive model" begin
    capacity = 37
    tree, model, state = SumTree(capacity), zeros(Float32, capacity), UInt32(1)
    number() = (state = state * 0x0019660d + 0x3c6ef35f; state >> 16)
    for _ in 1:200
        indices = [Int(number() % capacity) + 1 for _ in 1:number()%9]
        values = Float32[number() % 64 / 8 for _ in indices]
        update!(tree, indices, values)
        foreach((index, value) -> model[index] = value, indices, values)
        @test priorities(tree) == model && total(tree) == sum(model)
        ends = cumsum(model)
        # The first and the last unit of every leaf.
        for index in findall(!iszero, model)
            @test find(tree, [ends[index] - model[index], prevfloat(Float64(ends[index]))]) == [index, index]
        end
    end
end

@testset "any array of numbers is taken" begin
    tree = SumTree(6)
    update!(tree, 1:6, 1:6)
    @test priorities(tree) == 1:6
    update!(tree, Int8[6, 5], Float16[0.5, 0.25])
    update!(tree, view([9, 4, 9, 3], 2:2:4), view([0.5 9; 0.125 9], :, 1))
    update!(tree, 1.0:2.0, BitArray([true, false]))
    @test priorities(tree) == [1, 0, 0.125, 0.5, 0.25, 0.5]
    update!(tree, 2, 8)
    update!(tree, Any[3, 0x04], Real[1, 1//2])
    @test priorities(tree, 2:4) == [8, 1, 0.5]
    @test priorities(tree, [1 2; 3 4]) == [1 8; 1 0.5]
    @test priorities(tree, fill(2)) == fill(8)
end

@testset "empty arrays change nothing" begin
    tree = update!(SumTree(2), [1], [1])
    @test update!(tree, [], []) === tree
    @test priorities(tree) == [1, 0]
    @test isempty(find(tree, Float64[])) && isempty(priorities(tree, Int[]))
end

@testset "the same seed and calls give the same draws" begin
    trees = [update!(SumTree(1000; seed = seed), 1:1000, 1:1000) for seed in (5, 5, 6)]
    draws = [sample!(tree, 64; scheme = :independent).indices for tree in trees]
    @test draws[1] == draws[2] != draws[3]
    @test sample!(trees[1], 64).indices == sample!(trees[2], 64; scheme = "stratified").indices
end

@testset "reset! sets all priorities to 0" begin
    tree = reset!(update!(SumTree(4), 1:4, ones(4)))
    @test total(tree) == 0 && priorities(tree) == zeros(4)
end

@testset "bad arguments are PERErrors and change nothing" begin
    tree = update!(SumTree(3; seed = 2), 1:3, [1, 2, 4])
    for (action, words) in (
        (() -> update!(tree, [1, 0], [9, 9]), "indices[1] is -1: allowed are 0 .. 2 (counting from 0"),
        (() -> update!(tree, [1, 4], [9, 9]), "indices[1] is 3"),
        (() -> update!(tree, [typemin(Int)], [9]), "indices[0] is "),
        (() -> update!(tree, [1, 2], [9, -1]), "priorities[1] is -1"),
        (() -> update!(tree, [1, 2], [9, NaN]), "priorities[1] is NaN"),
        (() -> update!(tree, [1, 2], [9, 1e39]), "priorities[1] is Inf"),
        (() -> update!(tree, [1, 2], [9]), "priorities has 1 entries; allowed: 2"),
        (() -> update!(tree, [1.5], [9]), "indices has an entry that is no Int64"),
        (() -> update!(tree, ["1"], [9]), "indices has an entry that is no Int64"),
        (() -> update!(tree, [1], ["9"]), "priorities has an entry that is no Float32"),
        (() -> update!(tree, "1", [9]), "indices is a String"),
        (() -> priorities(tree, [4]), "indices[0] is 3"),
        (() -> find(tree, [7.0]), "prefix_sums[0] is 7"),
        (() -> find(tree, [-0.1]), "prefix_sums[0] is -0.1"),
        (() -> sample!(tree, 0), "batch_size is 0"),
        (() -> sample!(tree, -5), "batch_size is -5"),
        (() -> sample!(tree, 2^24 + 1), "batch_size is 16777217"),
        (() -> sample!(tree, 2.5), "batch_size is 2.5"),
        (() -> sample!(tree, 2; beta = -1), "beta is -1"),
        (() -> sample!(tree, 2; beta = "x"), "beta is \"x\""),
        (() -> sample!(tree, 2; scheme = :sorted), ":stratified, :independent, :systematic, :without_replacement"),
        (() -> SumTree(0), "capacity is 0"),
        (() -> SumTree(2.5), "capacity is 2.5"),
        (() -> SumTree(4; seed = -1), "seed is -1"),
        (() -> SumTree(4; sede = 1), "there is no option sede; there are seed, device"),
        (() -> SumTree(4; device = :gpu), "device is :gpu; allowed: :cpu, :cuda"),
    )
        @test occursin(words, invalid_message(action))
    end
    @test priorities(tree) == [1, 2, 4]
    # Failed calls did not count as draws.
    @test sample!(tree, 9).indices == sample!(update!(SumTree(3; seed = 2), 1:3, [1, 2, 4]), 9).indices
end

@testset "a tree without mass is empty" begin
    @test thrown(() -> sample!(SumTree(4), 1)).status == PER.PER_ERROR_EMPTY
    @test thrown(() -> find(SumTree(4), [0])).status == PER.PER_ERROR_EMPTY
end

@testset "a device that is not there is an error with the reason" begin
    error = thrown(() -> SumTree(4; device = "cuda:0"))
    @test error.status == PER.PER_ERROR_NO_DEVICE && !isempty(error.message)
end

@testset "errors show their status by name" begin
    @test sprint(showerror, PERError(PER.PER_ERROR_EMPTY, "nothing")) == "PER_ERROR_EMPTY: nothing"
end

@testset "trees show what they are" begin
    tree = update!(SumTree(4), [1], [0.5])
    @test repr(tree) == "SumTree(4) with total 0.5"
    close(tree)
    @test repr(tree) == "SumTree (closed)"
end

using Test
using PER

include("thrown.jl")

@testset "PER" begin
    @testset "$file" for file in (
        "library.jl",
        "sum_tree.jl",
        "golden_draws.jl",
        "add.jl",
        "batch.jl",
        "ragged.jl",
        "update.jl",
        "replay.jl",
        "bad_arguments.jl",
        "checkpoint.jl",
        "epochs.jl",
        "sequences.jl",
        "hindsight.jl",
        "lifetime.jl",
        "mixture.jl",
        "loader.jl",
        "coordinator.jl",
        "channel.jl",
        "shared_loader.jl",
        "memory.jl",
        "cuda.jl",
        "documentation.jl",
    )
        include(file)
    end
end

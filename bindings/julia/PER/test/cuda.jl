# Runs cuda_cases.jl with libper on the simulated GPU, a separate library.
@testset "trees and buffers on the simulated GPU" begin
    project = dirname(@__DIR__)
    program = joinpath(@__DIR__, "cuda_cases.jl")
    library = normpath(joinpath(@__DIR__, "..", "..", "..", "..", "build", "libper_simulated.so"))
    if isfile(library)
        # 0: each call does its work at once, since host arrays are not ordered by streams.
        environment = merge(Dict(ENV), Dict("LIBPER_PATH" => library, "PER_SIMULATOR_SEED" => "0"))
        command = setenv(`$(Base.julia_cmd()) --project=$project $program`, environment)
        @test success(pipeline(command; stdout = stdout, stderr = stderr))
    else
        @info "skipped: no build/libper_simulated.so: it needs Boost.Context"
    end
end

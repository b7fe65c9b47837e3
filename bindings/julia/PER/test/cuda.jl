# Runs test/cuda_cases.jl with libper on the simulated GPU, which is a library of its own.
const SIMULATED = normpath(joinpath(@__DIR__, "..", "..", "..", "..", "build", "libper_simulated.so"))

@testset "trees and buffers on the simulated GPU" begin
    if isfile(SIMULATED)
        program = joinpath(@__DIR__, "cuda_cases.jl")
        # 0: each call does its work at once, as arrays of the host know nothing of streams.
        command = `$(Base.julia_cmd()) --project=$(dirname(@__DIR__)) $program`
        @test success(pipeline(setenv(command, merge(Dict(ENV), Dict("LIBPER_PATH" => SIMULATED,
            "PER_SIMULATOR_SEED" => "0"))); stdout = stdout, stderr = stderr))
    else
        @info "skipped: no build/libper_simulated.so: it needs Boost.Context"
    end
end

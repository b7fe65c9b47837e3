@testset "declarations have C's layout" begin
    structs = (
        PER.per_tree_options,
        PER.per_field,
        PER.per_memory,
        PER.per_rate_limit,
        PER.per_replay_options,
        PER.per_save_options,
        PER.per_load_options,
        PER.per_array,
        PER.per_steps,
        PER.per_hindsight_options,
        PER.per_sample_options,
        PER.per_batch,
        PER.per_priorities,
        PER.per_loader_options,
        PER.per_replay_statistics,
    )
    for type in structs
        layout = getfield(PER, Symbol(nameof(type), :_layout))
        @test sizeof(type) == layout.size
        @test ntuple(i -> Int(fieldoffset(type, i)), fieldcount(type)) == layout.offsets
    end
    @test PER.per_abi_version() == PER.PER_ABI_VERSION
    @test occursin(r"^\d+\.\d+\.\d+$", unsafe_string(PER.per_version()))
end

load_failure(places) =
    try
        PER.load_library(places)
        ""
    catch error
        sprint(showerror, error)
    end

@testset "a load error lists every place tried" begin
    message = load_failure(["/nowhere/libper.so", "libper_of_nobody.so.1"])
    @test occursin("/nowhere/libper.so: ", message)
    @test occursin("libper_of_nobody.so.1: ", message)
    @test occursin("LIBPER_PATH", message)
    @test total(SumTree(1)) == 0
end

@testset "a library that is another one or has another interface is refused" begin
    @test occursin("per_abi_version", load_failure(["libm.so.6"]))
    mktempdir() do folder
        source, library = joinpath(folder, "later.c"), joinpath(folder, "later.so")
        write(source, "int per_abi_version(void) { return 1000; }\n")
        run(`cc -shared -fPIC -o $library $source`)
        @test occursin("it has interface 1000, this package needs $(PER.PER_ABI_VERSION)", load_failure([library]))
    end
    @test total(SumTree(1)) == 0
end

@testset "LIBPER_PATH is the only place if it is set" begin
    withenv("LIBPER_PATH" => "/some/libper.so") do
        @test PER.library_places() == ["/some/libper.so"]
    end
    withenv("LIBPER_PATH" => nothing) do
        places = PER.library_places()
        @test places[1] == normpath(joinpath(@__DIR__, "../../../../build/libper.so"))
        @test places[2:end] == ["libper.so.$(PER.PER_ABI_VERSION)"]
    end
end

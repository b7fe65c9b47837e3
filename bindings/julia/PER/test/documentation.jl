const SOURCE = normpath(joinpath(@__DIR__, "..", "..", "..", ".."))

# Docstrings of the package: name => text.
function docstrings()
    texts = Pair{String,String}[]
    for (binding, multidoc) in Base.Docs.meta(PER), docstring in values(multidoc.docs)
        push!(texts, string(binding.var) => join(docstring.text))
    end
    return texts
end

# (input, expected output) of each prompt of a doctest; lines indented by the prompt's width continue the input.
function prompts(block)
    found = Tuple{String,String}[]
    for part in split(block, "julia> "; keepempty = false)
        isempty(strip(part)) && continue
        lines = split(part, '\n')
        is_input = [i == 1 || startswith(line, " "^7) for (i, line) in enumerate(lines)]
        inputs = something(findfirst(!, is_input), length(lines) + 1) - 1
        push!(found, (join(lines[1:inputs], '\n'), strip(join(lines[inputs+1:end], '\n'))))
    end
    return found
end

function shown(value, input)
    value === nothing && return ""
    endswith(rstrip(input), ';') && return ""
    return sprint(show, MIME"text/plain"(), value)
end

@testset "the examples of docstrings run and show what they say" begin
    examples = 0
    for (name, text) in docstrings(), block in eachmatch(r"```jldoctest\n(.*?)```"s, text)
        place = Module(:Doctest)
        Core.eval(place, :(using PER))
        for (input, wanted) in prompts(block[1])
            examples += 1
            value = include_string(place, input)
            @test (name, input, shown(value, input)) == (name, input, wanted)
        end
    end
    @test examples > 30
end

@testset "every exported name has a docstring" begin
    documented = Set(first.(docstrings()))
    @test isempty(setdiff(string.(names(PER)), documented))
    @test issubset(["BFloat16", "Batch", "Loader", "Epochs"], documented)
end

@testset "the example programs solve what they set out to" begin
    folder = joinpath(SOURCE, "examples", "julia")
    programs = filter(name -> endswith(name, ".jl"), readdir(folder))
    @test !isempty(programs)
    for program in programs
        @test Base.include(Module(:Example), joinpath(folder, program)) === true
    end
end

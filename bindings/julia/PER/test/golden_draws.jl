# The table that C and Python also draw from; tests/golden/make_draws.py describes its lines.
const GOLDEN_DRAWS = joinpath(@__DIR__, "..", "..", "..", "..", "tests", "golden", "draws.csv")

function mass(tree)
    known = PER.described(tree)
    return known.total_mass, known.scale
end

function replay_golden_draws()
    tree = nothing
    draws = 0
    schemes = (:stratified, :independent, :systematic, :without_replacement)
    for line in eachline(GOLDEN_DRAWS)
        words = split(line, ',')
        if words[1] == "create"
            tree = SumTree(parse(Int, words[2]); seed = parse(UInt64, words[3]))
        elseif words[1] == "update"
            update!(tree, parse.(Int, words[2:2:end]) .+ 1, parse.(Float32, words[3:2:end]))
        elseif words[1] == "mass"
            @test mass(tree) == (parse(UInt64, words[3]), parse(Int32, words[4]))
        elseif words[1] == "reset"
            reset!(tree)
        elseif words[1] == "sample"
            wanted = parse.(Int, words[4:end]) .+ 1
            @test sample!(tree, length(wanted); scheme = schemes[parse(Int, words[2])+1]).indices == wanted
            draws += 1
        else
            error("a line that is no call: $line")
        end
    end
    return draws
end

@testset "draws are those of the golden table" begin
    @test replay_golden_draws() > 100
end

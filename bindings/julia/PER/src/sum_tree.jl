"""
    SumTree(capacity; device = :cpu, seed = 0)

`capacity` priorities, float32, finite and not negative, all 0 at first, from which indices are drawn in proportion
(section 3.3 of the paper). Sums are exact: no history of updates shifts them.

- `device`: `:cpu`, `:cuda` or `"cuda:1"`
- `seed`: of the draws; the same seed and the same calls give the same indices in every language

`length(tree)` is the capacity. The memory goes with the garbage collector, or early with `close(tree)`.

```jldoctest
julia> tree = SumTree(4; seed = 7);

julia> update!(tree, [1, 3], [0.5, 1.5]);

julia> total(tree), length(tree)
(2.0, 4)

julia> draw = sample!(tree, 8; beta = 0.4);

julia> issubset(draw.indices, [1, 3])
true

julia> close(tree)
```
"""
struct SumTree
    handle::Handle{per_tree}

    function SumTree(capacity; options...)
        filled = set_options!(initial(per_tree_options), options)
        set_field!(filled, :capacity, capacity)
        pointer = Ref(Ptr{per_tree}(C_NULL))
        check(per_tree_create(filled, pointer))
        tree = new(Handle(pointer[]))
        check_host(filled[].device)
        return tree
    end
end

Base.close(tree::SumTree) = close(tree.handle)
Base.isopen(tree::SumTree) = isopen(tree.handle)

function Base.length(tree::SumTree)
    capacity = Ref{Int64}()
    call(pointer -> per_tree_capacity(pointer, capacity), tree.handle)
    return capacity[]
end

function Base.show(io::IO, tree::SumTree)
    isopen(tree) || return print(io, "SumTree (closed)")
    return print(io, "SumTree(", length(tree), ") with total ", total(tree))
end

"""
    total(tree)

Sum of all priorities, as a `Float64`.
"""
function total(tree::SumTree)
    sum = Ref{Float64}()
    call(pointer -> per_tree_total(pointer, sum), tree.handle)
    return sum[]
end

"""
    update!(tree, indices, priorities)

Set `priorities[i]`, finite and not negative, at `indices[i]`, which count from 1; of equal indices the last one wins.
Returns the tree. Throws a [`PERError`](@ref) for any bad entry, and then changes nothing.

```jldoctest
julia> tree = update!(SumTree(3), [2, 3, 2], [9, 1, 4]);

julia> priorities(tree) == [0, 4, 1]
true
```
"""
function update!(tree::SumTree, indices, priorities)
    slots = zero_based("indices", indices)
    values = numbers(Float32, "priorities", priorities)
    check_length("priorities", values, length(slots))
    call(pointer -> per_update(pointer, length(slots), slots, values, C_NULL), tree.handle; note = ZERO_BASED)
    return tree
end

"""
    sample!(tree, batch_size; beta = 0, scheme = :stratified)

Draw `batch_size` indices with probability `P(i) = p_i / sum_k p_k`: a named tuple of `indices` (`Int64`, counted from
1), `priorities` and `weights` (`Float32`), the importance-sampling weights `w_i = (min_j P(j) / P(i))^beta` over the
batch (section 3.4).

- `scheme`: `:stratified`, `:independent`, `:systematic` or `:without_replacement`

Throws a [`PERError`](@ref) with status `PER.PER_ERROR_EMPTY` if all priorities are 0.

```jldoctest
julia> tree = update!(SumTree(2), 1:2, [1, 3]);

julia> draw = sample!(tree, 4; beta = 1);

julia> draw.indices == [1, 2, 2, 2]
true

julia> draw.weights == Float32[1, 1/3, 1/3, 1/3]
true
```
"""
function sample!(tree::SumTree, batch_size; beta = 0, scheme = :stratified)
    count = converted(Int64, "batch_size", batch_size)
    exponent = converted(Float32, "beta", beta)
    scheme_number = choice(:scheme, scheme)
    indices = Vector{Int64}(undef, max(count, 0))
    priorities = similar(indices, Float32)
    weights = similar(indices, Float32)
    call(tree.handle) do pointer
        per_sample(pointer, count, scheme_number, exponent, indices, priorities, weights, C_NULL)
    end
    indices .+= 1
    return (indices = indices, priorities = priorities, weights = weights)
end

"""
    find(tree, prefix_sums)

For each prefix sum `s`, `0 <= s < total(tree)`, the index `i` with `p_1 + .. + p_(i-1) <= s < p_1 + .. + p_i`.

```jldoctest
julia> tree = update!(SumTree(3), 1:3, [2, 0, 1]);

julia> find(tree, [0, 1.9, 2]) == [1, 1, 3]
true
```
"""
function find(tree::SumTree, prefix_sums)
    sums = numbers(Float64, "prefix_sums", prefix_sums)
    indices = Array{Int64}(undef, size(sums))
    call(pointer -> per_tree_find(pointer, length(sums), sums, indices, C_NULL), tree.handle)
    indices .+= 1
    return indices
end

"""
    priorities(tree)
    priorities(tree, indices)

The priorities of all leaves, or of those at `indices`, as `Float32`.

```jldoctest
julia> tree = update!(SumTree(3), [1, 3], [0.5, 1]);

julia> priorities(tree) == [0.5, 0, 1]
true

julia> priorities(tree, [3, 3]) == [1, 1]
true
```
"""
function priorities(tree::SumTree, indices)
    slots = zero_based("indices", indices)
    values = Array{Float32}(undef, size(slots))
    call(tree.handle; note = ZERO_BASED) do pointer
        per_tree_priorities(pointer, length(slots), slots, values, C_NULL)
    end
    return values
end

function priorities(tree::SumTree)
    values = Vector{Float32}(undef, length(tree))
    call(pointer -> per_tree_priorities(pointer, length(values), C_NULL, values, C_NULL), tree.handle)
    return values
end

"""
    reset!(tree)

Set all priorities to 0. The random state stays. Returns the tree.
"""
function reset!(tree::SumTree)
    call(pointer -> per_tree_reset(pointer, C_NULL), tree.handle)
    return tree
end

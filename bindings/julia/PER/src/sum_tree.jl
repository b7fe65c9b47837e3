"""
    SumTree(capacity; device = :cpu, seed = 0, arrays, current_stream)

A sum tree of `capacity` priorities (float32, finite and not negative, initially 0) that draws indices in proportion to
them (section 3.3 of the paper). Sums are exact: they do not drift, however many updates there are.

- `device`: `:cpu`, `:cuda` or `"cuda:1"`
- `seed`: of the draws; the same seed and the same calls give the same indices in every language
- `arrays`, `current_stream`: on CUDA only, see [`ReplayBuffer`](@ref). Indices in device arrays count from 0, as in C,
  since shifting them would take an extra kernel. Indices in host memory count from 1 on CUDA, too

`length(tree)` is the capacity. The garbage collector frees the memory, or earlier `close(tree)`.

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
    memory::Memory

    function SumTree(capacity; arrays = nothing, current_stream = nothing, options...)
        filled = set_options!(initial(per_tree_options), options)
        set_field!(filled, :capacity, capacity)
        pointer = Ref(Ptr{per_tree}(C_NULL))
        check(per_tree_create(filled, pointer))
        handle = Handle(pointer[])
        return new(handle, memory_for(filled[].device, arrays, current_stream))
    end
end

Base.close(tree::SumTree) = close(tree.handle)
Base.isopen(tree::SumTree) = isopen(tree.handle)

described(tree::SumTree) = result_of(per_tree_describe, per_tree_description, tree.handle)

Base.length(tree::SumTree) = described(tree).capacity

function Base.show(io::IO, tree::SumTree)
    isopen(tree) || return print(io, "SumTree (closed)")
    return print(io, "SumTree(", length(tree), ") with total ", total(tree))
end

"""
    total(tree)

Sum of all priorities, as a `Float64`.
"""
total(tree::SumTree) = described(tree).total

"""
    update!(tree, indices, priorities; stream)

Set the priority at `indices[i]`, counted from 1, to `priorities[i]`, finite and not negative. The last of equal indices
wins. Returns the tree. Throws a [`PERError`](@ref) for any bad entry, and then changes nothing. (On CUDA such entries
are skipped, the others take effect, and [`PER.synchronize`](@ref) throws.)

```jldoctest
julia> tree = update!(SumTree(3), [2, 3, 2], [9, 1, 4]);

julia> priorities(tree) == [0, 4, 1]
true
```
"""
function update!(tree::SumTree, indices, priorities; stream = nothing)
    queue = stream_of(tree.memory, stream)
    leaves = slots(tree.memory, "indices", indices, stream)
    values = numbers(tree.memory, Float32, "priorities", priorities, stream)
    check_length("priorities", values, length(leaves))
    call(pointer -> per_update(pointer, length(leaves), leaves, values, queue), tree.handle)
    return tree
end

"""
    sample!(tree, batch_size; beta = 0, scheme = :stratified, stream)

Draw `batch_size` indices with probability `P(i) = p_i / sum_k p_k`: a named tuple of `indices` (`Int64`, counted from
1), `priorities` and `weights` (`Float32`), the importance-sampling weights `w_i = (min_j P(j) / P(i))^beta` over the
batch (section 3.4).

- `scheme`: `:stratified`, `:independent`, `:systematic` or `:without_replacement`

Throws a [`PERError`](@ref) with status `PER.PER_ERROR_EMPTY` if all priorities are 0. (On CUDA indices are -1, and
[`PER.synchronize`](@ref) throws it.)

```jldoctest
julia> tree = update!(SumTree(2), 1:2, [1, 3]);

julia> draw = sample!(tree, 4; beta = 1);

julia> draw.indices == [1, 2, 2, 2]
true

julia> draw.weights == Float32[1, 1/3, 1/3, 1/3]
true
```
"""
function sample!(tree::SumTree, batch_size; beta = 0, scheme = :stratified, stream = nothing)
    count = converted(Int64, "batch_size", batch_size)
    exponent = converted(Float32, "beta", beta)
    scheme_number = choice(:scheme, scheme)
    memory, queue = tree.memory, stream_of(tree.memory, stream)
    indices = new_array(memory, Int64, (rows_of(count),))
    priorities = new_array(memory, Float32, size(indices))
    weights = new_array(memory, Float32, size(indices))
    outputs = map(array -> written(memory, array), (indices, priorities, weights))
    call(pointer -> per_sample(pointer, count, scheme_number, exponent, outputs..., queue), tree.handle)
    return (indices = from_one!(memory, indices), priorities = priorities, weights = weights)
end

from_one!(::HostMemory, indices) = indices .+= 1
from_one!(::DeviceMemory, indices) = indices

"""
    find(tree, prefix_sums; stream)

For each prefix sum `s`, `0 <= s < total(tree)`, the index `i` with `p_1 + .. + p_(i-1) <= s < p_1 + .. + p_i`.

```jldoctest
julia> tree = update!(SumTree(3), 1:3, [2, 0, 1]);

julia> find(tree, [0, 1.9, 2]) == [1, 1, 3]
true
```
"""
function find(tree::SumTree, prefix_sums; stream = nothing)
    memory, queue = tree.memory, stream_of(tree.memory, stream)
    sums = numbers(memory, Float64, "prefix_sums", prefix_sums, stream)
    indices = new_array(memory, Int64, size(sums))
    call(pointer -> per_tree_find(pointer, length(sums), sums, written(memory, indices), queue), tree.handle)
    return from_one!(memory, indices)
end

"""
    priorities(tree; stream)
    priorities(tree, indices; stream)

The priorities of all leaves, or of those at `indices`, as `Float32`.

```jldoctest
julia> tree = update!(SumTree(3), [1, 3], [0.5, 1]);

julia> priorities(tree) == [0.5, 0, 1]
true

julia> priorities(tree, [3, 3]) == [1, 1]
true
```
"""
function priorities(tree::SumTree, indices; stream = nothing)
    memory, queue = tree.memory, stream_of(tree.memory, stream)
    leaves = slots(memory, "indices", indices, stream)
    values = new_array(memory, Float32, size(leaves))
    call(tree.handle) do pointer
        per_tree_get_priorities(pointer, length(leaves), leaves, written(memory, values), queue)
    end
    return values
end

function priorities(tree::SumTree; stream = nothing)
    memory, queue = tree.memory, stream_of(tree.memory, stream)
    values = new_array(memory, Float32, (length(tree),))
    call(pointer -> per_tree_get_priorities(pointer, length(values), C_NULL, written(memory, values), queue), tree.handle)
    return values
end

"""
    reset!(tree; stream)

Set all priorities to 0. The random state is kept. Returns the tree.
"""
function reset!(tree::SumTree; stream = nothing)
    queue = stream_of(tree.memory, stream)
    call(pointer -> per_tree_reset(pointer, queue), tree.handle)
    return tree
end

"""
    PER.synchronize(tree; stream)
    PER.synchronize(buffer; stream)

Wait until the work that this tree or buffer enqueued on the stream is done. Throws a [`PERError`](@ref) for an error on
the device since the last report; each error is reported once. Does nothing on the CPU.
"""
function synchronize(tree::SumTree; stream = nothing)
    queue = stream_of(tree.memory, stream)
    call(pointer -> per_tree_synchronize(pointer, queue), tree.handle)
    return nothing
end

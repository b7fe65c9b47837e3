"""
    Ragged(values, offsets, size = (length(offsets) - 1,))

Rows of any length in one array, such as tokens, points or sets: the form of a [`Field`](@ref) with `max_length` in
batches. It is an array of rows: `ragged[i]` is row `i`, `axes×length`, a view without a copy. In sequences
`ragged[t, i]` is step `t` of sequence `i`. `add!`, `extend!` and `set!` accept such objects, too.

- `values`: `axes×total`, the rows one after the other
- `offsets`: one integer more than there are rows, ascending: row `i` is the values `offsets[i] + 1` to `offsets[i +
  1]`. In batches they are the sums of lengths, from 0 on, as in C, which kernels for packed sequences take as they are
- `size`: the size of the array of rows. In batches it is `(B,)`, and for sequences `(T, B)`

`ragged.values` and `ragged.offsets` can be read; [`lengths`](@ref) counts the values of each row, and [`padded`](@ref)
makes one array of all rows. Throws a [`PERError`](@ref) if the number of offsets does not fit the size.

```jldoctest
julia> fields = (observation = Field(Int32), tokens = Field(Int32, nothing; max_length = 4096));

julia> buffer = ReplayBuffer(100, fields);

julia> ids = extend!(buffer; observation = 1:3, tokens = [[5, 7], Int32[], [1, 2, 3]], reward = ones(3),
                     terminated = falses(3), truncated = falses(3), next_observation = 2:4);

julia> tokens = get(buffer, ids).tokens;

julia> tokens[1] == [5, 7], tokens[3] == [1, 2, 3], lengths(tokens) == [2, 0, 3]
(true, true, true)

julia> tokens.values == [5, 7, 1, 2, 3], tokens.offsets == [0, 2, 2, 5]
(true, true)
```
"""
struct Ragged{R,N,A<:AbstractArray} <: AbstractArray{R,N}
    values::A
    offsets::Vector{Int64}
    size::NTuple{N,Int}

    function Ragged(values::AbstractArray, offsets, size::Tuple{Vararg{Integer}} = (length(offsets) - 1,))
        ndims(values) > 0 || invalid("values has no axes; allowed: 1 and more, the last of which counts the values")
        sums = numbers(Int64, "offsets", offsets)
        !isempty(sums) && length(sums) == prod(size) + 1 ||
            invalid("offsets has $(length(sums)) entries; allowed: 1 more than rows, $(max(prod(size), 0))")
        return new{typeof(row_of(values, 1:0)),length(size),typeof(values)}(values, sums, size)
    end
end

row_of(values::AbstractArray{T,N}, range) where {T,N} = view(values, ntuple(_ -> Colon(), Val(N - 1))..., range)

Base.size(ragged::Ragged) = ragged.size
Base.IndexStyle(::Type{<:Ragged}) = IndexLinear()
Base.@propagate_inbounds function Base.getindex(ragged::Ragged, i::Int)
    @boundscheck checkbounds(ragged, i)
    return row_of(ragged.values, ragged.offsets[i]+1:ragged.offsets[i+1])
end
Base.copy(ragged::Ragged) = Ragged(copy(ragged.values), copy(ragged.offsets), ragged.size)

function Base.showarg(io::IO, ragged::Ragged, is_top_level)
    print(io, "Ragged(")
    Base.showarg(io, ragged.values, false)
    return print(io, ")")
end

"""
    lengths(ragged::Ragged)

The number of values of each row: an `Int64` array of the size of `ragged`.
"""
lengths(ragged::Ragged) = reshape(diff(ragged.offsets), size(ragged))

"""
    padded(ragged::Ragged; length, value = 0)

All rows in one array, with `value` after their ends: `axes×length×B`, and for sequences `axes×length×T×B`.

- `length`: at least that of the longest row, which is the default. With the field's `max_length` the arrays of all
  batches have one size

Throws a [`PERError`](@ref) if a row is longer than `length`, or the offsets are not ascending from 0 to the number of
values.

```jldoctest
julia> padded(Ragged([5, 7, 1, 2, 3], [0, 2, 2, 5]); value = -1)
3×3 Array{Int64,2}:
  5  -1  1
  7  -1  2
 -1  -1  3
```
"""
function padded(ragged::Ragged; length = nothing, value = 0)
    values, n_values, offsets = ragged.values, lengths(ragged), ragged.offsets
    total = size(values, ndims(values))
    issorted(offsets) && first(offsets) >= 0 && last(offsets) <= total ||
        invalid("offsets are not ascending from 0 to $total, the number of values")
    longest = reduce(max, n_values; init = 0)
    wanted = length === nothing ? longest : converted(Int64, "length", length)
    wanted >= longest || invalid("length is $wanted; allowed: $longest and above, the length of the longest row")
    axes = Base.front(size(values))
    array = similar(values, axes..., wanted, size(ragged)...)
    fill!(array, converted(eltype(values), "value", value))
    n = prod(axes)
    for i in eachindex(ragged)
        copyto!(array, (i - 1) * n * wanted + 1, values, n * ragged.offsets[i] + 1, n * n_values[i])
    end
    return array
end

# The rows given for a field with max_length as a Ragged. `axes` is the size of a value. There is a row for each of
# `places`, the numbers of environments and of steps.
function packed(name, ragged::Ragged, axes, places)
    check_places(name, size(ragged), places)
    return ragged
end
function packed(name, array::AbstractArray, axes, places)
    has_rows(array, places) || return packed_alike(name, array, axes, places)
    check_places(name, size(array), places)
    return packed_rows(name, vec(array), axes)
end
packed(name, other, axes, places) = invalid("$name is a $(typeof(other)); allowed: an array of rows, or a Ragged")

# True for an array of rows; false for an array of numbers. Any[] has no rows, or is a row without values.
has_rows(array::AbstractArray{<:AbstractArray}, places) = true
has_rows(array::AbstractArray{<:Number}, places) = false
has_rows(array, places) = isempty(array) ? 0 in places : all(row -> row isa AbstractArray, array)

# Axes of size 1 may be omitted.
function check_places(name, found, places)
    filter(!=(1), found) == filter(!=(1), places) && return nothing
    shown(size) = isempty(size) ? "1" : join(size, '×')
    return invalid("number of rows of $name is $(shown(found)); allowed: $(shown(places))")
end

# An array of numbers: one row, or rows that are equally long.
function packed_alike(name, array, axes, places)
    prod(places) == 1 && is_without_values(array) && return packed_rows(name, [array], axes)
    n_axes = length(axes) + 1
    ndims(array) >= n_axes || invalid("$name is a $(summary(array)); allowed: an array of rows, each with $n_axes axes")
    found = size(array)[n_axes+1:end]
    check_places(name, found, places)
    n_rows, n_values = prod(found), size(array, n_axes)
    values = reshape(array, size(array)[1:n_axes-1]..., n_values * n_rows)
    return Ragged(values, [n_values * i for i in 0:n_rows])
end

# Copies rows into one array.
function packed_rows(name, rows, axes)
    n_axes = length(axes) + 1
    n_values = Int64[row_length(name, i, row, n_axes) for (i, row) in enumerate(rows)]
    offsets = pushfirst!(cumsum(n_values), 0)
    full = [narrowed(row) for (row, n) in zip(rows, n_values) if n > 0]
    isempty(full) && return Ragged(Array{Bool}(undef, axes..., 0), offsets)  # Bool can be cast to every type
    sizes = [Base.front(size(row)) for row in full]
    other = findfirst(!=(sizes[1]), sizes)
    other === nothing || invalid("$name has values of sizes $(sizes[1]) and $(sizes[other]); allowed: one size")
    type = mapreduce(eltype, promote_type, full)
    values = Array{type}(undef, sizes[1]..., last(offsets))
    place = 1
    for row in full
        copyto!(values, place, numbers(type, name, row))
        place += length(row)
    end
    return Ragged(values, offsets)
end

# An empty vector is a row without values, whatever the size of a value.
is_without_values(row) = row isa AbstractVector && isempty(row)

function row_length(name, i, row, n_axes)
    ndims(row) == n_axes && return size(row, n_axes)
    is_without_values(row) && return 0
    return invalid("$name[$i] is a $(summary(row)); allowed: rows with $n_axes axes, the last of any length")
end

# A per_array of rows. Adds the memory it points into to `kept`, which must be preserved as long.
function passed_rows!(kept, name, ragged)
    array = passed!(kept, name, ragged.values)
    push!(kept, ragged.offsets)
    return per_array(array.data, array.shape, array.ndim, array.dtype, pointer(ragged.offsets))
end

# Room for the rows of an array of a batch, into which the library writes them.
mutable struct Room{T}
    values::Vector{T}
    offsets::Vector{Int64}
    axes::Tuple    # the size of a value
    places::Tuple  # the size of the array of rows
    mean_length::Threads.Atomic{Float64}  # of the rows of the last batch
    given::Base.RefValue{per_ragged}
end

# A little more room than the last batch needed mostly suffices.
function Room(::Type{T}, size, mean_length) where {T}
    axes, places = parted(size)
    n_rows = prod(places)
    room = Room{T}(T[], zeros(Int64, n_rows + 1), axes, places, mean_length, Ref{per_ragged}())
    allocate!(room, ceil(Int64, 1.25 * n_rows * mean_length[]))
    return room
end

# The size of a value, and that of the array of rows, from a size with `nothing` for the axis of any length.
function parted(size)
    free = findfirst(isnothing, size)
    return size[1:free-1], size[free+1:end]
end

function allocate!(room::Room{T}, n_values) where {T}
    room.values = Vector{T}(undef, max(prod(room.axes) * n_values, 1))  # NULL would mean that no values are wanted
    room.given[] = per_ragged(pointer(room.values), pointer(room.offsets), n_values, 0, 0)
    return nothing
end

# Makes room for the values that the last call asked for. Returns false if it had enough.
function extend_room!(room)
    given = room.given[]
    given.total > given.capacity || return false
    allocate!(room, given.total)
    return true
end

# The rows that the library has written.
function taken!(room::Room)
    total = room.given[].total
    room.mean_length[] = total / max(prod(room.places), 1)
    values = resize!(room.values, prod(room.axes) * total)
    return Ragged(reshape(values, room.axes..., total), room.offsets, room.places)
end
taken!(array) = array

address(::HostMemory, room::Room) = Ptr{Cvoid}(Base.unsafe_convert(Ptr{per_ragged}, room.given))

# Runs action(), and again with more room where a batch needs it: the library then draws the same batch.
function with_room(action, rooms)
    while true
        try
            return action()
        catch error
            is_full = error isa PERError && error.status == PER_ERROR_FULL
            is_full && any([extend_room!(room) for room in rooms]) || rethrow()
        end
    end
end

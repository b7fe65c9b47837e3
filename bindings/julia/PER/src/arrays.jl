# The library's element types. Core has BFloat16 since Julia 1.11; before that, a type with the same bits replaces it.
@static if isdefined(Core, :BFloat16)
    const BFloat16 = Core.BFloat16
else
    primitive type BFloat16 <: AbstractFloat 16 end
    Base.Float32(x::BFloat16) = reinterpret(Float32, UInt32(reinterpret(UInt16, x)) << 16)
    function BFloat16(x::Real)  # rounds to nearest, ties to even
        isnan(x) && return reinterpret(BFloat16, 0x7fc0)
        bits = reinterpret(UInt32, Float32(x))
        return reinterpret(BFloat16, ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) % UInt16)
    end
end

@doc """
    PER.BFloat16

The upper 16 bits of a `Float32`, as an element type of fields: `Field(PER.BFloat16, 4)`. It is `Core.BFloat16` if Julia
has that. Before Julia 1.11 it is a type of this package, which `Float32` converts.
""" BFloat16

const DTYPES = (
    Bool => PER_BOOL,
    UInt8 => PER_UINT8,
    Int8 => PER_INT8,
    UInt16 => PER_UINT16,
    Int16 => PER_INT16,
    UInt32 => PER_UINT32,
    Int32 => PER_INT32,
    UInt64 => PER_UINT64,
    Int64 => PER_INT64,
    Float16 => PER_FLOAT16,
    BFloat16 => PER_BFLOAT16,
    Float32 => PER_FLOAT32,
    Float64 => PER_FLOAT64,
)

for (type, dtype) in DTYPES
    @eval dtype_of(name, ::Type{$type}) = $dtype
end
dtype_of(name, other) = invalid("$name has elements of type $other; allowed: $(join(first.(DTYPES), ", "))")

element_type_of(dtype) = first(DTYPES[findfirst(pair -> pair.second == dtype, DTYPES)])

# The elements contiguous in host memory: the array itself if it is contiguous already, else a copy.
dense(array::Array) = array
dense(number::Number) = fill(number)
dense(array::AbstractArray) = copyto!(Array{eltype(array)}(undef, size(array)), array)

# The same elements with their common type as that of the array: Int64[1, 2] for Any[1, 2].
narrowed(array) = isconcretetype(eltype(array)) ? array : map(identity, array)

# A per_array of an array or number. Adds the memory it points into to `kept`, which must be preserved as long.
function passed!(kept::Vector{Any}, name, array::Union{AbstractArray,Number})
    elements = dense(narrowed(array))
    dtype = dtype_of(name, eltype(elements))
    shape = Int64[reverse(size(elements))..., 0]  # one extra, so that it has an address without axes
    push!(kept, elements, shape)
    return per_array(pointer(elements), pointer(shape), ndims(elements), dtype, C_NULL)
end
passed!(::Vector{Any}, name, other) = invalid("$name is a $(typeof(other)), neither an array nor a number")

const CONVERSION_ERRORS = Union{InexactError,MethodError,ArgumentError,TypeError,DomainError}

# The largest batch size of per.h.
const LARGEST_BATCH = 1 << 24

# Number of rows to allocate for a batch; 0 if the size is out of range, which the library reports.
rows_of(batch_size) = 0 <= batch_size <= LARGEST_BATCH ? batch_size : 0

# Converts a value to the C type.
function converted(::Type{T}, name, value) where {T}
    try
        return convert(T, value)::T
    catch error
        error isa CONVERSION_ERRORS || rethrow()
        return invalid("$name is $(repr(value)), which is no $T")
    end
end

# Seconds to wait; Inf: no limit.
function seconds_of(timeout)
    seconds = converted(Float64, "timeout", timeout)
    seconds >= 0 || invalid("timeout is $timeout; allowed: seconds >= 0")
    return seconds
end

# Converts numbers to a dense array of the C type.
numbers(::Type{T}, name, array::Array{T}) where {T} = array
function numbers(::Type{T}, name, array::AbstractArray) where {T}
    try
        return copyto!(Array{T}(undef, size(array)), array)
    catch error
        error isa CONVERSION_ERRORS || rethrow()
        reason = first(split(sprint(showerror, error), '\n'))
        return invalid("$name has an entry that is no $T: $reason")
    end
end
numbers(::Type{T}, name, number::Number) where {T} = numbers(T, name, [number])
numbers(::Type{T}, name, other) where {T} = invalid("$name is a $(typeof(other)), not an array")

# Like numbers(), but refuses floating-point numbers, such as rewards in the place of ids.
function whole_numbers(::Type{T}, name, array) where {T}
    refuse_flags(name, array)
    array isa Union{AbstractArray{<:AbstractFloat},AbstractFloat} && !isempty(array) &&
        invalid("$name has elements of type $(eltype(array)); allowed: integers")
    return numbers(T, name, array)
end

# Flags of all rows or environments, where a list of some of them is expected.
refuse_flags(name, array) = nothing
refuse_flags(name, array::Union{Bool,AbstractArray{Bool}}) =
    invalid("$name has elements of type Bool; allowed: integers, such as findall(flags)")

# Numbers in host memory with the C type.
host_numbers(::Type{T}, name, array) where {T} = numbers(T, name, array)
host_numbers(::Type{T}, name, array) where {T<:Integer} = whole_numbers(T, name, array)

# Converts numbers that count from 1 to numbers that count from 0.
function zero_based(name, array, ::Type{T} = Int64) where {T}
    refuse_flags(name, array)
    return numbers(T, name, map(index -> index - 1, numbers(Int64, name, array)))
end

function check_length(name, array, expected)
    length(array) == expected && return nothing
    return invalid("$name has $(length(array)) entries; allowed: $expected")
end

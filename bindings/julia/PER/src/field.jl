"""
    Field(element_type, axes...; role, stack, default, padding, compression, max_length)

A field of the transitions of a [`ReplayBuffer`](@ref).

- `element_type`: `Bool`, an integer of 8 to 64 bits, `Float16`, `PER.BFloat16`, `Float32` or `Float64`
- `axes`: the size of one row, in Julia's order. C has the reverse: `Field(UInt8, 84, 80)` is `[80, 84]` there, and a
  batch of `B` rows is `84×80×B` here and `[B, 80, 84]` there, with the same bytes. With `max_length` the last is
  `nothing`: rows of any length
- `role`: `:observation` (the default for the name `observation` and names that begin with `observation.`; batches also
  have the field `next_...`), `:plain` (the default for all other names) or `:recurrent_state` (in sequences, the first
  step only). `:default` is the same as no role
- `stack`: number of frames in a batch, on an axis before the last; by default the buffer's `frame_stack` for
  observations, 1 for others
- `default`: the value for steps added without the field, such as advantages that are computed later: an array of those
  axes, or a number for all its elements. Without a default the field must be given with every step. Observations cannot
  have one
- `padding`: the frames of a stack from before the first step of its episode: `:repeat` that step's frame (default), or
  `:zero`
- `compression`: the storage of frames: `:none` as they are (default); `:delta` as differences from a frame that came
  shortly before, which takes a fifth of the memory or less for game screens. Batches are the same, bit for bit. CPU
  only
- `max_length`: each row has any number of values, from 0 to this one: `Field(Int32, nothing; max_length = 4096)` for
  the tokens of an answer, `Field(Float32, 3, nothing; max_length = 1024)` for a cloud of points. Memory is allocated
  for the values that rows have. Steps are given as an array of rows or as a [`Ragged`](@ref), and batches have a
  `Ragged`. CPU only; not with a stack, `compression` or `default`

Throws a [`PERError`](@ref) for a field that no buffer would accept.

```jldoctest
julia> Field(UInt8, 84, 84).axes
(84, 84)

julia> Field(Float32, 3, nothing; max_length = 1024).axes
(3, nothing)
```
"""
struct Field
    element_type::Type
    axes::Tuple{Vararg{Union{Nothing,Int64}}}
    role::Union{Nothing,Symbol}
    stack::Union{Nothing,Int64}
    default::Any
    padding::Union{Nothing,Symbol}
    compression::Symbol
    max_length::Union{Nothing,Int64}

    function Field(
        element_type::Type,
        axes...;
        role = nothing,
        stack = nothing,
        default = nothing,
        padding = nothing,
        compression = :none,
        max_length = nothing,
    )
        types = first.(DTYPES)
        element_type in types || invalid("element_type is $element_type; allowed: $(join(types, ", "))")
        role === nothing || choice(:role, role)
        padding === nothing || choice(:padding, padding)
        choice(:compression, compression)
        check_max_length(axes, max_length)
        stack == 0 && invalid("stack is 0; allowed: 1 and above")
        sizes = map(axis -> converted(Int64, "an axis of a field", axis), fixed(axes))
        field = new(
            element_type,
            is_ragged(axes) ? (sizes..., nothing) : sizes,
            role === nothing ? nothing : Symbol(role),
            stack === nothing ? nothing : converted(Int32, "stack", stack),
            default === nothing ? nothing : default_for(element_type, default),
            padding === nothing ? nothing : Symbol(padding),
            Symbol(compression),
            max_length === nothing ? nothing : converted(Int64, "max_length", max_length),
        )
        kept = Any[]
        c_field = Ref(described!(kept, C_NULL, field))
        GC.@preserve kept check(per_field_check(c_field, sizeof(per_field)))
        return field
    end
end

# Axes that end with `nothing`: rows of any length.
is_ragged(axes) = !isempty(axes) && last(axes) === nothing
# The axes of one value.
fixed(axes) = is_ragged(axes) ? axes[1:end-1] : axes

function check_max_length(axes, max_length)
    is_ragged(axes) && max_length === nothing && invalid("max_length is not given; needed, as the last axis is nothing")
    !is_ragged(axes) && max_length !== nothing &&
        invalid("max_length is $(repr(max_length)); allowed if the last axis is nothing")
    max_length == 0 && invalid("max_length is 0; allowed: 1 and above")  # in C a row of one value
    return nothing
end

# The type of a Julia number may have no cast to the field's: integers are signed. The library casts to floats.
default_for(type, default) = own(type <: AbstractFloat ? default : in_type(type, default))
own(default::AbstractArray) = copy(default)  # the caller's array may change
own(default) = default
in_type(type, number::Number) = converted(type, "default", number)
in_type(type, other) = numbers(type, "default", other)

# Arguments of add!, extend! and set!, of buffers and writers: a field of such a name could not be given.
const ARGUMENTS = (:env_ids, :stream, :td_errors, :timeout)

# A per_field. Adds the memory it points into to `kept`, which must be preserved as long.
function declared!(kept::Vector{Any}, name, field::Field)
    # C would end the name at a NUL.
    '\0' in string(name) && invalid("name of a field is $(repr(string(name))); allowed: names without a NUL")
    Symbol(name) in ARGUMENTS && invalid("field $name has the name of an argument of add!; allowed: any other name")
    text = Base.cconvert(Cstring, string(name))
    push!(kept, text)
    return described!(kept, Base.unsafe_convert(Cstring, text), field)
end
declared!(::Vector{Any}, name, other) = invalid("field $name is a $(typeof(other)), not a Field")

function described!(kept::Vector{Any}, name, field::Field)
    shape = Int64[reverse(fixed(field.axes))...]
    push!(kept, shape)
    role = field.role === nothing ? PER_ROLE_DEFAULT : choice(:role, field.role)
    stack = something(field.stack, 0)
    dtype = dtype_of("a field", field.element_type)
    padding = field.padding === nothing ? PER_PADDING_REPEAT : choice(:padding, field.padding)
    compression = choice(:compression, field.compression)
    default = default!(kept, field.default)
    max_length = something(field.max_length, 0)
    return per_field(name, pointer(shape), length(shape), dtype, role, stack, default, padding, compression, max_length)
end

default!(::Vector{Any}, ::Nothing) = Ptr{per_array}(C_NULL)
function default!(kept::Vector{Any}, default)
    array = Ref(passed!(kept, "default", default))
    push!(kept, array)
    return Base.unsafe_convert(Ptr{per_array}, array)
end

# The declaration of a field as the library resolved it.
function Field(field::per_field)
    type = element_type_of(field.dtype)
    axes = axes_of(field)
    role, padding = name_of_choice(:role, field.role), name_of_choice(:padding, field.padding)
    compression = name_of_choice(:compression, field.compression)
    default = default_of(field, type, axes)
    return Field(
        type,
        axes...;
        role = role,
        stack = field.stack,
        default = default,
        padding = padding,
        compression = compression,
        max_length = is_ragged(axes) ? field.max_length : nothing,
    )
end

# The axes in Julia's order; the last is nothing for rows of any length.
function axes_of(field::per_field)
    axes = ntuple(axis -> unsafe_load(field.shape, field.ndim + 1 - axis), field.ndim)
    return field.max_length > 0 ? (axes..., nothing) : axes
end

function default_of(field, type, axes)
    field.default_value == C_NULL && return nothing
    elements = Ptr{type}(unsafe_load(field.default_value).data)
    return isempty(axes) ? unsafe_load(elements) : copy(unsafe_wrap(Array, elements, axes))
end

Base.:(==)(one::Field, other::Field) = isequal(members(one), members(other))
Base.hash(field::Field, seed::UInt) = hash(members(field), seed)
members(field::Field) = map(name -> with_hash(getfield(field, name)), fieldnames(Field))
with_hash(member) = member
with_hash(number::BFloat16) = reinterpret(UInt16, number)
with_hash(numbers::AbstractArray{BFloat16}) = reinterpret(UInt16, numbers)

# A field as the library resolved it.
struct FieldLayout
    name::Symbol
    next_name::Symbol
    element_type::DataType
    axes::Vector{Union{Nothing,Int64}}  # as axes_of() gives them
    stack::Int64
    observed::Bool
    is_state::Bool
end

function FieldLayout(field::per_field)
    name = unsafe_string(field.name)
    return FieldLayout(
        Symbol(name),
        Symbol("next_", name),
        element_type_of(field.dtype),
        [axes_of(field)...],
        field.stack,
        field.role == PER_ROLE_OBSERVATION,
        field.role == PER_ROLE_RECURRENT_STATE,
    )
end

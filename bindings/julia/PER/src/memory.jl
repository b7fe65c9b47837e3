# The memory of the arrays of a handle's calls: host memory, or that of a CUDA device.
#
# This package depends on no library of device arrays. The functions with docstrings here are what it needs of one.

struct HostMemory end

struct DeviceMemory
    arrays::Any          # allocates them: a type such as CuArray, or a function of an element type and a size
    current_stream::Any  # a function without arguments; or nothing
end

const Memory = Union{HostMemory,DeviceMemory}

function memory_for(device, arrays, current_stream)
    if device == PER_CPU
        arrays === nothing || invalid("arrays is given; allowed with device = :cuda only")
        current_stream === nothing || invalid("current_stream is given; allowed with device = :cuda only")
        return HostMemory()
    end
    arrays === nothing && invalid("arrays is not given; on a device: a type such as CuArray, or a function (T, size)")
    arrays isa Type || is_callable(arrays) ||
        invalid("arrays is $(repr(arrays)); on a device: a type such as CuArray, or a function (T, size)")
    current_stream === nothing || is_callable(current_stream) ||
        invalid("current_stream is $(repr(current_stream)); allowed: a function without arguments")
    return DeviceMemory(arrays, current_stream)
end

# The arguments of a buffer's constructor that concern its memory.
given(::HostMemory) = (;)
given(memory::DeviceMemory) = (arrays = memory.arrays, current_stream = memory.current_stream)

is_callable(value) = !isempty(methods(value))

"""
    PER.is_device_array(array)

True if an array lies in the memory of a CUDA device. `false` for every type that has no method of this function. Arrays
of the type that a tree or buffer was created with (`arrays = CuArray`) are recognised without a method.
"""
is_device_array(array) = false

"""
    PER.device_pointer(array)

The address of an array on a device, as `Ptr{Cvoid}`: by default `pointer(array)`. Add a method for types without such a
pointer.
"""
device_pointer(array) = Ptr{Cvoid}(reinterpret(UInt, pointer(array)))

"""
    PER.device_view(arrays, T, pointer, size)

An array of type `T` that views device memory of the library, for [`loader`](@ref)s to hand out; `arrays` is that of the
buffer or the loader. A loader on a device needs a method of this function; the package has none. For CUDA.jl it is

    PER.device_view(::Type{<:CuArray}, ::Type{T}, pointer, size) where {T} =
        unsafe_wrap(CuArray, CuPtr{T}(UInt(pointer)), size)
"""
function device_view end

# Checks before the first draw that every array of the layout has a view.
check_views(::HostMemory, layout) = nothing
function check_views(memory::DeviceMemory, layout)
    for (_, type, size) in layout
        hasmethod(device_view, Tuple{Core.Typeof(memory.arrays),Type{type},Ptr{Cvoid},typeof(size)}) && continue
        message = "there is no PER.device_view for $(memory.arrays) of $type, which a loader needs to hand out memory"
        throw(PERError(PER_ERROR_UNSUPPORTED, message))
    end
end

"""
    PER.stream_pointer(stream)

Convert a stream to a `cudaStream_t` as `Ptr{Cvoid}`: a pointer, a number, or an object with one as its `handle`, such
as CUDA.jl's streams.
"""
stream_pointer(stream::Ptr) = Ptr{Cvoid}(stream)
stream_pointer(stream::Integer) = Ptr{Cvoid}(converted(UInt, "stream", stream))
stream_pointer(stream) =
    hasproperty(stream, :handle) ? stream_pointer(stream.handle) :
    invalid("stream is a $(typeof(stream)); allowed: a stream of CUDA.jl, a pointer or a number")

# The stream of a call.
stream_of(::HostMemory, ::Nothing) = C_NULL
stream_of(::HostMemory, stream) = invalid("stream is $(repr(stream)); allowed with device = :cuda only")
stream_of(::DeviceMemory, stream) = stream_pointer(stream)
stream_of(memory::DeviceMemory, ::Nothing) =
    memory.current_stream === nothing ?
    invalid("stream is not given; needed where current_stream was not given at creation") :
    stream_pointer(memory.current_stream())

lies_on_device(memory::DeviceMemory, array) =
    is_device_array(array) || (memory.arrays isa Type && array isa memory.arrays)

function refuse_part(memory, name, array)
    array isa AbstractArray || return nothing
    whole = parent(array)
    whole === array && return nothing
    lies_on_device(memory, whole) && invalid("$name is a $(typeof(array)); allowed on the device: whole arrays")
    return refuse_part(memory, name, whole)
end

# A device array as an argument of ccall.
struct Elements{T,A}
    array::A
    size::Tuple{Vararg{Int}}
end
Elements(::Type{T}, array) where {T} = Elements{T,typeof(array)}(array, size(array))

Base.length(elements::Elements) = prod(elements.size)
Base.ndims(elements::Elements) = length(elements.size)
Base.size(elements::Elements) = elements.size
Base.size(elements::Elements, axis) = elements.size[axis]
Base.pointer(elements::Elements{T}) where {T} = Ptr{T}(device_pointer(elements.array))
Base.cconvert(::Type{Ptr{T}}, elements::Elements) where {T} = elements
Base.unsafe_convert(::Type{Ptr{T}}, elements::Elements{T}) where {T} = pointer(elements)

# Numbers as an argument of ccall, with the C type. Arrays in host memory are copied to a device by copyto!(), which
# only uses the current stream.
numbers(::HostMemory, ::Type{T}, name, array, stream) where {T} = host_numbers(T, name, array)
function numbers(memory::DeviceMemory, ::Type{T}, name, array, stream) where {T}
    lies_on_device(memory, array) || return to_device(memory, name, host_numbers(T, name, array), array, stream)
    eltype(array) === T || invalid("$name has elements of type $(eltype(array)); allowed on the device: $T")
    return Elements(T, array)
end

# Indices of a tree, or sources of a mixture: in host memory they count from 1, on a device from 0, as in C.
slots(::HostMemory, name, array, stream, ::Type{T} = Int64) where {T} = zero_based(name, array, T)
slots(memory::DeviceMemory, name, array, stream, ::Type{T} = Int64) where {T} =
    lies_on_device(memory, array) ? numbers(memory, T, name, array, stream) :
    to_device(memory, name, zero_based(name, array, T), array, stream)

function to_device(memory, name, elements::Array{T}, source, stream) where {T}
    refuse_part(memory, name, source)
    stream === nothing || invalid("$name lies in host memory; allowed with stream: arrays on the device")
    return Elements(T, copyto!(new_array(memory, T, size(elements)), elements))
end

# A function that is specialised for each type: a batch is allocated in 3 us with it, in 10 without.
new_array(::HostMemory, ::Type{T}, size) where {T} = Array{T}(undef, size)
function new_array(memory::DeviceMemory, ::Type{T}, wanted) where {T}
    array = memory.arrays isa Type ? memory.arrays{T}(undef, wanted) : memory.arrays(T, wanted)
    eltype(array) === T && size(array) == wanted && return array
    return invalid("arrays gave a $(summary(array)); wanted: $(join(wanted, '×')) $T")
end

# An array of new_array() as an argument of ccall.
written(::HostMemory, array) = array
written(::DeviceMemory, array) = Elements(eltype(array), array)

address(::HostMemory, array) = Ptr{Cvoid}(pointer(array))
address(::DeviceMemory, array) = device_pointer(array)

fits(::HostMemory, array, type, wanted) = array isa Array && eltype(array) === type && size(array) == wanted
fits(memory::DeviceMemory, array, type, wanted) =
    lies_on_device(memory, array) && eltype(array) === type && size(array) == wanted

# An array that views memory of the library.
view_of(::HostMemory, ::Type{T}, pointer, size) where {T} = unsafe_wrap(Array, Ptr{T}(pointer), size)
view_of(memory::DeviceMemory, ::Type{T}, pointer, size) where {T} =
    device_view(memory.arrays, T, Ptr{Cvoid}(pointer), size)

# A per_array of an array or number, in place if it lies on a device. Adds the memory it points into to `kept`, which
# must be preserved as long. Calls that also accept host memory get host arrays unchanged.
passed!(::HostMemory, kept, name, array) = passed!(kept, name, array)
function passed!(memory::DeviceMemory, kept, name, array)
    if !lies_on_device(memory, array)
        refuse_part(memory, name, array)
        return passed!(kept, name, array)
    end
    shape = Int64[reverse(size(array))...]
    push!(kept, array, shape)
    return per_array(device_pointer(array), pointer(shape), length(shape), dtype_of(name, eltype(array)), C_NULL)
end

# The same for calls that accept device arrays only.
passed_there!(::HostMemory, kept, name, array, stream) = passed!(kept, name, array)
function passed_there!(memory::DeviceMemory, kept, name, array, stream)
    lies_on_device(memory, array) && return passed!(memory, kept, name, array)
    array isa Union{AbstractArray,Number} || return passed!(kept, name, array)
    elements = dense(narrowed(array))
    return passed!(memory, kept, name, to_device(memory, name, elements, array, stream).array)
end

# An array of a library unknown to this package, like CuArray: allocated by DeviceArray{T}(undef, size), with its own
# pointer type. On the simulated GPU, device memory is host memory.
mutable struct DeviceArray{T,N} <: AbstractArray{T,N}
    host::Array{T,N}
end

primitive type DevicePointer 64 end

DeviceArray{T}(::UndefInitializer, size::Tuple) where {T} = DeviceArray(Array{T}(undef, size))
Base.size(array::DeviceArray) = size(array.host)
Base.IndexStyle(::Type{<:DeviceArray}) = IndexLinear()
Base.getindex(array::DeviceArray, i::Int) = array.host[i]
Base.setindex!(array::DeviceArray, value, i::Int) = (array.host[i] = value)
Base.similar(::DeviceArray, ::Type{T}, size::Dims) where {T} = DeviceArray{T}(undef, size)
Base.pointer(array::DeviceArray) = reinterpret(DevicePointer, pointer(array.host))

PER.device_view(::Type{<:DeviceArray}, ::Type{T}, pointer, size) where {T} =
    DeviceArray(unsafe_wrap(Array, Ptr{T}(pointer), size))

# A stream like CUDA.jl's.
struct DeviceStream
    handle::Ptr{Cvoid}
end

include("device_array.jl")

const ON_DEVICE = PER.DeviceMemory(DeviceArray, () -> DeviceStream(C_NULL))

@testset "arrays of the type that a buffer was created with are read in place" begin
    array = DeviceArray(Int64[4, 5, 6])
    elements = PER.numbers(ON_DEVICE, Int64, "ids", array, nothing)
    @test pointer(elements) == pointer(array.host) && length(elements) == 3
    @test PER.slots(ON_DEVICE, "indices", array, nothing).array === array
    kept = Any[]
    passed = PER.passed!(ON_DEVICE, kept, "reward", DeviceArray(Float32[1 2 3]))
    @test (passed.ndim, passed.dtype) == (2, PER.PER_FLOAT32)
    @test [unsafe_load(passed.shape, i) for i in 1:2] == [3, 1]
end

@testset "arrays of the host are copied to the device, and count from 1" begin
    elements = PER.slots(ON_DEVICE, "indices", [1, 4], nothing)
    @test elements.array isa DeviceArray && elements.array.host == [0, 3]
    @test PER.numbers(ON_DEVICE, Float32, "td_errors", 1:2, nothing).array.host == Float32[1, 2]
    @test occursin("ids lies in host memory; allowed with stream", invalid_message() do
        PER.numbers(ON_DEVICE, Int64, "ids", [1], C_NULL)
    end)
    # add!() hands arrays of the host to the library as they are.
    values = [1.0, 2.0]
    @test PER.passed!(ON_DEVICE, Any[], "reward", values).data == pointer(values)
    @test PER.passed_there!(ON_DEVICE, Any[], "reward", values, nothing).data != pointer(values)
end

@testset "what cannot be read on the device is named" begin
    array = DeviceArray(Int32[1, 2, 3, 4])
    for (action, words) in (
        (() -> PER.numbers(ON_DEVICE, Int64, "ids", array, nothing), "ids has elements of type Int32; allowed on the"),
        (() -> PER.numbers(ON_DEVICE, Int32, "ids", view(array, 1:2:3), nothing), "allowed on the device: whole"),
        (() -> PER.passed!(ON_DEVICE, Any[], "reward", view(array, 1:2)), "reward is a SubArray"),
        (() -> PER.passed!(ON_DEVICE, Any[], "reward", transpose(view(array, 1:2))), "allowed on the device: whole"),
        (() -> PER.new_array(PER.DeviceMemory((T, size) -> [1], nothing), Int64, (2,)), "wanted: 2 Int64"),
        (() -> PER.stream_of(ON_DEVICE, "0"), "stream is a String"),
        (() -> PER.stream_of(ON_DEVICE, -1), "stream is -1"),
        (() -> PER.stream_of(PER.DeviceMemory(DeviceArray, nothing), nothing), "stream is not given; needed where"),
        (() -> PER.stream_of(PER.HostMemory(), 1), "stream is 1; allowed with device = :cuda only"),
        (() -> PER.memory_for(PER.PER_CUDA, nothing, nothing), "arrays is not given"),
        (() -> PER.memory_for(PER.PER_CUDA, 3, nothing), "arrays is 3; on a device: a type such as CuArray"),
        (() -> PER.memory_for(PER.PER_CUDA, DeviceArray, 3), "current_stream is 3; allowed: a function"),
        (() -> SumTree(3; arrays = DeviceArray), "arrays is given; allowed with device = :cuda only"),
        (() -> update!(SumTree(3), [1], [1]; stream = 1), "stream is 1; allowed with device = :cuda only"),
    )
        @test occursin(words, invalid_message(action))
    end
end

@testset "streams are pointers, numbers, and what has a handle" begin
    @test PER.stream_of(ON_DEVICE, DeviceStream(Ptr{Cvoid}(7))) == Ptr{Cvoid}(7)
    @test PER.stream_of(ON_DEVICE, 8) == PER.stream_of(ON_DEVICE, Ptr{Nothing}(8)) == Ptr{Cvoid}(8)
    @test PER.stream_of(PER.DeviceMemory(DeviceArray, () -> DeviceStream(Ptr{Cvoid}(9))), nothing) == Ptr{Cvoid}(9)
    @test PER.stream_of(PER.HostMemory(), nothing) == C_NULL
end

@testset "functions make arrays of types that methods are added for" begin
    memory = PER.DeviceMemory((T, size) -> DeviceArray{T}(undef, size), nothing)
    array = PER.new_array(memory, Int64, (2,))
    @test array isa DeviceArray && !PER.lies_on_device(memory, array)
    @eval PER.is_device_array(::DeviceArray) = true
    @test Base.invokelatest(PER.lies_on_device, memory, array)
    Base.delete_method(which(PER.is_device_array, (DeviceArray,)))
    layout = [(:ids, Int64, (2,))]
    @test PER.check_views(ON_DEVICE, layout) === nothing
    @test thrown(() -> PER.check_views(memory, layout)).status == PER.PER_ERROR_UNSUPPORTED
end

# Search order for libper.so: the file named by LIBPER_PATH, and no other; else the build folder of the source tree of
# this package; else the system's loader.
function library_places()
    named = get(ENV, "LIBPER_PATH", "")
    isempty(named) || return [named]
    tree = normpath(joinpath(@__DIR__, "..", "..", "..", ".."))
    return [joinpath(tree, "build", "libper.so"), "libper.so.$PER_ABI_VERSION"]
end

function load_library(places = library_places())
    failures = String[]
    for place in places
        try
            bind_library(place)
            return nothing
        catch failure
            push!(failures, "  $place: $(sprint(showerror, failure))")
        end
    end
    error("libper was not loaded (LIBPER_PATH can name its file); tried:\n" * join(failures, '\n'))
end

function bind_library(place)
    library = Libdl.dlopen(place)
    version = ccall(Libdl.dlsym(library, :per_abi_version), Int32, ())
    version == PER_ABI_VERSION || error("it has interface $version, this package needs $PER_ABI_VERSION")
    bind!(library)
end

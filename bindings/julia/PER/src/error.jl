"""
    PERError(status, message)

What every function of this package throws for what the library refuses or cannot do. `status` is one of the constants
`PER.PER_ERROR_INVALID_ARGUMENT`, `PER.PER_ERROR_EMPTY`, ... of `per.h`. After an error the tree or buffer is as it was
before the call.

```jldoctest
julia> tree = SumTree(4);

julia> try sample!(tree, 2) catch error; error.status == PER.PER_ERROR_EMPTY end
true
```
"""
struct PERError <: Exception
    status::Int32
    message::String
end

Base.showerror(io::IO, error::PERError) =
    print(io, unsafe_string(per_status_name(error.status)), ": ", error.message)

invalid(message) = throw(PERError(PER_ERROR_INVALID_ARGUMENT, message))

# The message belongs to the thread that the failing call ran on: nothing may come between the two that could move this
# task to another thread.
#
# `arguments`: what arguments of the function in C are called here, where that is another name.
function check(status, arguments = NamedTuple())
    status == PER_OK && return nothing
    message = in_julia(unsafe_string(per_last_error()), arguments)
    throw(PERError(status, message * (status in (PER_ERROR_INVALID_ARGUMENT, PER_ERROR_FULL) ? note_on(message) : "")))
end

# How numbers in a message are to be read: an entry's place in an array, and the order of axes.
function note_on(message)
    notes = String[]
    occursin(r"\w\[\d+|step \d+ of environment", message) && push!(notes, "counting from 0, as C does")
    occursin(r"shape (is )?\(|\w\[\d+, ", message) && push!(notes, "axes in C's order, the reverse of Julia's")
    return isempty(notes) ? "" : " (" * join(notes, "; ") * ")"
end

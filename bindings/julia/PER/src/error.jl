"""
    PERError(status, message)

The exception of every function of this package, thrown if the library refuses a call or fails. `status` is one of the
constants `PER.PER_ERROR_INVALID_ARGUMENT`, `PER.PER_ERROR_EMPTY`, ... of `per.h`. After an error the tree or buffer is
as it was before the call.

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

# The message belongs to the thread of the failing call: between the call and the read nothing may run that could move
# this task to another thread.
#
# `arguments`: the names here of arguments that have another name in C. `reworded` changes the message further.
function check(status, arguments = NamedTuple(), reworded = identity)
    status == PER_OK && return nothing
    message = reworded(in_julia(unsafe_string(per_last_error()), arguments))
    throw(PERError(status, message * (status in (PER_ERROR_INVALID_ARGUMENT, PER_ERROR_FULL) ? note_on(message) : "")))
end

# Notes on the numbers in a message: positions in an array count from 0, and axes are in C order.
function note_on(message)
    notes = String[]
    counts = r"\w\[\d+|step \d+ of environment|\bshard (is )?-?\d"
    occursin(counts, message) && push!(notes, "counting from 0, as C does")
    occursin(r"shape (is )?\(|\w\[\d+, ", message) && push!(notes, "axes in C's order, the reverse of Julia's")
    return isempty(notes) ? "" : " (" * join(notes, "; ") * ")"
end

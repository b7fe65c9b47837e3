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
# task to another thread. `note` is added to what is said of an argument.
function check(status, note = "")
    status == PER_OK && return nothing
    message = unsafe_string(per_last_error())
    throw(PERError(status, status == PER_ERROR_INVALID_ARGUMENT ? message * note : message))
end

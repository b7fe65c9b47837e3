# The PERError that action() throws; anything else is a failure of the test.
function thrown(action)
    try
        action()
    catch error
        error isa PERError && return error
        rethrow()
    end
    return PERError(PER.PER_OK, "nothing was thrown")
end

is_invalid(error, words) = error.status == PER.PER_ERROR_INVALID_ARGUMENT && occursin(words, error.message)

# The message of the PER_ERROR_INVALID_ARGUMENT that action() throws.
function invalid_message(action)
    error = thrown(action)
    return error.status == PER.PER_ERROR_INVALID_ARGUMENT ? error.message : sprint(showerror, error)
end

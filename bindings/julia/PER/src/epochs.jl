"""
    epochs(buffer, count; batch_size)

Each live transition once an epoch, in random order. Throws a [`PERError`](@ref) with status
`PER.PER_ERROR_UNSUPPORTED`: epochs are not in this version.
"""
epochs(buffer::ReplayBuffer, count; options...) = unsupported("epochs")

"""
    loader(buffer, batch_size; slots)

Batches prepared ahead. Throws a [`PERError`](@ref) with status `PER.PER_ERROR_UNSUPPORTED`: loaders are not in this
version.
"""
loader(buffer::ReplayBuffer, batch_size; options...) = unsupported("loaders")

# Options structs are filled by the library's _init functions and then changed field by field: no default is repeated
# here.
initialize(options::Ref{per_tree_options}, size) = per_tree_options_init(options, size)
initialize(options::Ref{per_replay_options}, size) = per_replay_options_init(options, size)
initialize(settings::Ref{per_replay_settings}, size) = per_replay_settings_init(settings, size)
initialize(steps::Ref{per_steps}, size) = per_steps_init(steps, size)
initialize(options::Ref{per_save_options}, size) = per_save_options_init(options, size)
initialize(options::Ref{per_load_options}, size) = per_load_options_init(options, size)
initialize(options::Ref{per_sample_options}, size) = per_sample_options_init(options, size)
initialize(options::Ref{per_hindsight_options}, size) = per_hindsight_options_init(options, size)
initialize(priorities::Ref{per_priorities}, size) = per_priorities_init(priorities, size)
initialize(batch::Ref{per_batch}, size) = per_batch_init(batch, size)
initialize(options::Ref{per_loader_options}, size) = per_loader_options_init(options, size)
initialize(options::Ref{per_channel_options}, size) = per_channel_options_init(options, size)
initialize(options::Ref{per_shared_loader_options}, size) = per_shared_loader_options_init(options, size)

function initial(::Type{T}) where {T}
    filled = Ref{T}()
    check(initialize(filled, sizeof(T)))
    return filled
end

# A struct filled by a function of the library: fill(pointer, struct, its size).
function result_of(fill, ::Type{T}, handle) where {T}
    result = Ref{T}()
    call(pointer -> fill(pointer, result, sizeof(T)), handle)
    return result[]
end

# Statistics as a named tuple.
function figures_of(statistics::T) where {T}
    names = fieldnames(T)[2:end]
    return NamedTuple{names}(map(name -> getfield(statistics, name), names))
end

function set_field!(target::Base.RefValue{T}, name::Symbol, value) where {T}
    hasfield(T, name) || return set_embedded_field!(target, name, value)
    field = Base.fieldindex(T, name)
    type = fieldtype(T, field)
    stored = converted(type, name, value)
    GC.@preserve target begin
        unsafe_store!(Ptr{type}(Base.unsafe_convert(Ptr{T}, target) + fieldoffset(T, field)), stored)
    end
    return nothing
end

# Options are flat here: members of an embedded struct have names like those of the outer one.
is_embedded(::Type{T}) where {T} = isstructtype(T) && fieldcount(T) > 0
names_in(::Type{T}, name) where {T} = is_embedded(fieldtype(T, name)) ? fieldnames(fieldtype(T, name)) : (name,)
flat_names(::Type{T}) where {T} = Tuple(Iterators.flatten(map(name -> names_in(T, name), fieldnames(T))))

function field_of(options::T, name) where {T}
    hasfield(T, name) && return getfield(options, name)
    return getfield(getfield(options, owner_of(T, name)), name)
end

owner_of(::Type{T}, name) where {T} =
    only(owner for owner in fieldnames(T) if owner !== name && name in names_in(T, owner))

function set_embedded_field!(target, name, value)
    owner = owner_of(eltype(target), name)
    inner = Ref(getfield(target[], owner))
    set_field!(inner, name, value)
    set_field!(target, owner, inner[])
end

# Names and numbers of an enum of per.h. The names are those of its constants without their common prefix: (stratified =
# PER_STRATIFIED, ...) for per_scheme.
function choices_of(enum)
    constants = enums[enum]
    words = [split(string(name), '_') for name in keys(constants)]
    own = findfirst(i -> any(parts -> parts[i] != words[1][i], words), 1:minimum(length, words))
    names = (Symbol(lowercase(join(parts[own:end], '_'))) for parts in words)
    return NamedTuple{Tuple(names)}(values(constants))
end

# Options with a choice of names.
const CHOICES = map(
    choices_of,
    (
        scheme = :per_scheme,
        prioritization = :per_prioritization,
        normalize_weights = :per_normalization,
        max_priority = :per_max_priority,
        on_invalid = :per_on_invalid,
        on_gap = :per_on_gap,
        on_nan = :per_on_nan,
        autoreset = :per_autoreset,
        critics = :per_critics,
        age = :per_age,
        strategy = :per_goal_strategy,
        role = :per_role,
        padding = :per_padding,
        compression = :per_compression,
        when_full = :per_when_full,
        moved_by = :per_moved_by,
        when_empty = :per_when_empty,
    ),
)

# Boolean options.
const FLAGS = (:store_next_observation, :overwrite, :keep_times_sampled, :storage_preallocated, :gather_on_device)

# The C value of an option.
function number_of_option(name::Symbol, value)
    name in FLAGS && !(value isa Bool) && invalid("$name is $(repr(value)); allowed: true, false")
    return haskey(CHOICES, name) ? choice(name, value) : value
end

function choice(name::Symbol, value)
    choices = CHOICES[name]
    key = value isa AbstractString ? Symbol(value) : value
    key isa Symbol && haskey(choices, key) && return choices[key]
    return invalid("$name is $(repr(value)); allowed: $(join(repr.(keys(choices)), ", "))")
end

name_of_choice(name::Symbol, number) = findfirst(==(number), CHOICES[name])

# (device, device_index) of :cpu, :cuda or "cuda:1".
function device_numbers(device)
    name = string(device)
    name == "cpu" && return PER_CPU, 0
    name == "cuda" && return PER_CUDA, 0
    parts = match(r"^cuda:([0-9]{1,6})$", name)
    parts === nothing && invalid("device is $(repr(device)); allowed: :cpu, :cuda, \"cuda:0\", \"cuda:1\", ...")
    return PER_CUDA, parse(Int, parts[1])
end

# Sets the given options; `nothing` counts as not given.
function set_options!(options::Base.RefValue{T}, given) where {T}
    for (name, value) in given
        value === nothing && continue
        # C takes NaN for an option that is not given, and an n_step of 0 for the buffer's.
        value isa AbstractFloat && isnan(value) && invalid("$name is NaN; allowed: numbers")
        name === :n_step && hasfield(T, :n_step_min) && value == 0 && invalid("n_step is 0; allowed: 1 and above")
        if name === :device && hasfield(T, :device)
            device, device_index = device_numbers(value)
            set_field!(options, :device, device)
            set_field!(options, :device_index, device_index)
        elseif name === :n_step && value isa AbstractUnitRange && hasfield(T, :n_step_min)
            (isempty(value) || 0 in (first(value), last(value))) && invalid("n_step is $value; allowed: ranges from 1 to the buffer's n_step")
            set_field!(options, :n_step_min, first(value))
            set_field!(options, :n_step, last(value))
        elseif !(name in option_names(T))
            invalid("there is no option $name; there are $(join(option_names(T), ", "))")
        else
            set_field!(options, name, number_of_option(name, value))
        end
    end
    return options
end

# C would end the path at a NUL.
check_path(path, name = "path") = '\0' in path && invalid("$name is $(repr(path)); allowed: paths without a NUL")

# Runs action() while the options name the storage directory, if any.
function with_storage(action, options, storage)
    storage === nothing && return action()
    storage isa AbstractString || invalid("storage is $(repr(storage)); allowed: the path of a directory, or nothing")
    path = String(storage)
    check_path(path, "storage")
    GC.@preserve path begin
        set_field!(options, :storage, pointer(path))
        return action()
    end
end

option_names(::Type{T}) where {T} =
    filter(
        name -> !(name in (:struct_size, :capacity, :fields, :n_fields, :field_size, :device_index, :reserved, :n_step_min,
                           :key, :hindsight, :allocate, :deallocate, :context, :storage)),
        flat_names(T),
    )

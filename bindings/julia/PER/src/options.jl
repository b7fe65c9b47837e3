# Options structs: filled by the library's _init functions, then changed field by field, so that no default is repeated
# here.
initialize(options::Ref{per_tree_options}, size) = per_tree_options_init(options, size)
initialize(options::Ref{per_replay_options}, size) = per_replay_options_init(options, size)
initialize(steps::Ref{per_steps}, size) = per_steps_init(steps, size)
initialize(options::Ref{per_sample_options}, size) = per_sample_options_init(options, size)
initialize(options::Ref{per_hindsight_options}, size) = per_hindsight_options_init(options, size)
initialize(batch::Ref{per_batch}, size) = per_batch_init(batch, size)
initialize(options::Ref{per_loader_options}, size) = per_loader_options_init(options, size)
initialize(statistics::Ref{per_replay_statistics}, size) = per_replay_statistics_init(statistics, size)

function initial(::Type{T}) where {T}
    filled = Ref{T}()
    check(initialize(filled, sizeof(T)))
    return filled
end

function set_field!(target::Base.RefValue{T}, name::Symbol, value) where {T}
    field = Base.fieldindex(T, name)
    type = fieldtype(T, field)
    stored = converted(type, name, value)
    GC.@preserve target begin
        unsafe_store!(Ptr{type}(Base.unsafe_convert(Ptr{T}, target) + fieldoffset(T, field)), stored)
    end
    return nothing
end

const SCHEMES = (
    stratified = PER_STRATIFIED,
    independent = PER_INDEPENDENT,
    systematic = PER_SYSTEMATIC,
    without_replacement = PER_WITHOUT_REPLACEMENT,
)

# Options that name one of several choices.
const CHOICES = (
    scheme = SCHEMES,
    prioritization = (proportional = PER_PROPORTIONAL, rank = PER_RANK, uniform = PER_UNIFORM),
    normalize_weights = (batch_max = PER_BATCH_MAX, buffer_max = PER_BUFFER_MAX, none = PER_NONE),
    max_priority = (ever = PER_MAX_EVER, now = PER_MAX_NOW),
    on_invalid = (error = PER_INVALID_ERROR, skip = PER_INVALID_SKIP),
    on_gap = (cut = PER_GAP_CUT, error = PER_GAP_ERROR),
    on_nan = (allow = PER_NAN_ALLOW, error = PER_NAN_ERROR),
    autoreset = (
        disabled = PER_AUTORESET_DISABLED,
        next_step = PER_AUTORESET_NEXT_STEP,
        same_step = PER_AUTORESET_SAME_STEP,
    ),
    critics = (mean = PER_CRITICS_MEAN, max = PER_CRITICS_MAX),
    strategy = (future = PER_GOAL_FUTURE, final = PER_GOAL_FINAL, episode = PER_GOAL_EPISODE),
    role = (
        plain = PER_ROLE_PLAIN,
        observation = PER_ROLE_OBSERVATION,
        recurrent_state = PER_ROLE_RECURRENT_STATE,
    ),
    padding = (repeat = PER_PADDING_REPEAT, zero = PER_PADDING_ZERO),
)

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

# Sets the options that were given; `nothing` counts as not given.
function set_options!(options::Base.RefValue{T}, given) where {T}
    for (name, value) in given
        value === nothing && continue
        if name === :device && hasfield(T, :device)
            device, device_index = device_numbers(value)
            set_field!(options, :device, device)
            set_field!(options, :device_index, device_index)
        elseif !(name in option_names(T))
            invalid("there is no option $name; there are $(join(option_names(T), ", "))")
        else
            set_field!(options, name, haskey(CHOICES, name) ? choice(name, value) : value)
        end
    end
    return options
end

option_names(::Type{T}) where {T} =
    filter(name -> !(name in (:struct_size, :capacity, :fields, :n_fields, :device_index, :reserved)), fieldnames(T))

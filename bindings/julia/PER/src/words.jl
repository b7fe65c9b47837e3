# Translates terms of the library's messages from C to Julia: constants, and concepts that only C has.
const WORDS = Dict{String,String}(
    "device_index" => "the index of device",
    "n_fields" => "the number of fields",
    "n_critics" => "the number of critics",
    "ndim" => "the number of axes",
    "dtype" => "element type",
    "nan" => "NaN",
    "inf" => "Inf",
    "per_coordinator_agree_on_scale" => "agree_on_scale!",
    "per_coordinator_draw" => "draw!",
    "per_coordinator_submit" => "submit!",
    "per_replay_clear" => "clear!",
    "per_replay_compute_capacity" => "capacity_for",
    "per_replay_cut" => "cut!",
    "per_replay_save" => "save",
)
for enum in keys(enums)
    enum in (:per_status, :per_dtype) && continue
    merge!(WORDS, Dict(string.(keys(enums[enum])) .=> repr.(keys(choices_of(enum)))))
end
for names in (enums.per_dtype, choices_of(:per_dtype)), (name, dtype) in pairs(names)
    WORDS[string(name)] = string(nameof(element_type_of(dtype)))
end

const FLAG_TEXT = Regex("\\b($(join(FLAGS, '|'))) is (on|off)\\b")

# A message of the library with Julia's terms. Quoted text stays unchanged. `arguments`: see check().
function in_julia(message, arguments)
    word(text) = haskey(arguments, Symbol(text)) ? arguments[Symbol(text)] : get(WORDS, text, text)
    spoken = replace(message, r"\"[^\"]*\"|\b[A-Za-z_]\w*" => word)
    spoken = replace(spoken, "with NULL in next_fields" => "with next_observations = false")
    return replace(spoken, FLAG_TEXT => text -> replace(replace(text, r"on$" => "true"), r"off$" => "false"))
end

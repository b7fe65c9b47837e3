# Generated from include/per.h by bindings/generate.py; do not edit.
#
# Names are those of per.h. Each function calls the pointer in the Ref of its name, which bind!() fills.

const PER_ABI_VERSION = Int32(1)

const per_status = Int32
const PER_OK = Int32(0)
const PER_ERROR_INVALID_ARGUMENT = Int32(1)
const PER_ERROR_OUT_OF_MEMORY = Int32(2)
const PER_ERROR_EMPTY = Int32(3)
const PER_ERROR_FULL = Int32(4)
const PER_ERROR_BUSY = Int32(5)
const PER_ERROR_UNSUPPORTED = Int32(6)
const PER_ERROR_NO_DEVICE = Int32(7)
const PER_ERROR_CUDA = Int32(8)
const PER_ERROR_IO = Int32(9)
const PER_ERROR_CORRUPT_FILE = Int32(10)
const PER_ERROR_INTERNAL = Int32(11)
const PER_ERROR_CALLBACK = Int32(12)

const per_device = Int32
const PER_CPU = Int32(0)
const PER_CUDA = Int32(1)

const per_scheme = Int32
const PER_STRATIFIED = Int32(0)
const PER_INDEPENDENT = Int32(1)
const PER_SYSTEMATIC = Int32(2)
const PER_WITHOUT_REPLACEMENT = Int32(3)

const per_dtype = Int32
const PER_BOOL = Int32(0)
const PER_UINT8 = Int32(1)
const PER_INT8 = Int32(2)
const PER_UINT16 = Int32(3)
const PER_INT16 = Int32(4)
const PER_UINT32 = Int32(5)
const PER_INT32 = Int32(6)
const PER_UINT64 = Int32(7)
const PER_INT64 = Int32(8)
const PER_FLOAT16 = Int32(9)
const PER_BFLOAT16 = Int32(10)
const PER_FLOAT32 = Int32(11)
const PER_FLOAT64 = Int32(12)

const per_goal_strategy = Int32
const PER_GOAL_FUTURE = Int32(0)
const PER_GOAL_FINAL = Int32(1)
const PER_GOAL_EPISODE = Int32(2)

const per_prioritization = Int32
const PER_PROPORTIONAL = Int32(0)
const PER_RANK = Int32(1)
const PER_UNIFORM = Int32(2)

const per_normalization = Int32
const PER_BATCH_MAX = Int32(0)
const PER_BUFFER_MAX = Int32(1)
const PER_NONE = Int32(2)

const per_max_priority = Int32
const PER_MAX_EVER = Int32(0)
const PER_MAX_NOW = Int32(1)

const per_age = Int32
const PER_AGE_STEPS = Int32(0)
const PER_AGE_VERSIONS = Int32(1)

const per_on_invalid = Int32
const PER_INVALID_ERROR = Int32(0)
const PER_INVALID_SKIP = Int32(1)

const per_critics = Int32
const PER_CRITICS_MEAN = Int32(0)
const PER_CRITICS_MAX = Int32(1)

const per_on_gap = Int32
const PER_GAP_CUT = Int32(0)
const PER_GAP_ERROR = Int32(1)

const per_on_nan = Int32
const PER_NAN_ALLOW = Int32(0)
const PER_NAN_ERROR = Int32(1)

const per_autoreset = Int32
const PER_AUTORESET_DISABLED = Int32(0)
const PER_AUTORESET_NEXT_STEP = Int32(1)
const PER_AUTORESET_SAME_STEP = Int32(2)

const per_role = Int32
const PER_ROLE_DEFAULT = Int32(0)
const PER_ROLE_PLAIN = Int32(1)
const PER_ROLE_OBSERVATION = Int32(2)
const PER_ROLE_RECURRENT_STATE = Int32(3)

const per_padding = Int32
const PER_PADDING_REPEAT = Int32(0)
const PER_PADDING_ZERO = Int32(1)

const per_compression = Int32
const PER_COMPRESSION_NONE = Int32(0)
const PER_COMPRESSION_DELTA = Int32(1)

const per_memory_use = Int32
const PER_MEMORY_ROWS = Int32(0)
const PER_MEMORY_PRIORITIES = Int32(1)

const PER_DIRECTORY_TIMEOUT_MS = Int32(60000)

const per_when_empty = Int32
const PER_EMPTY_ERROR = Int32(0)
const PER_EMPTY_OTHERS = Int32(1)

const per_when_full = Int32
const PER_FULL_WAITS = Int32(0)
const PER_FULL_DROPS = Int32(1)

const per_moved_by = Int32
const PER_MOVED_BY_THREAD = Int32(0)
const PER_MOVED_BY_CALLS = Int32(1)

const PER_SCALE_AUTOMATIC = Int32(2147483647)

const per_scale_request = Int32
const PER_SCALE_AGREED = Int32(0)
const PER_SCALE_MEASURE = Int32(1)
const PER_SCALE_SET = Int32(2)

const enums = (
    per_status = (
        PER_OK = PER_OK,
        PER_ERROR_INVALID_ARGUMENT = PER_ERROR_INVALID_ARGUMENT,
        PER_ERROR_OUT_OF_MEMORY = PER_ERROR_OUT_OF_MEMORY,
        PER_ERROR_EMPTY = PER_ERROR_EMPTY,
        PER_ERROR_FULL = PER_ERROR_FULL,
        PER_ERROR_BUSY = PER_ERROR_BUSY,
        PER_ERROR_UNSUPPORTED = PER_ERROR_UNSUPPORTED,
        PER_ERROR_NO_DEVICE = PER_ERROR_NO_DEVICE,
        PER_ERROR_CUDA = PER_ERROR_CUDA,
        PER_ERROR_IO = PER_ERROR_IO,
        PER_ERROR_CORRUPT_FILE = PER_ERROR_CORRUPT_FILE,
        PER_ERROR_INTERNAL = PER_ERROR_INTERNAL,
        PER_ERROR_CALLBACK = PER_ERROR_CALLBACK,
    ),
    per_device = (
        PER_CPU = PER_CPU,
        PER_CUDA = PER_CUDA,
    ),
    per_scheme = (
        PER_STRATIFIED = PER_STRATIFIED,
        PER_INDEPENDENT = PER_INDEPENDENT,
        PER_SYSTEMATIC = PER_SYSTEMATIC,
        PER_WITHOUT_REPLACEMENT = PER_WITHOUT_REPLACEMENT,
    ),
    per_dtype = (
        PER_BOOL = PER_BOOL,
        PER_UINT8 = PER_UINT8,
        PER_INT8 = PER_INT8,
        PER_UINT16 = PER_UINT16,
        PER_INT16 = PER_INT16,
        PER_UINT32 = PER_UINT32,
        PER_INT32 = PER_INT32,
        PER_UINT64 = PER_UINT64,
        PER_INT64 = PER_INT64,
        PER_FLOAT16 = PER_FLOAT16,
        PER_BFLOAT16 = PER_BFLOAT16,
        PER_FLOAT32 = PER_FLOAT32,
        PER_FLOAT64 = PER_FLOAT64,
    ),
    per_goal_strategy = (
        PER_GOAL_FUTURE = PER_GOAL_FUTURE,
        PER_GOAL_FINAL = PER_GOAL_FINAL,
        PER_GOAL_EPISODE = PER_GOAL_EPISODE,
    ),
    per_prioritization = (
        PER_PROPORTIONAL = PER_PROPORTIONAL,
        PER_RANK = PER_RANK,
        PER_UNIFORM = PER_UNIFORM,
    ),
    per_normalization = (
        PER_BATCH_MAX = PER_BATCH_MAX,
        PER_BUFFER_MAX = PER_BUFFER_MAX,
        PER_NONE = PER_NONE,
    ),
    per_max_priority = (
        PER_MAX_EVER = PER_MAX_EVER,
        PER_MAX_NOW = PER_MAX_NOW,
    ),
    per_age = (
        PER_AGE_STEPS = PER_AGE_STEPS,
        PER_AGE_VERSIONS = PER_AGE_VERSIONS,
    ),
    per_on_invalid = (
        PER_INVALID_ERROR = PER_INVALID_ERROR,
        PER_INVALID_SKIP = PER_INVALID_SKIP,
    ),
    per_critics = (
        PER_CRITICS_MEAN = PER_CRITICS_MEAN,
        PER_CRITICS_MAX = PER_CRITICS_MAX,
    ),
    per_on_gap = (
        PER_GAP_CUT = PER_GAP_CUT,
        PER_GAP_ERROR = PER_GAP_ERROR,
    ),
    per_on_nan = (
        PER_NAN_ALLOW = PER_NAN_ALLOW,
        PER_NAN_ERROR = PER_NAN_ERROR,
    ),
    per_autoreset = (
        PER_AUTORESET_DISABLED = PER_AUTORESET_DISABLED,
        PER_AUTORESET_NEXT_STEP = PER_AUTORESET_NEXT_STEP,
        PER_AUTORESET_SAME_STEP = PER_AUTORESET_SAME_STEP,
    ),
    per_role = (
        PER_ROLE_DEFAULT = PER_ROLE_DEFAULT,
        PER_ROLE_PLAIN = PER_ROLE_PLAIN,
        PER_ROLE_OBSERVATION = PER_ROLE_OBSERVATION,
        PER_ROLE_RECURRENT_STATE = PER_ROLE_RECURRENT_STATE,
    ),
    per_padding = (
        PER_PADDING_REPEAT = PER_PADDING_REPEAT,
        PER_PADDING_ZERO = PER_PADDING_ZERO,
    ),
    per_compression = (
        PER_COMPRESSION_NONE = PER_COMPRESSION_NONE,
        PER_COMPRESSION_DELTA = PER_COMPRESSION_DELTA,
    ),
    per_memory_use = (
        PER_MEMORY_ROWS = PER_MEMORY_ROWS,
        PER_MEMORY_PRIORITIES = PER_MEMORY_PRIORITIES,
    ),
    per_when_empty = (
        PER_EMPTY_ERROR = PER_EMPTY_ERROR,
        PER_EMPTY_OTHERS = PER_EMPTY_OTHERS,
    ),
    per_when_full = (
        PER_FULL_WAITS = PER_FULL_WAITS,
        PER_FULL_DROPS = PER_FULL_DROPS,
    ),
    per_moved_by = (
        PER_MOVED_BY_THREAD = PER_MOVED_BY_THREAD,
        PER_MOVED_BY_CALLS = PER_MOVED_BY_CALLS,
    ),
    per_scale_request = (
        PER_SCALE_AGREED = PER_SCALE_AGREED,
        PER_SCALE_MEASURE = PER_SCALE_MEASURE,
        PER_SCALE_SET = PER_SCALE_SET,
    ),
)

struct per_array
    data::Ptr{Cvoid}
    shape::Ptr{Int64}
    ndim::Int32
    dtype::Int32
    offsets::Ptr{Int64}
end
const per_array_layout = (size = 32, offsets = (0, 8, 16, 20, 24,))

struct per_tree end

struct per_tree_options
    struct_size::UInt64
    capacity::Int64
    seed::UInt64
    device::Int32
    device_index::Int32
end
const per_tree_options_layout = (size = 32, offsets = (0, 8, 16, 24, 28,))

struct per_tree_description
    struct_size::UInt64
    capacity::Int64
    total_mass::UInt64
    total::Float64
    scale::Int32
    reserved::Int32
end
const per_tree_description_layout = (size = 40, offsets = (0, 8, 16, 24, 32, 36,))

struct per_hindsight_options
    struct_size::UInt64
    achieved_field::Int32
    goal_field::Int32
    strategy::Int32
    reserved::Int32
    fraction::Float64
    reward::Ptr{Cvoid}
    context::Ptr{Cvoid}
end
const per_hindsight_options_layout = (size = 48, offsets = (0, 8, 12, 16, 20, 24, 32, 40,))

struct per_replay end

struct per_field
    name::Ptr{UInt8}
    shape::Ptr{Int64}
    ndim::Int32
    dtype::Int32
    role::Int32
    stack::Int32
    default_value::Ptr{per_array}
    padding::Int32
    compression::Int32
    max_length::Int64
end
const per_field_layout = (size = 56, offsets = (0, 8, 16, 20, 24, 28, 32, 40, 44, 48,))

struct per_ragged
    values::Ptr{Cvoid}
    offsets::Ptr{Int64}
    capacity::Int64
    padded_length::Int64
    total::Int64
end
const per_ragged_layout = (size = 40, offsets = (0, 8, 16, 24, 32,))

struct per_memory
    allocate::Ptr{Cvoid}
    deallocate::Ptr{Cvoid}
    context::Ptr{Cvoid}
    storage::Ptr{UInt8}
    storage_preallocated::Int32
    reserved::Int32
    max_heap_bytes::Int64
end
const per_memory_layout = (size = 48, offsets = (0, 8, 16, 24, 32, 36, 40,))

struct per_freshness
    half_life::Float64
    max_age::Int64
    age::Int32
    reserved::Int32
end
const per_freshness_layout = (size = 24, offsets = (0, 8, 16, 20,))

struct per_rate_limit
    samples_per_insert::Float64
    samples_tolerance::Int64
    min_size_to_sample::Int64
end
const per_rate_limit_layout = (size = 24, offsets = (0, 8, 16,))

struct per_replay_options
    struct_size::UInt64
    capacity::Int64
    fields::Ptr{per_field}
    n_fields::Int64
    field_size::Int32
    overwrite::Int32
    n_envs::Int64
    n_step::Int64
    gamma::Float64
    frame_stack::Int64
    sequence_length::Int64
    burn_in::Int64
    sequence_stride::Int64
    seed::UInt64
    scheme::Int32
    gather_threads::Int32
    alpha::Float64
    epsilon::Float64
    beta::Float64
    beta_final::Float64
    beta_steps::Int64
    uniform_fraction::Float64
    sequence_eta::Float64
    prioritization::Int32
    normalize_weights::Int32
    max_priority::Int32
    critics::Int32
    freshness::per_freshness
    autoreset::Int32
    on_gap::Int32
    on_nan::Int32
    on_invalid::Int32
    device::Int32
    device_index::Int32
    store_next_observation::Int32
    save_compression::Int32
    memory::per_memory
    rate_limit::per_rate_limit
    keep_times_sampled::Int32
    max_times_sampled::Int32
end
const per_replay_options_layout = (size = 320, offsets = (0, 8, 16, 24, 32, 36, 40, 48, 56, 64, 72, 80, 88, 96, 104, 108, 112, 120, 128, 136, 144, 152, 160, 168, 172, 176, 180, 184, 208, 212, 216, 220, 224, 228, 232, 236, 240, 288, 312, 316,))

struct per_steps
    struct_size::UInt64
    length::Int64
    n_envs::Int64
    env_ids::Ptr{Int64}
    fields::Ptr{per_array}
    next_fields::Ptr{per_array}
    reward::per_array
    terminated::per_array
    truncated::per_array
    mask::per_array
    next_mask::per_array
    priorities::per_array
    td_errors::per_array
end
const per_steps_layout = (size = 272, offsets = (0, 8, 16, 24, 32, 40, 48, 80, 112, 144, 176, 208, 240,))

struct per_sample_options
    struct_size::UInt64
    beta::Float64
    uniform_fraction::Float64
    n_step::Int64
    scheme::Int32
    prioritization::Int32
    normalize_weights::Int32
    newest::Int32
    n_step_min::Int64
    key::Ptr{UInt64}
    hindsight::Ptr{per_hindsight_options}
end
const per_sample_options_layout = (size = 72, offsets = (0, 8, 16, 24, 32, 36, 40, 44, 48, 56, 64,))

struct per_batch
    struct_size::UInt64
    fields::Ptr{Ptr{Cvoid}}
    next_fields::Ptr{Ptr{Cvoid}}
    reward::Ptr{Float32}
    discount::Ptr{Float32}
    n_steps::Ptr{Int32}
    terminated::Ptr{UInt8}
    truncated::Ptr{UInt8}
    weights::Ptr{Float32}
    ids::Ptr{Int64}
    priorities::Ptr{Float32}
    probabilities::Ptr{Float32}
    mask::Ptr{UInt8}
    gamma_m::Ptr{Float32}
    times_sampled::Ptr{Int32}
end
const per_batch_layout = (size = 120, offsets = (0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112,))

struct per_priorities
    struct_size::UInt64
    count::Int64
    ids::Ptr{Int64}
    td_errors::Ptr{Float32}
    priorities::Ptr{Float32}
    n_critics::Int64
    n_steps::Int64
end
const per_priorities_layout = (size = 56, offsets = (0, 8, 16, 24, 32, 40, 48,))

struct per_replay_settings
    struct_size::UInt64
    alpha::Float64
    beta::Float64
    gamma::Float64
    n_step::Int64
    save_compression::Int32
    reserved::Int32
    version::Int64
end
const per_replay_settings_layout = (size = 56, offsets = (0, 8, 16, 24, 32, 40, 44, 48,))

struct per_replay_statistics
    struct_size::UInt64
    capacity::Int64
    live::Int64
    added::Int64
    dropped::Int64
    episodes::Int64
    cuts::Int64
    samples::Int64
    beta_step::Int64
    stale_updates::Int64
    rejected_updates::Int64
    total::Float64
    max_priority::Float64
    alpha::Float64
    beta::Float64
    gamma::Float64
    updates::Int64
    last_batch_size::Int64
    last_max_age::Int64
    last_mean_age::Float64
    last_effective_size::Float64
    last_duplicates::Float64
    memory_bytes::Int64
    suspected_resets::Int64
    huge_page_bytes::Int64
    version::Int64
end
const per_replay_statistics_layout = (size = 208, offsets = (0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 136, 144, 152, 160, 168, 176, 184, 192, 200,))

struct per_save_options
    struct_size::UInt64
    timeout_ms::Int64
    compression::Int32
    reserved::Int32
    write::Ptr{Cvoid}
    context::Ptr{Cvoid}
end
const per_save_options_layout = (size = 40, offsets = (0, 8, 16, 20, 24, 32,))

struct per_save end

struct per_load_options
    struct_size::UInt64
    device::Int32
    device_index::Int32
    memory::per_memory
    timeout_ms::Int64
    read::Ptr{Cvoid}
    context::Ptr{Cvoid}
end
const per_load_options_layout = (size = 88, offsets = (0, 8, 12, 16, 64, 72, 80,))

struct per_epochs end

struct per_source
    replay::Ptr{per_replay}
    share::Float64
    carry::Int64
    when_empty::Int32
    reserved::Int32
end
const per_source_layout = (size = 32, offsets = (0, 8, 16, 24, 28,))

struct per_loader end

struct per_loader_options
    struct_size::UInt64
    batch_size::Int64
    slots::Int64
    sample::Ptr{per_sample_options}
    device::Int32
    device_index::Int32
    gather_on_device::Int32
    reserved::Int32
end
const per_loader_options_layout = (size = 48, offsets = (0, 8, 16, 24, 32, 36, 40, 44,))

struct per_channel end

struct per_channel_options
    struct_size::UInt64
    n_envs::Int64
    env_ids::Ptr{Int64}
    slots::Int64
    when_full::Int32
    moved_by::Int32
end
const per_channel_options_layout = (size = 40, offsets = (0, 8, 16, 24, 32, 36,))

struct per_channel_statistics
    struct_size::UInt64
    slots::Int64
    waiting::Int64
    added::Int64
    refused::Int64
    dropped::Int64
    waits::Int64
    gaps::Int64
    writers::Int64
    attached::Int64
end
const per_channel_statistics_layout = (size = 80, offsets = (0, 8, 16, 24, 32, 40, 48, 56, 64, 72,))

struct per_writer end

struct per_shared_loader end

struct per_shared_loader_options
    struct_size::UInt64
    batch_size::Int64
    readers::Int64
    slots::Int64
    sample::Ptr{per_sample_options}
end
const per_shared_loader_options_layout = (size = 40, offsets = (0, 8, 16, 24, 32,))

struct per_shared_loader_statistics
    struct_size::UInt64
    places::Int64
    attached::Int64
    readers::Int64
    handed::Int64
    out::Int64
    returned::Int64
    updates::Int64
    refused::Int64
end
const per_shared_loader_statistics_layout = (size = 72, offsets = (0, 8, 16, 24, 32, 40, 48, 56, 64,))

struct per_reader end

struct per_shard_summary
    struct_size::UInt64
    total_mass::UInt64
    smallest_mass::UInt64
    live::Int64
    changes::Int64
    version::Int64
    reference::Int64
    measured_reference::Int64
    measured_low::UInt64
    measured_high::UInt64
    max_priority::Float32
    largest_leaf::Float32
    scale::Int32
    is_scale_fixed::Int32
    measured_scale::Int32
    scale_needed::Int32
end
const per_shard_summary_layout = (size = 104, offsets = (0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 84, 88, 92, 96, 100,))

struct per_coordinator end

struct per_coordinator_state
    struct_size::UInt64
    samples::Int64
    beta_step::Int64
    total_mass::UInt64
    rescales_below::UInt64
    live::Int64
    shards::Int64
    reference::Int64
    beta::Float64
    max_priority::Float32
    scale::Int32
end
const per_coordinator_state_layout = (size = 80, offsets = (0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 76,))

const per_abi_version_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_abi_version() =
    @gc_safe ccall(per_abi_version_pointer[], Int32, ())

const per_version_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_version() =
    @gc_safe ccall(per_version_pointer[], Cstring, ())

const per_status_name_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_status_name(status) =
    @gc_safe ccall(per_status_name_pointer[], Cstring, (Int32,), status)

const per_last_error_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_last_error() =
    @gc_safe ccall(per_last_error_pointer[], Cstring, ())

const per_tree_options_init_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_tree_options_init(options, struct_size) =
    @gc_safe ccall(per_tree_options_init_pointer[], per_status, (Ptr{per_tree_options}, UInt64), options, struct_size)

const per_tree_create_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_tree_create(options, tree_out) =
    @gc_safe ccall(per_tree_create_pointer[], per_status, (Ptr{per_tree_options}, Ptr{Ptr{per_tree}}), options, tree_out)

const per_tree_free_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_tree_free(tree) =
    @gc_safe ccall(per_tree_free_pointer[], Cvoid, (Ptr{per_tree},), tree)

const per_update_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_update(tree, count, indices, priorities, stream) =
    @gc_safe ccall(per_update_pointer[], per_status, (Ptr{per_tree}, Int64, Ptr{Int64}, Ptr{Float32}, Ptr{Cvoid}), tree, count, indices, priorities, stream)

const per_sample_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_sample(tree, batch_size, scheme, beta, indices_out, priorities_out, weights_out, stream) =
    @gc_safe ccall(per_sample_pointer[], per_status, (Ptr{per_tree}, Int64, Int32, Float32, Ptr{Int64}, Ptr{Float32}, Ptr{Float32}, Ptr{Cvoid}), tree, batch_size, scheme, beta, indices_out, priorities_out, weights_out, stream)

const per_tree_find_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_tree_find(tree, count, prefix_sums, indices_out, stream) =
    @gc_safe ccall(per_tree_find_pointer[], per_status, (Ptr{per_tree}, Int64, Ptr{Float64}, Ptr{Int64}, Ptr{Cvoid}), tree, count, prefix_sums, indices_out, stream)

const per_tree_find_mass_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_tree_find_mass(tree, count, units, indices_out, stream) =
    @gc_safe ccall(per_tree_find_mass_pointer[], per_status, (Ptr{per_tree}, Int64, Ptr{UInt64}, Ptr{Int64}, Ptr{Cvoid}), tree, count, units, indices_out, stream)

const per_tree_get_priorities_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_tree_get_priorities(tree, count, indices, priorities_out, stream) =
    @gc_safe ccall(per_tree_get_priorities_pointer[], per_status, (Ptr{per_tree}, Int64, Ptr{Int64}, Ptr{Float32}, Ptr{Cvoid}), tree, count, indices, priorities_out, stream)

const per_tree_describe_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_tree_describe(tree, description_out, struct_size) =
    @gc_safe ccall(per_tree_describe_pointer[], per_status, (Ptr{per_tree}, Ptr{per_tree_description}, UInt64), tree, description_out, struct_size)

const per_tree_reset_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_tree_reset(tree, stream) =
    @gc_safe ccall(per_tree_reset_pointer[], per_status, (Ptr{per_tree}, Ptr{Cvoid}), tree, stream)

const per_tree_synchronize_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_tree_synchronize(tree, stream) =
    @gc_safe ccall(per_tree_synchronize_pointer[], per_status, (Ptr{per_tree}, Ptr{Cvoid}), tree, stream)

const per_hindsight_options_init_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_hindsight_options_init(options, struct_size) =
    @gc_safe ccall(per_hindsight_options_init_pointer[], per_status, (Ptr{per_hindsight_options}, UInt64), options, struct_size)

const per_field_check_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_field_check(field, field_size) =
    @gc_safe ccall(per_field_check_pointer[], per_status, (Ptr{per_field}, Int64), field, field_size)

const per_replay_options_init_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_options_init(options, struct_size) =
    @gc_safe ccall(per_replay_options_init_pointer[], per_status, (Ptr{per_replay_options}, UInt64), options, struct_size)

const per_replay_create_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_create(options, replay_out) =
    @gc_safe ccall(per_replay_create_pointer[], per_status, (Ptr{per_replay_options}, Ptr{Ptr{per_replay}}), options, replay_out)

const per_replay_compute_capacity_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_compute_capacity(options, transitions, episode_length, capacity_out) =
    @gc_safe ccall(per_replay_compute_capacity_pointer[], per_status, (Ptr{per_replay_options}, Int64, Int64, Ptr{Int64}), options, transitions, episode_length, capacity_out)

const per_replay_free_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_free(replay) =
    @gc_safe ccall(per_replay_free_pointer[], Cvoid, (Ptr{per_replay},), replay)

const per_replay_describe_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_describe(replay, options_out) =
    @gc_safe ccall(per_replay_describe_pointer[], per_status, (Ptr{per_replay}, Ptr{per_replay_options}), replay, options_out)

const per_steps_init_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_steps_init(steps, struct_size) =
    @gc_safe ccall(per_steps_init_pointer[], per_status, (Ptr{per_steps}, UInt64), steps, struct_size)

const per_replay_add_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_add(replay, steps, ids_out, stream) =
    @gc_safe ccall(per_replay_add_pointer[], per_status, (Ptr{per_replay}, Ptr{per_steps}, Ptr{Int64}, Ptr{Cvoid}), replay, steps, ids_out, stream)

const per_replay_cut_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_cut(replay, count, env_ids, stream) =
    @gc_safe ccall(per_replay_cut_pointer[], per_status, (Ptr{per_replay}, Int64, Ptr{Int64}, Ptr{Cvoid}), replay, count, env_ids, stream)

const per_sample_options_init_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_sample_options_init(options, struct_size) =
    @gc_safe ccall(per_sample_options_init_pointer[], per_status, (Ptr{per_sample_options}, UInt64), options, struct_size)

const per_batch_init_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_batch_init(batch, struct_size) =
    @gc_safe ccall(per_batch_init_pointer[], per_status, (Ptr{per_batch}, UInt64), batch, struct_size)

const per_replay_sample_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_sample(replay, options, batch_size, batch, stream) =
    @gc_safe ccall(per_replay_sample_pointer[], per_status, (Ptr{per_replay}, Ptr{per_sample_options}, Int64, Ptr{per_batch}, Ptr{Cvoid}), replay, options, batch_size, batch, stream)

const per_priorities_init_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_priorities_init(priorities, struct_size) =
    @gc_safe ccall(per_priorities_init_pointer[], per_status, (Ptr{per_priorities}, UInt64), priorities, struct_size)

const per_replay_update_priorities_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_update_priorities(replay, priorities, stream) =
    @gc_safe ccall(per_replay_update_priorities_pointer[], per_status, (Ptr{per_replay}, Ptr{per_priorities}, Ptr{Cvoid}), replay, priorities, stream)

const per_replay_get_priorities_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_get_priorities(replay, count, ids, priorities_out, stream) =
    @gc_safe ccall(per_replay_get_priorities_pointer[], per_status, (Ptr{per_replay}, Int64, Ptr{Int64}, Ptr{Float32}, Ptr{Cvoid}), replay, count, ids, priorities_out, stream)

const per_replay_get_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_get(replay, count, ids, batch, stream) =
    @gc_safe ccall(per_replay_get_pointer[], per_status, (Ptr{per_replay}, Int64, Ptr{Int64}, Ptr{per_batch}, Ptr{Cvoid}), replay, count, ids, batch, stream)

const per_replay_get_windows_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_get_windows(replay, options, on_invalid, count, ids, batch, stream) =
    @gc_safe ccall(per_replay_get_windows_pointer[], per_status, (Ptr{per_replay}, Ptr{per_sample_options}, Int32, Int64, Ptr{Int64}, Ptr{per_batch}, Ptr{Cvoid}), replay, options, on_invalid, count, ids, batch, stream)

const per_replay_set_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_set(replay, count, ids, fields, stream) =
    @gc_safe ccall(per_replay_set_pointer[], per_status, (Ptr{per_replay}, Int64, Ptr{Int64}, Ptr{per_array}, Ptr{Cvoid}), replay, count, ids, fields, stream)

const per_replay_clear_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_clear(replay, stream) =
    @gc_safe ccall(per_replay_clear_pointer[], per_status, (Ptr{per_replay}, Ptr{Cvoid}), replay, stream)

const per_replay_settings_init_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_settings_init(settings, struct_size) =
    @gc_safe ccall(per_replay_settings_init_pointer[], per_status, (Ptr{per_replay_settings}, UInt64), settings, struct_size)

const per_replay_change_settings_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_change_settings(replay, settings, stream) =
    @gc_safe ccall(per_replay_change_settings_pointer[], per_status, (Ptr{per_replay}, Ptr{per_replay_settings}, Ptr{Cvoid}), replay, settings, stream)

const per_replay_wait_to_add_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_wait_to_add(replay, count, timeout_ms) =
    @gc_safe ccall(per_replay_wait_to_add_pointer[], per_status, (Ptr{per_replay}, Int64, Int64), replay, count, timeout_ms)

const per_replay_wait_to_sample_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_wait_to_sample(replay, batch_size, timeout_ms) =
    @gc_safe ccall(per_replay_wait_to_sample_pointer[], per_status, (Ptr{per_replay}, Int64, Int64), replay, batch_size, timeout_ms)

const per_replay_stop_limiting_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_stop_limiting(replay) =
    @gc_safe ccall(per_replay_stop_limiting_pointer[], per_status, (Ptr{per_replay},), replay)

const per_replay_get_live_ids_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_get_live_ids(replay, capacity, ids_out, count_out) =
    @gc_safe ccall(per_replay_get_live_ids_pointer[], per_status, (Ptr{per_replay}, Int64, Ptr{Int64}, Ptr{Int64}), replay, capacity, ids_out, count_out)

const per_replay_get_statistics_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_get_statistics(replay, statistics_out, struct_size) =
    @gc_safe ccall(per_replay_get_statistics_pointer[], per_status, (Ptr{per_replay}, Ptr{per_replay_statistics}, UInt64), replay, statistics_out, struct_size)

const per_replay_synchronize_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_synchronize(replay, stream) =
    @gc_safe ccall(per_replay_synchronize_pointer[], per_status, (Ptr{per_replay}, Ptr{Cvoid}), replay, stream)

const per_save_options_init_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_save_options_init(options, struct_size) =
    @gc_safe ccall(per_save_options_init_pointer[], per_status, (Ptr{per_save_options}, UInt64), options, struct_size)

const per_replay_save_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_save(replay, path, options) =
    @gc_safe ccall(per_replay_save_pointer[], per_status, (Ptr{per_replay}, Cstring, Ptr{per_save_options}), replay, path, options)

const per_replay_checkpoint_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_checkpoint(replay, directory, options, bytes_written_out) =
    @gc_safe ccall(per_replay_checkpoint_pointer[], per_status, (Ptr{per_replay}, Cstring, Ptr{per_save_options}, Ptr{Int64}), replay, directory, options, bytes_written_out)

const per_replay_save_start_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_save_start(replay, path, options, save_out) =
    @gc_safe ccall(per_replay_save_start_pointer[], per_status, (Ptr{per_replay}, Cstring, Ptr{per_save_options}, Ptr{Ptr{per_save}}), replay, path, options, save_out)

const per_save_wait_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_save_wait(save, timeout_ms, written_out, total_out) =
    @gc_safe ccall(per_save_wait_pointer[], per_status, (Ptr{per_save}, Int64, Ptr{Int64}, Ptr{Int64}), save, timeout_ms, written_out, total_out)

const per_save_free_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_save_free(save) =
    @gc_safe ccall(per_save_free_pointer[], Cvoid, (Ptr{per_save},), save)

const per_load_options_init_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_load_options_init(options, struct_size) =
    @gc_safe ccall(per_load_options_init_pointer[], per_status, (Ptr{per_load_options}, UInt64), options, struct_size)

const per_replay_load_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_load(path, options, replay_out) =
    @gc_safe ccall(per_replay_load_pointer[], per_status, (Cstring, Ptr{per_load_options}, Ptr{Ptr{per_replay}}), path, options, replay_out)

const per_epochs_create_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_epochs_create(replay, n_epochs, batch_size, drop_last, stream, epochs_out) =
    @gc_safe ccall(per_epochs_create_pointer[], per_status, (Ptr{per_replay}, Int64, Int64, Int32, Ptr{Cvoid}, Ptr{Ptr{per_epochs}}), replay, n_epochs, batch_size, drop_last, stream, epochs_out)

const per_epochs_next_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_epochs_next(epochs, batch, count_out, stream) =
    @gc_safe ccall(per_epochs_next_pointer[], per_status, (Ptr{per_epochs}, Ptr{per_batch}, Ptr{Int64}, Ptr{Cvoid}), epochs, batch, count_out, stream)

const per_epochs_free_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_epochs_free(epochs) =
    @gc_safe ccall(per_epochs_free_pointer[], Cvoid, (Ptr{per_epochs},), epochs)

const per_replay_get_bootstraps_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_get_bootstraps(replay, capacity, batch, count_out, stream) =
    @gc_safe ccall(per_replay_get_bootstraps_pointer[], per_status, (Ptr{per_replay}, Int64, Ptr{per_batch}, Ptr{Int64}, Ptr{Cvoid}), replay, capacity, batch, count_out, stream)

const per_replay_compute_advantages_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_compute_advantages(replay, value_field, advantage_field, return_field, lambda, count, ids, bootstrap_values, stream) =
    @gc_safe ccall(per_replay_compute_advantages_pointer[], per_status, (Ptr{per_replay}, Int32, Int32, Int32, Float64, Int64, Ptr{Int64}, Ptr{Float32}, Ptr{Cvoid}), replay, value_field, advantage_field, return_field, lambda, count, ids, bootstrap_values, stream)

const per_mixture_sample_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_mixture_sample(sources, n_sources, options, batch_size, batch, sources_out, stream) =
    @gc_safe ccall(per_mixture_sample_pointer[], per_status, (Ptr{per_source}, Int64, Ptr{per_sample_options}, Int64, Ptr{per_batch}, Ptr{Int32}, Ptr{Cvoid}), sources, n_sources, options, batch_size, batch, sources_out, stream)

const per_mixture_update_priorities_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_mixture_update_priorities(sources, n_sources, priorities, source_of, stream) =
    @gc_safe ccall(per_mixture_update_priorities_pointer[], per_status, (Ptr{per_source}, Int64, Ptr{per_priorities}, Ptr{Int32}, Ptr{Cvoid}), sources, n_sources, priorities, source_of, stream)

const per_loader_options_init_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_loader_options_init(options, struct_size) =
    @gc_safe ccall(per_loader_options_init_pointer[], per_status, (Ptr{per_loader_options}, UInt64), options, struct_size)

const per_loader_create_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_loader_create(replay, options, loader_out) =
    @gc_safe ccall(per_loader_create_pointer[], per_status, (Ptr{per_replay}, Ptr{per_loader_options}, Ptr{Ptr{per_loader}}), replay, options, loader_out)

const per_loader_next_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_loader_next(loader, timeout_ms, batch_out, slot_out, stream) =
    @gc_safe ccall(per_loader_next_pointer[], per_status, (Ptr{per_loader}, Int64, Ptr{per_batch}, Ptr{Int64}, Ptr{Cvoid}), loader, timeout_ms, batch_out, slot_out, stream)

const per_loader_release_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_loader_release(loader, slot, stream) =
    @gc_safe ccall(per_loader_release_pointer[], per_status, (Ptr{per_loader}, Int64, Ptr{Cvoid}), loader, slot, stream)

const per_loader_stop_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_loader_stop(loader) =
    @gc_safe ccall(per_loader_stop_pointer[], per_status, (Ptr{per_loader},), loader)

const per_loader_free_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_loader_free(loader) =
    @gc_safe ccall(per_loader_free_pointer[], Cvoid, (Ptr{per_loader},), loader)

const per_channel_options_init_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_channel_options_init(options, struct_size) =
    @gc_safe ccall(per_channel_options_init_pointer[], per_status, (Ptr{per_channel_options}, UInt64), options, struct_size)

const per_channel_create_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_channel_create(replay, options, channel_out) =
    @gc_safe ccall(per_channel_create_pointer[], per_status, (Ptr{per_replay}, Ptr{per_channel_options}, Ptr{Ptr{per_channel}}), replay, options, channel_out)

const per_channel_get_address_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_channel_get_address(channel, path_out, descriptor_out) =
    @gc_safe ccall(per_channel_get_address_pointer[], per_status, (Ptr{per_channel}, Ptr{Ptr{UInt8}}, Ptr{Int32}), channel, path_out, descriptor_out)

const per_channel_flush_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_channel_flush(channel, timeout_ms) =
    @gc_safe ccall(per_channel_flush_pointer[], per_status, (Ptr{per_channel}, Int64), channel, timeout_ms)

const per_channel_move_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_channel_move(channel, max_steps, steps_out) =
    @gc_safe ccall(per_channel_move_pointer[], per_status, (Ptr{per_channel}, Int64, Ptr{Int64}), channel, max_steps, steps_out)

const per_channel_get_statistics_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_channel_get_statistics(channel, statistics_out, struct_size) =
    @gc_safe ccall(per_channel_get_statistics_pointer[], per_status, (Ptr{per_channel}, Ptr{per_channel_statistics}, UInt64), channel, statistics_out, struct_size)

const per_channel_free_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_channel_free(channel) =
    @gc_safe ccall(per_channel_free_pointer[], Cvoid, (Ptr{per_channel},), channel)

const per_writer_attach_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_writer_attach(path, descriptor, fields, n_fields, field_size, writer_out) =
    @gc_safe ccall(per_writer_attach_pointer[], per_status, (Cstring, Int32, Ptr{per_field}, Int64, Int64, Ptr{Ptr{per_writer}}), path, descriptor, fields, n_fields, field_size, writer_out)

const per_writer_describe_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_writer_describe(writer, options_out) =
    @gc_safe ccall(per_writer_describe_pointer[], per_status, (Ptr{per_writer}, Ptr{per_replay_options}), writer, options_out)

const per_writer_add_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_writer_add(writer, steps, timeout_ms) =
    @gc_safe ccall(per_writer_add_pointer[], per_status, (Ptr{per_writer}, Ptr{per_steps}, Int64), writer, steps, timeout_ms)

const per_writer_cut_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_writer_cut(writer, count, env_ids, timeout_ms) =
    @gc_safe ccall(per_writer_cut_pointer[], per_status, (Ptr{per_writer}, Int64, Ptr{Int64}, Int64), writer, count, env_ids, timeout_ms)

const per_writer_flush_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_writer_flush(writer, timeout_ms) =
    @gc_safe ccall(per_writer_flush_pointer[], per_status, (Ptr{per_writer}, Int64), writer, timeout_ms)

const per_writer_free_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_writer_free(writer) =
    @gc_safe ccall(per_writer_free_pointer[], Cvoid, (Ptr{per_writer},), writer)

const per_shared_loader_options_init_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_shared_loader_options_init(options, struct_size) =
    @gc_safe ccall(per_shared_loader_options_init_pointer[], per_status, (Ptr{per_shared_loader_options}, UInt64), options, struct_size)

const per_shared_loader_create_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_shared_loader_create(replay, options, loader_out) =
    @gc_safe ccall(per_shared_loader_create_pointer[], per_status, (Ptr{per_replay}, Ptr{per_shared_loader_options}, Ptr{Ptr{per_shared_loader}}), replay, options, loader_out)

const per_shared_loader_get_address_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_shared_loader_get_address(loader, path_out, descriptor_out) =
    @gc_safe ccall(per_shared_loader_get_address_pointer[], per_status, (Ptr{per_shared_loader}, Ptr{Ptr{UInt8}}, Ptr{Int32}), loader, path_out, descriptor_out)

const per_shared_loader_get_statistics_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_shared_loader_get_statistics(loader, statistics_out, struct_size) =
    @gc_safe ccall(per_shared_loader_get_statistics_pointer[], per_status, (Ptr{per_shared_loader}, Ptr{per_shared_loader_statistics}, UInt64), loader, statistics_out, struct_size)

const per_shared_loader_free_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_shared_loader_free(loader) =
    @gc_safe ccall(per_shared_loader_free_pointer[], Cvoid, (Ptr{per_shared_loader},), loader)

const per_reader_attach_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_reader_attach(path, descriptor, reader_out) =
    @gc_safe ccall(per_reader_attach_pointer[], per_status, (Cstring, Int32, Ptr{Ptr{per_reader}}), path, descriptor, reader_out)

const per_reader_describe_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_reader_describe(reader, options_out, batch_size_out) =
    @gc_safe ccall(per_reader_describe_pointer[], per_status, (Ptr{per_reader}, Ptr{per_replay_options}, Ptr{Int64}), reader, options_out, batch_size_out)

const per_reader_next_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_reader_next(reader, timeout_ms, batch_out, slot_out) =
    @gc_safe ccall(per_reader_next_pointer[], per_status, (Ptr{per_reader}, Int64, Ptr{per_batch}, Ptr{Int64}), reader, timeout_ms, batch_out, slot_out)

const per_reader_release_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_reader_release(reader, slot) =
    @gc_safe ccall(per_reader_release_pointer[], per_status, (Ptr{per_reader}, Int64), reader, slot)

const per_reader_update_priorities_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_reader_update_priorities(reader, priorities, timeout_ms) =
    @gc_safe ccall(per_reader_update_priorities_pointer[], per_status, (Ptr{per_reader}, Ptr{per_priorities}, Int64), reader, priorities, timeout_ms)

const per_reader_flush_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_reader_flush(reader, timeout_ms) =
    @gc_safe ccall(per_reader_flush_pointer[], per_status, (Ptr{per_reader}, Int64), reader, timeout_ms)

const per_reader_stop_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_reader_stop(reader) =
    @gc_safe ccall(per_reader_stop_pointer[], per_status, (Ptr{per_reader},), reader)

const per_reader_free_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_reader_free(reader) =
    @gc_safe ccall(per_reader_free_pointer[], Cvoid, (Ptr{per_reader},), reader)

const per_replay_summarize_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_summarize(replay, measured_scale, measured_reference, summary_out, struct_size) =
    @gc_safe ccall(per_replay_summarize_pointer[], per_status, (Ptr{per_replay}, Int32, Int64, Ptr{per_shard_summary}, UInt64), replay, measured_scale, measured_reference, summary_out, struct_size)

const per_replay_set_scale_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_set_scale(replay, scale, reference) =
    @gc_safe ccall(per_replay_set_scale_pointer[], per_status, (Ptr{per_replay}, Int32, Int64), replay, scale, reference)

const per_replay_raise_max_priority_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_raise_max_priority(replay, priority, stream) =
    @gc_safe ccall(per_replay_raise_max_priority_pointer[], per_status, (Ptr{per_replay}, Float32, Ptr{Cvoid}), replay, priority, stream)

const per_replay_get_units_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_replay_get_units(replay, options, count, units, batch, masses_out, first_units_out, stream) =
    @gc_safe ccall(per_replay_get_units_pointer[], per_status, (Ptr{per_replay}, Ptr{per_sample_options}, Int64, Ptr{Int64}, Ptr{per_batch}, Ptr{UInt64}, Ptr{UInt64}, Ptr{Cvoid}), replay, options, count, units, batch, masses_out, first_units_out, stream)

const per_coordinator_create_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_coordinator_create(options, n_shards, state, coordinator_out) =
    @gc_safe ccall(per_coordinator_create_pointer[], per_status, (Ptr{per_replay_options}, Int64, Ptr{per_coordinator_state}, Ptr{Ptr{per_coordinator}}), options, n_shards, state, coordinator_out)

const per_coordinator_free_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_coordinator_free(coordinator) =
    @gc_safe ccall(per_coordinator_free_pointer[], Cvoid, (Ptr{per_coordinator},), coordinator)

const per_coordinator_describe_shard_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_coordinator_describe_shard(coordinator, shard, capacity_out, n_envs_out, first_env_out) =
    @gc_safe ccall(per_coordinator_describe_shard_pointer[], per_status, (Ptr{per_coordinator}, Int64, Ptr{Int64}, Ptr{Int64}, Ptr{Int64}), coordinator, shard, capacity_out, n_envs_out, first_env_out)

const per_coordinator_report_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_coordinator_report(coordinator, shard, summary) =
    @gc_safe ccall(per_coordinator_report_pointer[], per_status, (Ptr{per_coordinator}, Int64, Ptr{per_shard_summary}), coordinator, shard, summary)

const per_coordinator_agree_on_scale_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_coordinator_agree_on_scale(coordinator, chooses_anew, todo_out, scale_out, reference_out) =
    @gc_safe ccall(per_coordinator_agree_on_scale_pointer[], per_status, (Ptr{per_coordinator}, Int32, Ptr{Int32}, Ptr{Int32}, Ptr{Int64}), coordinator, chooses_anew, todo_out, scale_out, reference_out)

const per_coordinator_draw_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_coordinator_draw(coordinator, options, batch_size, count_out) =
    @gc_safe ccall(per_coordinator_draw_pointer[], per_status, (Ptr{per_coordinator}, Ptr{per_sample_options}, Int64, Ptr{Int64}), coordinator, options, batch_size, count_out)

const per_coordinator_get_units_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_coordinator_get_units(coordinator, count, shards_out, units_out) =
    @gc_safe ccall(per_coordinator_get_units_pointer[], per_status, (Ptr{per_coordinator}, Int64, Ptr{Int64}, Ptr{Int64}), coordinator, count, shards_out, units_out)

const per_coordinator_submit_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_coordinator_submit(coordinator, count, ids, masses, first_units, count_out) =
    @gc_safe ccall(per_coordinator_submit_pointer[], per_status, (Ptr{per_coordinator}, Int64, Ptr{Int64}, Ptr{UInt64}, Ptr{UInt64}, Ptr{Int64}), coordinator, count, ids, masses, first_units, count_out)

const per_coordinator_finish_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_coordinator_finish(coordinator, batch_size, ids_out, weights_out, probabilities_out) =
    @gc_safe ccall(per_coordinator_finish_pointer[], per_status, (Ptr{per_coordinator}, Int64, Ptr{Int64}, Ptr{Float32}, Ptr{Float32}), coordinator, batch_size, ids_out, weights_out, probabilities_out)

const per_coordinator_locate_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_coordinator_locate(coordinator, count, ids, shards_out, shard_ids_out) =
    @gc_safe ccall(per_coordinator_locate_pointer[], per_status, (Ptr{per_coordinator}, Int64, Ptr{Int64}, Ptr{Int64}, Ptr{Int64}), coordinator, count, ids, shards_out, shard_ids_out)

const per_coordinator_get_ids_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_coordinator_get_ids(coordinator, shard, count, shard_ids, ids_out) =
    @gc_safe ccall(per_coordinator_get_ids_pointer[], per_status, (Ptr{per_coordinator}, Int64, Int64, Ptr{Int64}, Ptr{Int64}), coordinator, shard, count, shard_ids, ids_out)

const per_coordinator_get_state_pointer = Ref{Ptr{Cvoid}}(C_NULL)
per_coordinator_get_state(coordinator, state_out, struct_size) =
    @gc_safe ccall(per_coordinator_get_state_pointer[], per_status, (Ptr{per_coordinator}, Ptr{per_coordinator_state}, UInt64), coordinator, state_out, struct_size)

# What per.h says of the fields of per_replay_statistics.
const per_replay_statistics_docs = raw"""
- `capacity`: total rows: n_envs * rows of a lane
- `live`: transitions, or sequences, that can be drawn now
- `added`: transitions added
- `dropped`: steps not added because the environment was resetting (autoreset)
- `episodes`: episodes that ended, cuts included
- `cuts`: episodes that ended by a cut
- `samples`: batches drawn, including a loader's prefetched ones; each epoch counts as one, and so does each call of
  get_windows() with a range for n_step or hindsight
- `beta_step`: batches that advanced beta; a loader's count once they are handed out
- `stale_updates`: entries of updates, including those of fields, that came too late
- `rejected_updates`: invalid entries of calls that write, which were skipped
- `total`: sum of p^alpha over the live transitions; with a half-life, each times its factor
- `max_priority`: priority that the next transition gets
- `alpha`: exponent of the priorities
- `beta`: exponent of the weights of the next batch
- `gamma`: discount of a step
- `updates`: entries of updates that set a priority
- `last_batch_size`: transitions of the last batch drawn. Without one, all values of the last batch are 0
- `last_max_age`: largest age in the last batch: rows added to the lane between a transition and the draw, one for each
  step and one for each final observation; (newest id of the lane - id) / n_envs
- `last_mean_age`: mean age in the last batch
- `last_effective_size`: (sum of w)^2 / sum of w^2 of the last batch: the number of equally weighted transitions with
  the same information
- `last_duplicates`: share of the last batch that repeats another of its transitions, 0 .. 1
- `memory_bytes`: bytes allocated for rows and priorities
- `suspected_resets`: ends after which an environment seems to have reset in a way other than autoreset declares
- `huge_page_bytes`: part of memory_bytes on huge pages, judged by the first page of each array; 0 on CUDA. If it is
  much less than memory_bytes in a buffer of many MB, draws are slower, because the kernel does not grant huge pages on
  request (madvise)
- `version`: version of steps that are added now; 0 at creation, and always if age counts steps
"""

# What per.h says of the fields of per_channel_statistics.
const per_channel_statistics_docs = raw"""
- `slots`: slots of the ring
- `waiting`: steps and cuts in the ring
- `added`: steps moved into the buffer
- `refused`: steps that the buffer refused; they were dropped
- `dropped`: steps dropped because the ring was full; this, waits and writers are as reported by the writers
- `waits`: number of times that a writer began to wait for room
- `gaps`: number of times that episodes were cut: by the writer, or as described at per_channel
- `writers`: writers that attached so far
- `attached`: process id, as the process itself sees it, of the attached writer; 0: none
"""

# What per.h says of the fields of per_shared_loader_statistics.
const per_shared_loader_statistics_docs = raw"""
- `places`: maximum number of attached readers
- `attached`: readers attached now
- `readers`: readers attached so far, as reported by them
- `handed`: batches handed out
- `out`: batches held by readers
- `returned`: batches held by readers when they ended
- `updates`: readers' calls whose priorities were applied to the buffer
- `refused`: readers' calls that the buffer refused, for example because an id was never issued or memory ran out
"""

"""
    bind!(library)

Look up every function in a library opened with `Libdl.dlopen`. Throws if it lacks one; then none is changed.
"""
function bind!(library)
    pointers = map(name -> Libdl.dlsym(library, name), function_names)
    foreach((target, pointer) -> target[] = pointer, function_pointers, pointers)
    return nothing
end

const function_names = [
    :per_abi_version,
    :per_version,
    :per_status_name,
    :per_last_error,
    :per_tree_options_init,
    :per_tree_create,
    :per_tree_free,
    :per_update,
    :per_sample,
    :per_tree_find,
    :per_tree_find_mass,
    :per_tree_get_priorities,
    :per_tree_describe,
    :per_tree_reset,
    :per_tree_synchronize,
    :per_hindsight_options_init,
    :per_field_check,
    :per_replay_options_init,
    :per_replay_create,
    :per_replay_compute_capacity,
    :per_replay_free,
    :per_replay_describe,
    :per_steps_init,
    :per_replay_add,
    :per_replay_cut,
    :per_sample_options_init,
    :per_batch_init,
    :per_replay_sample,
    :per_priorities_init,
    :per_replay_update_priorities,
    :per_replay_get_priorities,
    :per_replay_get,
    :per_replay_get_windows,
    :per_replay_set,
    :per_replay_clear,
    :per_replay_settings_init,
    :per_replay_change_settings,
    :per_replay_wait_to_add,
    :per_replay_wait_to_sample,
    :per_replay_stop_limiting,
    :per_replay_get_live_ids,
    :per_replay_get_statistics,
    :per_replay_synchronize,
    :per_save_options_init,
    :per_replay_save,
    :per_replay_checkpoint,
    :per_replay_save_start,
    :per_save_wait,
    :per_save_free,
    :per_load_options_init,
    :per_replay_load,
    :per_epochs_create,
    :per_epochs_next,
    :per_epochs_free,
    :per_replay_get_bootstraps,
    :per_replay_compute_advantages,
    :per_mixture_sample,
    :per_mixture_update_priorities,
    :per_loader_options_init,
    :per_loader_create,
    :per_loader_next,
    :per_loader_release,
    :per_loader_stop,
    :per_loader_free,
    :per_channel_options_init,
    :per_channel_create,
    :per_channel_get_address,
    :per_channel_flush,
    :per_channel_move,
    :per_channel_get_statistics,
    :per_channel_free,
    :per_writer_attach,
    :per_writer_describe,
    :per_writer_add,
    :per_writer_cut,
    :per_writer_flush,
    :per_writer_free,
    :per_shared_loader_options_init,
    :per_shared_loader_create,
    :per_shared_loader_get_address,
    :per_shared_loader_get_statistics,
    :per_shared_loader_free,
    :per_reader_attach,
    :per_reader_describe,
    :per_reader_next,
    :per_reader_release,
    :per_reader_update_priorities,
    :per_reader_flush,
    :per_reader_stop,
    :per_reader_free,
    :per_replay_summarize,
    :per_replay_set_scale,
    :per_replay_raise_max_priority,
    :per_replay_get_units,
    :per_coordinator_create,
    :per_coordinator_free,
    :per_coordinator_describe_shard,
    :per_coordinator_report,
    :per_coordinator_agree_on_scale,
    :per_coordinator_draw,
    :per_coordinator_get_units,
    :per_coordinator_submit,
    :per_coordinator_finish,
    :per_coordinator_locate,
    :per_coordinator_get_ids,
    :per_coordinator_get_state,
]
const function_pointers = [
    per_abi_version_pointer,
    per_version_pointer,
    per_status_name_pointer,
    per_last_error_pointer,
    per_tree_options_init_pointer,
    per_tree_create_pointer,
    per_tree_free_pointer,
    per_update_pointer,
    per_sample_pointer,
    per_tree_find_pointer,
    per_tree_find_mass_pointer,
    per_tree_get_priorities_pointer,
    per_tree_describe_pointer,
    per_tree_reset_pointer,
    per_tree_synchronize_pointer,
    per_hindsight_options_init_pointer,
    per_field_check_pointer,
    per_replay_options_init_pointer,
    per_replay_create_pointer,
    per_replay_compute_capacity_pointer,
    per_replay_free_pointer,
    per_replay_describe_pointer,
    per_steps_init_pointer,
    per_replay_add_pointer,
    per_replay_cut_pointer,
    per_sample_options_init_pointer,
    per_batch_init_pointer,
    per_replay_sample_pointer,
    per_priorities_init_pointer,
    per_replay_update_priorities_pointer,
    per_replay_get_priorities_pointer,
    per_replay_get_pointer,
    per_replay_get_windows_pointer,
    per_replay_set_pointer,
    per_replay_clear_pointer,
    per_replay_settings_init_pointer,
    per_replay_change_settings_pointer,
    per_replay_wait_to_add_pointer,
    per_replay_wait_to_sample_pointer,
    per_replay_stop_limiting_pointer,
    per_replay_get_live_ids_pointer,
    per_replay_get_statistics_pointer,
    per_replay_synchronize_pointer,
    per_save_options_init_pointer,
    per_replay_save_pointer,
    per_replay_checkpoint_pointer,
    per_replay_save_start_pointer,
    per_save_wait_pointer,
    per_save_free_pointer,
    per_load_options_init_pointer,
    per_replay_load_pointer,
    per_epochs_create_pointer,
    per_epochs_next_pointer,
    per_epochs_free_pointer,
    per_replay_get_bootstraps_pointer,
    per_replay_compute_advantages_pointer,
    per_mixture_sample_pointer,
    per_mixture_update_priorities_pointer,
    per_loader_options_init_pointer,
    per_loader_create_pointer,
    per_loader_next_pointer,
    per_loader_release_pointer,
    per_loader_stop_pointer,
    per_loader_free_pointer,
    per_channel_options_init_pointer,
    per_channel_create_pointer,
    per_channel_get_address_pointer,
    per_channel_flush_pointer,
    per_channel_move_pointer,
    per_channel_get_statistics_pointer,
    per_channel_free_pointer,
    per_writer_attach_pointer,
    per_writer_describe_pointer,
    per_writer_add_pointer,
    per_writer_cut_pointer,
    per_writer_flush_pointer,
    per_writer_free_pointer,
    per_shared_loader_options_init_pointer,
    per_shared_loader_create_pointer,
    per_shared_loader_get_address_pointer,
    per_shared_loader_get_statistics_pointer,
    per_shared_loader_free_pointer,
    per_reader_attach_pointer,
    per_reader_describe_pointer,
    per_reader_next_pointer,
    per_reader_release_pointer,
    per_reader_update_priorities_pointer,
    per_reader_flush_pointer,
    per_reader_stop_pointer,
    per_reader_free_pointer,
    per_replay_summarize_pointer,
    per_replay_set_scale_pointer,
    per_replay_raise_max_priority_pointer,
    per_replay_get_units_pointer,
    per_coordinator_create_pointer,
    per_coordinator_free_pointer,
    per_coordinator_describe_shard_pointer,
    per_coordinator_report_pointer,
    per_coordinator_agree_on_scale_pointer,
    per_coordinator_draw_pointer,
    per_coordinator_get_units_pointer,
    per_coordinator_submit_pointer,
    per_coordinator_finish_pointer,
    per_coordinator_locate_pointer,
    per_coordinator_get_ids_pointer,
    per_coordinator_get_state_pointer,
]

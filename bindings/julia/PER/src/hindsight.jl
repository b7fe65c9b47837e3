"""
    Hindsight(achieved, goal, reward; strategy = :future, k = 4)

Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495), for `sample!(buffer, 256; hindsight)`: of `k +
1` transitions drawn, `k` on average get a goal that was reached in the same episode. Their rewards, n-step returns and
derived values are recomputed; nothing in the buffer changes.

- `achieved`: the observation field with the goal that a state achieves
- `goal`: the field with the goal pursued, of the same type and size. If it is an observation, its next observation gets
  the same goal
- `reward(achieved, goal)`: called once per batch with two arrays whose last axis counts `n` steps: the goals achieved
  after these steps, and the goals pursued. Returns `n` rewards, or a tuple of `n` rewards and `n` flags that are true
  if the step ends in a terminal state. Without flags, terminal states stay as they were. With n-step returns, all steps
  of a window are among the `n`; the window ends at the first terminal one
- `strategy`: the states that provide goals: `:future`, those after the step or later; `:final`, the episode's last;
  `:episode`, any of the episode. Only states in the buffer count, and of a running episode only those so far
- `k`: achieved goals for each pursued one; `Inf`: all transitions get an achieved one

Transitions that ended in an unknown terminal state (`next_mask`) keep their goal. The random choices are the buffer's:
the same seed and the same calls give the same goals.

```jldoctest
julia> buffer = ReplayBuffer(100, (observation = Field(Int32), goal = Field(Int32)); seed = 3);

julia> extend!(buffer; observation = 0:7, goal = fill(-1, 8), reward = zeros(8), next_observation = 1:8,
               terminated = falses(8), truncated = (0:7) .== 7);

julia> hindsight = Hindsight(:observation, :goal, (achieved, goal) -> achieved .== goal; strategy = :final, k = Inf);

julia> batch = sample!(buffer, 32; hindsight = hindsight);

julia> all(batch.goal .== 8), batch.reward == (batch.next_observation .== 8)
(true, true)
```
"""
struct Hindsight{F}
    achieved::Symbol
    goal::Symbol
    reward::F
    strategy::Symbol
    k::Float64
end
function Hindsight(achieved, goal, reward; strategy = :future, k = 4)
    choice(:strategy, strategy)
    number = converted(Float64, "k", k)
    number >= 0 || invalid("k is $k; allowed: >= 0")
    return Hindsight(Symbol(achieved), Symbol(goal), reward, Symbol(strategy), number)
end

# The arguments of the reward function for one call, and the exception it threw.
mutable struct RewardCall
    reward::Any
    axes::Tuple
    element_type::DataType
    failure::Any  # nothing, or the exception
end

# The function that C calls: answer!(), and 0, or 1 if it throws.
function answer(context::Ptr{Cvoid}, count::Int64, achieved::Ptr{Cvoid}, goals::Ptr{Cvoid}, rewards_out::Ptr{Float32},
                terminated_out::Ptr{UInt8})::Int32
    return gc_unsafe() do
        call = unsafe_pointer_to_objref(context)::RewardCall
        try
            interruptible(() -> answer!(call, count, achieved, goals, rewards_out, terminated_out))
            return Int32(0)
        catch error
            call.failure = error
            return Int32(1)
        end
    end
end

function answer!(call, count, achieved, goals, rewards_out, terminated_out)
    copied(memory) = copy(unsafe_wrap(Array, Ptr{call.element_type}(memory), (call.axes..., count)))
    given = call.reward(copied(achieved), copied(goals))
    given isa Tuple && length(given) != 2 &&
        invalid("reward gave a tuple of $(length(given)); allowed: rewards, or (rewards, flags)")
    rewards, terminated = given isa Tuple ? given : (given, nothing)
    write_answer!("rewards", Float32, rewards, rewards_out, count)
    terminated === nothing || write_answer!("flags", Bool, terminated, Ptr{Bool}(terminated_out), count)
end

function write_answer!(name, ::Type{T}, given, out, count) where {T}
    array = numbers(T, "what reward gave as $name", given)
    check_length("what reward gave as $name", array, count)
    copyto!(unsafe_wrap(Array, out, count), array)
end

# Runs action(handle, options), a call of the library, with the chosen options or C_NULL. With a Hindsight the options
# include it, and an exception of `reward` is rethrown.
call_with_hindsight(action, buffer, ::Nothing, chosen) = call(pointer -> action(pointer, chosen), buffer.handle)
function call_with_hindsight(action, buffer, hindsight::Hindsight, chosen)
    achieved, goal = field_number.(Ref(buffer), ("achieved", "goal"), (hindsight.achieved, hindsight.goal))
    field = buffer.fields[achieved + 1]
    reward_call = RewardCall(hindsight.reward, Tuple(field.axes), field.element_type, nothing)
    function_pointer = @cfunction(answer, Int32,
                                  (Ptr{Cvoid}, Int64, Ptr{Cvoid}, Ptr{Cvoid}, Ptr{Float32}, Ptr{UInt8}))
    options = initial(per_hindsight_options)
    set_field!(options, :achieved_field, achieved)
    set_field!(options, :goal_field, goal)
    set_field!(options, :strategy, choice(:strategy, hindsight.strategy))
    set_field!(options, :fraction, isinf(hindsight.k) ? 1.0 : hindsight.k / (hindsight.k + 1))
    set_field!(options, :reward, function_pointer)
    given = chosen === C_NULL ? initial(per_sample_options) : chosen
    call(buffer.handle, (achieved_field = "achieved", goal_field = "goal")) do pointer
        GC.@preserve reward_call options begin
            set_field!(options, :context, pointer_from_objref(reward_call))
            set_field!(given, :hindsight, Base.unsafe_convert(Ptr{per_hindsight_options}, options))
            status = calling_back(() -> action(pointer, given))
        end
        reward_call.failure === nothing && return status
        throw(reward_call.failure)
    end
end
call_with_hindsight(action, buffer, other, chosen) = invalid("hindsight is a $(typeof(other)), no Hindsight")

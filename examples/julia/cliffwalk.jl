# Q-learning with prioritized replay on the Blind Cliffwalk, the example of section 3.1 of Schaul et al. 2016: in each
# of N_STATES states one of two actions moves on and the other ends the episode with nothing; only the last right action
# is rewarded. Random play gets there once in 2^N_STATES episodes, and priorities find these few transitions again.
#
#     julia --project=bindings/julia/PER examples/julia/cliffwalk.jl
using PER
import Random

const N_STATES = 8
const N_ENVS = 4

# Random play in N_ENVS environments. A state is observed as a one-hot image of one row. Every episode ends in the last
# state, whichever action ended it. Otherwise an episode could begin with the final observation of the previous one,
# which the buffer would take for an unannounced reset.
function play!(buffer, n_steps)
    picture(states) = [UInt8(column == state) for column in 1:N_STATES+1, state in states]
    random = Random.MersenneTwister(1)
    states = ones(Int, N_ENVS)
    for _ in 1:n_steps
        actions = rand(random, 1:2, N_ENVS)
        moves_on = actions .== states .% 2 .+ 1
        next_states = ifelse.(moves_on, states .+ 1, N_STATES + 1)
        ended = next_states .> N_STATES
        solved = ended .& moves_on
        add!(buffer; observation = picture(states), action = actions, reward = solved, terminated = ended,
             truncated = falses(N_ENVS), next_observation = picture(next_states))
        states = ifelse.(ended, 1, next_states)
    end
end

# The values of both actions in each state.
function learn!(buffer, n_batches; batch_size = 32, learning_rate = 0.25f0)
    values = zeros(Float32, 2, N_STATES + 1)
    state_of(pictures, b) = argmax(view(pictures, :, b))
    batch = sample!(buffer, batch_size)
    for _ in 1:n_batches
        sample!(buffer, batch_size; out = batch)
        td_errors = map(1:batch_size) do b
            next_value = maximum(view(values, :, state_of(batch.next_observation, b)))
            # `discount` is gamma, and 0 at the end of an episode.
            target = batch.reward[b] + batch.discount[b] * next_value
            td_error = target - values[batch.action[b], state_of(batch.observation, b)]
            values[batch.action[b], state_of(batch.observation, b)] += learning_rate * batch.weights[b] * td_error
            td_error
        end
        update_priorities!(buffer, batch.ids, td_errors)
    end
    return values
end

const N_BATCHES = 4000
buffer = ReplayBuffer(20_000, (observation = Field(UInt8, N_STATES + 1), action = Field(Int64));
                      n_envs = N_ENVS, gamma = 0.9, beta_steps = N_BATCHES, seed = 1)
play!(buffer, 4000)
values = learn!(buffer, N_BATCHES)

println(buffer)
for state in 1:N_STATES
    println("state $state: ", join(round.(values[:, state]; digits = 3), ", "))
end
policy = [argmax(values[:, state]) for state in 1:N_STATES]
is_solved = policy == [state % 2 + 1 for state in 1:N_STATES]
println(is_solved ? "solved" : "not solved")
is_solved

/*
 * A training step that never leaves the GPU. The buffer and all arrays lie in device memory, and steps of batched
 * environments are added on a stream. Drawing a batch, learning from it and updating its priorities is one CUDA graph,
 * launched repeatedly. None of these calls waits for the device: per_replay_synchronize() reports errors that only the
 * device can detect, such as an id that was never issued.
 *
 *     cc -std=c99 -Iinclude -I/usr/local/cuda/include examples/c/cuda_graph.c -Lbuild -lper -Wl,-rpath,$PWD/build \
 *        -L/usr/local/cuda/lib64 -lcudart -Wl,-rpath,/usr/local/cuda/lib64 -o cuda_graph
 *
 * It has no kernels, so any C compiler works; it is also valid C++. Exits with 77 if there is no device.
 */
#include <cuda_runtime.h>
#include <per.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_ENVS = 16, N_STEPS = 40, EPISODE = 10, N_REWARDS = 4, BATCH = 64, N_LAUNCHES = 500 };

static void check(per_status status) {
    if (status != PER_OK) {
        fprintf(stderr, "%s: %s\n", per_status_name(status), per_last_error());
        exit(1);
    }
}

static void check_cuda(cudaError_t error) {
    if (error != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
        exit(1);
    }
}

static void* device_array(size_t bytes) {
    void* memory;
    check_cuda(cudaMalloc(&memory, bytes));
    return memory;
}

static void* device_copy(const void* host_array, size_t bytes, cudaStream_t stream) {
    void* copy = device_array(bytes);
    check_cuda(cudaMemcpyAsync(copy, host_array, bytes, cudaMemcpyHostToDevice, stream));
    return copy;
}

static per_array array(const void* data, int32_t dtype) {
    per_array array = {data, NULL, 0, dtype, NULL};
    return array;
}

static per_replay* create_replay(void) {
    per_field field = {"observation", NULL, 0, PER_FLOAT32, PER_ROLE_DEFAULT, 0, NULL, 0, 0, 0};
    per_replay_options options;
    check(per_replay_options_init(&options, sizeof options));
    options.device = PER_CUDA;
    options.capacity = 1024;
    options.fields = &field;
    options.n_fields = 1;
    options.field_size = sizeof(per_field);
    options.n_envs = N_ENVS;
    options.seed = 7;
    /* Probabilities in proportion to |TD error|, and weights in inverse proportion: easily checked. */
    options.alpha = 1;
    options.beta = 1;
    options.epsilon = 0;

    per_replay* replay;
    per_status status = per_replay_create(&options, &replay);
    if (status == PER_ERROR_NO_DEVICE) {
        printf("skipped: %s\n", per_last_error());
        exit(77);
    }
    check(status);
    return replay;
}

/* The reward of environment e in every step: 1, 2, 3 or 4. */
static int reward_of(int64_t e) {
    return (int)(e % N_REWARDS) + 1;
}

/*
 * Steps made by the host stand in for environments on the device. The observation is the number of steps since the
 * episode began; a time limit ends the episode.
 */
static void add_steps(per_replay* replay, cudaStream_t stream) {
    static float observation[N_STEPS][N_ENVS], next_observation[N_STEPS][N_ENVS], reward[N_STEPS][N_ENVS];
    for (int t = 0; t < N_STEPS; t++) {
        for (int e = 0; e < N_ENVS; e++) {
            observation[t][e] = (float)(t % EPISODE);
            next_observation[t][e] = (float)(t % EPISODE + 1);
            reward[t][e] = (float)reward_of(e);
        }
    }
    float* device_observation = (float*)device_copy(observation, sizeof observation, stream);
    float* device_next_observation = (float*)device_copy(next_observation, sizeof next_observation, stream);
    float* device_reward = (float*)device_copy(reward, sizeof reward, stream);
    uint8_t* device_terminated = (uint8_t*)device_array(N_ENVS);
    uint8_t* device_truncated = (uint8_t*)device_array(N_ENVS);
    check_cuda(cudaMemsetAsync(device_terminated, 0, N_ENVS, stream));

    for (int t = 0; t < N_STEPS; t++) {
        check_cuda(cudaMemsetAsync(device_truncated, (t + 1) % EPISODE == 0, N_ENVS, stream));
        per_array fields[1] = {array(device_observation + t * N_ENVS, PER_FLOAT32)};
        per_array next_fields[1] = {array(device_next_observation + t * N_ENVS, PER_FLOAT32)};
        per_steps steps;
        check(per_steps_init(&steps, sizeof steps));
        steps.fields = fields;
        steps.next_fields = next_fields;
        steps.reward = array(device_reward + t * N_ENVS, PER_FLOAT32);
        steps.terminated = array(device_terminated, PER_BOOL);
        steps.truncated = array(device_truncated, PER_BOOL);
        check(per_replay_add(replay, &steps, NULL, stream));
    }

    /* The device may still be at the first step and reads the arrays until it is done. */
    check(per_replay_synchronize(replay, stream));
    check_cuda(cudaFree(device_observation));
    check_cuda(cudaFree(device_next_observation));
    check_cuda(cudaFree(device_reward));
    check_cuda(cudaFree(device_terminated));
    check_cuda(cudaFree(device_truncated));
}

/* A batch, on the device. */
typedef struct arrays {
    float *observation, *next_observation, *reward, *discount, *weights, *td_errors;
    int64_t* ids;
} arrays;

static arrays create_arrays(void) {
    arrays a;
    a.observation = (float*)device_array(BATCH * sizeof(float));
    a.next_observation = (float*)device_array(BATCH * sizeof(float));
    a.reward = (float*)device_array(BATCH * sizeof(float));
    a.discount = (float*)device_array(BATCH * sizeof(float));
    a.weights = (float*)device_array(BATCH * sizeof(float));
    a.td_errors = (float*)device_array(BATCH * sizeof(float));
    a.ids = (int64_t*)device_array(BATCH * sizeof(int64_t));
    return a;
}

static void free_arrays(const arrays* a) {
    check_cuda(cudaFree(a->observation));
    check_cuda(cudaFree(a->next_observation));
    check_cuda(cudaFree(a->reward));
    check_cuda(cudaFree(a->discount));
    check_cuda(cudaFree(a->weights));
    check_cuda(cudaFree(a->td_errors));
    check_cuda(cudaFree(a->ids));
}

static void train(per_replay* replay, const arrays* a, cudaStream_t stream) {
    void* fields[1] = {a->observation};
    void* next_fields[1] = {a->next_observation};
    per_batch batch;
    check(per_batch_init(&batch, sizeof batch));
    batch.fields = fields;
    batch.next_fields = next_fields;
    batch.reward = a->reward;
    batch.discount = a->discount;
    batch.weights = a->weights;
    batch.ids = a->ids;
    check(per_replay_sample(replay, NULL, BATCH, &batch, stream));
    /* A learner launches its kernels here. With all values 0 the TD error is the reward. */
    check_cuda(cudaMemcpyAsync(a->td_errors, a->reward, BATCH * sizeof(float), cudaMemcpyDeviceToDevice, stream));
    per_priorities priorities;
    check(per_priorities_init(&priorities, sizeof priorities));
    priorities.count = BATCH;
    priorities.ids = a->ids;
    priorities.td_errors = a->td_errors;
    check(per_replay_update_priorities(replay, &priorities, stream));
}

/* Captured calls do not run now; each launch of the graph runs them. */
static cudaGraphExec_t capture_training(per_replay* replay, const arrays* a, cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphExec_t step;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    train(replay, a, stream);
    check_cuda(cudaStreamEndCapture(stream, &graph));
    check_cuda(cudaGraphInstantiate(&step, graph, 0));
    check_cuda(cudaGraphDestroy(graph));
    return step;
}

/* In the first half of the batches some transitions still have their initial priority. */
static void print_draws(int64_t ids[N_LAUNCHES][BATCH], const float last_weights[BATCH]) {
    int n_draws[N_REWARDS + 1] = {0};
    int n_draws_of_all = 0;
    for (int i = N_LAUNCHES / 2; i < N_LAUNCHES; i++) {
        for (int j = 0; j < BATCH; j++) {
            n_draws[reward_of(ids[i][j] % N_ENVS)]++;
            n_draws_of_all++;
        }
    }
    float weight[N_REWARDS + 1] = {0};
    for (int j = 0; j < BATCH; j++) {
        weight[reward_of(ids[N_LAUNCHES - 1][j] % N_ENVS)] = last_weights[j];
    }
    for (int reward = 1; reward <= N_REWARDS; reward++) {
        double share = 100.0 * n_draws[reward] / n_draws_of_all;
        printf("TD error %d: %.0f %% of the draws, weight %.3f\n", reward, share, weight[reward]);
    }
}

/* The host waits only after the last launch; the device keeps the draws until then. */
static void launch_training(per_replay* replay, cudaGraphExec_t step, const arrays* a, cudaStream_t stream) {
    static int64_t ids[N_LAUNCHES][BATCH];
    float weights[BATCH];
    int64_t* drawn = (int64_t*)device_array(sizeof ids);
    size_t batch_bytes = BATCH * sizeof(int64_t);
    for (int i = 0; i < N_LAUNCHES; i++) {
        check_cuda(cudaGraphLaunch(step, stream));
        check_cuda(cudaMemcpyAsync(drawn + i * BATCH, a->ids, batch_bytes, cudaMemcpyDeviceToDevice, stream));
    }
    check(per_replay_synchronize(replay, stream));

    check_cuda(cudaMemcpyAsync(ids, drawn, sizeof ids, cudaMemcpyDeviceToHost, stream));
    check_cuda(cudaMemcpyAsync(weights, a->weights, sizeof weights, cudaMemcpyDeviceToHost, stream));
    check_cuda(cudaStreamSynchronize(stream));
    check_cuda(cudaFree(drawn));
    print_draws(ids, weights);
}

/* The call returns before the device has checked the id; the next synchronize reports it, once. */
static void update_an_id_never_issued(per_replay* replay, const arrays* a, cudaStream_t stream) {
    const int64_t id = 1000000;
    check_cuda(cudaMemcpyAsync(a->ids, &id, sizeof id, cudaMemcpyHostToDevice, stream));
    per_priorities priorities;
    check(per_priorities_init(&priorities, sizeof priorities));
    priorities.count = 1;
    priorities.ids = a->ids;
    priorities.td_errors = a->td_errors;
    per_status status = per_replay_update_priorities(replay, &priorities, stream);
    printf("update of an id never issued: %s\n", per_status_name(status));
    status = per_replay_synchronize(replay, stream);
    printf("synchronize: %s: %s\n", per_status_name(status), per_last_error());
    status = per_replay_synchronize(replay, stream);
    printf("synchronize again: %s\n", per_status_name(status));
}

static void print_statistics(per_replay* replay) {
    per_replay_statistics statistics;
    check(per_replay_get_statistics(replay, &statistics, sizeof statistics));
    printf("%d transitions of %d episodes, priorities of sum %g\n", (int)statistics.live, (int)statistics.episodes,
           statistics.total);
    printf("%d batches drawn, %d priorities set\n", (int)statistics.samples, (int)statistics.updates);
}

int main(void) {
    per_replay* replay = create_replay();
    cudaStream_t stream;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    add_steps(replay, stream);

    arrays a = create_arrays();
    cudaGraphExec_t step = capture_training(replay, &a, stream);
    launch_training(replay, step, &a, stream);
    update_an_id_never_issued(replay, &a, stream);
    print_statistics(replay);

    check_cuda(cudaGraphExecDestroy(step));
    free_arrays(&a);
    per_replay_free(replay);
    check_cuda(cudaStreamDestroy(stream));
    return 0;
}

/* Statistics of updates, of the last batch and of memory, by hand. */
#include <sys/prctl.h>

#include "replay_check.h"

static per_sample_options systematic(double beta) {
    per_sample_options options = default_sample_options();
    options.scheme = PER_SYSTEMATIC;
    options.normalize_weights = PER_NONE;
    options.beta = beta;
    return options;
}

static void before_the_first_batch(void) {
    per_replay* replay = create_plain(10, 1);
    const per_replay_statistics stats = stats_of(replay);
    CHECK(stats.updates == 0 && stats.last_batch_size == 0 && stats.last_max_age == 0 && stats.last_mean_age == 0);
    CHECK(stats.last_effective_size == 0 && stats.last_duplicates == 0);
    per_replay_free(replay);
}

/* Priorities 1, 1, 2, 4 in a systematic batch of 8: one, one, two and four draws. With beta 1 the raw weights are (4
 * P)^-1 = 2, 2, 1, 1, and 1/2 four times: their sum is 8, the sum of squares 11. */
static void a_batch_by_hand(void) {
    const int64_t ids[4] = {0, 1, 2, 3};
    const float priorities[4] = {1, 1, 2, 4};
    static rows drawn;
    per_replay_options options = replay_options(10, 1);
    per_sample_options how = systematic(1);
    options.alpha = 1;
    per_replay* replay = create_replay(&options);
    add_full(replay, 0, 0, 0, GOES_ON, 1);
    add_full(replay, 0, 1, 0, TERMINATED, 2); /* row 2 is its final observation */
    add_full(replay, 0, 3, 0, GOES_ON, 4);
    add_full(replay, 0, 4, 0, GOES_ON, 5);
    CHECK_LIVE(replay, 0, 1, 3, 4);
    {
        const int64_t live[4] = {0, 1, 3, 4};
        CHECK_OK(write_priorities(replay, 4, live, priorities, NULL));
    }
    CHECK(stats_of(replay).updates == 4);
    fill_rows(&drawn);
    drawn.batch.weights = NULL;
    CHECK_OK(per_replay_sample(replay, &how, 8, &drawn.batch, NULL));
    const per_replay_statistics stats = stats_of(replay);
    CHECK(stats.last_batch_size == 8);
    CHECK(stats.last_effective_size == 64.0 / 11.0);
    CHECK(stats.last_duplicates == 0.5);
    /* The newest row is 4: ages are 4, 3, 1 twice and 0 four times. */
    CHECK(stats.last_max_age == 4 && stats.last_mean_age == 9.0 / 8.0);

    /* These statistics keep the values of the draw, whatever changes later, also after calls that fail. */
    CHECK_OK(write_priorities(replay, 2, ids, priorities + 2, NULL));
    CHECK_OK(change_alpha(replay, 0, NULL));
    add_step(replay, 0, 5, 0);
    how.scheme = PER_WITHOUT_REPLACEMENT;
    CHECK(per_replay_sample(replay, &how, 7, &drawn.batch, NULL) == PER_ERROR_INVALID_ARGUMENT);
    CHECK_OK(per_replay_clear(replay, NULL));
    CHECK(per_replay_sample(replay, NULL, 8, &drawn.batch, NULL) == PER_ERROR_EMPTY);
    const per_replay_statistics later = stats_of(replay);
    CHECK(later.last_batch_size == 8 && later.last_effective_size == stats.last_effective_size);
    CHECK(later.last_max_age == 4 && later.last_mean_age == 9.0 / 8.0 && later.last_duplicates == 0.5);
    CHECK(later.updates == 6);
    per_replay_free(replay);
}

/* A draw without replacement by priority may fail only while drawing. */
static void a_call_that_fails_late_leaves_the_last_batch(void) {
    const int64_t ids[2] = {0, 1};
    const float zeros[2] = {0, 0};
    static rows drawn;
    per_sample_options how = systematic(0);
    per_replay* replay = create_plain(10, 1);
    add_run(replay, 0, 3);
    draw_with(replay, &how, 6, &drawn);
    CHECK_OK(write_priorities(replay, 2, ids, zeros, NULL));
    how.scheme = PER_WITHOUT_REPLACEMENT;
    CHECK(per_replay_sample(replay, &how, 2, &drawn.batch, NULL) == PER_ERROR_INVALID_ARGUMENT);
    per_replay_statistics stats = stats_of(replay);
    CHECK(stats.last_batch_size == 6 && stats.last_effective_size == 6 && stats.last_duplicates == 0.5);
    CHECK(stats.last_max_age == 2 && stats.last_mean_age == 1);
    CHECK_OK(per_replay_sample(replay, &how, 1, &drawn.batch, NULL));
    stats = stats_of(replay);
    CHECK(stats.last_batch_size == 1 && stats.last_effective_size == 1 && stats.last_duplicates == 0);
    CHECK(stats.last_max_age == 0);
    per_replay_free(replay);
}

/* Ages are counted in rows of the lane. */
static void ages_of_several_environments(void) {
    static rows drawn;
    per_sample_options how = systematic(0);
    per_replay* replay = create_plain(30, 3);
    int64_t sum = 0, largest = 0;
    add_run(replay, 0, 25);
    for (int64_t t = 0; t < 4; ++t) add_full(replay, 2, (float)t, 0, GOES_ON, (float)t + 1);
    draw_with(replay, &how, 39, &drawn);
    for (int64_t i = 0; i < 39; ++i) {
        const int64_t newest = drawn.ids[i] % 3 == 0 ? 24 * 3 : 3 * 3 + 2;
        const int64_t age = (newest - drawn.ids[i]) / 3;
        sum += age;
        if (age > largest) largest = age;
    }
    const per_replay_statistics stats = stats_of(replay);
    CHECK(largest == 8); /* rows 16 to 24 of environment 0 exist, and one is pending */
    CHECK(stats.last_max_age == largest && stats.last_mean_age == (double)sum / 39);
    per_replay_free(replay);
}

/* Bytes per row, from two capacities, which cancels the fixed part. */
static double bytes_of_a_row(const per_replay_options* like, int32_t prioritization, int32_t normalization) {
    enum { ROWS = 100000 };
    int64_t bytes[2];
    for (int i = 0; i < 2; ++i) {
        per_replay_options options = *like;
        static rows drawn;
        options.capacity = ROWS * (i + 1);
        per_replay* replay = create_replay(&options);
        per_sample_options how = default_sample_options();
        how.prioritization = prioritization;
        how.normalize_weights = normalization;
        add_full(replay, 0, 0, 0, TERMINATED, 1);
        draw_with(replay, &how, 4, &drawn);
        bytes[i] = stats_of(replay).memory_bytes;
        per_replay_free(replay);
    }
    return (double)(bytes[1] - bytes[0]) / ROWS;
}

/* per.h documents per_replay_create(): the fields (here 4 bytes), 6 of reward and flags, 9 of priorities, and padding
 * (here from 13 bytes to 16); 7 more for PER_RANK, a quarter each for PER_BUFFER_MAX and PER_MAX_NOW. On CUDA 5 of
 * reward and flags, no padding, and 12.4, 8.3 and an eighth. */
static void memory_is_what_the_header_says(void) {
    per_replay_options options = replay_options(0, 1);
    const double row = bytes_of_a_row(&options, -1, -1);
    const double others = on_cuda() ? 4 + 5 : 4 + 6 + 3;
    const double priorities = on_cuda() ? 12.4 : 9, ranks = on_cuda() ? 8.3 : 7, maximum = on_cuda() ? 0.135 : 0.3;
    CHECK(row > others + priorities - 0.5 && row <= others + priorities);
    double more = bytes_of_a_row(&options, PER_RANK, -1) - row;
    CHECK(more > ranks - 1 && more <= ranks);
    more = bytes_of_a_row(&options, -1, PER_BUFFER_MAX) - row;
    CHECK(more > maximum - 0.1 && more < maximum);
    options.max_priority = PER_MAX_NOW;
    more = bytes_of_a_row(&options, -1, -1) - row;
    CHECK(more > maximum - 0.1 && more < maximum);
    options.max_priority = PER_MAX_EVER;
    options.store_next_observation = 1;
    CHECK(fabs(bytes_of_a_row(&options, -1, -1) - row - 4) <
          (on_cuda() ? 0.01 : 1e-6)); /* arrays of CUDA are aligned */
    options.store_next_observation = 0;
    options.n_step = 3;
    options.frame_stack = 4;
    CHECK(bytes_of_a_row(&options, -1, -1) == row);
}

/* The kernel's count for the whole process; -1 if unavailable. */
static int64_t huge_bytes_of_process(void) {
    char line[256];
    int64_t kilobytes = -1;
    FILE* const file = fopen("/proc/self/smaps_rollup", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "AnonHugePages:", 14) == 0) kilobytes = strtoll(line + 14, NULL, 10);
    if (file != NULL) fclose(file);
    return kilobytes < 0 ? -1 : kilobytes * 1024;
}

static int64_t huge_page_bytes(int64_t rows, int64_t* given) {
    const int64_t before = huge_bytes_of_process();
    per_replay* replay = create_plain(rows, 1);
    const per_replay_statistics stats = stats_of(replay);
    *given = before < 0 ? -1 : huge_bytes_of_process() - before;
    CHECK(stats.huge_page_bytes >= 0 && stats.huge_page_bytes <= stats.memory_bytes);
    per_replay_free(replay);
    return stats.huge_page_bytes;
}

static void huge_pages_are_those_that_the_kernel_gives(void) {
    int64_t given;
    CHECK(huge_page_bytes(10, &given) == 0); /* too small for a huge page */
    int64_t seen = huge_page_bytes(1000000, &given);
    if (on_cuda())
        CHECK(seen == 0);
    else if (given >= 0)
        CHECK((seen > 0) == (given > 0));
    CHECK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0); /* small pages only, as on kernels without huge pages */
    CHECK(huge_page_bytes(1000000, &given) == 0);
    CHECK(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0) == 0);
}

int main(void) {
    before_the_first_batch();
    a_batch_by_hand();
    a_call_that_fails_late_leaves_the_last_batch();
    ages_of_several_environments();
    memory_is_what_the_header_says();
    huge_pages_are_those_that_the_kernel_gives();
    return 0;
}

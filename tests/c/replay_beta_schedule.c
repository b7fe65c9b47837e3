/*
 * beta rises linearly from beta to beta_final over beta_steps batches: batch t, counted from 0, uses the beta after t
 * batches. One of two transitions is four times as likely, so the weight 4^-beta reveals beta.
 */
#include "replay_check.h"

static per_replay* create(double beta, double beta_final, int64_t beta_steps) {
    per_replay_options options = replay_options(20, 1);
    options.alpha = 1;
    options.beta = beta;
    options.beta_final = beta_final;
    options.beta_steps = beta_steps;
    per_replay* replay = create_replay(&options);
    add_step(replay, 0, 0, 0);
    add_step(replay, 0, 1, 0);
    add_step(replay, 0, 2, 0);
    set_priority(replay, 1, 4);
    return replay;
}

/* Draws a batch and checks the beta of its weights. */
static void check_beta(per_replay* replay, double given, double expected) {
    static rows drawn;
    per_sample_options options = default_sample_options();
    options.beta = given;
    if (isnan(given)) CHECK(stats_of(replay).beta == expected);
    fill_rows(&drawn);
    CHECK_OK(per_replay_sample(replay, isnan(given) ? NULL : &options, 10, &drawn.batch, NULL));
    CHECK(drawn.ids[0] == 0 && drawn.weights[0] == 1);
    CHECK(drawn.ids[9] == 1 && fabs(drawn.weights[9] - pow(4, -expected)) <= 1e-7);
}

static void linear_by_calls(void) {
    per_replay* replay = create(0.5, 1, 4);
    check_beta(replay, NAN, 0.5);
    check_beta(replay, NAN, 0.625);
    check_beta(replay, NAN, 0.75);
    CHECK(stats_of(replay).beta_step == 3 && stats_of(replay).samples == 3);
    check_beta(replay, NAN, 0.875);
    check_beta(replay, NAN, 1);
    check_beta(replay, NAN, 1);
    CHECK(stats_of(replay).beta_step == 6 && stats_of(replay).samples == 6);
    per_replay_free(replay);
}

static void a_beta_of_the_call_does_not_advance_it(void) {
    per_replay* replay = create(0, 2, 2);
    check_beta(replay, 1.5, 1.5);
    CHECK(stats_of(replay).beta_step == 0 && stats_of(replay).samples == 1);
    check_beta(replay, NAN, 0);
    check_beta(replay, 0.25, 0.25);
    check_beta(replay, NAN, 1);
    check_beta(replay, NAN, 2);
    per_replay_free(replay);
}

static void a_failing_call_does_not_advance_it(void) {
    per_replay* replay = create(0, 1, 4);
    static rows drawn;
    fill_rows(&drawn);
    CHECK(per_replay_sample(replay, NULL, 0, &drawn.batch, NULL) == PER_ERROR_INVALID_ARGUMENT);
    check_beta(replay, NAN, 0);
    CHECK_OK(per_replay_clear(replay, NULL));
    CHECK(per_replay_sample(replay, NULL, 1, &drawn.batch, NULL) == PER_ERROR_EMPTY);
    CHECK(stats_of(replay).beta == 0.25 && stats_of(replay).beta_step == 1 && stats_of(replay).samples == 1);
    per_replay_free(replay);
}

static void without_steps_it_stays(void) {
    per_replay* replay = create(0.5, 1, 0);
    check_beta(replay, NAN, 0.5);
    check_beta(replay, NAN, 0.5);
    per_replay_free(replay);
}

static void it_may_go_down(void) {
    per_replay* replay = create(1, 0, 2);
    check_beta(replay, NAN, 1);
    check_beta(replay, NAN, 0.5);
    check_beta(replay, NAN, 0);
    check_beta(replay, NAN, 0);
    per_replay_free(replay);
}

static void setting_it_ends_the_schedule(void) {
    static const double bad[] = {-0.5, INFINITY};
    per_replay* replay = create(0, 1, 4);
    int i;
    check_beta(replay, NAN, 0);
    CHECK_OK(change_beta(replay, 0.375, NULL));
    check_beta(replay, NAN, 0.375);
    check_beta(replay, NAN, 0.375);
    for (i = 0; i < 2; ++i) CHECK_REFUSED(change_beta(replay, bad[i], NULL), "beta");
    CHECK_NO_STREAM(change_beta(replay, 1, &i));
    CHECK_REFUSED(change_beta(NULL, 1, NULL), "replay");
    check_beta(replay, NAN, 0.375);
    const per_replay_options described = describe_replay(replay);
    CHECK(described.beta == 0.375 && described.beta_steps == 0);
    per_replay_free(replay);
}

int main(void) {
    linear_by_calls();
    a_beta_of_the_call_does_not_advance_it();
    a_failing_call_does_not_advance_it();
    without_steps_it_stays();
    it_may_go_down();
    setting_it_ends_the_schedule();
    return 0;
}

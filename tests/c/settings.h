/* Changes one setting of a buffer, for tests in C and C++. */
#ifndef SETTINGS_H
#define SETTINGS_H

#include <per.h>

static inline per_replay_settings unchanged_settings(void) {
    per_replay_settings settings;
    per_replay_settings_init(&settings, sizeof settings);
    return settings;
}

static inline per_status change_alpha(per_replay* replay, double alpha, void* stream) {
    per_replay_settings settings = unchanged_settings();
    settings.alpha = alpha;
    return per_replay_change_settings(replay, &settings, stream);
}

static inline per_status change_beta(per_replay* replay, double beta, void* stream) {
    per_replay_settings settings = unchanged_settings();
    settings.beta = beta;
    return per_replay_change_settings(replay, &settings, stream);
}

static inline per_status change_gamma(per_replay* replay, double gamma, void* stream) {
    per_replay_settings settings = unchanged_settings();
    settings.gamma = gamma;
    return per_replay_change_settings(replay, &settings, stream);
}

static inline per_status change_n_step(per_replay* replay, int64_t n_step, void* stream) {
    per_replay_settings settings = unchanged_settings();
    settings.n_step = n_step;
    return per_replay_change_settings(replay, &settings, stream);
}

static inline per_status change_save_compression(per_replay* replay, int32_t save_compression) {
    per_replay_settings settings = unchanged_settings();
    settings.save_compression = save_compression;
    return per_replay_change_settings(replay, &settings, NULL);
}

#endif

/* Calls that change one setting of a buffer, for tests in C and C++. */
#ifndef SETTINGS_H
#define SETTINGS_H

#include <per.h>

static inline per_replay_settings unchanged_settings(void) {
    per_replay_settings settings;
    per_replay_settings_init(&settings, sizeof settings);
    return settings;
}

/* Defines change_alpha(replay, alpha, stream), and so on. */
#define DEFINE_CHANGE(type, member)                                                           \
    static inline per_status change_##member(per_replay* replay, type member, void* stream) { \
        per_replay_settings settings = unchanged_settings();                                  \
        settings.member = member;                                                             \
        return per_replay_change_settings(replay, &settings, stream);                         \
    }
DEFINE_CHANGE(double, alpha)
DEFINE_CHANGE(double, beta)
DEFINE_CHANGE(double, gamma)
DEFINE_CHANGE(int64_t, n_step)
DEFINE_CHANGE(int64_t, version)
#undef DEFINE_CHANGE

static inline per_status change_save_compression(per_replay* replay, int32_t save_compression) {
    per_replay_settings settings = unchanged_settings();
    settings.save_compression = save_compression;
    return per_replay_change_settings(replay, &settings, NULL);
}

#endif

/*
 * A buffer whose only episode so far has one step is saved; the loaded one continues bit-identically: in every
 * autoreset mode, with next observations stored separately or in the following rows, and with every kind of end.
 */
#include "saved_bytes.h"

/* Adds the same step to both; both may refuse it. */
static void add_to_both(per_replay* a, per_replay* b, float observation, end how, next_kind kind) {
    int64_t id_a = -7, id_b = -7;
    const per_status status = try_step(a, 0, observation, 1, how, kind, observation + 1, &id_a);
    CHECK(try_step(b, 0, observation, 1, how, kind, observation + 1, &id_b) == status && id_a == id_b);
    check_same_saves(a, b);
}

static void check(int32_t store_next, int32_t autoreset, end how, next_kind kind, float after) {
    per_replay_options options = replay_options(12, 1);
    int64_t id;
    options.store_next_observation = store_next;
    options.autoreset = autoreset;
    per_replay* replay = create_replay(&options);
    if (try_step(replay, 0, 0, 1, how, kind, 1, &id) != PER_OK) { /* an invalid combination */
        per_replay_free(replay);
        return;
    }
    per_replay* loaded = reloaded(replay);
    check_same_saves(replay, loaded);
    add_to_both(replay, loaded, after, GOES_ON, NEXT_GIVEN);
    add_to_both(replay, loaded, after + 1, how, kind);
    for (int t = 0; t < 20; ++t) add_to_both(replay, loaded, (float)t, t % 5 == 4 ? how : GOES_ON, NEXT_GIVEN);
    free_both(loaded, replay);
}

int main(void) {
    static const end ends[] = {GOES_ON, TERMINATED, TRUNCATED};
    static const next_kind kinds[] = {NEXT_LEFT_OUT, NEXT_GIVEN, NEXT_UNKNOWN};
    for (int store_next = 0; store_next < 2; ++store_next)
        for (int autoreset = 0; autoreset < 3; ++autoreset)
            for (int how = 0; how < 3; ++how)
                for (int kind = 0; kind < 3; ++kind)
                    for (int is_final = 0; is_final < 2;
                         ++is_final) /* the next step begins with the final observation */
                        check(store_next, autoreset, ends[how], kinds[kind], is_final ? 1 : 50);
    return 0;
}

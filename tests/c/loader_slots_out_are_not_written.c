/* A slot that is out is unchanged until it is released, whatever is drawn meanwhile. If all slots are out, the next
   call returns PER_ERROR_BUSY or waits for a release. */
#define _POSIX_C_SOURCE 200809L

#include "loader_check.h"
#include "posix_check.h"
#include "thread_check.h"

enum { BATCH = 256, SLOTS = 4, STEPS = 2000, ROUNDS = 300 };

static int n_steps;

static per_replay* replay;
static per_loader* loader;

static void create(void) {
    replay = create_plain(n_steps + 10, 1);
    add_run(replay, 0, n_steps);
    loader = create_loader(replay, BATCH, SLOTS, NULL);
}

static void destroy(void) {
    free_loader(loader, replay, NULL);
}

static int64_t sum_of_ids(const per_batch* batch) {
    int64_t sum = 0;
    for (int i = 0; i < BATCH; ++i) sum = 3 * sum % 1000003 + batch->ids[i];
    return sum;
}

static void check_rows(const per_batch* batch) {
    for (int i = 0; i < BATCH; ++i) CHECK(((const float*)batch->fields[0])[i] == (float)batch->ids[i]);
}

/* Slots are released in another order. All slots that are out are checked after every call. */
static void held_batches_stay(void) {
    struct {
        per_batch batch;
        int64_t slot, sum;
    } held[SLOTS];
    int n = 0;
    create();
    for (int round = 0; round < rounds(ROUNDS); ++round) {
        if (n < SLOTS && round * 7 % 5 != 0) {
            held[n].slot = take(loader, &held[n].batch);
            held[n].sum = sum_of_ids(&held[n].batch);
            for (int i = 0; i < n; ++i) CHECK(held[i].slot != held[n].slot);
            ++n;
        } else if (n > 0) {
            const int which = round % n;
            CHECK_OK(per_loader_release(loader, held[which].slot, NULL));
            held[which] = held[--n];
        }
        CHECK(stats_of(replay).samples >= round / 2); /* waits for the pending draws */
        for (int i = 0; i < n; ++i) {
            check_rows(&held[i].batch);
            CHECK(sum_of_ids(&held[i].batch) == held[i].sum);
        }
    }
    destroy();
}

static void all_out_is_busy(void) {
    per_batch batch, none;
    int64_t slots[SLOTS], slot = -7;
    create();
    for (int i = 0; i < SLOTS; ++i) slots[i] = take(loader, &batch);
    CHECK(try_next(loader, 0, &none, &slot) == PER_ERROR_BUSY);
    CHECK(strstr(per_last_error(), "out") != NULL && slot == -7 && none.ids == NULL && none.fields == NULL);
    CHECK_OK(per_loader_release(loader, slots[2], NULL));
    CHECK_OK(try_next(loader, -1, &batch, &slot));
    destroy();
}

/* Polling: busy until the batch is drawn, then handed out. */
static void polling_gets_every_batch(void) {
    int n = 0;
    create();
    while (n < 50) {
        per_batch batch;
        int64_t slot;
        const per_status status = try_next(loader, 0, &batch, &slot);
        CHECK(status == PER_OK || status == PER_ERROR_BUSY);
        if (status != PER_OK) continue;
        check_rows(&batch);
        CHECK_OK(per_loader_release(loader, slot, NULL));
        ++n;
    }
    CHECK(stats_of(replay).beta_step == 50);
    destroy();
}

static void* release_later(void* slot) {
    pause_ns(20000000);
    CHECK_OK(per_loader_release(loader, *(int64_t*)slot, NULL));
    return NULL;
}

static void waits_for_a_release(void) {
    per_batch batch;
    int64_t slots[SLOTS];
    create();
    for (int i = 0; i < SLOTS; ++i) slots[i] = take(loader, &batch);
    pthread_t thread = start_thread(release_later, &slots[1]);
    take(loader, &batch);
    check_rows(&batch);
    join_thread(thread);
    destroy();
}

int main(void) {
    n_steps = on_cuda() ? 50 : STEPS;
    held_batches_stay();
    all_out_is_busy();
    polling_gets_every_batch();
    waits_for_a_release();
    return 0;
}

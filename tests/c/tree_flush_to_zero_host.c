/* A host that flushes subnormals to zero, or uses another rounding mode, gets the same masses, draws and weights. */
#include <fenv.h>

#include "tree_check.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

static unsigned control(void) {
    return _mm_getcsr();
}
static void set_flush_to_zero(void) {
    _mm_setcsr(_mm_getcsr() | 0x8040);
}
static void set_rounding_up(void) {
    _mm_setcsr((_mm_getcsr() & ~0x6000u) | 0x4000);
}
#elif defined(__aarch64__)
static unsigned control(void) {
    uint64_t value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return (unsigned)value;
}
static void set_control(uint64_t value) {
    __asm__ volatile("msr fpcr, %0" ::"r"(value));
}
static void set_flush_to_zero(void) {
    set_control(control() | 1u << 24);
}
static void set_rounding_up(void) {
    set_control((control() & ~(3u << 22)) | 1u << 22);
}
#endif

enum { N = 300, BATCH = 64 };

typedef struct record {
    uint64_t mass;
    int64_t indices[BATCH];
    float weights[BATCH], priorities[N];
} record;

static record run(const float* priorities) {
    record r;
    per_tree* tree = create_tree(N, 9);
    memset(&r, 0, sizeof r);
    update_all(tree, N, priorities);
    r.mass = total_mass_of(tree);
    CHECK_OK(per_sample(tree, BATCH, PER_STRATIFIED, 0.7f, r.indices, NULL, r.weights, NULL));
    CHECK_OK(per_tree_get_priorities(tree, N, NULL, r.priorities, NULL));
    per_tree_free(tree);
    return r;
}

int main(void) {
#if defined(__x86_64__) || defined(__aarch64__)
    static float priorities[N];
    /* Subnormals, which a flushing host would read as 0. Given as bits, as such a host could not compute them. */
    for (int i = 0; i < N; ++i) {
        uint32_t bits = (uint32_t)(i + 1) * 7919;
        memcpy(&priorities[i], &bits, sizeof bits);
    }
    record plain = run(priorities);
    CHECK(plain.mass > 0);

    set_flush_to_zero();
    unsigned before = control();
    record flushing = run(priorities);
    CHECK(control() == before);
    set_rounding_up();
    before = control();
    record rounding = run(priorities);
    CHECK(control() == before);
    fesetenv(FE_DFL_ENV);

    CHECK(memcmp(&plain, &flushing, sizeof plain) == 0);
    CHECK(memcmp(&plain, &rounding, sizeof plain) == 0);
    CHECK(memcmp(plain.priorities, priorities, sizeof priorities) == 0);
#endif
    return 0;
}

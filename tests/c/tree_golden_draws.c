/*
 * The same seed and the same calls give the same indices: those of tests/golden/draws.csv, which a model in whole
 * numbers wrote (make_draws.py says what its lines mean).
 */
#include "tree_check.h"

enum { MAX_FIELDS = 8192 };

static char line[1 << 17];
static char* fields[MAX_FIELDS];

static int split(char* text) {
    int n = 0;
    char* field = strtok(text, ",\n");
    for (; field != NULL; field = strtok(NULL, ",\n")) {
        CHECK(n < MAX_FIELDS);
        fields[n++] = field;
    }
    return n;
}

static void check_update(per_tree* tree, int n_fields) {
    static int64_t indices[MAX_FIELDS / 2];
    static float priorities[MAX_FIELDS / 2];
    int count = n_fields / 2;
    for (int i = 0; i < count; ++i) {
        indices[i] = strtoll(fields[1 + 2 * i], NULL, 10);
        priorities[i] = strtof(fields[2 + 2 * i], NULL);
    }
    CHECK_OK(per_update(tree, count, indices, priorities, NULL));
}

static void check_sample(per_tree* tree, int n_fields) {
    static int64_t indices[MAX_FIELDS];
    int batch_size = n_fields - 3;
    CHECK(strcmp(fields[2], "->") == 0);
    CHECK_OK(per_sample(tree, batch_size, atoi(fields[1]), 0.4f, indices, NULL, NULL, NULL));
    for (int i = 0; i < batch_size; ++i) CHECK(indices[i] == strtoll(fields[3 + i], NULL, 10));
}

int main(void) {
    FILE* file = fopen(PER_GOLDEN_DRAWS, "r");
    per_tree* tree = NULL;
    int n_calls = 0;
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        int n_fields = split(line);
        ++n_calls;
        if (strcmp(fields[0], "create") == 0) {
            per_tree_free(tree);
            tree = create_tree(strtoll(fields[1], NULL, 10), strtoull(fields[2], NULL, 10));
        } else if (strcmp(fields[0], "update") == 0) {
            check_update(tree, n_fields);
        } else if (strcmp(fields[0], "sample") == 0) {
            check_sample(tree, n_fields);
        } else if (strcmp(fields[0], "mass") == 0) {
            CHECK(total_mass_of(tree) == strtoull(fields[2], NULL, 10));
            CHECK(scale_of(tree) == atoi(fields[3]));
        } else {
            CHECK(strcmp(fields[0], "reset") == 0);
            CHECK_OK(per_tree_reset(tree, NULL));
        }
    }
    CHECK(n_calls > 200);
    per_tree_free(tree);
    fclose(file);
    return 0;
}

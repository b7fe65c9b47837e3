// The active mutants, and the record of those whose place was reached. The record is a file shared with forked children
// and started programs.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

namespace per_mutants {
namespace {

constexpr long max_mutants = 1 << 16;
unsigned char unrecorded[max_mutants];

}  // namespace

unsigned char chosen[max_mutants];
unsigned char* reached = unrecorded;

namespace {

[[gnu::constructor(101)]] void begin() {
    const char* numbers = getenv("PER_MUTANT");
    while (numbers != nullptr && *numbers != '\0') {
        char* end;
        chosen[strtol(numbers, &end, 10)] = 1;
        numbers = *end == ',' ? end + 1 : end;
    }
    const char* path = getenv("PER_REACHED");
    if (path == nullptr) return;
    const int file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, max_mutants) != 0) abort();
    void* shared = mmap(nullptr, max_mutants, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED) abort();
    reached = static_cast<unsigned char*>(shared);
    close(file);
}

}  // namespace
}  // namespace per_mutants

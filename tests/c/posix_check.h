/* Child processes, shared memory and pauses. Define a feature macro of POSIX before including this. */
#ifndef POSIX_CHECK_H
#define POSIX_CHECK_H

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

/* Returns 0 in the child. */
static inline pid_t start_child(void) {
    const pid_t child = fork();
    CHECK(child >= 0);
    return child;
}

/* Waits for the child, which must exit with 0. */
static inline void check_child(pid_t child) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Maps all of the memory of a channel or a shared loader. No process can truncate it. */
static inline unsigned char* map_shared(int32_t descriptor, size_t* size_out) {
    struct stat status;
    CHECK(fstat(descriptor, &status) == 0);
    CHECK(ftruncate(descriptor, 1) != 0);
    *size_out = (size_t)status.st_size;
    unsigned char* memory = mmap(NULL, *size_out, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

/* Sleeps less than a second. */
static inline void pause_ns(long nanoseconds) {
    const struct timespec time = {0, nanoseconds};
    nanosleep(&time, NULL);
}

#endif

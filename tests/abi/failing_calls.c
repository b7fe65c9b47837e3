/*
 * Makes allocations and system calls of one shared library fail. It is loaded before the C library (LD_PRELOAD);
 * every_call_fails.py chooses the call that fails.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static uintptr_t begin_of_library, end_of_library;
/* Per thread: threads of the library run on after a call returns, and their calls must not count. Negative: no call
   fails. */
static __attribute__((tls_model("initial-exec"))) _Thread_local long calls_before_failure = -1;
static __attribute__((tls_model("initial-exec"))) _Thread_local const char* failed;

/* Sets the addresses of the library's code. */
void watch_library(uintptr_t begin, uintptr_t end) {
    begin_of_library = begin;
    end_of_library = end;
}

/* Makes call number n of this thread, from 0, fail once. Negative: no call fails. */
void fail_call(long n) {
    failed = NULL;
    calls_before_failure = n;
}

/* Returns the function that failed since fail_call(), or NULL. */
const char* failed_call(void) {
    return failed;
}

static int fails(const char* name, void* caller, int error) {
    const uintptr_t address = (uintptr_t)caller;
    if (address < begin_of_library || address >= end_of_library) return 0;
    if (calls_before_failure < 0 || calls_before_failure-- != 0) return 0;
    failed = name;
    errno = error;
    return 1;
}

/* Replaces a function of the C library; value is returned where it fails. */
#define REPLACED(result, name, parameters, arguments, error, value)             \
    result name parameters {                                                    \
        static result(*_Atomic next) parameters;                                \
        if (fails(#name, __builtin_return_address(0), error)) return value;     \
        if (next == NULL) next = (result(*) parameters)dlsym(RTLD_NEXT, #name); \
        return next arguments;                                                  \
    }

REPLACED(void*, malloc, (size_t size), (size), ENOMEM, NULL)
REPLACED(void*, realloc, (void* memory, size_t size), (memory, size), ENOMEM, NULL)
REPLACED(void*, aligned_alloc, (size_t alignment, size_t size), (alignment, size), ENOMEM, NULL)
REPLACED(void*, mmap, (void* address, size_t size, int protection, int flags, int file, off_t offset),
         (address, size, protection, flags, file, offset), ENOMEM, MAP_FAILED)
REPLACED(int, madvise, (void* address, size_t size, int advice), (address, size, advice), EINVAL, -1)
REPLACED(int, pthread_create,
         (pthread_t * thread, const pthread_attr_t* attributes, void* (*work)(void*), void* argument),
         (thread, attributes, work, argument), EAGAIN, EAGAIN)
REPLACED(ssize_t, read, (int file, void* data, size_t size), (file, data, size), EIO, -1)
REPLACED(ssize_t, pread, (int file, void* data, size_t size, off_t place), (file, data, size, place), EIO, -1)
REPLACED(off_t, lseek, (int file, off_t place, int from), (file, place, from), EIO, -1)
REPLACED(ssize_t, write, (int file, const void* data, size_t size), (file, data, size), ENOSPC, -1)
REPLACED(ssize_t, pwrite, (int file, const void* data, size_t size, off_t place), (file, data, size, place), ENOSPC, -1)
REPLACED(int, fsync, (int file), (file), EIO, -1)
REPLACED(int, fdatasync, (int file), (file), EIO, -1)
REPLACED(int, ftruncate, (int file, off_t size), (file, size), ENOSPC, -1)
REPLACED(int, posix_fadvise, (int file, off_t first, off_t size, int advice), (file, first, size, advice), EINVAL,
         EINVAL)
REPLACED(int, flock, (int file, int operation), (file, operation), ENOLCK, -1)
REPLACED(int, fchmod, (int file, mode_t mode), (file, mode), EPERM, -1)
REPLACED(int, mkdir, (const char* path, mode_t mode), (path, mode), EIO, -1)
REPLACED(int, memfd_create, (const char* name, unsigned flags), (name, flags), EMFILE, -1)
REPLACED(int, fallocate, (int file, int mode, off_t place, off_t size), (file, mode, place, size), ENOSPC, -1)
REPLACED(int, stat, (const char* path, struct stat* found), (path, found), EIO, -1)
REPLACED(int, fstat, (int file, struct stat* found), (file, found), EIO, -1)
REPLACED(int, fstatat, (int folder, const char* path, struct stat* found, int flags), (folder, path, found, flags), EIO,
         -1)
REPLACED(int, unlinkat, (int folder, const char* path, int flags), (folder, path, flags), EIO, -1)
REPLACED(int, renameat, (int from, const char* old_path, int to, const char* new_path), (from, old_path, to, new_path),
         EIO, -1)
REPLACED(int, linkat, (int from, const char* old_path, int to, const char* new_path, int flags),
         (from, old_path, to, new_path, flags), EIO, -1)
REPLACED(ssize_t, readlink, (const char* path, char* target, size_t size), (path, target, size), EIO, -1)
REPLACED(DIR*, fdopendir, (int folder), (folder), ENOMEM, NULL)

static int mode_of(int flags, va_list arguments) {
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, int) : 0;
}

int openat(int folder, const char* path, int flags, ...) {
    static int (*_Atomic next)(int, const char*, int, ...);
    va_list arguments;
    int mode;
    if (fails("openat", __builtin_return_address(0), EMFILE)) return -1;
    va_start(arguments, flags);
    mode = mode_of(flags, arguments);
    va_end(arguments);
    if (next == NULL) next = (int (*)(int, const char*, int, ...))dlsym(RTLD_NEXT, "openat");
    return next(folder, path, flags, mode);
}

int open(const char* path, int flags, ...) {
    static int (*_Atomic next)(const char*, int, ...);
    va_list arguments;
    int mode;
    if (fails("open", __builtin_return_address(0), EMFILE)) return -1;
    va_start(arguments, flags);
    mode = mode_of(flags, arguments);
    va_end(arguments);
    if (next == NULL) next = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open");
    return next(path, flags, mode);
}

/* libcufile reads /proc/modules until it ends, which it does not do where it does not exist. There it is shown an empty file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef FILE *(*open_function)(const char *, const char *);

static FILE *open_by(const char *name, const char *path, const char *mode)
{
    open_function theirs = (open_function)dlsym(RTLD_NEXT, name);
    return theirs(strcmp(path, "/proc/modules") == 0 ? "/dev/null" : path, mode);
}

FILE *fopen(const char *path, const char *mode)
{
    return open_by("fopen", path, mode);
}

FILE *fopen64(const char *path, const char *mode)
{
    return open_by("fopen64", path, mode);
}

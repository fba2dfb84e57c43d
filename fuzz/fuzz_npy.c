/* Fuzz target: the .npy reader. Any bytes give an array or an error. An array is written and read
 * back, and must be the same. `make fuzz T=npy` builds and runs it; by hand:
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -Iinclude -Isrc fuzz/fuzz_npy.c
 *       $(ls kit/kit.c kit/text/shown.c kit/io/?*.c; find src -name '*.c') -lzip -ljansson
 *       -lutf8proc -lm -lpthread -o fuzz_npy
 *   ./fuzz_npy -max_len=4096 corpus
 *
 * tests/unit/io/test_fuzz.c writes seeds. With gcc, fuzz/standalone.c replaces the fuzzer.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../kit/kit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

/* The bytes that kit_npy_write writes for an array. The caller frees them. */
static void *written(const kit_array *a, size_t *size)
{
    char name[32];
    const int fd = memfd_create("written", 0);
    must(fd >= 0);
    snprintf(name, sizeof name, "/dev/fd/%d", fd);
    kit_output *out;
    must(kit_output_open(&out, name, NULL) == KIT_OK);
    must(kit_npy_write(out, a, NULL) == KIT_OK);
    must(kit_output_commit(out, NULL) == KIT_OK);
    const off_t end = lseek(fd, 0, SEEK_END);
    must(end > 0);
    *size = (size_t)end;
    void *text = malloc(*size);
    must(text && pread(fd, text, *size, 0) == end);
    close(fd);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kit_array a, back;
    kit_error err = {0};
    if (kit_npy_parse(&a, data, size, "fuzz", &err) != KIT_OK) {
        must(!a.data && err.code != KIT_OK && strncmp(err.message, "fuzz: ", 6) == 0);
        must(!strpbrk(err.message, "\n\r\x1B"));
        return 0;
    }
    must((size_t)kit_array_count(&a) * attn_dtype_size(a.dtype) == a.bytes);
    size_t again;
    void *text = written(&a, &again);
    must(kit_npy_parse(&back, text, again, "back", NULL) == KIT_OK);
    must(back.dtype == a.dtype && back.rank == a.rank && back.bytes == a.bytes);
    must(memcmp(back.shape, a.shape, sizeof a.shape) == 0);
    must(memcmp(back.data, a.data, a.bytes) == 0);
    free(text);
    kit_array_free(&back);
    kit_array_free(&a);
    return 0;
}

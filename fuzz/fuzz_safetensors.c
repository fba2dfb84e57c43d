/* Fuzz target: the .safetensors reader, over a file in memory. Any bytes give a file of tensors or
 * an error. The tensors must fill the file without a gap, and each must have the values of its
 * bytes. Built and run as described in fuzz_npy.c. */
#include <stdlib.h>
#include <string.h>

#include "../kit/io/io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static size_t load_one(const io_safetensors *f, const kit_entry *e)
{
    kit_array a;
    const io_tensor *t = io_safetensors_find(f, e->name);
    must(t != NULL);
    /* Its header is valid, but an element may not be, such as a bool of 2. */
    if (io_safetensors_load(&a, f, e->name, NULL) != KIT_OK) {
        must(!a.data && (e->dtype == ATTN_BOOL || e->dtype == ATTN_I64));
        return t->bytes;
    }
    must(a.dtype == e->dtype && a.rank == e->rank);
    must(memcmp(a.shape, e->shape, sizeof a.shape) == 0);
    must((size_t)kit_array_count(&a) * attn_dtype_size(a.dtype) == a.bytes);
    kit_array_free(&a);
    return t->bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    io_source s = io_source_memory("fuzz", data, size);
    io_safetensors f;
    kit_error err = {0};
    kit_entry *entries = NULL;
    size_t count = 0, sum = 0;
    if (io_safetensors_open(&f, &s, &err) != KIT_OK) {
        must(err.code != KIT_OK && strncmp(err.message, "fuzz: ", 6) == 0);
        must(!strpbrk(err.message, "\n\r\x1B"));
    } else if (io_safetensors_list(&entries, &count, &f, NULL, NULL) == KIT_OK) {
        for (size_t i = 0; i < count; i++)
            sum += load_one(&f, &entries[i]);
        must(sum == size - (size_t)f.data);
    }
    free(entries);
    io_safetensors_close(&f);
    return 0;
}

/* Fuzz target: the .npz reader, over a zip in memory: its list, and every array of the list. Built
 * and run as described in fuzz_npy.c. */
#include <stdlib.h>
#include <string.h>

#include "../kit/io/io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    io_source s = io_source_memory("fuzz", data, size);
    kit_entry *entries;
    size_t count = 0;
    kit_array a;
    memset(&a, 0, sizeof a);
    const bool listed = io_npz_list(&entries, &count, &s, NULL, NULL) == KIT_OK;
    for (size_t i = 0; i < count; i++) {
        /* Its header is valid, but its elements or its checksum may not be. */
        s.at = 0;
        if (io_npz_load(&a, &s, entries[i].name, NULL) != KIT_OK) {
            must(!a.data);
            continue;
        }
        must(a.dtype == entries[i].dtype && a.rank == entries[i].rank);
        must(memcmp(a.shape, entries[i].shape, sizeof a.shape) == 0);
        kit_array_free(&a);
    }
    if (listed)
        free(entries);
    s.at = 0;
    if (io_npz_load(&a, &s, NULL, NULL) == KIT_OK) {
        must(!listed || count == 1);
        kit_array_free(&a);
    }
    return 0;
}

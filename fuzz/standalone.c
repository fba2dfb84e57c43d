/* A main() for the fuzz targets, for compilers without libFuzzer:
 *
 *   gcc -g -O1 -fsanitize=address,undefined -Iinclude fuzz/standalone.c fuzz/fuzz_npy.c ...
 *   ./a.out FILE...        replays inputs
 *   ./a.out --random N     runs N inputs of random bytes, the same ones each time
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LARGEST = 1 << 20 };

int main(int argc, char **argv)
{
    uint8_t *data = malloc(LARGEST);
    if (!data)
        return 1;
    if (argc == 3 && strcmp(argv[1], "--random") == 0) {
        uint64_t x = 0x5EED;
        for (long n = strtol(argv[2], NULL, 10); n > 0; n--) {
            const size_t size = x >> 32 & 0x3FF;
            for (size_t i = 0; i < size; i++) {
                x = x * 6364136223846793005 + 1442695040888963407;
                data[i] = (uint8_t)(x >> 56);
            }
            LLVMFuzzerTestOneInput(data, size);
            x = x * 6364136223846793005 + 1442695040888963407;
        }
        argc = 1;
    }
    int failed = 0;
    for (int i = 1; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        if (!f) {
            perror(argv[i]);
            failed = 1;
            continue;
        }
        const size_t size = fread(data, 1, LARGEST, f);
        fclose(f);
        LLVMFuzzerTestOneInput(data, size);
        printf("%s: %zu bytes\n", argv[i], size);
    }
    free(data);
    return failed;
}

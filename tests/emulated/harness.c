/* The program of tests/emulated/platform.sh:
 *   SECONDS [OPERATION [ISA]]   what is chosen and what the processor says it has; the harness
 *   bits RECORD EVERY           of so many problems of the record one, on the portable code */
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "check.h"
#include "check_bits.h"

static int compare_bits(const char *path, int every)
{
    char message[200] = "";
    FILE *record = fopen(path, "r");
    if (!record)
        return 1;
    const int differ = check_bits(
        &(check_bits_options){.record = record, .isa = "generic", .every = every, .out = stdout},
        message, sizeof message);
    fclose(record);
    if (differ < 0)
        printf("%s\n", message);
    return differ ? 1 : 0;
}

int main(int argc, char **argv)
{
    char features[512];
    if (argc == 4 && strcmp(argv[1], "bits") == 0)
        return compare_bits(argv[2], atoi(argv[3]));
    if (argc < 2)
        return 2;
    attn_cpu_features(features, sizeof features);
    printf("chosen %s: %s\n", attn_context_isa(NULL), features);
    fflush(stdout);
    check_options o = {.seconds = atof(argv[1]), .seed = 2024, .out = stdout};
    o.op = argc > 2 ? argv[2] : NULL;
    o.isa = argc > 3 ? argv[3] : NULL;
    return check_run(&o) ? 1 : 0;
}

/* Small pieces of JSON that the program writes itself. */
#include "json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../kit/kit.h"

static void put(void *to, const char *bytes, size_t size) { fwrite(bytes, 1, size, to); }

void json_text(const char *text) { kit_text_json(text, put, stdout); }

void json_number(double x)
{
    char text[32];
    if (!isfinite(x)) {
        fputs(isnan(x) ? "\"nan\"" : x > 0 ? "\"inf\"" : "\"-inf\"", stdout);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    fputs(text, stdout);
}

void json_shape(const int64_t *shape, int rank)
{
    for (int i = 0; i < rank; i++)
        printf("%s%lld", i ? "," : "[", (long long)shape[i]);
    fputs(rank ? "]" : "[]", stdout);
}

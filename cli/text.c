/* The texts that commands work on: their operands, or all of a stream. See command.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"

char *command_read_text(FILE *from, const char *name, size_t most, kit_error *err)
{
    char *text = malloc(most + 1);
    size_t size = text ? fread(text, 1, most + 1, from) : 0;
    if (!text)
        kit_fail(err, KIT_LIMIT, "out of memory");
    else if (ferror(from))
        kit_fail(err, KIT_BAD_FILE, "%s: cannot read: %s", name, strerror(errno));
    else if (size > most)
        kit_fail(err, KIT_LIMIT, "%s: is longer than %zu bytes", name, most);
    else if (memchr(text, 0, size))
        kit_fail(err, KIT_BAD_FILE, "%s: is not text: it has a zero byte", name);
    else {
        text[size] = 0;
        return text;
    }
    free(text);
    return NULL;
}

char *command_join_operands(const options *o, kit_error *err)
{
    size_t size = 1;
    for (size_t i = 0; i < o->operand_count; i++)
        size += strlen(o->operand[i]) + 1;
    char *text = calloc(size, 1), *end = text;
    if (!text)
        kit_fail(err, KIT_LIMIT, "out of memory");
    for (size_t i = 0; i < o->operand_count && text; i++)
        end += sprintf(end, "%s%s", i ? " " : "", o->operand[i]);
    return text;
}

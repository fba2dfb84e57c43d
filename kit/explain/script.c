/* The containers of a script own their memory; see script.h. */
#include <stdlib.h>
#include <string.h>

#include "script.h"

static void free_list(script_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free(list->line[i]);
    }
    free(list->line);
}

void script_free_part(script_part *part)
{
    free(part->name);
    free(part->section);
    free(part->when);
    for (int i = 0; i < SCRIPT_TEXTS; i++) {
        free(part->text[i]);
        free(part->label[i]);
    }
}

void script_free(script *s)
{
    for (size_t i = 0; i < s->count; i++) {
        script_free_part(&s->part[i]);
    }
    free(s->part);
    free(s->title);
    free(s->summary);
    free(s->time);
    free(s->need);
    free_list(&s->learn);
    free_list(&s->question);
    free_list(&s->answer);
    free_list(&s->choices);
    free_list(&s->see);
    free_list(&s->term);
    memset(s, 0, sizeof *s);
}

size_t script_screen_end(const script *s, size_t from)
{
    size_t end = from + 1;
    while (end < s->count && s->part[end].also) {
        end++;
    }
    return end;
}

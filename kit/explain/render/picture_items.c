/* The list of things to draw. See picture.h. */
#include <stdlib.h>
#include <string.h>

#include "picture.h"

void picture_put(picture *p, picture_item item)
{
    if (p->count == p->capacity) {
        size_t capacity = p->capacity > 0 ? 2 * p->capacity : 256;
        picture_item *grown = realloc(p->item, capacity * sizeof *grown);
        if (grown == NULL) {
            p->failed = true;
            free(item.text);
            free(item.levels);
            return;
        }
        p->item = grown;
        p->capacity = capacity;
    }
    p->item[p->count++] = item;
}

char *picture_copy_clean(picture *p, const char *text)
{
    sink s = {0};
    sink_clean(&s, text);
    p->failed = p->failed || s.failed;
    return s.failed ? NULL : s.data;
}

void picture_text(picture *p, picture_item like, double x, double y, const char *text)
{
    like.kind = PICTURE_TEXT;
    like.x = x;
    like.y = y;
    like.text = picture_copy_clean(p, text);
    picture_put(p, like);
}

void picture_rect(picture *p, double x, double y, double w, double h, rgb colour, char *tip)
{
    picture_put(p, (picture_item){.kind = PICTURE_RECT,
                                  .x = x,
                                  .y = y,
                                  .w = w,
                                  .h = h,
                                  .colour = colour,
                                  .text = tip});
}

void picture_line(picture *p, double x, double y, double w, double h, rgb colour)
{
    picture_put(
        p, (picture_item){.kind = PICTURE_LINE, .x = x, .y = y, .w = w, .h = h, .colour = colour});
}

rgb picture_level_colour(int level) { return colour_map(level / 254.0); }

void picture_free(picture *p)
{
    for (size_t i = 0; i < p->count; i++) {
        free(p->item[i].text);
        free(p->item[i].levels);
    }
    free(p->item);
    free(p->title);
    free(p->description);
    memset(p, 0, sizeof *p);
}

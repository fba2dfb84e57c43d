/* Shared by the renderers; see draw.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"

/* -------------------------------------------------------------------------------------- sink */

static bool reserve(sink *s, size_t more)
{
    if (s->failed || more >= SIZE_MAX / 4 - s->size) {
        s->failed = true;
        return false;
    }
    if (s->size + more + 1 > s->capacity) {
        size_t capacity = 2 * (s->size + more) + 256;
        char *grown = realloc(s->data, capacity);
        if (grown == NULL) {
            s->failed = true;
            return false;
        }
        s->data = grown;
        s->capacity = capacity;
    }
    return true;
}

void sink_write(sink *s, const void *bytes, size_t size)
{
    if (reserve(s, size)) {
        memcpy(s->data + s->size, bytes, size);
        s->size += size;
        s->data[s->size] = '\0';
    }
}

void sink_puts(sink *s, const char *text) { sink_write(s, text, strlen(text)); }

void sink_vprintf(sink *s, const char *format, va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    if (length >= 0 && reserve(s, (size_t)length)) {
        vsnprintf(s->data + s->size, (size_t)length + 1, format, again);
        s->size += (size_t)length;
    }
    va_end(again);
}

void sink_printf(sink *s, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    sink_vprintf(s, format, arguments);
    va_end(arguments);
}

void sink_escaped(sink *s, const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        switch (*p) {
        case '&': sink_puts(s, "&amp;"); break;
        case '<': sink_puts(s, "&lt;"); break;
        case '>': sink_puts(s, "&gt;"); break;
        case '"': sink_puts(s, "&quot;"); break;
        default: sink_write(s, p, 1);
        }
    }
}

int sink_finish(sink *s, char **bytes, size_t *size, kit_error *err)
{
    sink_write(s, "", 0);
    *bytes = s->failed ? NULL : s->data;
    *size = s->failed ? 0 : s->size;
    if (s->failed) {
        free(s->data);
        return kit_fail(err, KIT_LIMIT, "no memory for the output");
    }
    return KIT_OK;
}

/* ------------------------------------------------------------------------------------ labels */

static const char *label(char **labels, size_t count, int64_t i, char *buffer)
{
    if (labels != NULL && i >= 0 && (size_t)i < count) {
        return labels[i];
    }
    snprintf(buffer, LABEL_BYTES, "%lld", (long long)i + 1);
    return buffer;
}

const char *grid_row_label(const grid *g, int64_t row, char buffer[LABEL_BYTES])
{
    return label(g->step->row_labels, g->step->row_label_count, row, buffer);
}

const char *grid_column_label(const grid *g, int64_t column, char buffer[LABEL_BYTES])
{
    return label(g->step->column_labels, g->step->column_label_count, column, buffer);
}

void sink_clean(sink *s, const char *text)
{
    sink_puts(s, "");
    while (*text != '\0') {
        const char *piece;
        size_t length;
        text = kit_text_next(text, &piece, &length);
        sink_write(s, piece, length);
    }
}

/* Copies text up to `width` columns and LABEL_BYTES; true if all of it fitted. */
static bool copy_within(char *out, const char *text, int width)
{
    size_t used = 0, length;
    out[0] = '\0';
    while (*text != '\0') {
        const char *piece;
        text = kit_text_next(text, &piece, &length);
        if (used + length + 8 > LABEL_BYTES) {
            return false;
        }
        memcpy(out + used, piece, length);
        out[used + length] = '\0';
        if (kit_text_width(out) > width) {
            out[used] = '\0';
            return false;
        }
        used += length;
    }
    return true;
}

void label_clip(char out[LABEL_BYTES], const char *text, int width, const char *ellipsis)
{
    if (!copy_within(out, text, width)) {
        int rest = width - kit_text_width(ellipsis);
        copy_within(out, text, rest > 0 ? rest : 0);
        strcat(out, rest >= 0 ? ellipsis : "");
    }
}

/* ----------------------------------------------------------------------------------- colours */

static const uint32_t cividis[] = {0x00224e, 0x00285b, 0x002e6a, 0x043371, 0x1a386f, 0x273e6e,
                                   0x32436d, 0x3b496c, 0x434e6c, 0x4b546c, 0x52596d, 0x5a5f6e,
                                   0x61656f, 0x686a71, 0x6f7073, 0x757676, 0x7c7b78, 0x848179,
                                   0x8b8778, 0x938d78, 0x9b9376, 0xa39a75, 0xaba072, 0xb3a670,
                                   0xbbad6c, 0xc3b469, 0xccba64, 0xd4c15f, 0xddc958, 0xe6d051,
                                   0xefd748, 0xf8df3c, 0xfee838};

static uint8_t between(uint32_t a, uint32_t b, int shift, double part)
{
    double x = (double)(a >> shift & 255), y = (double)(b >> shift & 255);
    return (uint8_t)(x + (y - x) * part + 0.5);
}

rgb colour_map(double weight)
{
    if (isnan(weight)) {
        return (rgb){200, 0, 0};
    }
    const int last = (int)(sizeof cividis / sizeof *cividis) - 1;
    double x = (weight < 0 ? 0 : weight > 1 ? 1 : weight) * last;
    int i = x >= last ? last - 1 : (int)x;
    uint32_t a = cividis[i], b = cividis[i + 1];
    return (rgb){between(a, b, 16, x - i), between(a, b, 8, x - i), between(a, b, 0, x - i)};
}

bool colour_wants_dark_text(rgb c) { return 0.299 * c.r + 0.587 * c.g + 0.114 * c.b > 125; }

const char *number_text(char out[NUMBER_BYTES], double x)
{
    double size = fabs(x);
    const char *format = x == 0 ? "0" : size < 5e-4 || size >= 1e5 ? "%.3g" : "%.4f";
    snprintf(out, NUMBER_BYTES,
             isfinite(x) ? format
             : isnan(x)  ? "nan"
             : x > 0     ? "inf"
                         : "-inf",
             x);
    return out;
}

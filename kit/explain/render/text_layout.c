/* The layout: clean text, wrapping by display width, colours; see text.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

#define NO_BREAK "\xc2\xa0" /* a space at which lines are not broken */

/* Replacements for the non-ASCII characters of the program's texts, for terminals with ASCII
 * only. */
static const struct {
    const char *mark, *plain;
} plain_marks[] = {
    {"“", "\""},   {"”", "\""},    {"’", "'"},     {"√", "sqrt "}, {"ᵀ", "^T"},  {"·", "."},
    {"×", "x"},    {"÷", "/"},     {"→", "->"},    {"−", "-"},     {"∞", "inf"}, {"…", "..."},
    {"Σ", "sum "}, {"α", "alpha"}, {"ω", "omega"}, {"±", "+-"},    {"≤", "<="},  {"–", "-"},
    {"≥", ">="},   {"≈", "~"},     {"—", "--"},    {"²", "^2"},    {"³", "^3"},  {"⁵", "^5"},
    {"₀", "0"},    {"₁", "1"},     {"₂", "2"},     {"₃", "3"},     {"₄", "4"},   {"₅", "5"},
    {"₆", "6"},    {"é", "e"},     {"ᵢ", "_i"},    {"ⱼ", "_j"},    {"≠", "!="},  {"∈", "in"},
    {"›", ">"},
};

static void put_plain(sink *s, const char *text)
{
    for (const char *p = text; *p != '\0';) {
        size_t i = 0, marks = sizeof plain_marks / sizeof *plain_marks;
        while (i < marks && strncmp(p, plain_marks[i].mark, strlen(plain_marks[i].mark)) != 0) {
            i++;
        }
        if (strncmp(p, NO_BREAK, 2) == 0) { /* text_wrap makes it a space */
            sink_puts(s, NO_BREAK);
            p += 2;
        } else if (i < marks) {
            sink_puts(s, plain_marks[i].plain);
            p += strlen(plain_marks[i].mark);
        } else if ((unsigned char)*p < 0x80) {
            sink_write(s, p++, 1);
        } else {
            sink_puts(s, "?");
            do {
                p++;
            } while (((unsigned char)*p & 0xc0) == 0x80);
        }
    }
}

const char *text_clean(text_layout *p, const char *text)
{
    sink s = {0}, plain = {0};
    sink_clean(&s, text);
    if (!p->unicode && !s.failed) {
        sink_puts(&plain, "");
        put_plain(&plain, s.data);
        free(s.data);
        s = plain;
    }
    char **spare = &p->spare[p->next_spare++ % 8];
    free(*spare);
    *spare = s.data;
    p->out.failed = p->out.failed || s.failed;
    return s.failed ? "" : s.data;
}

void text_spaces(text_layout *p, int count)
{
    for (int i = 0; i < count; i++) {
        sink_puts(&p->out, " ");
    }
}

/* Returns the length in bytes of the longest prefix of at most `width` columns; at least one
 * character. */
static size_t prefix(const char *text, size_t length, int width)
{
    size_t best = 0;
    for (size_t n = 1; n <= length; n++) {
        if (n < length && ((unsigned char)text[n] & 0xc0) == 0x80) {
            continue; /* inside a character */
        }
        if (best > 0 && kit_text_width_of(text, n) > width) {
            break;
        }
        best = n;
    }
    return best;
}

static void put_word(sink *s, const char *word, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        bool space = i + 1 < length && strncmp(word + i, NO_BREAK, 2) == 0;
        sink_write(s, space ? " " : word + i, 1);
        i += space;
    }
}

void text_wrap(text_layout *p, int at, int hang, const char *text)
{
    bool first = true;
    while (*text != '\0') {
        size_t spaces = strspn(text, " ");
        size_t length = strcspn(text + spaces, " ");
        if (length == 0) {
            break;
        }
        int gap = first ? 0 : (int)spaces, width = kit_text_width_of(text + spaces, length);
        if (at + gap + width > p->width && !first) {
            sink_puts(&p->out, "\n");
            text_spaces(p, hang);
            at = hang;
            gap = 0;
        }
        if (at + gap + width > p->width) { /* wider than a line, so it is cut at the line's end */
            length = prefix(text + spaces, length, p->width - at - gap);
            width = kit_text_width_of(text + spaces, length);
        }
        text_spaces(p, gap);
        put_word(&p->out, text + spaces, length);
        at += gap + width;
        text += spaces + length;
        first = false;
    }
    sink_puts(&p->out, "\n");
}

void text_wrapf(text_layout *p, const char *format, ...)
{
    sink s = {0};
    va_list arguments;
    va_start(arguments, format);
    sink_vprintf(&s, format, arguments);
    va_end(arguments);
    text_spaces(p, p->indent);
    text_wrap(p, p->indent, p->indent + 2, s.failed ? "" : text_clean(p, s.data));
    p->out.failed = p->out.failed || s.failed;
    free(s.data);
}

void text_label(text_layout *p, const char *text, int width, bool right)
{
    char clipped[LABEL_BYTES];
    label_clip(clipped, text_clean(p, text), width, p->unicode ? "…" : ".");
    int pad = width - kit_text_width(clipped);
    text_spaces(p, right ? pad : 0);
    sink_puts(&p->out, clipped);
    text_spaces(p, right ? 0 : pad);
}

/* ----------------------------------------------------------------------------------- Colours */

/* The colour map in xterm's 256 colours. The nearest colours by distance would include green, so
 * these were chosen by hand: from dark blue over grey to yellow, each lighter than the one
 * before. */
static const int ramp[] = {17, 17, 238, 239, 241, 242, 244, 246, 143, 143, 185, 221, 227};

static void set_colour(text_layout *p, int layer, double weight)
{
    const int last = (int)(sizeof ramp / sizeof *ramp) - 1;
    if (p->colour == RENDER_TRUECOLOUR) {
        rgb c = colour_map(weight);
        sink_printf(&p->out, "\x1b[%d;2;%d;%d;%dm", layer, c.r, c.g, c.b);
    } else if (p->colour == RENDER_256) {
        double x = weight >= 0 ? (weight < 1 ? weight : 1) * last + 0.5 : 0;
        sink_printf(&p->out, "\x1b[%d;5;%dm", layer, isnan(weight) ? 160 : ramp[(int)x]);
    }
}

void text_cell(text_layout *p, double weight)
{
    bool dark = colour_wants_dark_text(colour_map(weight));
    set_colour(p, 48, weight);
    if (p->colour != RENDER_NO_COLOUR) {
        sink_puts(&p->out, dark ? "\x1b[38;5;16m" : "\x1b[38;5;231m");
    }
}

void text_half(text_layout *p, double weight, bool upper)
{
    set_colour(p, upper ? 38 : 48, weight);
}

static void set_style(text_layout *p, const char *style)
{
    sink_puts(&p->out, p->colour == RENDER_NO_COLOUR ? "" : style);
}

void text_bold(text_layout *p) { set_style(p, "\x1b[1m"); }

void text_dim(text_layout *p) { set_style(p, "\x1b[2m"); }

void text_plain(text_layout *p) { set_style(p, "\x1b[0m"); }

int text_label_width(const text_layout *p, const grid *g)
{
    int most = p->width >= 100 ? 14 : p->width >= 40 ? 10 : 6, width = 1;
    for (int64_t i = 0; i < g->rows; i++) {
        char label[LABEL_BYTES], clipped[LABEL_BYTES];
        label_clip(clipped, grid_row_label(g, i, label), most, p->unicode ? "…" : ".");
        int w = kit_text_width(clipped);
        width = w > width ? w : width;
    }
    return width;
}

/* "0.601", ".60", "1.0"; "!!" for a value that is not a weight. */
const char *text_weight(char out[NUMBER_BYTES], double w, int digits)
{
    if (isnan(w) || !(w > -0.0005 && w < 1.0005)) {
        return strcpy(out, isnan(w) ? "nan" : "!!");
    }
    bool narrow = digits == 2;
    snprintf(out, NUMBER_BYTES, "%.*f", narrow && w > 0.995 ? 1 : digits, fabs(w));
    return narrow && out[0] == '0' ? out + 1 : out;
}

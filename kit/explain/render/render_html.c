/* Writes a trace as one HTML page that works offline. It consists of the page's own files (page/),
 * joined by the build, and the trace as JSON between them. No part of the trace is interpreted as
 * HTML: it is data in a <script type="application/json">, in which every < is escaped, and the page
 * shows it as text.
 */
#include "../page/page.h"
#include "render_json.h"

/* The colours of the heat-maps, so that page, SVG and PNG have the same. */
static void put_palette(json_writer *j)
{
    enum { COLOURS = 33 };
    json_put_array(j, "palette");
    for (int i = 0; i < COLOURS; i++) {
        const rgb c = colour_map((double)i / (COLOURS - 1));
        json_put_sizes(j, NULL, (int64_t[]){c.r, c.g, c.b}, 3);
    }
    json_end_array(j);
}

int render_html(char **bytes, size_t *size, const trace *t, kit_error *err)
{
    sink s = {0};
    json_writer j = json_writer_sink(&s);
    sink_write(&s, page_before, page_before_size);
    json_put_object(&j, NULL);
    json_put_text(&j, "version", ATTN_VERSION_STRING);
    put_palette(&j);
    s.failed = !json_put_page(&j, "trace", t) || s.failed;
    sink_puts(&s, "\n");
    json_end_object(&j);
    sink_write(&s, page_after, page_after_size);
    return sink_finish(&s, bytes, size, err);
}

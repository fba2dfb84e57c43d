/* Chooses the renderer by a file's suffix. */
#include <string.h>

#include "render.h"

static int render_plain_text(char **bytes, size_t *size, const trace *t, kit_error *err)
{
    render_text_options o = RENDER_TEXT_OPTIONS_INIT;
    o.width = 120;
    o.full = true;
    return render_text(bytes, size, t, &o, err);
}

static const struct {
    const char *suffix;
    render_function render;
} renderers[] = {{".svg", render_svg},   {".png", render_png},   {".pdf", render_pdf},
                 {".html", render_html}, {".json", render_json}, {".txt", render_plain_text}};

render_function render_by_suffix(const char *path, kit_error *err)
{
    size_t length = strlen(path);
    for (size_t i = 0; i < sizeof renderers / sizeof *renderers; i++) {
        size_t n = strlen(renderers[i].suffix);
        if (length > n && strcmp(path + length - n, renderers[i].suffix) == 0) {
            return renderers[i].render;
        }
    }
    kit_fail(err, KIT_USAGE, "%s: must end with .html .svg .png .pdf .json or .txt", path);
    return NULL;
}

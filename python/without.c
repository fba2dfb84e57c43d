/* Stubs for the parts of the kit that need cairo (.png, .pdf) or libzip (.npz). The program in the
 * wheel is built without these libraries, so that it needs only libc and libm where it runs. */
#include <string.h>

#include "explain/render/render.h"
#include "io/io.h"

static int no_picture(char **bytes, size_t *size, kit_error *err)
{
    *bytes = NULL;
    *size = 0;
    return kit_fail(
        err, KIT_USAGE,
        "this build of attn writes .html, .svg, .json and .txt; .png and .pdf need the one that "
        "`make install` builds");
}

int render_png(char **bytes, size_t *size, const trace *t, kit_error *err)
{
    (void)t;
    return no_picture(bytes, size, err);
}

int render_pdf(char **bytes, size_t *size, const trace *t, kit_error *err)
{
    (void)t;
    return no_picture(bytes, size, err);
}

bool io_is_zip(const unsigned char *bytes, size_t size)
{
    return size >= 4 && (memcmp(bytes, "PK\3\4", 4) == 0 || memcmp(bytes, "PK\5\6", 4) == 0);
}

static int no_archive(const io_source *file, kit_error *err)
{
    return kit_fail(
        err, KIT_BAD_FILE,
        "%s: this build of attn reads no .npz; save each array as .npy, or use the build "
        "of `make install`",
        file->name);
}

int io_npz_load(kit_array *a, io_source *file, const char *member, kit_error *err)
{
    (void)a, (void)member;
    return no_archive(file, err);
}

int io_npz_list(kit_entry **entries, size_t *count, io_source *file, const char *member,
                kit_error *err)
{
    (void)entries, (void)count, (void)member;
    return no_archive(file, err);
}

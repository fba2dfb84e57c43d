/* .npz files: zip archives of .npy members, read by libzip.
 *
 * The whole archive is refused if its two directories disagree, if one name could mean two members,
 * or if a member's name cannot be an array's name. No name in it is ever used as a path. A member
 * is a source like any other: the .npy reader checks it against its declared size, and reads to its
 * end so that libzip checks its CRC.
 */
#include "io.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zip.h>

/* Detects zip bombs by sizes and ratios that no real array has. Deflate expands at most 1032 times;
 * a mask of zeros comes close to that, a large array does not. */
#define RATIO_POSSIBLE 1032
#define RATIO_LARGE 200
#define LARGE_MEMBER (UINT64_C(1) << 30)
#define MEMBERS_LIMIT 16384

typedef struct label { /* a member's name without ".npy" */
    const char *name;
    size_t length;
    zip_uint64_t index;
} label;

typedef struct archive {
    io_source *file;
    zip_error_t error; /* error of `file`, for libzip */
    zip_t *zip;
    label *label; /* sorted by name */
    size_t count;
} archive;

bool io_is_zip(const unsigned char *bytes, size_t size)
{
    return size >= 4 && (memcmp(bytes, "PK\3\4", 4) == 0 || memcmp(bytes, "PK\5\6", 4) == 0);
}

static int zip_failed(const archive *z, zip_error_t *e, kit_error *err)
{
    const int code = zip_error_code_zip(e) == ZIP_ER_MEMORY ? KIT_LIMIT : KIT_BAD_FILE;
    return kit_fail(err, code, "%s: %s", z->file->name, zip_error_strerror(e));
}

/* ------------------------------------------------------------- The file, as a source for libzip */

static zip_int64_t stat_file(const archive *z, void *to)
{
    zip_stat_t st;
    zip_stat_init(&st);
    st.valid = ZIP_STAT_SIZE;
    st.size = (zip_uint64_t)z->file->size;
    memcpy(to, &st, sizeof st);
    return sizeof st;
}

static zip_int64_t seek_file(archive *z, void *to, zip_uint64_t size)
{
    const zip_int64_t at =
        zip_source_seek_compute_offset((zip_uint64_t)z->file->at, (zip_uint64_t)z->file->size, to,
                                       size, &z->error);
    if (at < 0)
        return -1;
    z->file->at = at;
    return 0;
}

static zip_int64_t serve(void *user, void *to, zip_uint64_t size, zip_source_cmd_t command)
{
    archive *z = user;
    size_t got;
    switch (command) {
    case ZIP_SOURCE_OPEN: z->file->at = 0; return 0;
    case ZIP_SOURCE_READ:
        if (io_read(z->file, to, size, &got, NULL) == KIT_OK)
            return (zip_int64_t)got;
        zip_error_set(&z->error, ZIP_ER_READ, errno);
        return -1;
    case ZIP_SOURCE_STAT: return stat_file(z, to);
    case ZIP_SOURCE_SEEK: return seek_file(z, to, size);
    case ZIP_SOURCE_TELL: return z->file->at;
    case ZIP_SOURCE_ERROR: return zip_error_to_data(&z->error, to, size);
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_FREE: return 0;
    case ZIP_SOURCE_SUPPORTS:
        return zip_source_make_command_bitmap(ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE,
                                              ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR, ZIP_SOURCE_FREE,
                                              ZIP_SOURCE_SEEK, ZIP_SOURCE_TELL, ZIP_SOURCE_SUPPORTS,
                                              -1);
    default: zip_error_set(&z->error, ZIP_ER_OPNOTSUPP, 0); return -1;
    }
}

/* ---------------------------------------------------------------------------------- Members */

static bool absurd(const char *name)
{
    const size_t n = strlen(name);
    if (n == 0 || n >= sizeof((kit_entry *)NULL)->name || name[0] == '/' || name[n - 1] == '/')
        return true;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F || name[i] == '\\')
            return true;
    for (const char *part = name; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == 0))
            return true;
    }
    return false;
}

static size_t stem(const char *name)
{
    const size_t n = strlen(name);
    return n > 4 && strcmp(name + n - 4, ".npy") == 0 ? n - 4 : n;
}

static int by_name(const void *a, const void *b)
{
    const label *x = a, *y = b;
    const int order = memcmp(x->name, y->name, x->length < y->length ? x->length : y->length);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

static int read_labels(archive *z, kit_error *err)
{
    const zip_int64_t n = zip_get_num_entries(z->zip, 0);
    if (n > MEMBERS_LIMIT)
        return kit_fail(err, KIT_LIMIT, "%s: %" PRId64 " members; at most %d are supported",
                        z->file->name, (int64_t)n, MEMBERS_LIMIT);
    z->label = calloc((size_t)n + 1, sizeof *z->label);
    if (!z->label)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", z->file->name);
    for (; z->count < (size_t)n; z->count++) {
        const char *name = zip_get_name(z->zip, z->count, 0);
        if (!name)
            return zip_failed(z, zip_get_error(z->zip), err);
        if (absurd(name))
            return kit_fail(err, KIT_BAD_FILE,
                            "%s: member %zu is called '%.40s', which cannot name an array",
                            z->file->name, z->count, name);
        z->label[z->count] = (label){name, stem(name), z->count};
    }
    qsort(z->label, z->count, sizeof *z->label, by_name);
    for (size_t i = 1; i < z->count; i++)
        if (by_name(&z->label[i - 1], &z->label[i]) == 0)
            return kit_fail(err, KIT_BAD_FILE, "%s: two members are called '%.*s'", z->file->name,
                            (int)z->label[i].length, z->label[i].name);
    return KIT_OK;
}

static void archive_close(archive *z)
{
    free(z->label);
    if (z->zip)
        zip_discard(z->zip);
    zip_error_fini(&z->error);
}

static int archive_open(archive *z, io_source *file, kit_error *err)
{
    *z = (archive){.file = file};
    zip_error_init(&z->error);
    zip_error_t e;
    zip_error_init(&e);
    int code = KIT_OK;
    zip_source_t *source = zip_source_function_create(serve, z, &e);
    if (source)
        z->zip = zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, &e);
    if (!z->zip) {
        code = zip_failed(z, &e, err);
        zip_source_free(source); /* source may be NULL */
    }
    zip_error_fini(&e);
    return code ? code : read_labels(z, err);
}

/* Finds the named member, or the only one. *found is an index into label. */
static int find(const archive *z, const char *member, size_t *found, kit_error *err)
{
    if (!member && z->count == 1) {
        *found = 0;
        return KIT_OK;
    }
    if (member) {
        const label wanted = {member, stem(member), 0};
        for (size_t i = 0; i < z->count; i++)
            if (by_name(&wanted, &z->label[i]) == 0) {
                *found = i;
                return KIT_OK;
            }
    }
    io_names names = {0};
    for (size_t i = 0; i < z->count; i++)
        io_names_add(&names, z->label[i].name, z->label[i].length);
    return io_no_array(z->file->name, "npz", member, &names, err);
}

/* ------------------------------------------------------------------------ A member as a source */

static int64_t read_member(io_source *s, void *to, size_t size, kit_error *err)
{
    const int64_t got = zip_fread(s->member, to, size);
    if (got < 0)
        kit_fail(err, KIT_BAD_FILE, "%s: %s", s->name,
                 zip_error_strerror(zip_file_get_error(s->member)));
    return got;
}

static int check_member(const zip_stat_t *st, const char *name, kit_error *err)
{
    if (st->encryption_method != ZIP_EM_NONE)
        return kit_fail(err, KIT_BAD_FILE, "%s: is encrypted", name);
    if (st->comp_method != ZIP_CM_STORE && st->comp_method != ZIP_CM_DEFLATE)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: compression method %d; supported are store (0) "
                        "and deflate (8)",
                        name, (int)st->comp_method);
    if (st->comp_method == ZIP_CM_STORE)
        return KIT_OK; /* libzip checks its size against the file's */
    const uint64_t ratio = st->size / (st->comp_size ? st->comp_size : 1);
    if (ratio > RATIO_POSSIBLE)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: is damaged: %" PRIu64 " bytes cannot be compressed %" PRIu64 " times",
                        name, (uint64_t)st->size, ratio);
    if (st->size > IO_STREAM_LIMIT || (st->size > LARGE_MEMBER && ratio > RATIO_LARGE))
        return kit_fail(err, KIT_LIMIT,
                        "%s: %" PRIu64 " bytes, %" PRIu64
                        " times its compressed size, are above the limit",
                        name, (uint64_t)st->size, ratio);
    return KIT_OK;
}

/* Opens label `i` as a source; zip_fclose(s->member) closes it. */
static int member_open(io_source *s, const archive *z, size_t i, const char *name, kit_error *err)
{
    zip_stat_t st;
    *s = (io_source){.name = name, .read = read_member};
    if (zip_stat_index(z->zip, z->label[i].index, 0, &st) != 0)
        return zip_failed(z, zip_get_error(z->zip), err);
    const int code = check_member(&st, name, err);
    if (code)
        return code;
    s->size = (int64_t)st.size;
    s->member = zip_fopen_index(z->zip, z->label[i].index, 0);
    return s->member ? KIT_OK : zip_failed(z, zip_get_error(z->zip), err);
}

int io_npz_load(kit_array *a, io_source *file, const char *member, kit_error *err)
{
    archive z;
    io_source s = {0};
    size_t found = 0;
    int code = archive_open(&z, file, err);
    if (!code)
        code = find(&z, member, &found, err);
    if (!code)
        code = member_open(&s, &z, found, file->name, err);
    if (!code)
        code = io_npy_load(a, &s, err);
    if (s.member)
        zip_fclose(s.member);
    archive_close(&z);
    return code;
}

static int list_member(kit_entry *e, const archive *z, size_t i, kit_error *err)
{
    const label *l = &z->label[i];
    char name[sizeof err->message];
    snprintf(name, sizeof name, "%s:%.*s", z->file->name, (int)l->length, l->name);
    io_source s;
    io_npy h;
    int code = member_open(&s, z, i, name, err);
    if (!code)
        code = io_npy_open(&h, &s, err);
    if (!code) {
        memcpy(e->name, l->name, l->length); /* absurd() checked that it fits */
        e->dtype = h.element->dtype;
        e->rank = h.rank;
        memcpy(e->shape, h.shape, sizeof e->shape);
    }
    if (s.member)
        zip_fclose(s.member);
    return code;
}

int io_npz_list(kit_entry **entries, size_t *count, io_source *file, const char *member,
                kit_error *err)
{
    archive z;
    size_t first = 0, n = 1;
    kit_entry *list = NULL;
    int code = archive_open(&z, file, err);
    if (!code && member)
        code = find(&z, member, &first, err);
    else
        n = z.count;
    if (!code) {
        list = calloc(n + 1, sizeof *list);
        if (!list)
            code = kit_fail(err, KIT_LIMIT, "%s: not enough memory", file->name);
    }
    for (size_t i = 0; !code && i < n; i++)
        code = list_member(&list[i], &z, first + i, err);
    archive_close(&z);
    if (code) {
        free(list);
        return code;
    }
    *entries = list;
    *count = n;
    return KIT_OK;
}

/* .safetensors files: read and written.
 *
 *   length of the header, 8 bytes, little-endian | header, JSON, spaces | tensors' bytes
 *   {"__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2, 3],
 *    "data_offsets": [0, 24]}, ...}
 *
 * Headers are untrusted input. Every field must be present once, with its type. Sizes must not
 * overflow, and must equal the span of the offsets. In the order of their offsets, the tensors must
 * cover all bytes from the first to the last, without gaps or overlaps. An empty tensor may lie
 * between two others, at either end, or alone.
 */
#include "io.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "json_write.h"

enum { LENGTH = 8, WRITE_ALIGNMENT = 64 };
#define METADATA "__metadata__"

static const struct {
    const char *name; /* in the header */
    io_element element;
} dtypes[] = {
    {"F64", {'f', 8, ATTN_F64, "float64"}}, {"F32", {'f', 4, ATTN_F32, "float32"}},
    {"F16", {'f', 2, ATTN_F16, "float16"}}, {"BF16", {'f', 2, ATTN_BF16, "bfloat16"}},
    {"BOOL", {'b', 1, ATTN_BOOL, "bool"}},  {"I64", {'i', 8, ATTN_I64, "int64"}},
    {"I32", {'i', 4, ATTN_I64, "int32"}},   {"I16", {'i', 2, ATTN_I64, "int16"}},
    {"I8", {'i', 1, ATTN_I64, "int8"}},     {"U64", {'u', 8, ATTN_I64, "uint64"}},
    {"U32", {'u', 4, ATTN_I64, "uint32"}},  {"U16", {'u', 2, ATTN_I64, "uint16"}},
    {"U8", {'u', 1, ATTN_I64, "uint8"}},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static uint64_t length_of(const unsigned char *bytes)
{
    uint64_t n = 0;
    for (int i = LENGTH; i-- > 0;)
        n = n << 8 | bytes[i];
    return n;
}

bool io_is_safetensors(const unsigned char *bytes, size_t size)
{
    return size > LENGTH && bytes[LENGTH] == '{' && length_of(bytes) <= IO_SAFETENSORS_HEADER_LIMIT;
}

/* ------------------------------------------------------------------------------ One tensor */

/* Message "file: tensor 'name': what". */
static int bad(const io_safetensors *f, const char *name, kit_error *err, const char *what)
{
    return kit_fail(err, KIT_BAD_FILE, "%s: tensor '%.80s': %s", f->file->name, name, what);
}

static bool is_size(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0;
}

static int read_shape(const io_safetensors *f, io_tensor *t, const json_t *shape, kit_error *err)
{
    const size_t rank = json_array_size(shape);
    if (!json_is_array(shape) || rank > KIT_MAX_RANK)
        return bad(f, t->name, err, "shape must be a list of at most 8 sizes");
    t->rank = (int)rank;
    for (size_t i = 0; i < rank; i++) {
        if (!is_size(json_array_get(shape, i)))
            return bad(f, t->name, err, "shape must hold integers from 0 to 2^63 - 1");
        t->shape[i] = json_integer_value(json_array_get(shape, i));
    }
    size_t count;
    if (!io_shape_size(t->rank, t->shape, t->element->size, &count, &t->bytes))
        return bad(f, t->name, err, "its shape is more than can be addressed");
    return KIT_OK;
}

/* data: number of bytes after the header. */
static int read_offsets(const io_safetensors *f, io_tensor *t, const json_t *offsets, size_t data,
                        kit_error *err)
{
    const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !is_size(first) || !is_size(second))
        return bad(f, t->name, err, "data_offsets must be two integers from 0 to 2^63 - 1");
    const uint64_t begin = (uint64_t)json_integer_value(first);
    const uint64_t end = (uint64_t)json_integer_value(second);
    if (begin > end || end > data)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: tensor '%.80s': data_offsets [%" PRIu64 ", %" PRIu64
                        "] are not within the %zu bytes that follow the header",
                        f->file->name, t->name, begin, end, data);
    if (end - begin != t->bytes)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: tensor '%.80s': its shape of %s is %zu bytes, its data_offsets span "
                        "%" PRIu64,
                        f->file->name, t->name, t->element->name, t->bytes, end - begin);
    t->begin = (size_t)begin;
    return KIT_OK;
}

static int read_dtype(const io_safetensors *f, io_tensor *t, const json_t *dtype, kit_error *err)
{
    const char *name = json_string_value(dtype);
    for (int i = 0; name && i < DTYPES && !t->element; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            t->element = &dtypes[i].element;
    if (!t->element)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: tensor '%.80s': dtype %.20s; supported are F64 F32 F16 BF16 BOOL, and "
                        "I and U of 8, 16, 32 and 64",
                        f->file->name, t->name, name ? name : "is not a string");
    return KIT_OK;
}

static int read_tensor(const io_safetensors *f, io_tensor *t, const char *name, const json_t *value,
                       size_t data, kit_error *err)
{
    *t = (io_tensor){.name = name};
    if (strlen(name) >= sizeof((kit_entry *)NULL)->name)
        return bad(f, name, err, "its name has more than 255 bytes");
    const json_t *dtype = json_object_get(value, "dtype"), *shape = json_object_get(value, "shape");
    const json_t *offsets = json_object_get(value, "data_offsets");
    if (!dtype || !shape || !offsets || json_object_size(value) != 3)
        return bad(f, name, err, "must have dtype, shape and data_offsets, and nothing else");
    int code = read_dtype(f, t, dtype, err);
    if (!code)
        code = read_shape(f, t, shape, err);
    return code ? code : read_offsets(f, t, offsets, data, err);
}

/* ------------------------------------------------------------------------------- The header */

static int by_place(const void *a, const void *b)
{
    const io_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int check_places(const io_safetensors *f, size_t data, kit_error *err)
{
    size_t at = 0;
    for (size_t i = 0; i < f->count; at = f->tensor[i].begin + f->tensor[i].bytes, i++)
        if (f->tensor[i].begin != at)
            return bad(f, f->tensor[i].name, err,
                       f->tensor[i].begin < at ? "shares bytes with the one before it"
                                               : "there are unused bytes before it");
    if (at != data)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: its tensors are %zu bytes, but %zu follow the header", f->file->name,
                        at, data);
    return KIT_OK;
}

static int check_metadata(const io_safetensors *f, json_t *metadata, kit_error *err)
{
    const char *key;
    json_t *value;
    bool texts = json_is_object(metadata);
    if (texts)
        json_object_foreach(metadata, key, value) texts = texts && json_is_string(value);
    return texts ? KIT_OK
                 : kit_fail(err, KIT_BAD_FILE, "%s: __metadata__ must map names to strings",
                            f->file->name);
}

static int read_tensors(io_safetensors *f, kit_error *err)
{
    const size_t data = (size_t)(f->file->size - f->data);
    const char *name;
    json_t *value;
    f->tensor = calloc(json_object_size(f->header) + 1, sizeof *f->tensor);
    if (!f->tensor)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", f->file->name);
    json_object_foreach((json_t *)f->header, name, value)
    {
        const bool metadata = strcmp(name, METADATA) == 0;
        const int code = metadata ? check_metadata(f, value, err)
                                  : read_tensor(f, &f->tensor[f->count], name, value, data, err);
        if (code)
            return code;
        f->count += !metadata;
    }
    qsort(f->tensor, f->count, sizeof *f->tensor, by_place);
    return check_places(f, data, err);
}

static int parse_header(io_safetensors *f, const char *text, size_t length, kit_error *err)
{
    json_error_t e;
    json_t *header;
    const int code = io_json_load(&header, text, length, &e);
    f->header = header;
    if (code == KIT_LIMIT)
        return kit_fail(err, code, "%s: not enough memory", f->file->name);
    if (code)
        return kit_fail(err, code, "%s: header, byte %d: %s", f->file->name, e.position, e.text);
    return KIT_OK;
}

static int read_header(io_safetensors *f, size_t length, kit_error *err)
{
    size_t got;
    char *text = malloc(length);
    if (!text)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", f->file->name);
    int code = io_read(f->file, text, length, &got, err);
    if (!code && (got < length || text[0] != '{'))
        code = kit_fail(err, KIT_BAD_FILE, "%s: not a .safetensors file: its header is not JSON",
                        f->file->name);
    if (!code)
        code = parse_header(f, text, length, err);
    free(text);
    return code;
}

int io_safetensors_open(io_safetensors *f, io_source *file, kit_error *err)
{
    unsigned char start[LENGTH];
    size_t got;
    *f = (io_safetensors){.file = file};
    if (file->size == IO_SIZE_UNKNOWN)
        return kit_fail(err, KIT_BAD_FILE, "%s: a .safetensors file cannot be read from a pipe",
                        file->name);
    int code = io_read(file, start, LENGTH, &got, err);
    if (code)
        return code;
    if (got < LENGTH)
        return kit_fail(err, KIT_BAD_FILE, "%s: not a .safetensors file: it has %zu bytes",
                        file->name, got);
    const uint64_t length = length_of(start);
    if (length < 2 || length > IO_SAFETENSORS_HEADER_LIMIT)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: announces a header of %" PRIu64 " bytes; it must have 2 to %" PRIu64,
                        file->name, length, IO_SAFETENSORS_HEADER_LIMIT);
    if (length > (uint64_t)(file->size - LENGTH))
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: announces a header of %" PRIu64 " bytes, but only %" PRId64 " follow",
                        file->name, length, file->size - LENGTH);
    f->data = LENGTH + (int64_t)length;
    code = read_header(f, (size_t)length, err);
    return code ? code : read_tensors(f, err);
}

void io_safetensors_close(io_safetensors *f)
{
    json_decref(f->header); /* f->header may be NULL */
    free(f->tensor);
    *f = (io_safetensors){0};
}

/* --------------------------------------------------------------------------------- Reading */

const io_tensor *io_safetensors_find(const io_safetensors *f, const char *name)
{
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->tensor[i].name, name) == 0)
            return &f->tensor[i];
    return NULL;
}

const char *io_safetensors_metadata(const io_safetensors *f, const char *key)
{
    return json_string_value(json_object_get(json_object_get(f->header, METADATA), key));
}

static int choose(const io_tensor **t, const io_safetensors *f, const char *name, kit_error *err)
{
    *t = name ? io_safetensors_find(f, name) : f->count == 1 ? f->tensor : NULL;
    if (*t)
        return KIT_OK;
    io_names names = {0};
    for (size_t i = 0; i < f->count; i++)
        io_names_add(&names, f->tensor[i].name, strlen(f->tensor[i].name));
    return io_no_array(f->file->name, "safetensors", name, &names, err);
}

/* Reads the bytes of one tensor as a source of its own. */
static int64_t read_part(io_source *part, void *to, size_t size, kit_error *err)
{
    io_source *whole = part->member;
    const size_t left = (size_t)(part->size - part->at);
    const int64_t n = left ? whole->read(whole, to, size < left ? size : left, err) : 0;
    whole->at += n > 0 ? n : 0;
    return n;
}

int io_safetensors_load(kit_array *a, const io_safetensors *f, const char *name, kit_error *err)
{
    const io_tensor *t;
    memset(a, 0, sizeof *a);
    const int code = choose(&t, f, name, err);
    if (code)
        return code;
    io_npy h = {.element = t->element, .rank = t->rank, .bytes = t->bytes};
    memcpy(h.shape, t->shape, sizeof h.shape);
    h.count = t->bytes / t->element->size;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    h.swap = t->element->size > 1;
#endif
    f->file->at = f->data + (int64_t)t->begin;
    io_source part = {.name = f->file->name, .size = (int64_t)t->bytes, .read = read_part};
    part.member = f->file;
    return io_npy_load_elements(a, &h, &part, err);
}

int io_safetensors_list(kit_entry **entries, size_t *count, const io_safetensors *f,
                        const char *name, kit_error *err)
{
    const io_tensor *first = f->tensor;
    const int code = name ? choose(&first, f, name, err) : KIT_OK;
    if (code)
        return code;
    const size_t n = name ? 1 : f->count;
    kit_entry *list = calloc(n + 1, sizeof *list);
    if (!list)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", f->file->name);
    for (size_t i = 0; i < n; i++) {
        strcpy(list[i].name, first[i].name); /* read_tensor checked that it fits */
        list[i].dtype = first[i].element->dtype;
        list[i].rank = first[i].rank;
        memcpy(list[i].shape, first[i].shape, sizeof list[i].shape);
    }
    *entries = list;
    *count = n;
    return KIT_OK;
}

/* --------------------------------------------------------------------------------- Writing */

static const char *dtype_name(attn_dtype dtype)
{
    for (int i = 0; i < DTYPES; i++)
        if (dtypes[i].element.dtype == dtype)
            return dtypes[i].name;
    return NULL;
}

/* Puts the tensors' indices into `place` in the order of their bytes, widest elements first;
 * returns their number. */
static size_t in_order(const kit_tensor *tensor, size_t count, size_t *place)
{
    size_t n = 0;
    for (size_t size = 8; size > 0; size /= 2)
        for (size_t i = 0; i < count; i++)
            if (attn_dtype_size(tensor[i].array->dtype) == size)
                place[n++] = i;
    return n;
}

/* The contents of a file. */
typedef struct contents {
    const kit_tensor *tensor;
    size_t count, *place; /* place: as in_order says */
    const kit_text *metadata;
    size_t metadata_count;
} contents;

/* Whether a reader would refuse the file: a text is not UTF-8, a name is used twice or reserved, or
 * a type has no name. */
static bool is_refused(const contents *c)
{
    bool bad = false;
    for (size_t i = 0; i < c->metadata_count; i++) {
        const kit_text *text = &c->metadata[i];
        bad = bad || !kit_text_is_utf8(text->key) || !kit_text_is_utf8(text->value);
        for (size_t k = 0; k < i; k++)
            bad = bad || strcmp(text->key, c->metadata[k].key) == 0;
    }
    for (size_t i = 0; i < c->count; i++) {
        const kit_tensor *t = &c->tensor[i];
        bad = bad || !kit_text_is_utf8(t->name) || strcmp(t->name, METADATA) == 0 ||
              !dtype_name(t->array->dtype);
        for (size_t k = 0; k < i; k++)
            bad = bad || strcmp(t->name, c->tensor[k].name) == 0;
    }
    return bad;
}

static void put_header(json_writer *j, const contents *c)
{
    int64_t offset[2] = {0, 0};
    json_put_object(j, NULL);
    if (c->metadata_count) {
        json_put_object(j, METADATA);
        for (size_t i = 0; i < c->metadata_count; i++)
            json_put_text(j, c->metadata[i].key, c->metadata[i].value);
        json_end_object(j);
    }
    for (size_t i = 0; i < c->count; i++) {
        const kit_tensor *t = &c->tensor[c->place[i]];
        offset[0] = offset[1];
        offset[1] += (int64_t)t->array->bytes;
        json_put_object(j, t->name);
        json_put_text(j, "dtype", dtype_name(t->array->dtype));
        json_put_sizes(j, "shape", t->array->shape, t->array->rank);
        json_put_sizes(j, "data_offsets", offset, 2);
        json_end_object(j);
    }
    json_end_object(j);
}

typedef struct header {
    size_t length;
    kit_output *out; /* NULL: only counts */
    kit_error *err;
    int code;
} header;

static void put_bytes(void *to, const char *bytes, size_t size)
{
    header *h = to;
    h->length += size;
    if (h->out && !h->code)
        h->code = kit_output_write(h->out, bytes, size, h->err);
}

static int write_header(kit_output *out, const contents *c, kit_error *err)
{
    static const char spaces[WRITE_ALIGNMENT + 1] =
        "                                                                ";
    header counted = {0}, written = {.out = out, .err = err};
    json_writer counting = json_writer_to(put_bytes, &counted);
    json_writer writing = json_writer_to(put_bytes, &written);
    put_header(&counting, c);
    const size_t all = counted.length + LENGTH;
    const size_t pad = (all / WRITE_ALIGNMENT + 1) * WRITE_ALIGNMENT - all;
    unsigned char start[LENGTH];
    for (int i = 0; i < LENGTH; i++)
        start[i] = (unsigned char)((uint64_t)(counted.length + pad) >> 8 * i);
    written.code = kit_output_write(out, start, LENGTH, err);
    put_header(&writing, c);
    return written.code ? written.code : kit_output_write(out, spaces, pad, err);
}

int kit_safetensors_write(kit_output *out, const kit_tensor *tensor, size_t count,
                          const kit_text *metadata, size_t metadata_count, kit_error *err)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return kit_fail(err, KIT_LIMIT, "safetensors: can be written only by little-endian machines");
#endif
    size_t *place = calloc(count + 1, sizeof *place);
    const contents c = {tensor, count, place, metadata, metadata_count};
    int code = KIT_OK;
    if (!place)
        return kit_fail(err, KIT_LIMIT, "safetensors: no memory for the header");
    if (in_order(tensor, count, place) != count || is_refused(&c))
        code = kit_fail(err, KIT_LIMIT,
                        "safetensors: a name or a text is not UTF-8, a name is used twice or "
                        "reserved, or a type cannot be stored");
    if (!code)
        code = write_header(out, &c, err);
    for (size_t i = 0; i < count && !code; i++)
        code =
            kit_output_write(out, tensor[place[i]].array->data, tensor[place[i]].array->bytes, err);
    free(place);
    return code;
}

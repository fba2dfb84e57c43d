/* .npy files, versions 1.0, 2.0 and 3.0: read from a source, written to an output.
 *
 *   "\x93NUMPY" | major, minor | length of the header, 2 bytes (1.0) or 4 | header | elements
 *
 * Files are untrusted input, so every length is checked before memory is allocated: a header
 * against its limit, the elements against the size of the file if that is known. Elements are read
 * in small blocks, which are byte-swapped, widened and stored in row-major order.
 */
#include "io.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char magic[] = "\x93NUMPY";
enum { MAGIC = 6, BLOCK = 1024 /* elements */, WIDEST = 8 /* bytes of an element */ };

/* ---------------------------------------------------------------------------------- Header */

static int read_exactly(io_source *s, void *to, size_t size, const char *what, kit_error *err)
{
    size_t got;
    const int code = io_read(s, to, size, &got, err);
    if (code)
        return code;
    if (got < size)
        return kit_fail(err, KIT_BAD_FILE, "%s: ends within its %s: %zu bytes where %zu should be",
                        s->name, what, got, size);
    return KIT_OK;
}

/* Reads everything before the header's text; *length is the length of that text. */
static int read_prefix(io_source *s, size_t *length, kit_error *err)
{
    unsigned char b[IO_NPY_PREFIX];
    size_t got;
    *length = 0;
    int code = io_read(s, b, MAGIC + 2, &got, err);
    if (code)
        return code;
    if (got < MAGIC + 2 || memcmp(b, magic, MAGIC) != 0)
        return kit_fail(err, KIT_BAD_FILE, "%s: not a .npy file%s", s->name,
                        got ? "" : ": it is empty");
    const int major = b[MAGIC], minor = b[MAGIC + 1];
    if (major < 1 || major > 3 || minor != 0)
        return kit_fail(err, KIT_BAD_FILE, "%s: .npy version %d.%d; supported are 1.0, 2.0 and 3.0",
                        s->name, major, minor);
    const size_t field = major == 1 ? 2 : 4;
    code = read_exactly(s, b, field, "header", err);
    if (code)
        return code;
    for (size_t i = field; i-- > 0;)
        *length = *length << 8 | b[i];
    if (*length > IO_NPY_HEADER_LIMIT)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: announces a header of %zu bytes; at most %d are supported", s->name,
                        *length, IO_NPY_HEADER_LIMIT);
    if (s->size != IO_SIZE_UNKNOWN && (int64_t)*length > s->size - s->at)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: announces a header of %zu bytes, but only %" PRId64 " follow", s->name,
                        *length, s->size - s->at);
    return KIT_OK;
}

/* `follow`: "40", "fewer" or "more". */
static int wrong_size(const io_npy *h, const io_source *s, const char *follow, kit_error *err)
{
    char shape[IO_SHAPE_TEXT];
    return kit_fail(err, KIT_BAD_FILE, "%s: header says shape %s of %s = %zu bytes, but %s follow",
                    s->name, io_shape_text(shape, h->rank, h->shape), h->element->name, h->bytes,
                    follow);
}

int io_npy_open(io_npy *h, io_source *s, kit_error *err)
{
    size_t length;
    int code = read_prefix(s, &length, err);
    if (code)
        return code;
    char *text = malloc(length + 1);
    if (!text)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", s->name);
    code = read_exactly(s, text, length, "header", err);
    if (!code)
        code = io_npy_parse_header(h, text, length, s->name, err);
    free(text);
    if (code)
        return code;

    if (s->size == IO_SIZE_UNKNOWN) {
        if (h->count > IO_STREAM_LIMIT / WIDEST)
            return kit_fail(err, KIT_LIMIT, "%s: %zu elements; at most %zu can be read from a pipe",
                            s->name, h->count, IO_STREAM_LIMIT / WIDEST);
    } else if ((uint64_t)(s->size - s->at) != h->bytes) {
        char follow[24];
        snprintf(follow, sizeof follow, "%" PRId64, s->size - s->at);
        return wrong_size(h, s, follow, err);
    }
    return KIT_OK;
}

/* -------------------------------------------------------------------------------- Elements */

void io_swap_bytes(unsigned char *bytes, size_t count, size_t size)
{
    for (unsigned char *e = bytes; e < bytes + count * size; e += size)
        for (size_t i = 0; i < size / 2; i++) {
            const unsigned char b = e[i];
            e[i] = e[size - 1 - i];
            e[size - 1 - i] = b;
        }
}

#define WIDEN(type)                                                                                \
    for (size_t i = 0; i < n; i++) {                                                               \
        type x;                                                                                    \
        memcpy(&x, raw + i * sizeof x, sizeof x);                                                  \
        wide[i] = x;                                                                               \
    }                                                                                              \
    break

/* Converts file elements to array elements. Returns the index of the first that cannot be
 * represented, or n. */
static size_t decode(void *to, const unsigned char *raw, size_t n, const io_element *e)
{
    int64_t *wide = to; /* integers become 64 bits wide */
    switch (e->kind << 8 | (int)e->size) {
    case 'i' << 8 | 1: WIDEN(int8_t);
    case 'i' << 8 | 2: WIDEN(int16_t);
    case 'i' << 8 | 4: WIDEN(int32_t);
    case 'u' << 8 | 1: WIDEN(uint8_t);
    case 'u' << 8 | 2: WIDEN(uint16_t);
    case 'u' << 8 | 4: WIDEN(uint32_t);
    default: memcpy(to, raw, n * e->size); break; /* same format in file and array */
    }
    if (e->kind == 'b')
        for (size_t i = 0; i < n; i++)
            if (raw[i] > 1)
                return i;
    if (e->kind == 'u' && e->size == 8)
        for (size_t i = 0; i < n; i++)
            if (wide[i] < 0)
                return i;
    return n;
}

/* The place, in elements, of the next element of a file whose first index varies fastest. */
typedef struct walk {
    int rank;
    int64_t shape[KIT_MAX_RANK], stride[KIT_MAX_RANK], index[KIT_MAX_RANK];
    size_t at;
} walk;

static walk walk_start(const io_npy *h)
{
    walk w = {.rank = h->rank};
    int64_t stride = 1;
    for (int i = h->rank; i-- > 0; stride *= h->shape[i]) {
        w.shape[i] = h->shape[i];
        w.stride[i] = stride;
    }
    return w;
}

static void walk_next(walk *w)
{
    for (int i = 0; i < w->rank; i++) {
        w->at += (size_t)w->stride[i];
        if (++w->index[i] < w->shape[i])
            return;
        w->at -= (size_t)(w->shape[i] * w->stride[i]);
        w->index[i] = 0;
    }
}

static int bad_element(const io_npy *h, const io_source *s, size_t i, kit_error *err)
{
    return kit_fail(err, KIT_BAD_FILE, "%s: element %zu is %s", s->name, i,
                    h->element->kind == 'b'
                        ? "neither 0 nor 1, so not a bool"
                        : "more than 2^63 - 1, the largest integer that attn reads");
}

static int read_elements(kit_array *a, const io_npy *h, io_source *s, kit_error *err)
{
    unsigned char raw[BLOCK * WIDEST], decoded[BLOCK * WIDEST];
    const size_t size = attn_dtype_size(a->dtype);
    char *data = a->data;
    walk w = walk_start(h);
    for (size_t done = 0; done < h->count; done += BLOCK) {
        const size_t n = h->count - done < BLOCK ? h->count - done : BLOCK;
        size_t got;
        const int code = io_read(s, raw, n * h->element->size, &got, err);
        if (code)
            return code;
        if (got < n * h->element->size) {
            char follow[24];
            snprintf(follow, sizeof follow, "%zu", done * h->element->size + got);
            return wrong_size(h, s, follow, err);
        }
        if (h->swap)
            io_swap_bytes(raw, n, h->element->size);
        const size_t good =
            decode(h->fortran ? (void *)decoded : data + done * size, raw, n, h->element);
        if (good < n)
            return bad_element(h, s, done + good, err);
        for (size_t i = 0; h->fortran && i < n; i++, walk_next(&w))
            memcpy(data + w.at * size, decoded + i * size, size);
    }
    char more;
    size_t got;
    const int code = io_read(s, &more, 1, &got, err);
    if (!code && got)
        return wrong_size(h, s, "more", err);
    return code;
}

int io_npy_load_elements(kit_array *a, const io_npy *h, io_source *s, kit_error *err)
{
    int code = io_array_reserve(a, h->element->dtype, h->rank, h->shape, s->name, err);
    if (!code)
        code = read_elements(a, h, s, err);
    if (code)
        kit_array_free(a);
    return code;
}

int io_npy_load(kit_array *a, io_source *s, kit_error *err)
{
    memset(a, 0, sizeof *a);
    io_npy h;
    const int code = io_npy_open(&h, s, err);
    return code ? code : io_npy_load_elements(a, &h, s, err);
}

int kit_npy_parse(kit_array *a, const void *bytes, size_t size, const char *name, kit_error *err)
{
    io_source s = io_source_memory(name, bytes, size);
    return io_npy_load(a, &s, err);
}

/* --------------------------------------------------------------------------------- Writing */

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define ORDER ">"
#else
#define ORDER "<"
#endif

static const char *descr_of(attn_dtype dtype)
{
    switch (dtype) {
    case ATTN_F64: return ORDER "f8";
    case ATTN_F32: return ORDER "f4";
    case ATTN_F16: return ORDER "f2";
    case ATTN_BF16: return ORDER "f4"; /* .npy has no bfloat16 */
    case ATTN_BOOL: return "|b1";
    case ATTN_I64: return ORDER "i8";
    default: break; /* no other type comes from a file; i8 exists only in caches */
    }
    return NULL;
}

enum { HEADER = 384 /* bytes of any header */ };

/* Makes everything before the elements. Returns its length. */
static size_t make_header(char header[HEADER], const kit_array *a)
{
    enum { PREFIX = MAGIC + 4 };
    char shape[IO_SHAPE_TEXT], *text = header + PREFIX;
    int length =
        snprintf(text, HEADER - PREFIX, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                 descr_of(a->dtype), io_shape_text(shape, a->rank, a->shape));
    while ((length + 1 + PREFIX) % 64 != 0) /* elements start at a multiple of 64 */
        text[length++] = ' ';
    text[length++] = '\n';

    memset(header, 0, PREFIX);
    memcpy(header, magic, MAGIC);
    header[MAGIC] = 1;
    header[MAGIC + 2] = (char)(length & 0xFF);
    header[MAGIC + 3] = (char)(length >> 8);
    return (size_t)length + PREFIX;
}

int kit_npy_write(kit_output *out, const kit_array *a, kit_error *err)
{
    if (!descr_of(a->dtype))
        return kit_fail(err, KIT_USAGE, "array: unknown dtype %d", (int)a->dtype);
    char header[HEADER];
    int code = kit_output_write(out, header, make_header(header, a), err);
    if (code || a->dtype != ATTN_BF16)
        return code ? code : kit_output_write(out, a->data, a->bytes, err);

    float block[BLOCK];
    const int64_t count = kit_array_count(a);
    for (int64_t done = 0; !code && done < count; done += BLOCK) {
        const int64_t n = count - done < BLOCK ? count - done : BLOCK;
        for (int64_t i = 0; i < n; i++)
            block[i] = (float)kit_array_get(a, done + i);
        code = kit_output_write(out, block, (size_t)n * sizeof block[0], err);
    }
    return code;
}

/* ------------------------------------------------------------------ Written by several processes
 */

static size_t size_in_file(attn_dtype dtype)
{
    return dtype == ATTN_BF16 ? sizeof(float) : attn_dtype_size(dtype);
}

int kit_npy_share(kit_output **out, const char *path, const kit_array *whole, kit_error *err)
{
    char header[HEADER];
    size_t count, bytes;
    *out = NULL;
    if (!descr_of(whole->dtype) || whole->rank < 2)
        return kit_fail(err, KIT_USAGE, "%s: must be an array of a known dtype with rows", path);
    if (!io_shape_size(whole->rank, whole->shape, size_in_file(whole->dtype), &count, &bytes))
        return kit_fail(err, KIT_LIMIT, "%s: is more than this machine can address", path);
    const size_t length = make_header(header, whole);
    int code = kit_output_open(out, path, err);
    if (code)
        return code;
    if (!(code = kit_output_write(*out, header, length, err)))
        code = io_output_share(*out, length + bytes, err);
    if (code) {
        kit_output_abort(*out);
        *out = NULL;
    }
    return code;
}

/* Writes `count` elements of `a`, from element `first` on, at an offset of the file. */
static int write_elements(kit_output *out, size_t at, const kit_array *a, int64_t first,
                          int64_t count, kit_error *err)
{
    const size_t size = attn_dtype_size(a->dtype);
    int code = KIT_OK;
    if (a->dtype != ATTN_BF16)
        return io_output_write_at(out, at, (const char *)a->data + (size_t)first * size,
                                  (size_t)count * size, err);
    float block[BLOCK];
    for (int64_t done = 0; !code && done < count; done += BLOCK) {
        const int64_t n = count - done < BLOCK ? count - done : BLOCK;
        for (int64_t i = 0; i < n; i++)
            block[i] = (float)kit_array_get(a, first + done + i);
        code = io_output_write_at(out, at + (size_t)done * sizeof block[0], block,
                                  (size_t)n * sizeof block[0], err);
    }
    return code;
}

int kit_npy_write_rows(kit_output *out, const kit_array *whole, int64_t first,
                       const kit_array *part, int64_t from, int64_t n, kit_error *err)
{
    char header[HEADER];
    const size_t start = make_header(header, whole), element = size_in_file(whole->dtype);
    const int64_t *size = whole->shape + whole->rank - 2, columns = size[1];
    const int64_t rows = part->shape[part->rank - 2];
    int64_t matrices = 1;
    int code = KIT_OK;
    for (int i = 0; i < whole->rank - 2; i++)
        matrices *= whole->shape[i];
    for (int64_t m = 0; m < matrices && !code; m++)
        code = write_elements(out, start + (size_t)((m * size[0] + first) * columns) * element,
                              part, (m * rows + from) * columns, n * columns, err);
    return code;
}

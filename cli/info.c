/* attn info: describes this program and the machine, or the contents of a file. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kit/io/json_write.h"
#include "../kit/model/model.h"
#include "command.h"

typedef struct machine {
    char features[256];
    const char *isa, *why_isa, *why_threads;
    int threads;
} machine;

static const char *build_text(void)
{
#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif
#ifdef __OPTIMIZE__
    return COMPILER ", optimised";
#else
    return COMPILER ", not optimised";
#endif
}

/* libattn decides; this code only reports which of its rules applied. */
static int look(machine *m, kit_error *err)
{
    const char *isa = getenv("ATTN_ISA"), *threads = getenv("ATTN_NUM_THREADS");
    attn_context *ctx = NULL;
    int code = engine_context(&ctx, NULL, 0, err);
    if (code)
        return code;
    m->isa = attn_context_isa(ctx);
    m->threads = attn_context_threads(ctx);
    attn_context_destroy(ctx);
    attn_cpu_features(m->features, sizeof m->features);
    m->why_isa = isa && strcmp(isa, m->isa) == 0 ? "ATTN_ISA names it" : "the best of this machine";
    m->why_threads = threads && atoi(threads) == m->threads ? "ATTN_NUM_THREADS"
                                                            : "the CPUs this process may use";
    return KIT_OK;
}

static void print_machine(const machine *m)
{
    printf("%-10s %s (%s)\n", "version", attn_version(), build_text());
    printf("%-10s %s\n", "features", *m->features ? m->features : "none that libattn uses");
    printf("%-10s", "isa");
    for (int i = 0; attn_isa(i).name; i++)
        printf(" %s%s", attn_isa(i).name, attn_isa(i).usable ? "" : " (not usable here)");
    printf("\n%-10s %s: %s\n", "chosen", m->isa, m->why_isa);
    printf("%-10s %d: %s\n", "threads", m->threads, m->why_threads);
}

static void print_machine_json(const machine *m)
{
    json_writer j = json_begin_stdout("attn.info/1");
    json_put_text(&j, "version", attn_version());
    json_put_text(&j, "build", build_text());
    json_put_array(&j, "features");
    for (const char *f = m->features; *f;) {
        const size_t length = strcspn(f, " ");
        char one[sizeof m->features];
        snprintf(one, sizeof one, "%.*s", (int)length, f);
        json_put_text(&j, NULL, one);
        f += length + (f[length] == ' ');
    }
    json_end_array(&j);
    json_put_array(&j, "isas");
    for (int i = 0; attn_isa(i).name; i++) {
        json_put_object(&j, NULL);
        json_put_text(&j, "name", attn_isa(i).name);
        json_put_flag(&j, "usable", attn_isa(i).usable);
        json_end_object(&j);
    }
    json_end_array(&j);
    json_put_text(&j, "isa", m->isa);
    json_put_text(&j, "isa_reason", m->why_isa);
    json_put_integer(&j, "threads", m->threads);
    json_put_text(&j, "threads_reason", m->why_threads);
    json_end_stdout(&j);
}

/* Returns the columns of a name as kit_text_print shows it. */
static int shown_width(const char *name)
{
    int width = 0;
    while (*name) {
        const char *piece;
        size_t length;
        name = kit_text_next(name, &piece, &length);
        width += kit_text_width_of(piece, length);
    }
    return width;
}

static void print_entries(const kit_entry *entries, size_t count)
{
    int width = 0;
    for (size_t i = 0; i < count; i++)
        if (shown_width(entries[i].name) > width)
            width = shown_width(entries[i].name);
    for (size_t i = 0; i < count; i++) {
        const kit_entry *e = &entries[i];
        int space = width - shown_width(e->name) + (width ? 2 : 0);
        kit_text_print(stdout, e->name);
        printf("%*s%-4s [", space, "", attn_dtype_name(e->dtype));
        for (int d = 0; d < e->rank; d++)
            printf("%s%" PRId64, d ? ", " : "", e->shape[d]);
        puts("]");
    }
}

static void print_entries_json(const char *path, const kit_entry *entries, size_t count)
{
    json_writer j = json_begin_stdout("attn.info/1");
    json_put_text(&j, "file", path);
    json_put_array(&j, "arrays");
    for (size_t i = 0; i < count; i++) {
        json_put_object(&j, NULL);
        json_put_text(&j, "name", entries[i].name);
        json_put_text(&j, "dtype", attn_dtype_name(entries[i].dtype));
        json_put_sizes(&j, "shape", entries[i].shape, entries[i].rank);
        json_end_object(&j);
    }
    json_end_array(&j);
    json_end_stdout(&j);
}

static void print_keys(void)
{
    const char *family = "";
    model_key k;
    for (size_t i = 0; model_key_at(&k, i); i++) {
        if (strcmp(k.family, family) != 0)
            printf("%s%s\n", i ? "\n" : "", family = k.family);
        printf("  %-34s %-18s %-24s %s\n", k.key, k.use, k.values, k.meaning);
    }
}

static void print_keys_json(void)
{
    model_key k;
    json_writer j = json_begin_stdout("attn.info/1");
    json_put_array(&j, "model_keys");
    for (size_t i = 0; model_key_at(&k, i); i++) {
        json_put_object(&j, NULL);
        json_put_text(&j, "family", k.family);
        json_put_text(&j, "key", k.key);
        json_put_text(&j, "use", k.use);
        json_put_text(&j, "values", k.values);
        json_put_text(&j, "meaning", k.meaning);
        json_end_object(&j);
    }
    json_end_array(&j);
    json_end_stdout(&j);
}

int command_info(const options *o, kit_error *err)
{
    bool json = option_given(o, OPT_info_json);
    if (option_given(o, OPT_info_model_keys) && o->operand_count > 0)
        return kit_fail(err, KIT_USAGE, "--model-keys takes no file; leave out '%s'",
                        o->operand[0]);
    if (option_given(o, OPT_info_model_keys)) {
        (json ? print_keys_json : print_keys)();
        return KIT_OK;
    }
    if (o->operand_count > 1)
        return kit_fail(err, KIT_USAGE, "info reads one file at a time; leave out '%s'",
                        o->operand[1]);
    if (o->operand_count == 1) {
        kit_entry *entries = NULL;
        size_t count = 0;
        int code = kit_read_list(&entries, &count, o->operand[0], err);
        if (!code && json)
            print_entries_json(o->operand[0], entries, count);
        else if (!code)
            print_entries(entries, count);
        free(entries);
        return code;
    }
    machine m = {0};
    int code = look(&m, err);
    if (!code)
        (json ? print_machine_json : print_machine)(&m);
    return code;
}

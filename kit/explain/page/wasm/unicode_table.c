/* Runs at build, on this machine: prints the array unicode_run, the categories of all characters,
 * as the installed utf8proc has them. Only those that kit/text/ asks for have their number, so that
 * the table has 2 KB and not 16.
 */
#include <stdbool.h>
#include <stdio.h>

#include <utf8proc.h>

static int category_of(utf8proc_int32_t c)
{
    const int k = (int)utf8proc_category(c);
    const bool punctuation = k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
    const bool space = k >= UTF8PROC_CATEGORY_ZS && k <= UTF8PROC_CATEGORY_ZP;
    return punctuation || space ? k : 0;
}

int main(void)
{
    int before = -1;
    printf("/* utf8proc %s, Unicode %s */\n#include <stdint.h>\n\n"
           "static const uint32_t unicode_run[] = {\n",
           utf8proc_version(), utf8proc_unicode_version());
    for (utf8proc_int32_t c = 0; c <= 0x10ffff; c++) {
        const int category = category_of(c);
        if (category != before)
            printf("    0x%xu << 5 | %d,\n", (unsigned)c, category);
        before = category;
    }
    printf("};\n");
    return ferror(stdout) || fflush(stdout) != 0;
}

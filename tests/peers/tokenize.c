/* For test_tokenizers.py: tokenize FOLDER < texts > tokens. Each text is a line "LENGTH PAIR\n",
 * its bytes and, with PAIR not -1, those of a second text of that length. Each answer is a line of
 * id,type,which,begin,end, with spaces between, or "! message". */
#include <stdio.h>
#include <stdlib.h>

#include "text/tokenizer.h"

static char *read_exactly(long size)
{
    if (size < 0)
        return NULL;
    char *text = calloc((size_t)size + 1, 1);
    if (!text || fread(text, 1, (size_t)size, stdin) != (size_t)size)
        exit(2);
    return text;
}

int main(int argc, char **argv)
{
    kit_tokenizer *t;
    kit_error e = {0};
    if (argc != 2 || kit_tokenizer_open(&t, argv[1], &e)) {
        fprintf(stderr, "%s\n", e.message);
        return 3;
    }
    for (long a, b; scanf("%ld %ld", &a, &b) == 2;) {
        getchar();
        char *text = read_exactly(a), *pair = read_exactly(b);
        kit_tokens tokens;
        if (kit_tokenizer_encode(&tokens, t, text, pair, &e)) {
            printf("! %s\n", e.message);
        } else {
            for (size_t i = 0; i < tokens.count; i++) {
                const kit_token *k = &tokens.token[i];
                printf("%s%lld,%lld,%d,%zu,%zu", i ? " " : "", (long long)k->id, (long long)k->type,
                       k->which, k->begin, k->end);
            }
            putchar('\n');
            kit_tokens_free(&tokens);
        }
        free(text);
        free(pair);
    }
    kit_tokenizer_free(t);
    return 0;
}

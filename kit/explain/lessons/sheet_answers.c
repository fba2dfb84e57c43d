/* Reads a file of answers, which may come from anybody, and judges single answers. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../io/json.h"
#include "sheet.h"

#define ANSWERS_LIMIT ((size_t)1 << 16) /* bytes; a full file has less than 1000 */

/* The seed is a text of decimal digits, because numbers of 64 bits do not survive every reader of
 * JSON; a number is accepted, too. */
static int read_seed(uint64_t *seed, const json_t *file, const char *path, kit_error *err)
{
    const json_t *value = json_object_get(file, "seed");
    const char *text = json_string_value(value);
    char *end = NULL;
    errno = 0;
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        *seed = (uint64_t)json_integer_value(value);
        return KIT_OK;
    }
    if (text != NULL && isdigit((unsigned char)text[0])) {
        *seed = strtoull(text, &end, 10);
        if (*end == '\0' && errno == 0) {
            return KIT_OK;
        }
    }
    return kit_fail(err, KIT_BAD_FILE, "%s: seed must be the sheet's number, such as \"7\"", path);
}

/* Copies a text without white space at its ends; a long one is cut, as no right answer is long. */
static void copy_text(char *out, size_t size, const char *text)
{
    text += strspn(text, " \t\r\n");
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1])) {
        length--;
    }
    if (length >= size) {
        length = size - 1;
        while (length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80) {
            length--; /* not inside a character */
        }
    }
    memcpy(out, text, length);
    out[length] = '\0';
}

static int read_one(char *out, size_t size, const json_t *value, const char *path, const char *key,
                    kit_error *err)
{
    char number[32];
    const char *text = number;
    if (json_is_string(value)) {
        text = json_string_value(value);
    } else if (json_is_number(value)) {
        snprintf(number, sizeof number, "%.15g", json_number_value(value));
    } else if (json_is_null(value)) {
        text = "";
    } else {
        return kit_fail(err, KIT_BAD_FILE, "%s: answer %s must be a text or a number", path, key);
    }
    copy_text(out, size, text);
    return KIT_OK;
}

/* The number of a question, or 0. */
static int question_of(const char *key)
{
    char *end;
    long n = isdigit((unsigned char)key[0]) && key[0] != '0' ? strtol(key, &end, 10) : 0;
    return n > 0 && *end == '\0' && n <= SHEET_QUESTIONS ? (int)n : 0;
}

static int read_answers(sheet_answers *a, json_t *file, const char *path, kit_error *err)
{
    const char *schema = json_string_value(json_object_get(file, "schema")), *name = "", *key;
    json_t *answers = json_object_get(file, "answers"), *value;
    if (schema == NULL || strcmp(schema, SHEET_SCHEMA) != 0) {
        return kit_fail(err, KIT_BAD_FILE, "%s: schema must be \"%s\"", path, SHEET_SCHEMA);
    }
    int code = read_seed(&a->seed, file, path, err);
    code = code ? code : io_json_text(&name, file, path, "name", err);
    if (code) {
        return code;
    }
    copy_text(a->name, sizeof a->name, name);
    if (!json_is_object(answers)) {
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: answers must be an object, such as {\"1\": \"0.25\", \"3\": \"b\"}",
                        path);
    }
    json_object_foreach(answers, key, value)
    {
        int n = question_of(key);
        if (n == 0) {
            return kit_fail(err, KIT_BAD_FILE, "%s: answers has '%s'; the questions are 1 to %d",
                            path, key, (int)SHEET_QUESTIONS);
        }
        code = read_one(a->text[n - 1], sizeof a->text[n - 1], value, path, key, err);
        if (code) {
            return code;
        }
    }
    return KIT_OK;
}

int sheet_read_answers(sheet_answers *a, const char *path, kit_error *err)
{
    json_t *file;
    memset(a, 0, sizeof *a);
    int code = io_json_read(&file, path, ANSWERS_LIMIT, err);
    if (code == KIT_OK) {
        code = read_answers(a, file, path, err);
        json_decref(file);
    }
    return code;
}

/* Reads a decimal number with a point or a comma and any minus sign; NaN if it is none. */
static double read_number(const char *text)
{
    static const char minus[] = "\xe2\x88\x92"; /* U+2212 */
    char copy[64], *end;
    bool negative = strncmp(text, minus, sizeof minus - 1) == 0;
    text += negative ? sizeof minus - 1 : 0;
    size_t length = strlen(text);
    if (length == 0 || length >= sizeof copy || strspn(text, "+-0123456789.,") != length) {
        return NAN;
    }
    memcpy(copy, text, length + 1);
    char *comma = strchr(copy, ',');
    if (comma != NULL) {
        *comma = '.';
    }
    double x = strtod(copy, &end);
    return *end != '\0' || end == copy ? NAN : negative ? -x : x;
}

bool sheet_is_right(const sheet_question *q, const char *answer)
{
    if (q->choices == 0) {
        /* A difference of 0.01 is right, also if its binary digits make it a little larger. */
        return fabs(read_number(answer) - q->answer) <= SHEET_TOLERANCE + 1e-9;
    }
    int c = tolower((unsigned char)answer[0]) - 'a';
    bool letter = answer[0] != '\0' && (answer[1] == '\0' || (answer[1] == ')' && !answer[2]));
    return letter && c >= 0 && c < q->choices && q->choice[c].right;
}

/* Scripts of lessons: their keywords, their quotations, and one clear line for every mistake. */
#include "explain/lessons/script_read.h"
#include "explain/recipe.h"
#include "explain_testing.h"

static const char *const good = "title A title\n"
                                "summary One line\n"
                                "time 5 minutes\n"
                                "# a comment\n"
                                "learn one thing\n"
                                "learn another\n"
                                "section First\n"
                                "step numbers\n"
                                "title Which?\n"
                                "idea\n"
                                "  Two lines\n"
                                "  of a paragraph.\n"
                                "\n"
                                "  Another, {{braced}.\n"
                                "  - an item\n"
                                "numpy x\n"
                                "  if a:\n"
                                "      b = {1: 2}\n"
                                "\n"
                                "meaning\n"
                                "  It is {numbers[one][1]}.\n"
                                "predict More?\n"
                                "choices\n"
                                "  - {numbers[one][0]:0}\n"
                                "  - None\n"
                                "question Why?\n"
                                "choices\n"
                                "  - So\n"
                                "see numbers\n"
                                "answer Because.\n"
                                "question How?\n"
                                "answer Thus.\n";

/* Two rows "one", "two" of three numbers. */
static void begin(trace *t)
{
    static const double numbers[] = {1, -0.5, 2.25, 4, 0, 1e-20};
    kit_error e = {0};
    recipe r = recipe_begin(t, NULL, &e, "example", "Example", "one two");
    recipe_add_copy(&r, "numbers", TRACE_VALUES, ATTN_F64, SHAPE(2, 3), numbers);
    recipe_word_rows(&r);
    recipe_describe(&r, "title", "", "sentence");
    recipe_fact(&r, "word", "one {braced}");
    recipe_fact(&r, "row", "1");
    recipe_fact(&r, "flag", "%s", "");
    assert_int_equal(recipe_end(&r), KIT_OK);
}

static int apply(trace *t, const char *text, kit_error *e)
{
    script s;
    int code = script_parse(&s, "example", text, NULL, e);
    return code ? code : script_apply(&s, t, e);
}

static void test_keywords(void **state)
{
    (void)state;
    trace t;
    kit_error e = {0};
    begin(&t);
    if (apply(&t, good, &e) != KIT_OK)
        fail_msg("%s", e.message);
    const script *s = t.script;
    assert_string_equal(s->title, "A title");
    assert_string_equal(s->time, "5 minutes");
    assert_int_equal(s->learn.count, 2);
    assert_int_equal(s->count, 1);
    assert_string_equal(s->part[0].section, "First");
    assert_string_equal(s->part[0].text[SCRIPT_IDEA],
                        "Two lines of a paragraph.\nAnother, {braced}.\n- an item");
    assert_string_equal(s->part[0].text[SCRIPT_NUMPY], "if a:\n    b = {1: 2}");
    assert_string_equal(s->part[0].label[SCRIPT_NUMPY], "x");
    assert_string_equal(s->part[0].text[SCRIPT_MEANING], "It is -0.5000.");
    assert_string_equal(t.step[0].title, "Which?");
    assert_string_equal(t.step[0].sentence, "It is -0.5000.");
    assert_string_equal(s->part[0].text[SCRIPT_CHOICES], "- 1\n- None");
    assert_string_equal(s->answer.line[0], "Because.");
    assert_string_equal(s->choices.line[0], "- So");
    assert_string_equal(s->see.line[0], "numbers");
    assert_string_equal(s->answer.line[1], "Thus.");
    assert_null(s->choices.line[1]);
    trace_free(&t);
}

static void test_code_is_cut_between_marks(void **state)
{
    (void)state;
    script s;
    kit_error e = {0};
    const char *source = "int main(void)\n{\n    /* [a] */\n    one();\n\n    if (two) {\n"
                         "        three();\n    }\n\n    /* [b] */\n    four();\n    /* [] */\n}\n";
    assert_int_equal(script_parse(&s, "x", "title t\nstep a\nstep b\nstep c\n", source, &e),
                     KIT_OK);
    assert_string_equal(s.part[0].text[SCRIPT_C], "one();\n\nif (two) {\n    three();\n}");
    assert_string_equal(s.part[1].text[SCRIPT_C], "four();");
    assert_null(s.part[2].text[SCRIPT_C]);
    script_free(&s);
}

static const struct {
    const char *text, *want; /* of a mistake: want begins with "!" */
} quotations[] = {
    {"{numbers[one][0]}", "1.0000"},
    {"{numbers[1][2]:g}", "1e-20"},
    {"{numbers[one][2]:1}", "2.2"},
    {"{numbers[two][0]:%}", "400 %"},
    {"{numbers[one]:2}", "1.00, -0.50, 2.25"},
    {"{shape numbers}", "2×3"},
    {"{largest numbers[one]}", "2"},
    {"{smallest numbers[one]}", "1"},
    {"{sum(numbers[one])}", "2.7500"},
    {"{mean(numbers[two][0])}", "4.0000"},
    {"{max(numbers)} {min(numbers)}", "4.0000 -0.5000"},
    {"{var(numbers[one]):4}", "1.2639"},
    {"{exp(0)+sqrt(16)*abs(0-2)/4-1}", "2.0000"},
    {"{-(numbers[one][0]+1)}", "-2.0000"},
    {"{0-numbers[two][2]:2}", "0.00"},
    {"no quotation", "no quotation"},
    {"{fact word}, {fact flag}.", "one {braced}, ."},
    {"{numbers[@row][0]}", "4.0000"},
    {"{numbers[@head][one][0]}", "1.0000"},
    {"{if flag}yes{else}no{end}", "yes"},
    {"{if not flag}yes{else}no{end}", "no"},
    {"{if nothing}{letters[0]}{{{if word}a{else}b{end}{else}no{end}!", "no!"},
    {"{if flag}{if nothing}a{else}b{end}c{else}{if word}d{end}{end}e", "bce"},
    {"{if nothing}a{end}", ""},
    {"{fact nothing}", "!{nothing}: the lesson has no fact of this name"},
    {"{numbers[@nothing][0]}", "!no such row or column"},
    {"{numbers[@word][3]}", "!no such row or column"},
    {"{if flag}a", "!{flag}: '{end}' is missing"},
    {"{if nothing}a{else}b", "!'{end}' is missing"},
    {"{letters[0]}", "!the lesson has no step of this name"},
    {"{numbers[three][0]}", "!no such row or column"},
    {"{numbers[2][0]}", "!no such row or column"},
    {"{numbers[-1][0]}", "!no such row or column"},
    {"{numbers[0][0][0]}", "!more indices than the step has dimensions"},
    {"{numbers[0]+1}", "!an index is missing: a row is not a number"},
    {"{numbers[0][0}", "!']' is missing"},
    {"{numbers[0][0]", "!'}' is missing"},
    {"{(1+2}", "!')' is missing"},
    {"{numbers[0][0]:x}", "!a digit, % or g must follow ':'"},
    {"{}", "!the lesson has no step of this name"},
};

static void test_quotations(void **state)
{
    (void)state;
    trace t;
    begin(&t);
    for (size_t i = 0; i < COUNT(quotations); i++) {
        kit_error e = {0};
        describe_case("%s", quotations[i].text);
        char *got = script_quote(&t, quotations[i].text, &e);
        if (quotations[i].want[0] == '!') {
            assert_null(got);
            assert_non_null(strstr(e.message, quotations[i].want + 1));
        } else {
            assert_non_null(got);
            assert_string_equal(got, quotations[i].want);
        }
        free(got);
    }
    trace_free(&t);
}

static void test_mistakes(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"titel x\nstep numbers\n", "example.lesson, line 1: no such keyword here: titel"},
        {"step numbers\nsummary x\n", "line 2: no such keyword here: summary"},
        {"title x\ntitle y\n", "line 2: no such keyword here: title"},
        {"step numbers\nidea a\nidea b\n", "line 3: this step has it already: idea"},
        {"  indented\n", "line 1: an indented line must continue a text"},
        {"title x\n", "step numbers is missing"},
        {"step number\n", "line 1: step number; the next step of the lesson is numbers"},
        {"step numbers\nstep numbers\n",
         "line 2: step numbers; the next step of the lesson is none"},
        {"step numbers\nquestion a\n", "each question needs an answer"},
        {"step numbers\nidea {x}\n", "step of line 1: {x}: the lesson has no step of this name"},
        {"step numbers\nquestion a\nsee letters\nanswer b\n",
         "a question names a step that the script does not have: letters"},
        {"step numbers\nquestion a\nchoices\n  - b\nchoices\n", "no such keyword here: choices"},
        {"step numbers\nquestion a\nanswer {x}\n", "question 1: {x}: the lesson has no step"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        trace t;
        kit_error e = {0};
        describe_case("%s", cases[i].text);
        begin(&t);
        assert_int_equal(apply(&t, cases[i].text, &e), KIT_BAD_FILE);
        if (strstr(e.message, cases[i].says) == NULL)
            fail_msg("said: %s", e.message);
        assert_null(strchr(e.message, '\n'));
        trace_free(&t);
    }
}

/* Choices leave no empty paragraphs, parts and questions behind. */
static void test_conditions(void **state)
{
    (void)state;
    trace t;
    kit_error e = {0};
    begin(&t);
    const char *text =
        "step @a\nwhen nothing\nstep @b\nwhen not nothing\ntitle B\nstep @c\nwhen flag\n"
        "idea\n  {if nothing}a{end}\n\n  {if flag}b{end} {if nothing}c{end} d\n"
        "answer {if nothing}a{end}\nstep numbers\nnumpy x\n"
        "  d = {1: {if flag}'{fact word}'{end}}\n"
        "question {if nothing}q{end}\nchoices c\nanswer a\nquestion r\nchoices d\n"
        "see numbers\nanswer {if flag}b{end}\n";
    if (apply(&t, text, &e) != KIT_OK)
        fail_msg("%s", e.message);
    const script *s = t.script;
    assert_int_equal(s->count, 3);
    assert_string_equal(s->part[0].text[SCRIPT_TITLE], "B");
    assert_string_equal(s->part[1].text[SCRIPT_IDEA], "b d");
    assert_null(s->part[1].text[SCRIPT_ANSWER]);
    assert_string_equal(s->part[2].text[SCRIPT_NUMPY], "d = {1: 'one {braced}'}");
    assert_int_equal(s->question.count, 1);
    assert_string_equal(s->question.line[0], "r");
    assert_string_equal(s->answer.line[0], "b");
    assert_string_equal(s->choices.line[0], "d");
    assert_string_equal(s->see.line[0], "numbers");
    trace_free(&t);
}

/* A section is left out as a whole if the trace has none of its steps. */
static void test_optional_sections(void **state)
{
    (void)state;
    trace t;
    kit_error e = {0};
    begin(&t);
    if (apply(&t, "step numbers\nsection More\noptional\nstep more\nstep @words\n", &e) != KIT_OK)
        fail_msg("%s", e.message);
    assert_int_equal(t.script->count, 1);
    trace_free(&t);
}

/* Every prefix of a script is read or refused; the sanitizers see the rest. */
static void test_every_prefix(void **state)
{
    (void)state;
    char text[1024];
    for (size_t n = 0; n <= strlen(good); n++) {
        trace t;
        kit_error e = {0};
        snprintf(text, sizeof text, "%.*s", (int)n, good);
        begin(&t);
        apply(&t, text, &e);
        trace_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keywords),          cmocka_unit_test(test_code_is_cut_between_marks),
        cmocka_unit_test(test_quotations),        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_optional_sections), cmocka_unit_test(test_every_prefix),
        cmocka_unit_test(test_conditions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

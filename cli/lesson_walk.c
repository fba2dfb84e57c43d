/* attn lesson on a terminal: screens and stages (kit/explain/render/render.h), keys, and the place
 * where the reader stopped.
 *
 * Screens are printed below each other and never erased: the reader can scroll back, and a dumb
 * terminal shows the same. Keys are read one at a time; only those that end a program (Ctrl-C,
 * Ctrl-\) and Ctrl-Z keep their meaning. */
#include "lesson_walk.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "../kit/explain/script.h"
#include "terminal.h"

typedef struct walk {
    const trace *t;
    render_text_options text;
    size_t screens, screen, stage;
    bool predictions;   /* stop behind them */
    int guessed, right; /* predictions, as the reader judged them */
    int key;            /* the last one; 0: none */
    struct termios keys;
    sigset_t waiting; /* the signal mask while waiting for a key */
    char number[8];   /* digits typed so far */
} walk;

/* ------------------------------------------------------------------------------------- Signals */

static volatile sig_atomic_t resized, ended;

static void note_resize(int signal)
{
    (void)signal;
    resized = 1;
}

static void note_end(int signal) { ended = signal; }

/* The signals are delivered only while read_key() waits, so that none interrupts an output. */
static const struct {
    int signal;
    void (*handler)(int);
} watched[] = {{SIGWINCH, note_resize},
               {SIGCONT, note_resize},
               {SIGINT, note_end},
               {SIGTERM, note_end}};
enum { WATCHED = sizeof watched / sizeof *watched };

static void watch_signals(struct sigaction old[WATCHED], sigset_t *old_mask)
{
    sigset_t held;
    sigemptyset(&held);
    for (int i = 0; i < WATCHED; i++) {
        struct sigaction action = {.sa_handler = watched[i].handler};
        sigemptyset(&action.sa_mask);
        sigaction(watched[i].signal, &action, &old[i]);
        sigaddset(&held, watched[i].signal);
    }
    sigprocmask(SIG_BLOCK, &held, old_mask);
}

static void unwatch_signals(const struct sigaction old[WATCHED], const sigset_t *old_mask)
{
    for (int i = 0; i < WATCHED; i++)
        sigaction(watched[i].signal, &old[i], NULL);
    sigprocmask(SIG_SETMASK, old_mask, NULL);
}

/* Keys without Enter, and without an echo. */
static bool begin_keys(walk *w, struct termios *saved)
{
    if (tcgetattr(STDIN_FILENO, saved) != 0)
        return false;
    w->keys = *saved;
    w->keys.c_lflag &= (tcflag_t) ~(ICANON | ECHO);
    w->keys.c_cc[VMIN] = 1;
    w->keys.c_cc[VTIME] = 0;
    return tcsetattr(STDIN_FILENO, TCSADRAIN, &w->keys) == 0;
}

/* ---------------------------------------------------------------------------------------- Place */

/* Makes the folders of `path` that do not exist. */
static void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0777);
        *slash = '/';
    }
}

/* The file with the reader's places; false: the environment names no folder. Source: the XDG Base
 * Directory Specification. */
static bool place_file(char *path, size_t size)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int length = state && *state == '/' ? snprintf(path, size, "%s/attn/lessons", state)
                 : home && *home == '/' ? snprintf(path, size, "%s/.local/state/attn/lessons", home)
                                        : -1;
    return length > 0 && (size_t)length < size;
}

/* Reads the line "sky 5" of each lesson. */
static size_t read_place(FILE *f, const char *lesson)
{
    char name[32];
    size_t step, found = 0;
    while (fscanf(f, "%31s %zu", name, &step) == 2)
        if (strcmp(name, lesson) == 0)
            found = step;
    return found;
}

size_t lesson_place(const char *lesson)
{
    char path[4096];
    FILE *f = place_file(path, sizeof path) ? fopen(path, "r") : NULL;
    size_t step = f ? read_place(f, lesson) : 0;
    if (f)
        fclose(f);
    return step;
}

/* Copies the places of the other lessons and adds this one; step 0 removes it. */
static int write_places(kit_output *to, FILE *from, const char *lesson, size_t step, kit_error *err)
{
    char name[32];
    size_t other;
    int code = KIT_OK;
    while (from && !code && fscanf(from, "%31s %zu", name, &other) == 2)
        if (strcmp(name, lesson) != 0)
            code = kit_output_printf(to, err, "%s %zu\n", name, other);
    return code || !step ? code : kit_output_printf(to, err, "%s %zu\n", lesson, step);
}

/* A place that cannot be stored is said, but the lesson was read all the same. */
static void store_place(const char *lesson, size_t step)
{
    char path[4096];
    kit_error err = {0};
    kit_output *out = NULL;
    if (!place_file(path, sizeof path))
        return;
    make_folders(path);
    FILE *old = fopen(path, "r");
    int code = kit_output_open(&out, path, &err);
    if (!code)
        code = write_places(out, old, lesson, step, &err);
    if (!code)
        code = kit_output_commit(out, &err);
    else
        kit_output_abort(out);
    if (old)
        fclose(old);
    if (code)
        printf("Your place could not be stored: %s\n", err.message);
}

/* ---------------------------------------------------------------------------------------- Keys */

enum { CONTROL_D = 4, ESCAPE = 27 };

/* Reads one more byte of an escape sequence; false: there is none. Its bytes arrive together. */
static bool read_rest(unsigned char *byte)
{
    struct timeval wait = {.tv_usec = 50000};
    fd_set input;
    FD_ZERO(&input);
    FD_SET(STDIN_FILENO, &input);
    return select(STDIN_FILENO + 1, &input, NULL, NULL, &wait) == 1 &&
           read(STDIN_FILENO, byte, 1) == 1;
}

/* Skips what an arrow key, Page Down and the like send after an escape, such as "[6~": the 6 is not
 * the key 6. */
static void skip_sequence(void)
{
    unsigned char byte;
    if (!read_rest(&byte) || (byte != '[' && byte != 'O'))
        return;
    while (read_rest(&byte) && (byte < 0x40 || byte > 0x7e)) /* the last byte is a letter or ~ */
        ;
}

/* Reads a key: 0 after a resize, 'q' at the end of the input or after Ctrl-C. */
static int read_key(const walk *w)
{
    unsigned char key;
    fd_set input;
    FD_ZERO(&input);
    FD_SET(STDIN_FILENO, &input);
    if (pselect(STDIN_FILENO + 1, &input, NULL, NULL, NULL, &w->waiting) < 0 && errno == EINTR)
        return ended ? 'q' : 0;
    if (read(STDIN_FILENO, &key, 1) != 1)
        return 'q';
    if (key == ESCAPE)
        skip_sequence();
    return key;
}

/* ------------------------------------------------------------------------------------- Showing */

static bool wants_end(const walk *w) { return w->key == 'q' || w->key == CONTROL_D; }

/* The end of a page of at most `lines` lines: behind an empty line in its second half, if any. */
static const char *find_page_end(const char *text, const char *end, int lines)
{
    const char *behind_empty = NULL;
    for (int line = 0; line < lines && text < end; line++) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const bool empty = newline == text;
        text = newline ? newline + 1 : end;
        if (empty && 2 * line >= lines)
            behind_empty = text;
    }
    return text < end && behind_empty ? behind_empty : text;
}

/* Waits at the end of a page; false: the reader ends the lesson, or resized the terminal. */
static bool wait_for_more(walk *w)
{
    printf("[more] Enter go on  q quit ");
    fflush(stdout);
    w->key = read_key(w);
    puts("");
    return w->key != 0 && !wants_end(w);
}

/* Prints a screen in pages that fit the terminal, so that the reader begins at the first line. */
static int put_pages(walk *w, const char *text, size_t size, kit_error *err)
{
    const char *end = text + size;
    const int height = terminal_find_height();
    while (text < end) {
        /* below a page: an empty line and the prompt */
        const char *past = height > 4 ? find_page_end(text, end, height - 2) : end;
        const size_t n = (size_t)(past - text);
        if (fwrite(text, 1, n, stdout) != n || fflush(stdout))
            return kit_fail(err, KIT_LIMIT, "standard output: %s", strerror(errno));
        text = past;
        if (text < end && !wait_for_more(w))
            break;
    }
    return KIT_OK;
}

/* Forgets a resize. False: there was none since the last key. */
static bool take_resize(walk *w)
{
    if (w->key != 0 || !resized)
        return false;
    resized = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &w->keys); /* a shell may have changed it */
    return true;
}

static int show(walk *w, size_t from, size_t to, kit_error *err)
{
    int code;
    do {
        char *bytes = NULL;
        size_t size = 0;
        w->text.width = terminal_find_width();
        code = render_text_screen(&bytes, &size, w->t, w->screen, from, to, &w->text, err);
        if (!code)
            code = put_pages(w, bytes, size, err);
        free(bytes);
    } while (!code && take_resize(w)); /* between two pages: begin again */
    return code;
}

static bool at_end_of_screen(const walk *w)
{
    return w->stage + 1 >= render_stages(w->t, w->screen);
}

/* Why the reader stops here; -1: the screen is complete. */
static int reason_to_stop(const walk *w)
{
    return at_end_of_screen(w) ? -1 : (int)render_stop_behind(w->t, w->screen, w->stage);
}

/* Begins a screen; predictions that the reader does not want are passed. */
static int go_to(walk *w, size_t screen, kit_error *err)
{
    w->screen = screen < w->screens ? screen : w->screens - 1;
    w->stage = 0;
    while (!w->predictions && reason_to_stop(w) == RENDER_AT_PREDICTION)
        w->stage++;
    return show(w, 0, w->stage, err);
}

static int show_next_stage(walk *w, kit_error *err)
{
    size_t from = ++w->stage;
    while (!w->predictions && reason_to_stop(w) == RENDER_AT_PREDICTION)
        w->stage++;
    return show(w, from, w->stage, err);
}

static void put_prompt(const walk *w)
{
    static const char *const codes[] = {"C", "NumPy", "PyTorch", "none", "all"};
    const char *enter = "next";
    switch (reason_to_stop(w)) {
    case RENDER_AT_PREDICTION: enter = "see"; break;
    case RENDER_AT_EXERCISE: enter = "solution"; break;
    case RENDER_AT_QUESTION: enter = "answer"; break;
    default: enter = w->screen + 1 == w->screens ? "end" : "next"; break;
    }
    printf("\n[%zu/%zu] Enter %s  ", w->screen, w->screens - 1, enter);
    if (w->text.width >= 76)
        printf("b back  s steps  p predict: %s  c code: %s  ", w->predictions ? "on" : "off",
               codes[w->text.code]);
    else
        printf("b s p c ");
    printf("q quit ");
    if (*w->number)
        printf("> %s", w->number);
    fflush(stdout);
}

static void put_steps(const walk *w)
{
    const script *s = w->t->script;
    size_t screen = 1;
    puts("\n");
    for (size_t part = 0; part < s->count; part = script_screen_end(s, part), screen++) {
        const char *title = s->part[part].text[SCRIPT_TITLE];
        printf("%3zu  ", screen);
        terminal_wrap(w->text.width, title ? title : s->part[part].name, 5, 5);
    }
    printf("%3zu  Questions\nType a number and Enter.\n", screen);
}

/* The reader judges the own prediction; any key but y and n leaves it out. */
static void judge(walk *w)
{
    printf("\nWas your prediction right? y, n, or Enter to go on ");
    fflush(stdout);
    int key = read_key(w);
    if (key == 'y' || key == 'n') {
        w->guessed++;
        w->right += key == 'y';
        printf("%s", key == 'y' ? "Well seen." : "Now you know why. That is worth more.");
    }
    puts("");
    if (key == 'q' && ended)
        w->key = 'q';
}

static int step_forward(walk *w, bool *end, kit_error *err)
{
    if (at_end_of_screen(w)) {
        *end = w->screen + 1 == w->screens;
        return *end ? KIT_OK : go_to(w, w->screen + 1, err);
    }
    bool prediction = w->predictions && reason_to_stop(w) == RENDER_AT_PREDICTION;
    int code = show_next_stage(w, err);
    if (!code && prediction && !wants_end(w))
        judge(w);
    return code;
}

static int use_key(walk *w, bool *end, kit_error *err)
{
    size_t typed = strlen(w->number);
    if (w->key >= '0' && w->key <= '9') {
        if (typed + 1 < sizeof w->number)
            w->number[typed] = (char)w->key;
        return KIT_OK;
    }
    if ((w->key == 127 || w->key == '\b') && typed) {
        w->number[typed - 1] = 0;
        return KIT_OK;
    }
    size_t wanted = strtoul(w->number, NULL, 10);
    memset(w->number, 0, sizeof w->number);
    switch (w->key) {
    case '\n':
    case '\r':
    case ' ': return typed ? go_to(w, wanted, err) : step_forward(w, end, err);
    case 'b': return go_to(w, w->screen ? w->screen - 1 : 0, err);
    case 's': put_steps(w); return KIT_OK;
    case 'c':
        w->text.code = w->text.code == RENDER_NO_CODE ? RENDER_C : w->text.code + 1;
        return show(w, 0, w->stage, err);
    case 'p': w->predictions = !w->predictions; return KIT_OK;
    default: return KIT_OK;
    }
}

/* Goes on until the reader ends the lesson; *finished: by reading all of it. */
static int read_lesson(walk *w, bool *finished, kit_error *err)
{
    int code = KIT_OK;
    while (!code && !wants_end(w) && !*finished) {
        put_prompt(w);
        w->key = read_key(w);
        if (take_resize(w)) {
            puts("");
            code = show(w, 0, w->stage, err);
            continue;
        }
        printf("\n");
        code = use_key(w, finished, err);
    }
    return code;
}

static void put_score(const walk *w)
{
    if (w->guessed)
        printf("%d of %d predictions right.%s\n", w->right, w->guessed,
               w->right == w->guessed ? " All of them!" : "");
}

int lesson_walk(const trace *t, const render_text_options *text, kit_error *err)
{
    walk w = {.t = t, .text = *text, .screens = render_screens(t), .predictions = true};
    struct termios saved;
    struct sigaction old[WATCHED];
    bool finished = false;
    if (!begin_keys(&w, &saved))
        return kit_fail(err, KIT_LIMIT, "the terminal: %s", strerror(errno));
    watch_signals(old, &w.waiting);
    size_t place = t->lesson ? lesson_place(t->lesson) : 0; /* a sentence has no place */
    if (place > 0 && place < w.screens)
        printf("You stopped at step %zu. Type 0 and Enter to begin again.\n", place);
    int code = go_to(&w, place < w.screens ? place : 0, err);
    if (!code)
        code = read_lesson(&w, &finished, err);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &saved);
    unwatch_signals(old, &w.waiting);
    put_score(&w);
    if (t->lesson)
        store_place(t->lesson, finished ? 0 : w.screen);
    if (t->lesson && !finished && w.screen > 0)
        printf("Stopped at step %zu of %zu; `attn lesson %s` continues there.\n", w.screen,
               w.screens - 1, t->lesson);
    return code || !ended ? code : 128 + ended;
}

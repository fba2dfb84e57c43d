/* The recipes of the lessons, one file each; the table in lessons.c names them. */
#ifndef KIT_EXPLAIN_LESSONS_H
#define KIT_EXPLAIN_LESSONS_H

#include "explain.h"

int lesson_dessert(trace *t, attn_context *ctx, kit_error *err);
int lesson_sky(trace *t, attn_context *ctx, kit_error *err);
int lesson_sky_gradients(trace *t, attn_context *ctx, kit_error *err);
int lesson_module(trace *t, attn_context *ctx, kit_error *err);
int lesson_numpy(trace *t, attn_context *ctx, kit_error *err);
int lesson_journey(trace *t, attn_context *ctx, kit_error *err);

#endif

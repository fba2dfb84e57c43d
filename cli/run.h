/* attn run, its first half: from options and files to one attn_sdpa_args. */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "files.h"
#include "options.h"

typedef struct run_input {
    kit_array q, k, v, mask, lengths, alibi, sinks, grad_out;
    attn_tensor mask_view, dout; /* dout: data NULL if there is none */
    int rank;                    /* of q, and of every result */
    bool finite;                 /* everything that was read, a mask's -inf apart */
    attn_sdpa_args args;         /* all but the results */
} run_input;

/* Names of the inputs into f, then: reads, converts, checks every shape. */
int run_name_inputs(files *f, const options *o, kit_error *err);
int run_read(run_input *in, const options *o, kit_error *err);
void run_input_free(run_input *in);

bool run_is_finite(const kit_array *a, bool minus_infinity); /* allowed */

#endif

/* First half of attn run: from options and files to one attn_sdpa_args. */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "files.h"
#include "options.h"

typedef struct run_input {
    kit_array q, k, v, mask, lengths, alibi, sinks, grad_out;
    attn_tensor mask_view, dout; /* dout: data NULL if there is none */
    int rank;                    /* of q, and of every result */
    bool finite;                 /* all that was read, except a mask's -inf */
    attn_sdpa_args args;         /* everything but the results */
} run_input;

/* run_name_inputs adds the names of the inputs to f. Then run_read reads, converts and checks every
 * shape. */
int run_name_inputs(files *f, const options *o, kit_error *err);
int run_read(run_input *in, const options *o, kit_error *err);
void run_input_free(run_input *in);

bool run_is_finite(const kit_array *a, bool minus_infinity); /* minus_infinity: -inf is allowed */

#endif

/* First half of attn run: from options and files to one attn_sdpa_args. */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "files.h"
#include "options.h"

typedef struct run_input {
    kit_array q, k, v, mask, lengths, alibi, sinks, grad_out;
    attn_tensor mask_view, dout;  /* dout: data NULL if there is none */
    int rank;                     /* of q, and of every result */
    kit_rows *k_rows, *v_rows;    /* --pieces, --mpi: k and v then have a shape, but no data */
    kit_rows *q_rows, *mask_rows; /* the same for q and mask with --mpi; mask_rows is NULL if the
                                     mask has the same row for all queries */
    bool finite;                  /* all that was read, except a mask's -inf */
    attn_sdpa_args args;          /* everything but the results */
} run_input;

/* run_name_inputs adds the names of the inputs to f. Then run_read reads, converts and checks every
 * shape. */
int run_name_inputs(files *f, const options *o, kit_error *err);
int run_read(run_input *in, const options *o, kit_error *err);
void run_input_free(run_input *in);

/* With --pieces: are all of k and v finite? Reads them once more. */
int run_keys_are_finite(run_input *in, bool *finite, kit_error *err);

/* run_pieces.c. What was read with --pieces. */
typedef struct run_pieces_info {
    int64_t size, count, keys; /* keys that a piece has at most; pieces and keys that were read */
    double bytes;              /* that were read */
    size_t state_bytes;
} run_pieces_info;
/* Refuses options that do not go together, and files that are named twice. */
int run_pieces_check(const files *f, const options *o, kit_error *err);
/* The forward call `args`, whose keys and values come from the files. */
int run_in_pieces(run_input *in, const attn_sdpa_args *args, attn_context *ctx, const options *o,
                  run_pieces_info *info, kit_error *err);

bool run_is_finite(const kit_array *a, bool minus_infinity); /* minus_infinity: -inf is allowed */
int run_not_finite(int64_t bad, kit_error *err); /* the error for so many values of a result */
attn_tensor run_view(const kit_array *a);        /* as four dimensions; leading ones are 1 */

#endif

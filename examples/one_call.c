/* Attention in one call: two queries look at three keys.
 *
 *   cc one_call.c $(pkg-config --cflags --libs attn)
 */
#include <attn.h>
#include <stdio.h>

int main(void)
{
    const float q[2][2] = {{1, 0}, {0, 1}};                           /* 2 queries of size 2 */
    const float k[3][2] = {{1, 0}, {0, 1}, {1, 1}};                   /* 3 keys of size 2 */
    const float v[3][4] = {{1, 0, 0, 5}, {0, 1, 0, 5}, {0, 0, 1, 5}}; /* 3 values of size 4 */
    float out[2][4];

    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT;
    args.q = attn_matrix(q, ATTN_F32, 2, 2);
    args.k = attn_matrix(k, ATTN_F32, 3, 2);
    args.v = attn_matrix(v, ATTN_F32, 3, 4);
    args.out = attn_matrix(out, ATTN_F32, 2, 4);

    attn_error error;
    if (attn_sdpa_forward(NULL, &args, &error) != ATTN_OK)
        return fprintf(stderr, "%s\n", error.message), 1;
    for (int i = 0; i < 2; i++)
        printf("%.4f %.4f %.4f %.4f\n", out[i][0], out[i][1], out[i][2], out[i][3]);
    return 0;
}

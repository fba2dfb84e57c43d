/* WebAssembly has one floating-point mode, which is C's default one. */
#ifndef ATTN_WASM_FENV_H
#define ATTN_WASM_FENV_H

typedef int fenv_t;
#define FE_DFL_ENV ((const fenv_t *)0)

static inline int fegetenv(fenv_t *mode) { return *mode = 0; }
static inline int fesetenv(const fenv_t *mode)
{
    (void)mode;
    return 0;
}

#endif

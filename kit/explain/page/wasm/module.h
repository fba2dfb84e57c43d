/* The module's functions that the page calls. */
#ifndef ATTN_WASM_MODULE_H
#define ATTN_WASM_MODULE_H

#define EXPORT(name) __attribute__((export_name(#name), used)) name

#endif

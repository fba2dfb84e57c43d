/* The page's own bytes, put together at build by cmake/EmbedPage.cmake from the files here:
 * what stands before and after the trace. */
#ifndef KIT_EXPLAIN_PAGE_H
#define KIT_EXPLAIN_PAGE_H

#include <stddef.h>

extern const char page_before[], page_after[];
extern const size_t page_before_size, page_after_size;

#endif

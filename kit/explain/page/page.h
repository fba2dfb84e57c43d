/* The parts of the page before and after the trace. cmake/EmbedPage.cmake joins them from the files
 * of this folder at build time. */
#ifndef KIT_EXPLAIN_PAGE_H
#define KIT_EXPLAIN_PAGE_H

#include <stddef.h>

extern const char page_before[], page_after[];
extern const size_t page_before_size, page_after_size;

#endif

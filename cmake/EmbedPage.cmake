# Puts the page together and writes it as C: what stands before and after the trace.
#
#   cmake -DPAGE=kit/explain/page -DMODULE=page.wasm.base64 -DOUT=page.c -P EmbedPage.cmake
#
# PAGE/page.html has three marks: @CSS@, @JS@ and @TRACE@; and @CSS_HASH@, @JS_HASH@ where its
# content security policy names the one style sheet and the one script that may take effect. In the
# script @WASM@ becomes what MODULE holds, the module's base64; with no MODULE, or an empty one,
# nothing, and the policy allows no module and no Worker (@MODULES@).
# PAGE/scripts.txt lists the scripts, in the order in which they are joined.
cmake_policy(VERSION 3.21)
include(${CMAKE_CURRENT_LIST_DIR}/HashOf.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/WriteArray.cmake)

file(STRINGS ${PAGE}/scripts.txt scripts REGEX "^[^#]")
set(js "")
foreach(script IN LISTS scripts)
    file(READ ${PAGE}/${script} text)
    string(APPEND js "\n/* ${script} */\n${text}")
endforeach()
set(module "")
set(modules "")
if(MODULE)
    file(READ ${MODULE} module)
endif()
if(module)
    set(modules " 'wasm-unsafe-eval'; worker-src blob:")
endif()
string(REPLACE "@WASM@" "${module}" js "${js}")
set(js "\"use strict\";\n(() => {${js}})();\n")
set(css "")
file(GLOB styles ${PAGE}/*.css)    # page.css is the first
foreach(style IN LISTS styles)
    file(READ ${style} text)
    string(APPEND css "${text}")
endforeach()
file(READ ${PAGE}/page.html html)
hash_of("${js}" js_hash)
hash_of("${css}" css_hash)
string(REPLACE "@JS_HASH@" "${js_hash}" html "${html}")
string(REPLACE "@MODULES@" "${modules}" html "${html}")
string(REPLACE "@CSS_HASH@" "${css_hash}" html "${html}")
string(REPLACE "@CSS@" "${css}" html "${html}")
string(REPLACE "@JS@" "${js}" html "${html}")
string(FIND "${html}" "@TRACE@" at)
string(SUBSTRING "${html}" 0 ${at} before)
math(EXPR at "${at} + 7")
string(SUBSTRING "${html}" ${at} -1 after)
file(WRITE ${OUT} "/* Made from ${PAGE} by EmbedPage.cmake. */\n#include \"explain/page/page.h\"\n")
write_array("" page_before "${before}")
write_array("" page_after "${after}")

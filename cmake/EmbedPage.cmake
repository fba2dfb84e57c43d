# Puts the page together and writes it as C: what stands before and after the trace.
#
#   cmake -DPAGE=kit/explain/page -DMODULE=page.wasm.base64 -DOUT=page.c -P EmbedPage.cmake
#
# PAGE/page.html has three marks: @CSS@, @JS@ and @TRACE@; and @CSS_HASH@, @JS_HASH@ where its
# content security policy names the one style sheet and the one script that may take effect. In the
# script @WASM@ becomes what MODULE holds, the module's base64; with no MODULE, or an empty one,
# nothing, and the policy allows no module (@MODULES@).
# PAGE/scripts.txt lists the scripts, in the order in which they are joined.
cmake_policy(VERSION 3.21)
include(${CMAKE_CURRENT_LIST_DIR}/WriteArray.cmake)

# The base64 of SHA-256, of which CMake has the hexadecimal digits: 3 bytes are 4 digits of 6 bits.
function(hash_of text variable)
    set(digits ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
    string(SHA256 hex "${text}")
    string(APPEND hex 00)    # 32 bytes and one of filling
    set(base64 "")
    foreach(i RANGE 0 60 6)
        string(SUBSTRING ${hex} ${i} 6 three)
        foreach(shift IN ITEMS 18 12 6 0)
            math(EXPR at "0x${three} >> ${shift} & 63")
            string(SUBSTRING ${digits} ${at} 1 digit)
            string(APPEND base64 ${digit})
        endforeach()
    endforeach()
    string(REGEX REPLACE ".$" "=" base64 ${base64})
    set(${variable} "'sha256-${base64}'" PARENT_SCOPE)
endfunction()

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
    set(modules " 'wasm-unsafe-eval'")
endif()
string(REPLACE "@WASM@" "${module}" js "${js}")
set(js "\"use strict\";\n(() => {${js}})();\n")
file(READ ${PAGE}/page.css css)
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

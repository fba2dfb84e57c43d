# How a content security policy names a script or a style sheet that is part of its page.

# Sets `variable` to 'sha256-...': the base64 of SHA-256, of which CMake has the hexadecimal digits.
# 3 bytes are 4 digits of 6 bits.
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

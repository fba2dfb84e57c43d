# How every file here is compiled: warnings, hardening, sanitizers. Included once, before any
# target.

# C11 with GNU extensions (the instruction sets use attributes and vector intrinsics).
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)

add_library(attn_compile INTERFACE)

# A sum must have the same bits from every compiler: no product and sum is fused unless the source
# says so. For the same reason there is no -ffast-math, nor any part of it.
target_compile_options(attn_compile INTERFACE
    -ffp-contract=off -ffunction-sections -fdata-sections
    -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes)
if(ATTN_WERROR)
    target_compile_options(attn_compile INTERFACE -Werror)
endif()

include(CheckCCompilerFlag)
include(CheckCSourceCompiles)
include(CheckLinkerFlag)
function(attn_compile_flag flag)
    string(MAKE_C_IDENTIFIER "ATTN_HAS${flag}" variable)
    check_c_compiler_flag("${flag}" ${variable})
    if(${variable})
        target_compile_options(attn_compile INTERFACE "${flag}")
    endif()
endfunction()
function(attn_link_flag flag)
    string(MAKE_C_IDENTIFIER "ATTN_LINKS${flag}" variable)
    check_linker_flag(C "${flag}" ${variable})
    if(${variable})
        target_link_options(attn_compile INTERFACE "${flag}")
    endif()
endfunction()

attn_compile_flag(-fstack-protector-strong)
# GCC for x86 clears and copies small structures by string instructions (rep stos, rep movs). Each
# takes some 30 cycles to start, as long as attention over six words takes for two of them.
attn_compile_flag(-mmemset-strategy=unrolled_loop:256:noalign,libcall:-1:noalign)
attn_compile_flag(-mmemcpy-strategy=unrolled_loop:256:noalign,libcall:-1:noalign)
# Intel's Skylake to Cascade Lake decode a loop anew each round if its branch touches the end of a
# 32-byte line (the "JCC erratum"). Where a loop lies is chance: values() on AVX2 ran at 83 % of the
# peak in one build and at 96 % in the next. The assembler can keep branches off those places.
attn_compile_flag(-Wa,-mbranches-within-32B-boundaries)
if(MINGW)
    # %zu in messages, by mingw's own printf; and no stack of Windows is aligned for AVX, which gcc
    # does not know (its bug 54412).
    target_compile_definitions(attn_compile INTERFACE __USE_MINGW_ANSI_STDIO=1)
    attn_compile_flag(-Wa,-muse-unaligned-vector-move)
endif()
attn_link_flag(-Wl,-z,relro)
attn_link_flag(-Wl,-z,now)
attn_link_flag(-Wl,--gc-sections)

if(ATTN_SANITIZE)
    list(JOIN ATTN_SANITIZE "," sanitizers)
    set(flags -fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    if("undefined" IN_LIST ATTN_SANITIZE)
        list(APPEND flags -fsanitize=float-cast-overflow)
    endif()
    # Where a sanitizer is slow or has limits, tests ask for the macros of gcc. clang 14 lacks them.
    if(CMAKE_C_COMPILER_ID MATCHES "Clang")
        foreach(kind IN ITEMS address thread)
            if(kind IN_LIST ATTN_SANITIZE)
                string(TOUPPER __SANITIZE_${kind}__=1 macro)
                target_compile_definitions(attn_compile INTERFACE ${macro})
            endif()
        endforeach()
    endif()
    target_compile_options(attn_compile INTERFACE ${flags})
    target_link_options(attn_compile INTERFACE ${flags})
else()
    # The sanitizers bring their own checks of these functions, and symbols of their own.
    # Distributions' compilers and builds choose a level of their own.
    set(CMAKE_REQUIRED_FLAGS -O2)
    check_c_source_compiles("#ifdef _FORTIFY_SOURCE\n#error\n#endif\nint main(void) { return 0; }"
                            ATTN_CHOOSES_FORTIFY)
    unset(CMAKE_REQUIRED_FLAGS)
    if(ATTN_CHOOSES_FORTIFY)
        target_compile_options(attn_compile INTERFACE $<$<CONFIG:Release>:-D_FORTIFY_SOURCE=2>)
    endif()
    attn_link_flag(-Wl,--no-undefined)
endif()

include(CheckPIESupported)
check_pie_supported(LANGUAGES C)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# What holds for every target.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# CUTLASS 4 and nanobind both want C++17; one standard for nvcc and g++ keeps shared headers honest.
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
# Only what is marked is exported: two kernel libraries in one process must not see each other's symbols.
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
# For clangd and for reading the command lines.
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# ccache, if there is one. Paths below the source tree count as relative: another clone finds the same objects.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  foreach(language CXX CUDA)
    if(NOT CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER
          env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
    endif()
  endforeach()
endif()

# Runs generate.py at configure time, and again whenever the declarations change.

file(GLOB declaration CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cutlass_py/declaration/*.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${declaration}
  ${PROJECT_SOURCE_DIR}/src/cutlass_py/compiling/toolkit.py
  ${PROJECT_SOURCE_DIR}/cmake/generate.py
  ${PROJECT_SOURCE_DIR}/cmake/toolchain.py)
if(EXISTS ${CUTLASS_PY_KERNELS})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CUTLASS_PY_KERNELS})
endif()
set(tables_only)
if(NOT CUTLASS_PY_WITH_CUDA)
  set(tables_only --tables-only)
endif()
execute_process(
  COMMAND ${Python_EXECUTABLE} -I ${PROJECT_SOURCE_DIR}/cmake/generate.py --out ${CUTLASS_PY_GENERATED}
          --kernels ${CUTLASS_PY_KERNELS} "--archs=${CUTLASS_PY_ARCHS}"
          ${tables_only}
  RESULT_VARIABLE failed ERROR_VARIABLE error OUTPUT_VARIABLE output OUTPUT_STRIP_TRAILING_WHITESPACE)
if(failed)
  message(FATAL_ERROR "${error}")
endif()
if(CUTLASS_PY_WITH_CUDA)
  message(STATUS "${output}")
  include(${CUTLASS_PY_GENERATED}/sources.cmake) # CUTLASS_PY_SOURCES, each with its architectures
endif()

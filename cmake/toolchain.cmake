# Asks toolchain.py where everything is, says loudly if the package will be CPU-only, and writes build_info.h.

set(found ${PROJECT_BINARY_DIR}/toolchain-found.cmake)
execute_process(
  COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/toolchain.py --out ${found}
          --CUTLASS_PY_CUDA=${CUTLASS_PY_CUDA} "--CUTLASS_PY_ARCHS=${CUTLASS_PY_ARCHS}"
          --CUTLASS_PY_KERNELS=${CUTLASS_PY_KERNELS} --CUTLASS_PY_NVCC_JOBS=${CUTLASS_PY_NVCC_JOBS}
          --CUTLASS_DIR=${CUTLASS_DIR} --DLPACK_DIR=${DLPACK_DIR}
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} RESULT_VARIABLE failed ERROR_VARIABLE error)
if(failed)
  message(FATAL_ERROR "${error}")
endif()
include(${found})
# Set every time: a cached place may be that of an isolated environment long gone.
set(nanobind_DIR ${CUTLASS_PY_NANOBIND}/cmake CACHE PATH "" FORCE)

set(CUTLASS_PY_BUILD_CUDA ON)
if(CUTLASS_PY_CUDA_REASON)
  set(CUTLASS_PY_WITH_CUDA OFF)
  set(CUTLASS_PY_BUILD_CUDA "OFF: ${CUTLASS_PY_CUDA_REASON}")
  if(NOT CUTLASS_PY_CUDA STREQUAL "OFF")
    message(WARNING "Building cutlass_py WITHOUT CUDA: ${CUTLASS_PY_CUDA_REASON}. It will compute on the CPU only.")
  endif()
else()
  set(CUTLASS_PY_WITH_CUDA ON)
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${CUTLASS_PY_NVCC} CACHE FILEPATH "")
  endif()
  # Each source says what it is compiled for: sm_90a kernels and PTX for later GPUs live in one library.
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  enable_language(CUDA)
  message(STATUS "CUTLASS ${CUTLASS_PY_CUTLASS_VERSION}: ${CUTLASS_PY_CUTLASS_INCLUDE}")
endif()
message(STATUS "DLPack ${CUTLASS_PY_DLPACK_VERSION}: ${CUTLASS_PY_DLPACK_INCLUDE}")

# What `python -m cutlass_py info` shows of the build.
set(CUTLASS_PY_GENERATED ${PROJECT_BINARY_DIR}/generated)
get_filename_component(kernels "${CUTLASS_PY_KERNELS}" NAME)
file(CONFIGURE OUTPUT ${CUTLASS_PY_GENERATED}/build_info.h @ONLY CONTENT [[
#pragma once
#define CUTLASS_PY_BUILD_CUDA "@CUTLASS_PY_BUILD_CUDA@"
#define CUTLASS_PY_BUILD_NVCC "@CMAKE_CUDA_COMPILER_VERSION@"
#define CUTLASS_PY_BUILD_CUTLASS "@CUTLASS_PY_CUTLASS_VERSION@"
#define CUTLASS_PY_BUILD_DLPACK "@CUTLASS_PY_DLPACK_VERSION@"
#define CUTLASS_PY_BUILD_ARCHS "@CUTLASS_PY_ARCHS@"
#define CUTLASS_PY_BUILD_KERNELS "@kernels@"
]])

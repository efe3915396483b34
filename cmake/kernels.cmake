# The kernel library (generated sources, elementwise kernels) and CUDA for the extension.

add_library(cutlass_py_kernels SHARED ${CUTLASS_PY_SOURCES} ${CUTLASS_PY_GENERATED}/library.cpp)
target_include_directories(cutlass_py_kernels PRIVATE src/cpp ${CUTLASS_PY_GENERATED})
target_include_directories(cutlass_py_kernels SYSTEM PRIVATE ${CUTLASS_PY_CUTLASS_INCLUDE})
# library.cpp asks the runtime and CUTLASS for the names of errors.
target_include_directories(cutlass_py_kernels SYSTEM PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}>)
set_target_properties(cutlass_py_kernels PROPERTIES
  CUDA_RUNTIME_LIBRARY Static         # loads without libcuda, and whatever runtime a framework brings
  CUDA_SEPARABLE_COMPILATION OFF      # kernels call nothing across files:
  CUDA_RESOLVE_DEVICE_SYMBOLS OFF)    # no device link
# Nothing of the static runtime is exported either.
target_link_options(cutlass_py_kernels PRIVATE -Wl,--exclude-libs,ALL)
# As many nvcc at once as memory allows: ninja alone would start one per core and two more.
set_property(GLOBAL APPEND PROPERTY JOB_POOLS nvcc=${CUTLASS_PY_NVCC_JOBS})
set_target_properties(cutlass_py_kernels PROPERTIES JOB_POOL_COMPILE nvcc)
# Beside the extension, which looks for it by its own path.
install(TARGETS cutlass_py_kernels LIBRARY DESTINATION cutlass_py)
# Kernel sources include it; the JIT compiles them.
install(DIRECTORY ${CUTLASS_PY_CUTLASS_INCLUDE}/cute ${CUTLASS_PY_CUTLASS_INCLUDE}/cutlass
        DESTINATION cutlass_py/include)
file(CONFIGURE OUTPUT ${CUTLASS_PY_GENERATED}/cutlass.sha256 CONTENT "${CUTLASS_PY_CUTLASS_DIGEST}")
install(FILES ${CUTLASS_PY_GENERATED}/cutlass.sha256 DESTINATION cutlass_py/include) # so that the JIT need not compute it
install(FILES ${CUTLASS_PY_CUTLASS_LICENCE} DESTINATION cutlass_py/licenses RENAME CUTLASS_LICENSE.txt)

# Not find_package(CUDAToolkit): it insists on libcudart.so, which the wheels do not have. No libcuda: the static runtime
# looks for the driver at the first call.
find_library(CUTLASS_PY_CUDART cudart_static HINTS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} REQUIRED NO_CACHE)
find_package(Threads REQUIRED)
target_compile_definitions(_core PRIVATE CUTLASS_PY_WITH_CUDA)
target_include_directories(_core SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
target_link_libraries(_core PRIVATE ${CUTLASS_PY_CUDART} Threads::Threads rt dl)
target_link_options(_core PRIVATE -Wl,--exclude-libs,ALL)

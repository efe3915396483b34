# find_package(cutlass_py): the kernels of an installed package for C++ (docs/cpp.md).
#
#   cutlass_py::headers  kernel.h, the C ABI; also the headers that kernel sources include, CUTLASS's among them
#   cutlass_py::kernels  the library with the built set of kernels, and those headers

get_filename_component(_cutlass_py "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)

if(NOT EXISTS "${_cutlass_py}/libcutlass_py_kernels.so")
  set(cutlass_py_FOUND FALSE)
  set(cutlass_py_NOT_FOUND_MESSAGE
    "cutlass_py in ${_cutlass_py} was built without CUDA (CUTLASS_PY_CUDA): it has no kernel library")
elseif(NOT TARGET cutlass_py::kernels)
  add_library(cutlass_py::headers INTERFACE IMPORTED)
  target_include_directories(cutlass_py::headers INTERFACE "${_cutlass_py}/include")
  add_library(cutlass_py::kernels SHARED IMPORTED)
  set_target_properties(cutlass_py::kernels PROPERTIES
    IMPORTED_LOCATION "${_cutlass_py}/libcutlass_py_kernels.so"
    INTERFACE_LINK_LIBRARIES cutlass_py::headers)
endif()
unset(_cutlass_py)

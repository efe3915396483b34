# The CMake package that C++ projects find (docs/cpp.md), beside the extension: its directory is that of
# `python -m cutlass_py info --cmake-dir`.

include(CMakePackageConfigHelpers)
# The one place of the version.
file(STRINGS ${PROJECT_SOURCE_DIR}/pyproject.toml version REGEX "^version = \"")
string(REGEX REPLACE "^version = \"([0-9.]+).*" "\\1" version "${version}")
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cutlass_pyConfigVersion.cmake
  VERSION ${version} COMPATIBILITY SameMinorVersion)
install(FILES cmake/cutlass_pyConfig.cmake ${PROJECT_BINARY_DIR}/cutlass_pyConfigVersion.cmake
        DESTINATION cutlass_py/cmake)

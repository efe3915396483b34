# CTest runs everything: the C++ tests, then pytest without and with a GPU, on the installed package.

enable_testing()
add_custom_target(cpp_tests)
set(canonical canonical.cpp epilogue.cpp overlap.cpp shapes.cpp user_epilogue.cpp)
list(TRANSFORM canonical PREPEND src/cpp/operations/gemm/)
list(APPEND canonical src/cpp/arrays/memory_overlap.cpp src/cpp/arrays/operand.cpp src/cpp/arrays/refusal.cpp)
foreach(name problem overlap run launch_cache xla_gemm xla_grouped_gemm xla_quantize quantize tile_order timing_rounds)
  add_executable(test_${name} tests/cpp/test_${name}.cpp ${canonical})
  target_include_directories(test_${name} PRIVATE src/cpp ${CUTLASS_PY_GENERATED})
  # -UNDEBUG: a test may be an assertion, in every build type.
  target_compile_options(test_${name} PRIVATE -Wall -Wextra -UNDEBUG)
  add_dependencies(cpp_tests test_${name})
  add_test(NAME test_${name} COMMAND test_${name})
  set_tests_properties(test_${name} PROPERTIES LABELS cpp)
endforeach()
target_include_directories(test_tile_order BEFORE PRIVATE tests/simulated tests/simulated/cuda)  # device code
set(run src/cpp/operations/gemm/run.cpp src/cpp/runtime/launch.cpp)
target_sources(test_run PRIVATE ${run})
set(cache src/cpp/operations/gemm/launch_key.cpp src/cpp/runtime/launch_cache.cpp)
target_sources(test_launch_cache PRIVATE ${run} ${cache})
set(quantize src/cpp/operations/quantize/canonical.cpp src/cpp/operations/quantize/launch_key.cpp)
target_sources(test_quantize PRIVATE ${quantize})
set(xla src/cpp/frontends/xla_call.cpp)
target_sources(test_xla_gemm PRIVATE ${run} ${cache} ${xla} src/cpp/frontends/xla_gemm.cpp)
target_sources(test_xla_grouped_gemm PRIVATE
  ${run} ${cache} ${xla} src/cpp/frontends/xla_gemm.cpp src/cpp/frontends/xla_grouped_gemm.cpp
  src/cpp/operations/grouped_gemm/groups.cpp src/cpp/operations/grouped_gemm/rest.cpp)
target_sources(test_xla_quantize PRIVATE ${quantize} src/cpp/runtime/launch.cpp ${xla}
                                         src/cpp/frontends/xla_quantize.cpp)

add_test(NAME pytest COMMAND ${Python_EXECUTABLE} -m pytest -m "not gpu" WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
add_test(NAME pytest-gpu COMMAND ${Python_EXECUTABLE} -m pytest -m gpu WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(pytest PROPERTIES LABELS python)
set_tests_properties(pytest-gpu PROPERTIES LABELS gpu)

find_program(CUTLASS_PY_SANITIZER compute-sanitizer)
if(CUTLASS_PY_SANITIZER)
  foreach(tool memcheck racecheck initcheck synccheck)
    set(tests sanitized)
    if(tool STREQUAL initcheck)  # which does not see what the copy engine stores
      set(tests "sanitized and not scratch")
    endif()
    add_test(NAME pytest-${tool} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
             COMMAND ${CUTLASS_PY_SANITIZER} --tool ${tool} --error-exitcode 1 ${Python_EXECUTABLE} -m pytest -m ${tests})
    set_tests_properties(pytest-${tool} PROPERTIES LABELS gpu)
  endforeach()
endif()
add_subdirectory(tests/simulated)

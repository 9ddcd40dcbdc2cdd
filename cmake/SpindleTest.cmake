# spindle_test(NAME SOURCES... [LIBRARIES ...] [THREADS]): one doctest program for a room, registered with CTest.
# THREADS: threads meet in it, so scripts/test runs it under ThreadSanitizer too.
find_path(DOCTEST_INCLUDE doctest/doctest.h REQUIRED)

file(WRITE ${CMAKE_BINARY_DIR}/test_main.cc
     "#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN\n#include <doctest/doctest.h>\n")
add_library(spindle_test_main OBJECT ${CMAKE_BINARY_DIR}/test_main.cc)

function(spindle_test name)
  cmake_parse_arguments(arg "THREADS" "" "LIBRARIES" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE spindle_test_main ${arg_LIBRARIES})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600)
  if(arg_THREADS)
    set_tests_properties(${name} PROPERTIES LABELS threads)
  endif()
endfunction()

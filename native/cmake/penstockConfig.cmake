# Builds libraries of environments for those who ship some. Configure with
#   -Dpenstock_DIR=$(python -c "from penstock import native; print(native.cmake_dir())")
#
#   find_package(penstock REQUIRED)
#   penstock_add_environments(target header... [ENVIRONMENTS name...])
#
# makes target.so out of headers: one that has a PENSTOCK_LIBRARY(...) line, with whatever else it needs, or any number
# without such a line and the C++ names of their environments. native.load_library(path) loads it.
include(CMakeFindDependencyMacro)
find_dependency(Threads)

get_filename_component(PENSTOCK_INCLUDE_DIR "${CMAKE_CURRENT_LIST_DIR}/../include" ABSOLUTE)

if(NOT TARGET penstock::headers)
  add_library(penstock::headers INTERFACE IMPORTED)
  set_target_properties(penstock::headers PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${PENSTOCK_INCLUDE_DIR}"
    INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_LINK_LIBRARIES Threads::Threads)
endif()

function(penstock_add_environments target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "ENVIRONMENTS")
  if(NOT arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "penstock_add_environments(${target}): name at least one header")
  endif()
  set(unit "#include <penstock/library.hpp>\n")
  foreach(header IN LISTS arg_UNPARSED_ARGUMENTS)
    get_filename_component(header "${header}" ABSOLUTE)
    if(NOT EXISTS "${header}")
      message(FATAL_ERROR "penstock_add_environments(${target}): there is no header ${header}")
    endif()
    string(APPEND unit "#include \"${header}\"\n")
  endforeach()
  if(arg_ENVIRONMENTS)
    list(JOIN arg_ENVIRONMENTS ", " names)
    string(APPEND unit "PENSTOCK_LIBRARY(${names})\n")
  endif()
  file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/${target}_unit.cpp" CONTENT "${unit}" @ONLY)

  add_library(${target} MODULE "${CMAKE_CURRENT_BINARY_DIR}/${target}_unit.cpp")
  target_link_libraries(${target} PRIVATE penstock::headers)
  set_target_properties(${target} PROPERTIES PREFIX "" SUFFIX ".so" CXX_VISIBILITY_PRESET hidden
    POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF)
  # As penstock.native.load compiles: bit for bit the same everywhere, and two versions side by side in one process.
  target_compile_options(${target} PRIVATE -ffp-contract=off -fno-fast-math $<$<NOT:$<CONFIG:Debug>>:-O3>
    $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>)
endfunction()

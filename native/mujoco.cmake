# Tasks that MuJoCo simulates: libraries without Python, linked to the shared library that mujoco-core brings. A
# file's name says for which version it was compiled; native/pool/mujoco_library.py loads it with that one alone.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
          "import importlib.util as u; s = u.find_spec('mujoco'); print(s.submodule_search_locations[0] if s else '')"
  OUTPUT_VARIABLE PENSTOCK_MUJOCO_FOLDER OUTPUT_STRIP_TRAILING_WHITESPACE)
file(GLOB PENSTOCK_MUJOCO_LIBRARY "${PENSTOCK_MUJOCO_FOLDER}/libmujoco.so.*")
if(NOT PENSTOCK_MUJOCO_FOLDER OR NOT PENSTOCK_MUJOCO_LIBRARY)
  message(STATUS "No mujoco in ${Python_EXECUTABLE}: building without the MuJoCo tasks")
  return()
endif()
string(REGEX REPLACE ".*libmujoco\\.so\\." "" PENSTOCK_MUJOCO_VERSION "${PENSTOCK_MUJOCO_LIBRARY}")
message(STATUS "MuJoCo ${PENSTOCK_MUJOCO_VERSION} from ${PENSTOCK_MUJOCO_FOLDER}")

function(penstock_mujoco_library target)
  add_library(${target} MODULE ${ARGN} src/mujoco/guard.cpp)
  set_target_properties(
    ${target}
    PROPERTIES OUTPUT_NAME "${target}-${PENSTOCK_MUJOCO_VERSION}"
               CXX_VISIBILITY_PRESET hidden
               BUILD_RPATH "${PENSTOCK_MUJOCO_FOLDER}"
               INSTALL_RPATH "$ORIGIN/../../mujoco")
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_include_directories(${target} PRIVATE include)
  target_include_directories(${target} SYSTEM PRIVATE "${PENSTOCK_MUJOCO_FOLDER}/include")
  target_link_libraries(${target} PRIVATE Threads::Threads "${PENSTOCK_MUJOCO_LIBRARY}")
  penstock_compile_options(${target})
  install(TARGETS ${target} DESTINATION penstock/native)
endfunction()

penstock_mujoco_library(penstock_mujoco src/mujoco/library.cpp)
file(GLOB PENSTOCK_DMC_DOMAINS CONFIGURE_DEPENDS src/dmc/domains/*.cpp)
penstock_mujoco_library(penstock_dmc src/dmc/library.cpp src/dmc/listed.cpp src/dmc/physics.cpp src/dmc/suite.cpp
                        src/dmc/text.cpp ${PENSTOCK_DMC_DOMAINS})
# Its many small files take longer to read their headers than for all else, so those are read once.
target_precompile_headers(penstock_dmc PRIVATE <algorithm> <cmath> <numbers> <string>
                          "${CMAKE_CURRENT_SOURCE_DIR}/include/penstock/dmc/task.hpp")

# Gymnasium's MuJoCo tasks: a library without Python, linked to the shared library that the mujoco wheel brings. The
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

add_library(penstock_mujoco MODULE src/mujoco/library.cpp src/mujoco/guard.cpp)
set_target_properties(
  penstock_mujoco
  PROPERTIES OUTPUT_NAME "penstock_mujoco-${PENSTOCK_MUJOCO_VERSION}"
             CXX_VISIBILITY_PRESET hidden
             BUILD_RPATH "${PENSTOCK_MUJOCO_FOLDER}"
             INSTALL_RPATH "$ORIGIN/../../mujoco")
target_compile_features(penstock_mujoco PRIVATE cxx_std_20)
target_include_directories(penstock_mujoco PRIVATE include)
target_include_directories(penstock_mujoco SYSTEM PRIVATE "${PENSTOCK_MUJOCO_FOLDER}/include")
target_link_libraries(penstock_mujoco PRIVATE Threads::Threads "${PENSTOCK_MUJOCO_LIBRARY}")
penstock_compile_options(penstock_mujoco)

install(TARGETS penstock_mujoco DESTINATION penstock/native)

// The library that test_async.py loads.
#include "fuse.hpp"

#include "penstock/library.hpp"

PENSTOCK_LIBRARY(penstock::Fuse)

extern "C" int fuse_steps_begun() { return penstock::fuse_steps_begun; }
extern "C" int fuse_steps_held() { return penstock::fuse_is_held ? penstock::fuse_steps_held.load() : 0; }
/// Lets steps of a negative toil wait in all threads but the caller's, which steps too and would wait for itself.
extern "C" void hold_fuse(int is_held) {
  penstock::fuse_free_thread = std::this_thread::get_id();
  penstock::fuse_is_held = is_held != 0;
}

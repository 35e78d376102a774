/// Letting go of Python's interpreter lock and taking it again. The guards of pybind11 do not survive the end of a program:
/// a thread that takes the lock while Python shuts down is ended there by pthread_exit (until Python 3.13), which unwinds
/// its stack, and at a destructor that must not throw the whole process ends with SIGABRT. Here such a thread sleeps until
/// the process is gone, as Python does it from 3.14 on.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace penstock {

/// Calls what takes the lock.
template <class Take>
auto take_lock(Take&& take) noexcept {
  try {
    return take();
  } catch (...) {  // an unwinding thread; whoever leaves this block without rethrowing ends the process
    for (;;) pause();
  }
}

/// Lets go of the lock for as long as it lives.
class Unlocked {
 public:
  Unlocked() : thread_(PyEval_SaveThread()) {}
  ~Unlocked() {
    take_lock([this] { PyEval_RestoreThread(thread_); });
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* thread_;
};

/// Holds the lock for as long as it lives, whether the thread had it or not.
class Locked {
 public:
  Locked() : before_(take_lock([] { return PyGILState_Ensure(); })) {}
  ~Locked() { PyGILState_Release(before_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  PyGILState_STATE before_;
};

}  // namespace penstock

/// The models of a pool, read from dm_control's folder of the suite when they are first needed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "penstock/dmc/task.hpp"

namespace penstock::dmc {

/// A task with its model.
struct Loaded {
  ModelPointer model;
  TaskPointer task;
  std::int64_t substeps;
};

class Suite {
 public:
  explicit Suite(const std::string& folder) : folder_(folder) {}

  /// Returns the task of that place in `listed()`, for as long as there is the suite. Throws std::runtime_error where its file
  /// cannot be read or is not the model that the task was written for. Several threads may call it.
  const Loaded& loaded(std::int64_t number) const;

 private:
  const std::string folder_;
  mutable std::mutex mutex_;
  mutable std::map<std::int64_t, Loaded> loaded_;
};

}  // namespace penstock::dmc

/// Changes of numbers that can be taken back.
#pragma once

#include <ranges>
#include <vector>

namespace penstock::floorplan {

/// Remembers what numbers were before they were changed: taken back, they are the same to the last bit.
class Journal {
 public:
  void add(double& number, double more) {
    entries_.push_back({&number, number});
    number += more;
  }
  void keep() { entries_.clear(); }
  void take_back() {
    for (const Entry& entry : std::views::reverse(entries_)) *entry.number = entry.before;
    entries_.clear();
  }

 private:
  struct Entry {
    double* number;
    double before;
  };
  std::vector<Entry> entries_;
};

}  // namespace penstock::floorplan

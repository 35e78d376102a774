/// FrozenLake's maps: those that Gymnasium has by name, and those of one's own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/env/description.hpp"

namespace penstock::toy_text {

/// Squares by their letters, row by row: S begins (drawn where there are several), F is frozen, H a hole, G the goal.
struct LakeMap {
  static constexpr std::size_t most_squares = 4096;

  std::string letters;
  std::int64_t columns = 0;
  std::vector<double> beginnings;  ///< the probability of each square

  /// Takes 4x4, 8x8, or rows that are separated by line breaks. Throws std::invalid_argument.
  explicit LakeMap(std::string_view text) {
    if (text == "4x4") text = "SFFF\nFHFH\nFFFH\nHFFG";
    if (text == "8x8") text = "SFFFFFFF\nFFFFFFFF\nFFFHFFFF\nFFFFFHFF\nFFFHFFFF\nFHHFFFHF\nFHFFHFHF\nFFFHFFFG";
    columns = std::int64_t(std::min(text.find('\n'), text.size()));
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      if (std::int64_t(end - begin) != columns || columns == 0)
        refuse("row " + std::to_string(begin == 0 ? 0 : letters.size() / std::size_t(columns)) + " has " +
               std::to_string(end - begin) + " letters, expected " +
               (columns == 0 ? "at least one" : std::to_string(columns) + ", as row 0"));
      letters += text.substr(begin, end - begin);
      begin = end + 1;
    }
    if (const auto wrong = letters.find_first_not_of("SFHG"); wrong != std::string::npos)
      refuse(std::string("found the letter '") + letters[wrong] + "', expected S, F, H and G");
    if (letters.size() > most_squares)
      refuse("found " + std::to_string(letters.size()) + " squares, expected at most " + std::to_string(most_squares));
    const auto starts = std::count(letters.begin(), letters.end(), 'S');
    if (starts == 0) refuse("found no S, expected a square to begin on");
    for (const char letter : letters) beginnings.push_back(letter == 'S' ? 1.0 / double(starts) : 0.0);
  }

  [[nodiscard]] std::int64_t rows() const { return std::int64_t(letters.size()) / columns; }

  /// The square is seen one-hot.
  void describe(Description& d) const {
    d.observation_low = {0.0}, d.observation_high = {1.0};
    resize_observation(d, letters.size());
  }

 private:
  [[noreturn]] static void refuse(const std::string& why) { throw std::invalid_argument("desc: " + why); }
};

}  // namespace penstock::toy_text

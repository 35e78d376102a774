/// Settings that stand in the comments of netlists and placements.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "penstock/floorplan/netlist.hpp"
#include "penstock/floorplan/io/text_format.hpp"

namespace penstock::floorplan {

inline constexpr std::int64_t most_cells_a_side = 1024;
/// Tracks per um: beyond these, shares of them are no numbers any more.
inline constexpr double least_routes = 1e-9, most_routes = 1e9;
/// The largest smoothing factor, length and spacing that the evaluator takes.
inline constexpr double most_setting = 1e12;

/// Returns the words of a line, which colons, commas and braces separate too.
inline std::vector<std::string_view> words_of(std::string_view line, std::string_view parted_by = " \t\r\v\f:,{}") {
  std::vector<std::string_view> words;
  for (std::size_t at = line.find_first_not_of(parted_by); at < line.size();) {
    const std::size_t end = std::min(line.find_first_of(parted_by, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(parted_by, end);
  }
  return words;
}

/// Reads one comment into `found`. One that has the form of no setting is only a comment; one that has, but a value
/// that cannot be, is refused.
class CommentReader {
 public:
  CommentReader(std::string_view file, Comments& found) : file_(file), found_(found) {}

  void read(std::string_view comment, std::int64_t line) {
    if (comment.find(':') == std::string_view::npos) return;
    const auto words = words_of(comment);
    line_ = line;
    double a = 0, b = 0;
    if (matches(words, {"Columns", "", "Rows", ""}, a, b)) found_.grid = cells(a, b);
    else if (matches(words, {"Congestion", "Columns", "", "Congestion", "Rows", ""}, a, b))
      found_.congestion_grid = cells(a, b);
    else if (matches(words, {"Width", "", "Height", ""}, a, b)) found_.canvas = canvas(a, b);
    else if (matches(words, {"FP", "bbox", "0", "0", "", ""}, a, b)) found_.canvas = canvas(a, b);
    else if (matches(words, {"Routes", "per", "micron", "hor", "", "ver", ""}, a, b)) {
      if (std::min(a, b) < least_routes || std::max(a, b) > most_routes)
        wrong("routes per micron", "two numbers from 1e-9 to 1e9");
      found_.routes = {a, b};
    } else if (matches(words, {"Routes", "used", "by", "macros", "hor", "", "ver", ""}, a, b)) {
      if (std::min(a, b) < 0 || std::max(a, b) > most_routes)
        wrong("routes used by macros", "two numbers from 0 to 1e9");
      found_.macro_routes = {a, b};
    } else if (matches(words, {"Macro", "spacing", "hor", "", "ver", ""}, a, b)) {
      if (std::min(a, b) < 0 || std::max(a, b) > most_setting) wrong("macro spacing", "two lengths from 0 to 1e12");
      found_.spacing = {a, b};
    } else if (words.size() == 3 && words[0] == "Soft" && words[1] == "macros" && words[2] == "square") {
      found_.square_soft_macros = true;
    } else if (matches(words, {"Smoothing", "factor", ""}, a, b)) {
      if (a < 0 || a > most_setting) wrong("smoothing factor", "a number from 0 to 1e12");
      found_.smoothing = a;
    } else if (matches(words, {"Overlap", "threshold", ""}, a, b)) {
      if (a < 0 || a > most_setting) wrong("overlap threshold", "a length from 0 to 1e12");
      found_.overlap_threshold = a;
    } else if (words.size() == 2 && words[0] == "Block" && is_name(words[1])) found_.block = words[1];
    else if (words.size() == 2 && words[0] == "Project") found_.project = words[1];
    else if (words.size() == 6 && words[0] == "Blockage") blockage(words);
  }

 private:
  std::string_view file_;
  Comments& found_;
  std::int64_t line_ = 0;

  /// Returns whether the words match, with "" standing for a number (the first two are given back) and "0" for any that
  /// is not.
  static bool matches(const std::vector<std::string_view>& words, std::initializer_list<std::string_view> form,
                      double& a, double& b) {
    if (words.size() != form.size()) return false;
    std::size_t i = 0;
    double* out[] = {&a, &b};
    std::size_t taken = 0;
    for (const std::string_view wanted : form) {
      double unused = 0;
      if (wanted.empty()  ? !parse_number(words[i], *out[taken++])
          : wanted == "0" ? !parse_number(words[i], unused)
                          : words[i] != wanted)
        return false;
      ++i;
    }
    return true;
  }
  static bool is_name(std::string_view word) {
    return std::ranges::all_of(
        word, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-'; });
  }

  [[noreturn]] void wrong(const std::string& what, const std::string& expected) const {
    refuse(file_, line_, "found a " + what + " that cannot be, expected " + expected);
  }
  [[nodiscard]] std::array<std::int64_t, 2> cells(double columns, double rows) const {
    for (const double count : {columns, rows})
      if (!(count >= 1 && count <= double(most_cells_a_side)) || count != std::floor(count))
        wrong("grid", "whole numbers of columns and rows from 1 to " + std::to_string(most_cells_a_side));
    return {std::int64_t(columns), std::int64_t(rows)};
  }
  [[nodiscard]] std::array<double, 2> canvas(double width, double height) const {
    for (const double side : {width, height})
      if (!(side >= 1e-6 && side <= 1e9)) wrong("canvas", "a width and a height from 1e-6 to 1e9 um");
    return {width, height};
  }
  void blockage(const std::vector<std::string_view>& words) {
    std::array<double, 5> v{};
    for (std::size_t i = 0; i < v.size(); ++i)
      if (!parse_number(words[i + 1], v[i])) return;
    if (v[4] < 0 || v[4] > 1) wrong("blockage", "a rate from 0 to 1");
    found_.blockages.push_back({v[0], v[1], v[2], v[3], v[4]});
  }
};

}  // namespace penstock::floorplan

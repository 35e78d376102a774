/// Tokens of a text protocol buffer, and errors that say file, line, what was found and what was expected.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace penstock::floorplan {

/// "file:line: found ..., expected ...".
struct ReadError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// Returns the printable beginning of an arbitrary text, with unprintable characters as '?'.
inline std::string shown(std::string_view text, std::size_t most = 32) {
  std::string out;
  for (const char c : text.substr(0, most)) out += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > most ? out + "..." : out;
}

[[noreturn]] inline void refuse(std::string_view file, std::int64_t line, const std::string& what) {
  throw ReadError(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

/// A finite number that fills the whole text.
inline bool parse_number(std::string_view text, double& value) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
}

class TextFormat {
 public:
  using Visit = std::function<void(std::string_view comment, std::int64_t line)>;
  /// `visit` sees each comment, without its '#'.
  TextFormat(std::string_view text, std::string_view file, Visit visit)
      : text_(text), file_(file), visit_(std::move(visit)) {}

  [[nodiscard]] std::int64_t line() const { return line_; }
  [[nodiscard]] std::string_view file() const { return file_; }

  void skip_blank() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\n') ++line_, ++at_;
      else if (c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f') ++at_;
      else if (c == '#') {
        const std::size_t end = std::min(text_.find('\n', at_), text_.size());
        visit_(text_.substr(at_ + 1, end - at_ - 1), line_);
        at_ = end;
      } else break;
    }
  }
  bool at_end() {
    skip_blank();
    return at_ == text_.size();
  }
  bool take(char c) {
    skip_blank();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c, const char* where) {
    if (!take(c)) fail(std::string("'") + c + "' " + where);
  }
  [[nodiscard]] bool next_is(char c) {
    skip_blank();
    return at_ < text_.size() && text_[at_] == c;
  }
  /// Between fields a comma or a semicolon may stand.
  void skip_separator() {
    if (!take(',')) take(';');
  }

  std::string_view identifier(const char* expected) {
    skip_blank();
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) ++at_;
    if (at_ == begin) fail(expected);
    return text_.substr(begin, at_ - begin);
  }

  /// A quoted text; neighbouring ones are one.
  std::string string(const char* expected) {
    skip_blank();
    if (!next_is('"') && !next_is('\'')) fail(expected);
    std::string out;
    while (next_is('"') || next_is('\'')) {
      const char quote = text_[at_++];
      while (true) {
        if (at_ == text_.size() || text_[at_] == '\n') fail(std::string("the closing ") + quote + " of a text");
        const char c = text_[at_++];
        if (c == quote) break;
        if (c != '\\') {
          out += c;
          continue;
        }
        if (at_ == text_.size()) fail("a character after the backslash");
        const char escaped = text_[at_++];
        if (escaped == 'n') out += '\n';
        else if (escaped == 't') out += '\t';
        else if (escaped == '\\' || escaped == '"' || escaped == '\'') out += escaped;
        else --at_, fail("one of n, t, \\, \" and ' after a backslash");
      }
    }
    return out;
  }

  /// A number, rounded to float32 as the format's own readers do.
  double number(const char* expected) {
    skip_blank();
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '.' ||
                                  text_[at_] == '-' || text_[at_] == '+'))
      ++at_;
    std::string_view token = text_.substr(begin, at_ - begin);
    if (token.size() > 1 && (token.ends_with('f') || token.ends_with('F'))) token.remove_suffix(1);
    double value = 0;
    if (!parse_number(token, value) || !std::isfinite(static_cast<float>(value))) at_ = begin, fail(expected);
    return static_cast<double>(static_cast<float>(value));
  }

  /// Skips what follows a field's name: a value, a list or a block, however deep.
  void skip_value() {
    if (!take(':') && !next_is('{') && !next_is('<')) fail("':' or '{' behind a name");
    std::int64_t depth = 0;
    do {
      skip_blank();
      if (at_ == text_.size()) fail(depth > 0 ? "the end of a block" : "a value");
      const char c = text_[at_];
      if (c == '{' || c == '[' || c == '<') ++depth, ++at_;
      else if (c == '}' || c == ']' || c == '>') {
        if (depth == 0) fail("a value");
        --depth, ++at_;
      } else if (c == '"' || c == '\'') string("a text");
      else ++at_;
      if (depth == 0 && c != '"' && c != '\'' && c != '}' && c != ']' && c != '>')
        while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '.' ||
                                      text_[at_] == '-' || text_[at_] == '+' || text_[at_] == '_'))
          ++at_;
    } while (depth > 0);
  }

  [[noreturn]] void fail(const std::string& expected) const {
    const std::string_view rest = text_.substr(at_, std::min(text_.find('\n', at_), text_.size()) - at_);
    refuse(file_, line_,
           "found " +
               (at_ == text_.size() ? "the end of the file"
                : rest.empty()      ? "the end of the line"
                                    : "'" + shown(rest) + "'") +
               ", expected " + expected);
  }

 private:
  std::string_view text_;
  std::string_view file_;
  Visit visit_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1;
};

}  // namespace penstock::floorplan

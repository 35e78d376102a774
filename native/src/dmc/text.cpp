#include "penstock/dmc/text.hpp"

#include <cstddef>
#include <stdexcept>

namespace penstock::dmc {
namespace {

std::size_t place_of(const std::string& xml, const std::string& passage, std::size_t from = 0) {
  const std::size_t at = xml.find(passage, from);
  if (at == std::string::npos) throw std::runtime_error("its text has no " + passage);
  return at;
}

/// Returns where the element that begins there ends: behind its own end, not that of one within it.
std::size_t end_of_element(const std::string& xml, const std::string& kind, std::size_t begin) {
  const std::size_t close = place_of(xml, ">", begin);
  if (xml[close - 1] == '/') return close + 1;
  const std::string start = "<" + kind + " ", end = "</" + kind + ">";
  std::size_t at = close;
  for (int depth = 1; depth > 0;) {
    const std::size_t next_end = place_of(xml, end, at), next_start = xml.find(start, at);
    if (next_start < next_end) {
      const std::size_t inner = place_of(xml, ">", next_start);
      if (xml[inner - 1] != '/') ++depth;
      at = inner;
    } else {
      --depth;
      at = next_end + end.size();
    }
  }
  return at;
}

}  // namespace

void remove_element(std::string& xml, const std::string& kind, const std::string& name) {
  const std::string start = "<" + kind + " ", named = " name=\"" + name + "\"";
  for (std::size_t at = 0;; ++at) {
    at = xml.find(start, at);
    if (at == std::string::npos) throw std::runtime_error("its text has no " + kind + " called " + name);
    if (xml.find(named, at) < place_of(xml, ">", at)) {
      xml.erase(at, end_of_element(xml, kind, at) - at);
      return;
    }
  }
}

void remove_all(std::string& xml, const std::string& kind) {
  const std::string start = "<" + kind + " ";
  for (std::size_t at; (at = xml.find(start)) != std::string::npos;) xml.erase(at, end_of_element(xml, kind, at) - at);
}

void insert_behind(std::string& xml, const std::string& passage, const std::string& text) {
  xml.insert(place_of(xml, passage) + passage.size(), text);
}

void insert_before(std::string& xml, const std::string& passage, const std::string& text) {
  xml.insert(place_of(xml, passage), text);
}

void replace(std::string& xml, const std::string& passage, const std::string& text) {
  xml.replace(place_of(xml, passage), passage.size(), text);
}

}  // namespace penstock::dmc

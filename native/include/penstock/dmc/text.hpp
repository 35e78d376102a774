/// Changes of a model's text in memory, before it is compiled: the files stay as they are.
#pragma once

#include <string>

namespace penstock::dmc {

/// Takes out the element of that kind and name, and what is in it. Throws std::runtime_error if there is none.
void remove_element(std::string& xml, const std::string& kind, const std::string& name);
/// Takes out every element of that kind, each of which is empty.
void remove_all(std::string& xml, const std::string& kind);
/// Inserts text behind a passage, or before it. Throws std::runtime_error if it is not there.
void insert_behind(std::string& xml, const std::string& passage, const std::string& text);
void insert_before(std::string& xml, const std::string& passage, const std::string& text);
/// Replaces a passage. Throws std::runtime_error if it is not there.
void replace(std::string& xml, const std::string& passage, const std::string& text);

}  // namespace penstock::dmc

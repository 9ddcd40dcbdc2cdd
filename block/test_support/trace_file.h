// Traces read back as a viewer reads them.
#pragma once

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace spindle::test {

/// Throws if it is not JSON.
inline nlohmann::json read_trace(const std::string& file) {
  std::ifstream in(file);
  return nlohmann::json::parse(in);
}

/// The begins ("b NAME") and ends ("e NAME") of each request, by its id, in order.
inline std::map<std::string, std::vector<std::string>> ways_in(const nlohmann::json& trace) {
  std::map<std::string, std::vector<std::string>> ways;
  for (const auto& event : trace) {
    const std::string phase = event.at("ph"), name = event.at("name");
    if (phase == "b" || phase == "e") ways[event.at("id")].push_back(phase + " " + name);
  }
  return ways;
}

}  // namespace spindle::test

// Reads a body a line and prints what nlohmann/json understands, with the names that llama.cpp's server looks for, in its order.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

using nlohmann::json;

static json first(const json &body, std::initializer_list<const char *> names, json otherwise) {
  for (const char *name : names)
    if (body.contains(name) && !body.at(name).is_null())
      return body.at(name);
  return otherwise;
}

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    json answer;
    try {
      json body = json::parse(line);
      answer["model"] = body.at("model");
      answer["ceiling"] = first(body, {"n_predict", "max_completion_tokens", "max_tokens"}, nullptr);
      answer["n"] = first(body, {"n_cmpl", "n"}, 1);
      answer["stream"] = first(body, {"stream"}, false);
      answer["usage"] = first(first(body, {"stream_options"}, json::object()), {"include_usage"}, false);
    } catch (const std::exception &error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump() << std::endl;
  }
}

// rdma-unit-test names values in its messages; here they are numbers.
#pragma once
#include <string>
namespace magic_enum {
template <typename Enum>
std::string enum_name(Enum value) {
  return std::to_string(static_cast<long>(value));
}
}  // namespace magic_enum

// Lines go to stderr from the beginning.
#pragma once
namespace absl {
inline void InitializeLog() {}
}  // namespace absl

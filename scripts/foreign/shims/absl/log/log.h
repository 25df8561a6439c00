// What rdma-unit-test uses of absl/log, which abseil 20220623 (Debian 12) has not got yet. As with absl's own, errors go to stderr and what is less is not told.
#pragma once
#include <cstdlib>
#include <iostream>
#include <sstream>

namespace shim {

enum class Level { INFO, WARNING, ERROR, FATAL };

class Line {
 public:
  Line(Level level, const char* file, int line) : level_(level) {
    words_ << "IWEF"[static_cast<int>(level)] << ' ' << file << ':' << line << "] ";
  }
  ~Line() {
    // In one piece, because many threads write.
    words_ << '\n';
    std::cerr << words_.str() << std::flush;
    if (level_ == Level::FATAL) std::abort();
  }
  std::ostream& stream() { return words_; }

 private:
  Level level_;
  std::ostringstream words_;
};

// Makes of a line an expression without a value, as the other side of ?: is.
struct Nothing {
  void operator&(std::ostream&) {}
};

}  // namespace shim

#define LOG_IF(level, when)                                                \
  !(shim::Level::level >= shim::Level::ERROR && (when))                    \
      ? (void)0                                                              \
      : shim::Nothing() & shim::Line(shim::Level::level, __FILE__, __LINE__).stream()
#define LOG(level) LOG_IF(level, true)
#define LOG_EVERY_N_SEC(level, seconds) LOG(level)

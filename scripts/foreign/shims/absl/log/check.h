// What rdma-unit-test uses of absl/log/check.h. Debug checks are made always.
#pragma once
#include "absl/log/log.h"

#define CHECK(holds) LOG_IF(FATAL, !(holds)) << "Check failed: " #holds " "
#define CHECK_EQ(a, b) CHECK((a) == (b))
#define CHECK_NE(a, b) CHECK((a) != (b))
#define CHECK_GT(a, b) CHECK((a) > (b))
#define CHECK_LE(a, b) CHECK((a) <= (b))
#define DCHECK(holds) CHECK(holds)
#define DCHECK_EQ(a, b) CHECK_EQ(a, b)
#define DCHECK_LE(a, b) CHECK_LE(a, b)
#define DCHECK_LT(a, b) CHECK((a) < (b))

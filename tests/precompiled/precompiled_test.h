// Headers that most tests include, compiled once for all of them. No lesson may be in here: a step includes
// the files of its own folder instead of the finished ones.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/decoding/probabilities.h"
#include "common/decoding/results.h"
#include "common/model/model.h"
#include "common/program/program.h"

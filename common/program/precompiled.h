// Headers that most programs of the steps include, compiled once for all of them. Files of lessons must not
// be in here: a step includes the files of its own folder instead of the finished ones.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/decoding/probabilities.h"
#include "common/decoding/results.h"
#include "common/measure/measurement.h"
#include "common/measure/plot.h"
#include "common/model/model.h"
#include "common/program/program.h"

#pragma once
#include "common/model/model.h"
namespace staircase {
using Gpt2 = Model;
}  // namespace staircase

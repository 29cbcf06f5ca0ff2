#include <doctest/doctest.h>

#include "generate.h"

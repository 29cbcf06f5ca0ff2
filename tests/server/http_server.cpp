// HTTP for clients of every kind, with short limits.
#include "common/server/http_server.h"

#include <doctest/doctest.h>

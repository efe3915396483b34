// As cstdint.
#pragma once

#include <cstdint>

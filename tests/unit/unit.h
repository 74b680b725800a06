/* What every unit test includes: cmocka with the headers that it needs first. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TESTS_UNIT_H
#define INFER_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#endif

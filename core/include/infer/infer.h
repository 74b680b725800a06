/* Everything a program needs: the engine API. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_H
#define INFER_H

#include <infer/engine.h>
#include <infer/error.h>
#include <infer/model.h>
#include <infer/text.h>
#include <infer/version.h>

#endif

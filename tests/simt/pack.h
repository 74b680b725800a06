/* Packed weights in emulation. SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMT_PACK_H
#define SIMT_PACK_H

/* Returns how many were wrong, with a message each; counts those that were right. */
int pack_checks(int *right);

#endif

/* What the core knows of the machine, through hwloc: processors near memory, distances, PCI devices. Read once.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TOPO_TOPO_H
#define INFER_TOPO_TOPO_H

#include <stdint.h>

#include "base/error.h"

typedef struct infer_topo infer_topo;

/* Reads this machine (xml NULL), or a recorded one from an hwloc XML file, or a synthetic description
 * ("synthetic:numa:2 core:4 pu:2"). Honours the process's allowed processors (cpuset, affinity). */
infer_status infer_topo_create(const char *xml, infer_topo **out, infer_error *err);
void infer_topo_destroy(infer_topo *t);

/* Memory nodes are numbered from 0 in hwloc's logical order, which is the system's order on nearly all machines. */
uint32_t infer_topo_n_numa(const infer_topo *t);  /* at least 1 */
uint32_t infer_topo_n_cores(const infer_topo *t); /* allowed cores */
uint32_t infer_topo_n_pus(const infer_topo *t);   /* allowed hardware threads */
/* Bytes of memory local to a NUMA node (0: unknown); node -1: all. */
uint64_t infer_topo_memory(const infer_topo *t, int32_t node);
/* Operating-system numbers of allowed processors near a node (-1: all): first one hardware thread of every core, then
 * the siblings. Writes up to cap, returns how many there are; *n_cores (NULL allowed): how many lead. */
uint32_t infer_topo_cpus(const infer_topo *t, int32_t node, uint32_t *cpus, uint32_t cap, uint32_t *n_cores);
/* The node nearest to a PCI device "dddd:bb:dd.f"; -1: unknown. */
int32_t infer_topo_pci_node(const infer_topo *t, const char *pci);
/* The processor's name, "" when unknown; borrowed. */
const char *infer_topo_cpu_name(const infer_topo *t);
/* Processors' worth of time that the control group allows (cpu.max), as a fraction; 0: no limit. */
double infer_topo_cpu_quota(const infer_topo *t);

#endif

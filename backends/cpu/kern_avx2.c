#include "config.h"
#include "kern.h"
#include <stddef.h>
const kern_table *kern_avx2(void)
{
    return NULL;
}

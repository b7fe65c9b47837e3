/* numpy's C interface, whose table of functions module.cpp fills. */
#ifndef PER_BRIDGE_NUMPY_H
#define PER_BRIDGE_NUMPY_H

#define PY_ARRAY_UNIQUE_SYMBOL per_bridge_numpy
#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#ifndef PER_BRIDGE_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#endif /* PER_BRIDGE_NUMPY_H */

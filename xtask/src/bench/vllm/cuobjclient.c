// A stand-in for NVIDIA's libcuobjclient, which no package registry has. NIXL's plugin for object
// stores is linked to it, and calls it only where transfers over RDMA are asked for.
#include <stdlib.h>

#define CALLED(name) void name(void) { abort(); }

CALLED(_ZN11cuObjClient11isConnectedEv)
CALLED(_ZN11cuObjClient21cuMemObjGetDescriptorEPvm)
CALLED(_ZN11cuObjClient21cuMemObjPutDescriptorEPv)
CALLED(_ZN11cuObjClient6getCtxEPKv)
CALLED(_ZN11cuObjClient8cuObjGetEPvS0_mll)
CALLED(_ZN11cuObjClient8cuObjPutEPvS0_mll)
CALLED(_ZN11cuObjClientC1ER10CUObjIOOps15cuObjProto_enum)
CALLED(_ZN11cuObjClientD1Ev)

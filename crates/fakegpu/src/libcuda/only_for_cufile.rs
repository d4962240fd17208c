//! Functions of `libcuda.so.1` that only NVIDIA's own libcufile calls. It runs over this library in
//! compatibility mode.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::streams::with;
use crate::contexts::{CONTEXT, CURRENT, devices};
use crate::cuda_error::{
    INVALID, INVALID_CONTEXT, INVALID_DEVICE, NOT_SUPPORTED, OK, OUT_OF_MEMORY, write_result,
};
use crate::streams::Step;
use crate::{contexts, memory, streams};

/// Attributes of a device of compute capability 9.0.
const MAJOR: c_int = 75;
const UNIFIED_ADDRESSING: c_int = 41;
const MULTIPROCESSORS: c_int = 16;
const BUS: c_int = 33;

/// Kinds of memory.
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;

fn is_valid(device: c_int) -> bool {
    usize::try_from(device).is_ok_and(|device| device < devices())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    device: c_int,
) -> c_int {
    if !is_valid(device) {
        return INVALID_DEVICE;
    }
    let found = match attribute {
        MAJOR => 9,
        UNIFIED_ADDRESSING => 1,
        MULTIPROCESSORS => 132,
        BUS => device + 1,
        _ => 0,
    };
    // SAFETY: as CUDA requires of the caller.
    unsafe { write_result(value, found) }
}

/// The UUID of a device.
pub fn uuid(device: c_int) -> [u8; 16] {
    let mut id = [0xfa; 16];
    id[15] = device as u8;
    id
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid(to: *mut [u8; 16], device: c_int) -> c_int {
    // SAFETY: as CUDA requires of the caller.
    unsafe { write_result(to, uuid(device)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> c_int {
    // SAFETY: as CUDA requires of the caller.
    unsafe { cuDeviceGetUuid(uuid, device) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(name: *mut c_char, len: c_int, device: c_int) -> c_int {
    let text = format!("0000:{:02x}:00.0\0", device + 1);
    if name.is_null() || (len as usize) < text.len() {
        return INVALID;
    }
    // SAFETY: as CUDA requires of the caller, `len` bytes at `name` can be written, and that is
    // enough.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetByPCIBusId(device: *mut c_int, name: *const c_char) -> c_int {
    // SAFETY: as CUDA requires of the caller, a text.
    let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy();
    let bus = name.split(':').nth(1).and_then(|bus| c_int::from_str_radix(bus, 16).ok());
    match bus.map(|bus| bus - 1).filter(|device| is_valid(*device)) {
        // SAFETY: as CUDA requires of the caller.
        Some(found) => unsafe { write_result(device, found) },
        None => INVALID,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> c_int {
    // SAFETY: as CUDA requires of the caller.
    unsafe { write_result(bytes, memory::sizes().0) }
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease(device: c_int) -> c_int {
    contexts::release(device)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: c_int,
    flags: *mut c_uint,
    active: *mut c_int,
) -> c_int {
    // SAFETY: as CUDA requires of the caller.
    unsafe {
        write_result(flags, 0).max(write_result(active, c_int::from(contexts::is_retained(device))))
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: usize) -> c_int {
    CURRENT.set(context);
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut usize) -> c_int {
    if !context.is_null() {
        // SAFETY: as CUDA requires of the caller.
        unsafe { context.write(CURRENT.get()) };
    }
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice(device: *mut c_int) -> c_int {
    match CURRENT.get() {
        0 => INVALID_CONTEXT,
        // SAFETY: as CUDA requires of the caller.
        context => unsafe { write_result(device, (context - CONTEXT) as c_int) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetApiVersion(_context: usize, version: *mut c_uint) -> c_int {
    // SAFETY: as CUDA requires of the caller.
    unsafe { write_result(version, 13_000) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> c_int {
    // SAFETY: as CUDA requires of the caller.
    unsafe { write_result(least, 0).max(write_result(greatest, -5)) }
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> c_int {
    streams::wait_for_all();
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(_error: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: as CUDA requires of the caller; the text is static.
    unsafe { write_result(text, c"an error of a stand-in".as_ptr()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(at: *mut usize, len: usize, _flags: c_uint) -> c_int {
    match memory::allocate_pinned(len) {
        // SAFETY: as CUDA requires of the caller.
        Some(address) => unsafe { write_result(at, address) },
        None => OUT_OF_MEMORY,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(at: usize) -> c_int {
    if memory::free_pinned(at) { OK } else { INVALID }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    device: *mut u64,
    host: usize,
    _flags: c_uint,
) -> c_int {
    // SAFETY: as CUDA requires of the caller.
    unsafe { write_result(device, host as u64) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostGetFlags(flags: *mut c_uint, _host: usize) -> c_int {
    // SAFETY: as CUDA requires of the caller.
    unsafe { write_result(flags, 1) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, len: *mut usize, at: u64) -> c_int {
    let Some((start, bytes, _)) = memory::device_of(at as usize) else { return INVALID };
    // SAFETY: where they are not null, as CUDA requires of the caller.
    unsafe {
        if !base.is_null() {
            base.write(start as u64);
        }
        if !len.is_null() {
            len.write(bytes);
        }
    }
    OK
}

/// Several attributes; those that do not apply are 0.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttributes(
    n: c_uint,
    which: *const c_int,
    into: *const *mut c_void,
    at: u64,
) -> c_int {
    for n in 0..n as usize {
        // SAFETY: as CUDA requires of the caller, `n` of each, and memory for each.
        unsafe { pointer_attribute(*into.add(n), *which.add(n), at as usize) };
    }
    OK
}

/// # Safety
/// `into` is valid for a write of the attribute's type.
unsafe fn pointer_attribute(into: *mut c_void, which: c_int, at: usize) {
    let device = memory::device_of(at);
    let (start, len, context) = device.unwrap_or((at, 0, 0));
    let kind = match device {
        Some(_) => DEVICE,
        None if memory::is_pinned(at, 1) => HOST,
        None => 0,
    };
    // SAFETY: the caller's promise.
    unsafe {
        match which {
            1 => into.cast::<usize>().write(context),
            2 => into.cast::<c_uint>().write(kind),
            3 | 4 => into.cast::<usize>().write(if kind == 0 { 0 } else { at }),
            9 => into.cast::<c_int>().write(if device.is_some() {
                (context - CONTEXT) as c_int
            } else {
                0
            }),
            11 => into.cast::<usize>().write(start),
            12 => into.cast::<usize>().write(len),
            6 => into.cast::<c_uint>().write(c_uint::from(device.is_some())),
            _ => into.cast::<c_uint>().write(0),
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuPointerSetAttribute(_value: *const c_void, _which: c_int, _at: u64) -> c_int {
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut usize,
    _flags: c_uint,
    _priority: c_int,
) -> c_int {
    match streams::create() {
        // SAFETY: as CUDA requires of the caller.
        Some(handle) => unsafe { write_result(stream, handle) },
        None => OUT_OF_MEMORY,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetCtx(_stream: usize, context: *mut usize) -> c_int {
    // SAFETY: as CUDA requires of the caller.
    unsafe { write_result(context, CURRENT.get()) }
}

/// Copies on a stream between device or host memory.
fn copy(to: usize, from: usize, len: usize, stream: usize) -> c_int {
    let address = |at: usize| memory::host_address(at, len).map_or(at, |at| at as usize);
    let to = address(to);
    let from = address(from);
    with(stream, |stream| {
        if len > 0 {
            stream.push(Step::Copy { to, from, len });
        }
        OK
    })
}

/// Copies on the default stream and waits.
fn copy_and_wait(to: usize, from: usize, len: usize) -> c_int {
    copy(to, from, len, 0).max(with(0, |stream| {
        stream.wait();
        OK
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: usize) -> c_int {
    copy(to as usize, from as usize, len, stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize) -> c_int {
    copy(to as usize, from as usize, len, stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy(to: u64, from: u64, len: usize) -> c_int {
    copy_and_wait(to as usize, from as usize, len)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: u64, from: usize, len: usize) -> c_int {
    copy_and_wait(to as usize, from, len)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: usize, from: u64, len: usize) -> c_int {
    copy_and_wait(to, from as usize, len)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(to: u64, byte: u8, len: usize) -> c_int {
    let Some(to) = memory::host_address(to as usize, len) else { return INVALID };
    with(0, |stream| {
        stream.push(Step::Set { to: to as usize, len, byte });
        stream.wait();
        OK
    })
}

/// Functions that libcufile resolves when it is loaded, but never calls in these tests.
macro_rules! unsupported {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> c_int {
                NOT_SUPPORTED
            }
        )*
    };
}

unsupported! {
    cuArray3DCreate cuArray3DCreate_v2 cuArray3DGetDescriptor cuArray3DGetDescriptor_v2 cuArrayCreate cuArrayCreate_v2
    cuArrayDestroy cuArrayGetDescriptor cuArrayGetDescriptor_v2 cuArrayGetMemoryRequirements cuArrayGetPlane
    cuArrayGetSparseProperties cuCtxCreate cuCtxCreate_v2 cuCtxDestroy_v2 cuCtxDetach cuCtxDisablePeerAccess
    cuCtxEnablePeerAccess cuCtxGetCacheConfig cuCtxGetFlags cuCtxGetLimit cuCtxGetSharedMemConfig cuCtxPopCurrent
    cuCtxPushCurrent cuCtxResetPersistingL2Cache cuCtxSetCacheConfig cuCtxSetLimit cuCtxSetSharedMemConfig
    cuDestroyExternalMemory cuDestroyExternalSemaphore cuDeviceCanAccessPeer cuDeviceGetDefaultMemPool
    cuDeviceGetGraphMemAttribute cuDeviceGetMemPool cuDeviceGetNvSciSyncAttributes cuDeviceGetP2PAttribute
    cuDeviceGetTexture1DLinearMaxWidth cuDeviceGraphMemTrim cuDevicePrimaryCtxReset cuDevicePrimaryCtxSetFlags
    cuDevicePrimaryCtxSetFlags_v2 cuDeviceSetGraphMemAttribute cuDeviceSetMemPool cuDeviceTotalMem
    cuEGLStreamConsumerAcquireFrame cuEGLStreamConsumerConnect cuEGLStreamConsumerConnectWithFlags
    cuEGLStreamConsumerDisconnect cuEGLStreamConsumerReleaseFrame cuEGLStreamProducerConnect
    cuEGLStreamProducerDisconnect cuEGLStreamProducerPresentFrame cuEGLStreamProducerReturnFrame cuEventDestroy
    cuEventElapsedTime cuEventRecordWithFlags cuEventRecordWithFlags_ptsz cuEventRecord_ptsz
    cuExternalMemoryGetMappedBuffer cuExternalMemoryGetMappedMipmappedArray cuFlushGPUDirectRDMAWrites
    cuFuncGetAttribute cuFuncSetAttribute cuFuncSetCacheConfig cuFuncSetSharedMemConfig cuGLCtxCreate cuGLCtxCreate_v2
    cuGLGetDevices cuGLInit cuGLMapBufferObject cuGLMapBufferObjectAsync cuGLMapBufferObjectAsync_v2
    cuGLMapBufferObjectAsync_v2_ptsz cuGLMapBufferObject_v2 cuGLMapBufferObject_v2_ptds cuGLRegisterBufferObject
    cuGLSetBufferObjectMapFlags cuGLUnmapBufferObject cuGLUnmapBufferObjectAsync cuGLUnregisterBufferObject
    cuGetExportTable cuGetProcAddress cuGetProcAddress_v2 cuGraphAddChildGraphNode cuGraphAddDependencies
    cuGraphAddEmptyNode cuGraphAddEventRecordNode cuGraphAddEventWaitNode cuGraphAddExternalSemaphoresSignalNode
    cuGraphAddExternalSemaphoresWaitNode cuGraphAddHostNode cuGraphAddKernelNode cuGraphAddKernelNode_v2
    cuGraphAddMemAllocNode cuGraphAddMemFreeNode cuGraphAddMemcpyNode cuGraphAddMemsetNode cuGraphAddNode
    cuGraphChildGraphNodeGetGraph cuGraphClone cuGraphCreate cuGraphDebugDotPrint cuGraphDestroy cuGraphDestroyNode
    cuGraphEventRecordNodeGetEvent cuGraphEventRecordNodeSetEvent cuGraphEventWaitNodeGetEvent
    cuGraphEventWaitNodeSetEvent cuGraphExecChildGraphNodeSetParams cuGraphExecDestroy
    cuGraphExecEventRecordNodeSetEvent cuGraphExecEventWaitNodeSetEvent
    cuGraphExecExternalSemaphoresSignalNodeSetParams cuGraphExecExternalSemaphoresWaitNodeSetParams
    cuGraphExecGetFlags cuGraphExecHostNodeSetParams cuGraphExecKernelNodeSetParams cuGraphExecKernelNodeSetParams_v2
    cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams cuGraphExecNodeSetParams cuGraphExecUpdate
    cuGraphExecUpdate_v2 cuGraphExternalSemaphoresSignalNodeGetParams cuGraphExternalSemaphoresSignalNodeSetParams
    cuGraphExternalSemaphoresWaitNodeGetParams cuGraphExternalSemaphoresWaitNodeSetParams cuGraphGetEdges
    cuGraphGetNodes cuGraphGetRootNodes cuGraphHostNodeGetParams cuGraphHostNodeSetParams cuGraphInstantiate
    cuGraphInstantiateWithFlags cuGraphInstantiateWithParams cuGraphInstantiateWithParams_ptsz cuGraphInstantiate_v2
    cuGraphKernelNodeCopyAttributes cuGraphKernelNodeGetAttribute cuGraphKernelNodeGetParams
    cuGraphKernelNodeGetParams_v2 cuGraphKernelNodeSetAttribute cuGraphKernelNodeSetParams
    cuGraphKernelNodeSetParams_v2 cuGraphLaunch cuGraphLaunch_ptsz cuGraphMemAllocNodeGetParams
    cuGraphMemFreeNodeGetParams cuGraphMemcpyNodeGetParams cuGraphMemcpyNodeSetParams cuGraphMemsetNodeGetParams
    cuGraphMemsetNodeSetParams cuGraphNodeFindInClone cuGraphNodeGetDependencies cuGraphNodeGetDependentNodes
    cuGraphNodeGetEnabled cuGraphNodeGetType cuGraphNodeSetEnabled cuGraphNodeSetParams cuGraphReleaseUserObject
    cuGraphRemoveDependencies cuGraphRetainUserObject cuGraphUpload cuGraphUpload_ptsz cuGraphicsEGLRegisterImage
    cuGraphicsGLRegisterBuffer cuGraphicsGLRegisterImage cuGraphicsMapResources cuGraphicsMapResources_ptsz
    cuGraphicsResourceGetMappedEglFrame cuGraphicsResourceGetMappedMipmappedArray cuGraphicsResourceGetMappedPointer
    cuGraphicsResourceGetMappedPointer_v2 cuGraphicsResourceSetMapFlags cuGraphicsResourceSetMapFlags_v2
    cuGraphicsSubResourceGetMappedArray cuGraphicsUnmapResources cuGraphicsUnmapResources_ptsz
    cuGraphicsUnregisterResource cuGraphicsVDPAURegisterOutputSurface cuGraphicsVDPAURegisterVideoSurface
    cuImportExternalMemory cuImportExternalSemaphore cuIpcCloseMemHandle cuIpcGetEventHandle cuIpcGetMemHandle
    cuIpcOpenEventHandle cuIpcOpenMemHandle cuIpcOpenMemHandle_v2 cuKernelGetAttribute cuKernelGetFunction
    cuKernelSetAttribute cuKernelSetCacheConfig cuLaunchCooperativeKernel cuLaunchCooperativeKernelMultiDevice
    cuLaunchCooperativeKernel_ptsz cuLaunchHostFunc cuLaunchHostFunc_ptsz cuLaunchKernelEx
    cuLaunchKernelEx_ptsz cuLaunchKernel_ptsz cuLibraryGetGlobal cuLibraryGetKernel cuLibraryGetManaged
    cuLibraryGetModule cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload cuLinkAddData cuLinkAddFile
    cuLinkComplete cuLinkCreate cuLinkDestroy cuMemAdvise cuMemAdvise_v2 cuMemAlloc cuMemAllocAsync
    cuMemAllocAsync_ptsz cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz cuMemAllocHost_v2 cuMemAllocManaged
    cuMemAllocPitch cuMemAllocPitch_v2 cuMemFree cuMemFreeAsync cuMemFreeAsync_ptsz cuMemGetAddressRange
    cuMemGetHandleForAddressRange cuMemGetInfo cuMemHostGetDevicePointer cuMemHostRegister cuMemPoolCreate
    cuMemPoolDestroy cuMemPoolExportPointer cuMemPoolExportToShareableHandle cuMemPoolGetAccess cuMemPoolGetAttribute
    cuMemPoolImportFromShareableHandle cuMemPoolImportPointer cuMemPoolSetAccess cuMemPoolSetAttribute cuMemPoolTrimTo
    cuMemPrefetchAsync cuMemPrefetchAsync_ptsz cuMemPrefetchAsync_v2 cuMemPrefetchAsync_v2_ptsz cuMemRangeGetAttribute
    cuMemRangeGetAttributes cuMemcpy2DAsync cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz cuMemcpy2DUnaligned
    cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds cuMemcpy3D cuMemcpy3DAsync cuMemcpy3DAsync_v2
    cuMemcpy3DAsync_v2_ptsz cuMemcpy3DPeer cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz cuMemcpy3DPeer_ptds
    cuMemcpy3D_v2 cuMemcpy3D_v2_ptds cuMemcpyAsync_ptsz cuMemcpyDtoD cuMemcpyDtoDAsync cuMemcpyDtoDAsync_v2_ptsz
    cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds cuMemcpyDtoH cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2_ptsz cuMemcpyDtoH_v2_ptds
    cuMemcpyHtoD cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2_ptsz cuMemcpyHtoD_v2_ptds cuMemcpyPeer cuMemcpyPeerAsync
    cuMemcpyPeerAsync_ptsz cuMemcpyPeer_ptds cuMemcpy_ptds cuMemsetD2D8 cuMemsetD2D8Async cuMemsetD2D8Async_ptsz
    cuMemsetD2D8_v2 cuMemsetD2D8_v2_ptds cuMemsetD8 cuMemsetD8Async_ptsz cuMemsetD8_v2_ptds cuMipmappedArrayCreate
    cuMipmappedArrayDestroy cuMipmappedArrayGetLevel cuMipmappedArrayGetMemoryRequirements
    cuMipmappedArrayGetSparseProperties cuModuleGetGlobal cuModuleGetGlobal_v2
    cuModuleGetLoadingMode cuModuleGetSurfRef cuModuleGetTexRef cuModuleLoad cuModuleLoadFatBinary
    cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
    cuOccupancyMaxActiveClusters cuOccupancyMaxPotentialClusterSize cuProfilerInitialize cuProfilerStart
    cuProfilerStop cuSignalExternalSemaphoresAsync cuSignalExternalSemaphoresAsync_ptsz cuStreamAddCallback
    cuStreamAddCallback_ptsz cuStreamAttachMemAsync cuStreamAttachMemAsync_ptsz cuStreamBatchMemOp
    cuStreamBatchMemOp_ptsz cuStreamBeginCapture cuStreamBeginCapture_ptsz cuStreamBeginCapture_v2_ptsz
    cuStreamCopyAttributes cuStreamCopyAttributes_ptsz cuStreamDestroy cuStreamEndCapture_ptsz cuStreamGetAttribute
    cuStreamGetAttribute_ptsz cuStreamGetCaptureInfo cuStreamGetCaptureInfo_ptsz cuStreamGetCaptureInfo_v2
    cuStreamGetCaptureInfo_v2_ptsz cuStreamGetFlags cuStreamGetFlags_ptsz cuStreamGetId cuStreamGetId_ptsz
    cuStreamGetPriority cuStreamGetPriority_ptsz cuStreamIsCapturing_ptsz cuStreamQuery_ptsz cuStreamSetAttribute
    cuStreamSetAttribute_ptsz cuStreamSynchronize_ptsz cuStreamUpdateCaptureDependencies
    cuStreamUpdateCaptureDependencies_ptsz cuStreamWaitEvent_ptsz cuStreamWaitValue32 cuStreamWaitValue32_ptsz
    cuStreamWaitValue32_v2 cuStreamWaitValue64 cuStreamWaitValue64_ptsz cuStreamWriteValue32 cuStreamWriteValue32_ptsz
    cuStreamWriteValue32_v2 cuStreamWriteValue64 cuStreamWriteValue64_ptsz cuSurfObjectCreate cuSurfObjectDestroy
    cuSurfObjectGetResourceDesc cuSurfRefSetArray cuTexObjectCreate cuTexObjectDestroy cuTexObjectGetResourceDesc
    cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc cuTexRefCreate cuTexRefDestroy cuTexRefGetBorderColor
    cuTexRefSetAddress2D_v3 cuTexRefSetAddressMode cuTexRefSetAddress_v2 cuTexRefSetArray cuTexRefSetBorderColor
    cuTexRefSetFilterMode cuTexRefSetFlags cuTexRefSetFormat cuTexRefSetMaxAnisotropy cuTexRefSetMipmapFilterMode
    cuTexRefSetMipmapLevelBias cuTexRefSetMipmapLevelClamp cuTexRefSetMipmappedArray cuUserObjectCreate
    cuUserObjectRelease cuUserObjectRetain cuVDPAUCtxCreate cuVDPAUCtxCreate_v2 cuVDPAUGetDevice
    cuWaitExternalSemaphoresAsync cuWaitExternalSemaphoresAsync_ptsz
}

//! Memory of GPUs, over a driver of ours; each body runs in a child process.
#![allow(clippy::unwrap_used)]

use std::ffi::CStr;
use std::time::Duration;

use kvtier_fakegpu::{Fakes, HeldStreams, Report};
use kvtier_mem::cuda::{Gpu, GpuEvent, GpuStream};
use kvtier_mem::{Arena, ArenaConfig, BackingKind, ErrorKind, Lease, Place};

const MIB: usize = 1 << 20;

fn pinned(gpu: &Gpu, bytes: usize) -> Arena {
    Arena::pinned(ArenaConfig::huge(bytes), gpu).unwrap()
}

/// `len` bytes of a pattern in pinned memory, and a lease on the device.
fn filled(gpu: &Gpu, len: usize) -> (Lease, Lease) {
    let mut host = pinned(gpu, len).lease(len).unwrap();
    host.as_host_mut()
        .unwrap()
        .iter_mut()
        .enumerate()
        .for_each(|(n, byte)| *byte = (n * 31 % 251) as u8);
    host.assume_filled(len);
    (host, Arena::device(gpu, len).unwrap().lease(len).unwrap())
}

fn upload(stream: &GpuStream, host: &Lease, device: &mut Lease) {
    stream.upload(host.as_host().unwrap(), device, 0, || ()).unwrap();
    device.assume_filled(host.len());
}

#[test]
fn without_a_driver_everything_is_unsupported() {
    let body = || {
        for error in [Gpu::open(0).unwrap_err(), Gpu::count().unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("libcuda.so.1"), "{error}");
        }
    };
    Fakes::new().without_cuda().run(
        "without_a_driver_everything_is_unsupported",
        body,
        Report::assert_clean,
    );
}

#[test]
fn a_driver_without_a_gpu_says_so() {
    let body = || assert_eq!(Gpu::open(0).unwrap_err().kind(), ErrorKind::Unsupported);
    Fakes::new().devices(0).run("a_driver_without_a_gpu_says_so", body, Report::assert_clean);
}

#[test]
fn a_missing_gpu_is_invalid() {
    let body = || {
        assert_eq!(
            (Gpu::count().unwrap(), Gpu::open(1).unwrap().name().unwrap()),
            (2, "fake GPU 1".to_owned())
        );
        assert_eq!(Gpu::open(2).unwrap_err().kind(), ErrorKind::Invalid);
    };
    Fakes::new().devices(2).run("a_missing_gpu_is_invalid", body, Report::assert_clean);
}

#[test]
fn bytes_go_to_the_device_and_back_through_pinned_memory() {
    let body = || {
        let gpu = Gpu::open(0).unwrap();
        let stream = gpu.stream().unwrap();
        let (host, mut device) = filled(&gpu, 4 * MIB);
        assert_eq!((host.place(), device.place()), (Place::Pinned, Place::Device(0)));
        assert!(device.as_host().is_none() && device.addr().is_multiple_of(4096));
        let seen = stream.upload(host.as_host().unwrap(), &mut device, 0, || 7).unwrap();
        assert_eq!((seen, device.init_len()), (7, 0), "the caller says what counts as filled");
        device.assume_filled(4 * MIB);
        let arena = pinned(&gpu, MIB);
        let view = device.freeze();
        let mut back = arena.lease(MIB).unwrap();
        stream.download(&view.slice(MIB..3 * MIB), MIB, back.as_host_mut().unwrap()).unwrap();
        assert!(back.as_host_mut().unwrap()[..] == host.as_host().unwrap()[2 * MIB..3 * MIB]);
    };
    let check = |report: &Report| {
        report.assert_clean();
        assert_eq!(report.counter("pageable_bytes"), 0, "all of it was pinned");
    };
    // Slow enough that a reader that does not wait sees leftovers.
    let fakes = Fakes::new().delay(Duration::from_millis(5));
    fakes.run("bytes_go_to_the_device_and_back_through_pinned_memory", body, check);
}

#[test]
fn copies_outside_memory_or_to_another_gpu_are_invalid() {
    let body = || {
        let gpu = Gpu::open(0).unwrap();
        let other = Gpu::open(1).unwrap();
        let (host, mut device) = filled(&gpu, MIB);
        let bytes = host.as_host().unwrap();
        let kind = |stream: &GpuStream, device: &mut Lease, at| {
            stream.upload(bytes, device, at, || ()).unwrap_err().kind()
        };
        assert_eq!(kind(&gpu.stream().unwrap(), &mut device, 1), ErrorKind::Invalid);
        assert_eq!(kind(&gpu.stream().unwrap(), &mut device, usize::MAX), ErrorKind::Invalid);
        assert_eq!(kind(&other.stream().unwrap(), &mut device, 0), ErrorKind::Invalid);
        let mut heap = Arena::new(ArenaConfig::heap(MIB)).unwrap().lease(MIB).unwrap();
        assert_eq!(kind(&gpu.stream().unwrap(), &mut heap, 0), ErrorKind::Invalid);
    };
    let fakes = Fakes::new().devices(2);
    fakes.run("copies_outside_memory_or_to_another_gpu_are_invalid", body, Report::assert_clean);
}

/// Copies a word.
const COPY: &CStr =
    c".version 7.0 .target sm_70 .address_size 64 .visible .entry copy(.param .u64 from, .param .u64 to) {
    .reg .u32 %a; .reg .u64 %from, %to; ld.param.u64 %from, [from]; ld.param.u64 %to, [to];
    ld.global.u32 %a, [%from]; st.global.u32 [%to], %a; ret; }";

#[test]
fn a_kernel_runs_on_its_own_gpu_and_no_other() {
    let body = || {
        let gpu = Gpu::open(0).unwrap();
        let other = Gpu::open(1).unwrap();
        let stream = gpu.stream().unwrap();
        let (host, mut device) = filled(&gpu, 4096);
        upload(&stream, &host, &mut device);
        let kernel = gpu.kernel(COPY, c"copy").unwrap();
        let args = [device.addr() as u64 + 8, device.addr() as u64 + 1024];
        // SAFETY: two words of a lease.
        unsafe { stream.launch(&kernel, 1, 1, &args) }.unwrap();
        let mut back = [0; 4];
        stream.download_lease(&device, 1024, &mut back).unwrap();
        assert_eq!(back, host.as_host().unwrap()[8..12]);
        // SAFETY: it does not run.
        let error = unsafe { other.stream().unwrap().launch(&kernel, 1, 1, &args) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(gpu.kernel(COPY, c"paste").is_err() && gpu.kernel(c"no PTX", c"copy").is_err());
    };
    Fakes::new().devices(2).run(
        "a_kernel_runs_on_its_own_gpu_and_no_other",
        body,
        Report::assert_clean,
    );
}

#[test]
fn a_kernel_that_accesses_invalid_memory_is_an_error_then_and_later() {
    let body = || {
        let gpu = Gpu::open(0).unwrap();
        let stream = gpu.stream().unwrap();
        let (_, device) = filled(&gpu, 4096);
        let kernel = gpu.kernel(COPY, c"copy").unwrap();
        // SAFETY: none; the stand-in finds out.
        let error =
            unsafe { stream.launch(&kernel, 1, 1, &[device.addr() as u64 + 4096, 0]) }.unwrap_err();
        assert!(
            error.to_string().contains("cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)"),
            "{error}"
        );
        assert_eq!(
            stream.download_lease(&device, 0, &mut [0; 4]).unwrap_err().kind(),
            ErrorKind::Io
        );
    };
    let check =
        |report: &Report| assert!(report.leaks().contains(&("kernel_faults".to_owned(), 1)));
    Fakes::new().run(
        "a_kernel_that_accesses_invalid_memory_is_an_error_then_and_later",
        body,
        check,
    );
}

#[test]
fn a_full_gpu_is_full_and_says_what_is_free() {
    let body = || {
        let gpu = Gpu::open(0).unwrap();
        let error = Arena::device(&gpu, 4 * MIB).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Full { free, .. } if free == 2 * MIB),
            "{error:?}"
        );
        let arena = Arena::device(&gpu, MIB).unwrap();
        assert_eq!((arena.backing(), arena.stats().capacity), (BackingKind::Device, MIB));
    };
    Fakes::new().memory(2 * MIB).run(
        "a_full_gpu_is_full_and_says_what_is_free",
        body,
        Report::assert_clean,
    );
}

#[test]
fn memory_that_cannot_be_pinned_is_an_error_that_leaves_nothing() {
    let body = || {
        let gpu = Gpu::open(0).unwrap();
        let error = Arena::pinned(ArenaConfig::heap(MIB), &gpu).unwrap_err();
        assert!(error.to_string().contains("ulimit -l"), "{error}");
        assert!(Arena::pinned(ArenaConfig::heap(MIB), &gpu).is_ok());
    };
    let fakes = Fakes::new().fail("cuMemHostRegister_v2:1:2");
    fakes.run(
        "memory_that_cannot_be_pinned_is_an_error_that_leaves_nothing",
        body,
        Report::assert_clean,
    );
}

#[test]
fn a_failed_copy_is_an_error_with_the_drivers_message() {
    let body = || {
        let gpu = Gpu::open(0).unwrap();
        let stream = gpu.stream().unwrap();
        let (host, mut device) = filled(&gpu, MIB);
        let error = stream.upload(host.as_host().unwrap(), &mut device, 0, || ()).unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_INVALID_HANDLE (400)"), "{error}");
        upload(&stream, &host, &mut device);
        let error = stream.upload(host.as_host().unwrap(), &mut device, 0, || ()).unwrap_err();
        assert!(
            error.to_string().contains("(4242)"),
            "an unknown code is an ordinary error: {error}"
        );
    };
    let fakes = Fakes::new().fail("cuMemcpyHtoDAsync_v2:1:400,cuStreamSynchronize:3:4242");
    fakes.run("a_failed_copy_is_an_error_with_the_drivers_message", body, Report::assert_clean);
}

#[test]
fn memory_is_released_only_after_the_copy_even_if_waiting_for_it_failed() {
    let body = || {
        let gpu = Gpu::open(0).unwrap();
        let stream = gpu.stream().unwrap();
        let (host, mut device) = filled(&gpu, 64 << 10);
        upload(&stream, &host, &mut device);
        let mut bytes = vec![0; 64 << 10];
        stream.download_lease(&device, 0, &mut bytes).unwrap_err();
        let then = bytes.clone();
        std::thread::sleep(Duration::from_millis(100));
        assert!(then == bytes, "written to after the call returned");
        assert!(bytes == host.as_host().unwrap(), "the copy itself did not fail");
    };
    // The second wait fails at once; the copy takes its time.
    let fakes = Fakes::new().fail("cuStreamSynchronize:2:719").delay(Duration::from_millis(30));
    fakes.run(
        "memory_is_released_only_after_the_copy_even_if_waiting_for_it_failed",
        body,
        Report::assert_clean,
    );
}

#[test]
fn foreign_tensors_keep_their_owner_and_their_event() {
    let body = || {
        let gpu = Gpu::open(0).unwrap();
        let stream = gpu.stream().unwrap();
        let tensor = Arena::device(&gpu, MIB).unwrap().lease(MIB).unwrap();
        let addr = tensor.addr();
        let event = stream.event().unwrap();
        // SAFETY: the tensor is the owner, and nothing else uses it.
        let lease = unsafe { Lease::from_device(addr, MIB, Some(event), tensor) }.unwrap();
        assert_eq!(
            (lease.place(), lease.init_len(), lease.gpu()),
            (Place::Device(0), MIB, Some(&gpu))
        );
        let view = lease.freeze();
        assert_eq!(view.gpu(), Some(&gpu));
        while !view.after().unwrap().has_passed().unwrap() {
            std::thread::yield_now();
        }
        stream.wait_for(view.after().unwrap()).unwrap();
        // SAFETY: refused, whatever is there.
        let beyond =
            |addr, len| unsafe { Lease::from_device(addr, len, None, ()) }.unwrap_err().kind();
        assert_eq!(beyond(addr, 64 * MIB), ErrorKind::Invalid);
        assert_eq!(beyond(&raw const view as usize, 8), ErrorKind::Invalid);
    };
    Fakes::new().run(
        "foreign_tensors_keep_their_owner_and_their_event",
        body,
        Report::assert_clean,
    );
}

/// Sets memory on a stream of the caller's without waiting, and gives an event after it.
fn set_later(gpu: &Gpu, lease: &Lease) -> GpuEvent {
    type Create = unsafe extern "C" fn(*mut usize, u32) -> i32;
    type Set = unsafe extern "C" fn(u64, u8, usize, usize) -> i32;
    let _entered = gpu.enter().unwrap();
    let mut stream = 0;
    // SAFETY: the stand-in's library, whose functions are declared so; the lease waits for the
    // event.
    unsafe {
        let library = libloading::Library::new("libcuda.so.1").unwrap();
        assert_eq!(library.get::<Create>("cuStreamCreate").unwrap()(&mut stream, 0), 0);
        assert_eq!(
            library.get::<Set>("cuMemsetD8Async").unwrap()(
                lease.addr() as u64,
                1,
                lease.len(),
                stream
            ),
            0
        );
        gpu.event_after(stream).unwrap()
    }
}

#[test]
fn memory_in_use_by_a_gpu_is_freed_only_when_its_work_is_done() {
    let body = || {
        let gpu = Gpu::open(0).unwrap();
        let arena = Arena::device(&gpu, MIB).unwrap();
        // Whole, cut in two, and as a view.
        let ends: [fn(Lease); 3] =
            [drop, |lease| drop(lease.split_at(4096)), |lease| drop(lease.freeze().slice(0..9))];
        for end in ends {
            let mut lease = arena.lease(MIB).unwrap();
            let hold = HeldStreams::new();
            let event = set_later(&gpu, &lease);
            lease.set_after(Some(event.clone()));
            lease.assume_filled(MIB);
            end(lease);
            assert!(matches!(
                arena.lease(4096).unwrap_err().kind(),
                ErrorKind::Full { free: 0, .. }
            ));
            assert!(!event.has_passed().unwrap());
            drop(hold);
            while arena.stats().free < MIB {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(event.has_passed().unwrap(), "it was handed on before");
        }
    };
    let check = |report: &Report| {
        assert_eq!(report.leaks(), [("streams".to_owned(), 3)], "but the caller's own")
    };
    let fakes = Fakes::new().delay(Duration::from_millis(20));
    fakes.run("memory_in_use_by_a_gpu_is_freed_only_when_its_work_is_done", body, check);
}

#[test]
fn a_thread_keeps_its_context() {
    let body = || {
        let gpus = [Gpu::open(0).unwrap(), Gpu::open(1).unwrap()];
        let outer = gpus[0].enter().unwrap();
        drop(Arena::device(&gpus[1], MIB).unwrap());
        // Memory of GPU 0 although another context was current in between.
        let inner = gpus[0].enter().unwrap();
        drop(inner);
        drop(outer);
        assert!(Arena::device(&gpus[0], MIB).unwrap().lease(MIB).unwrap().gpu() == Some(&gpus[0]));
    };
    Fakes::new().devices(2).run("a_thread_keeps_its_context", body, Report::assert_clean);
}

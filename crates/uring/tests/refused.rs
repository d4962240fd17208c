//! Machines that refuse io_uring or pinned memory. Each test makes its own thread such a machine:
//! what the kernel forbids a thread, it forbids the threads that it starts.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use kvtier_mem::{Arena, ArenaConfig};
use kvtier_uring::{Engine, EngineConfig, EngineKind, ErrorKind, Job, Part};

/// From now on `io_uring_setup` fails with `code` on this thread and those that it starts.
fn forbid_io_uring(code: i32) {
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // Load the number of the system call; is it io_uring_setup? then the error, else allow.
    let mut steps = [
        step((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0),
        step(
            (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            0,
            1,
            libc::SYS_io_uring_setup as u32,
        ),
        step((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_ERRNO | code as u32),
        step((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: plain calls that concern this thread; the program and its steps live until the kernel
    // has copied them.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
            0
        );
    }
}

/// From now on the process may lock `bytes` of memory, and this thread has lost the right to exceed
/// that.
fn limit_locked_memory(bytes: u64) {
    /// Version 3, this thread.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    let none = [0u32; 6];
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: plain calls; header and sets have the size that version 3 of the call reads.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
        assert_eq!(libc::syscall(libc::SYS_capset, HEADER.as_ptr(), none.as_ptr()), 0);
    }
}

fn on_its_own_thread(test: impl FnOnce() + Send + 'static) {
    std::thread::spawn(test).join().unwrap();
}

fn round_trip(engine: &Engine, arena: &Arena) {
    let file = Arc::new(tempfile::tempfile().unwrap().into());
    let (send, answers) = sync_channel(1);
    let mut lease = arena.lease(5).unwrap();
    lease.write_at(0, b"bytes").unwrap();
    let job = Job::write(Arc::clone(&file)).with_part(Part::Write {
        at: 0,
        from: lease.freeze(),
        len: 5,
    });
    let sender = send.clone();
    engine.submit(job, move |finished| sender.send(finished).unwrap()).unwrap();
    assert_eq!(answers.recv_timeout(Duration::from_secs(600)).unwrap().result.unwrap(), 5);
    let job =
        Job::read(file).with_part(Part::Read { at: 0, into: arena.lease(5).unwrap(), len: 5 });
    engine.submit(job, move |finished| send.send(finished).unwrap()).unwrap();
    let read = answers.recv_timeout(Duration::from_secs(600)).unwrap();
    let Part::Read { into, .. } = &read.job.parts[0] else { panic!("a read came back as a write") };
    assert_eq!(into.as_host(), Some(&b"bytes"[..]));
}

#[test]
fn without_io_uring_auto_uses_threads_and_says_why() {
    for (code, why) in
        [(libc::EPERM, "seccomp"), (libc::ENOSYS, "sandbox"), (libc::ENOMEM, "locked memory")]
    {
        on_its_own_thread(move || {
            forbid_io_uring(code);
            let error =
                Engine::new(EngineConfig::default().with_kind(EngineKind::Uring)).unwrap_err();
            assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::Io, Some(code)));
            let engine = Engine::new(EngineConfig::default()).unwrap();
            assert_eq!(engine.kind(), EngineKind::Threads);
            assert!(engine.reason().contains(why), "{}", engine.reason());
            round_trip(&engine, &Arena::new(ArenaConfig::heap(1 << 20)).unwrap());
        });
    }
}

#[test]
fn memory_that_cannot_be_pinned_is_used_unregistered() {
    on_its_own_thread(|| {
        limit_locked_memory(1 << 20);
        let engine = Engine::new(EngineConfig::default().with_kind(EngineKind::Uring)).unwrap();
        let arena = Arena::new(ArenaConfig::heap(8 << 20)).unwrap();
        let registered = engine.register(&arena).unwrap();
        assert!(!registered.fixed);
        assert!(registered.reason.contains("locked memory"), "{}", registered.reason);
        round_trip(&engine, &arena);
        assert_eq!(engine.stats().fixed, 0);
        assert!(engine.stats().unfixed >= 2);
    });
}

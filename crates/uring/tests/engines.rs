//! What both engines promise, each promise asked of each engine.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvtier_mem::{Arena, ArenaConfig, View};
use kvtier_uring::{
    Engine, EngineConfig, EngineKind, ErrorKind, Finished, Job, JobClass, Part, RefusalReason,
};

const PATIENCE: Duration = Duration::from_secs(600);
const PIECE: usize = 8192;

macro_rules! both {
    ($($test:ident)*) => {
        mod uring { $(#[test] fn $test() { super::$test(super::EngineKind::Uring) })* }
        mod threads { $(#[test] fn $test() { super::$test(super::EngineKind::Threads) })* }
    };
}

both! {
    bytes_read_back_from_many_threads
    odd_pieces_and_many_parts
    a_file_that_ends_early_is_a_short_read
    a_job_of_nothing_is_done
    what_can_never_be_done_says_so
    a_closed_engine_refuses
    a_full_queue_returns_the_job
    panics_of_callbacks_end_nothing
    dropping_the_engine_returns_all_memory
    registered_or_not_the_bytes_are_the_same
    a_full_disk_is_reported
    a_blocked_file_does_not_block_the_end
    callbacks_may_submit_and_close
    wrong_numbers_are_refused
    a_large_direct_transfer_is_whole
}

fn config(kind: EngineKind) -> EngineConfig {
    EngineConfig::default().with_kind(kind).with_piece_bytes(PIECE)
}

fn engine(kind: EngineKind) -> Engine {
    let engine = Engine::new(config(kind)).unwrap();
    assert_eq!(engine.kind(), kind);
    engine
}

fn arena(bytes: usize) -> Arena {
    Arena::new(ArenaConfig::heap(bytes)).unwrap()
}

fn temp() -> (File, Arc<OwnedFd>) {
    let file = tempfile::tempfile().unwrap();
    let theirs = Arc::new(file.try_clone().unwrap().into());
    (file, theirs)
}

/// Bytes that differ by place and seed.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let step = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(step).collect()
}

fn view(arena: &Arena, bytes: &[u8]) -> View {
    let mut lease = arena.lease(bytes.len()).unwrap();
    lease.write_at(0, bytes).unwrap();
    lease.freeze()
}

fn read_part(arena: &Arena, at: u64, len: usize) -> Part {
    Part::Read { at, into: arena.lease(len).unwrap(), len }
}

fn write_part(arena: &Arena, at: u64, data: &[u8]) -> Part {
    Part::Write { at, from: view(arena, data), len: data.len() }
}

fn submit(engine: &Engine, job: Job) -> Receiver<Finished> {
    let (send, receive) = sync_channel(1);
    engine.submit(job, move |finished| drop(send.send(finished))).unwrap();
    receive
}

fn run(engine: &Engine, job: Job) -> Finished {
    submit(engine, job).recv_timeout(PATIENCE).unwrap()
}

fn loaded(finished: &Finished, part: usize) -> &[u8] {
    match &finished.job.parts[part] {
        Part::Read { into, .. } => into.as_host().unwrap(),
        Part::Write { .. } => panic!("not a read"),
    }
}

fn all_home(arena: &Arena) {
    let stats = arena.stats();
    assert_eq!(stats.free, stats.capacity);
}

fn bytes_read_back_from_many_threads(kind: EngineKind) {
    let engine = engine(kind);
    let arena = arena(16 << 20);
    let (_, file) = temp();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let engine = engine.clone();
            let arena = arena.clone();
            let file = Arc::clone(&file);
            scope.spawn(move || {
                for round in 0..20u64 {
                    let len = 1 + (thread * 20 + round) as usize * 331 % (6 * PIECE);
                    let at = (thread * 20 + round) * 64 * 1024;
                    let data = bytes(thread * 1000 + round, len);
                    let wrote = run(
                        &engine,
                        Job::write(Arc::clone(&file)).with_part(write_part(&arena, at, &data)),
                    );
                    assert_eq!(wrote.result.unwrap(), len as u64);
                    let read = run(
                        &engine,
                        Job::read(Arc::clone(&file)).with_part(read_part(&arena, at, len)),
                    );
                    assert_eq!(*read.result.as_ref().unwrap(), len as u64);
                    assert!(loaded(&read, 0) == data, "thread {thread}, round {round}");
                }
            });
        }
    });
    assert_eq!(engine.stats().queued, 0);
    all_home(&arena);
}

fn odd_pieces_and_many_parts(kind: EngineKind) {
    let arena = arena(8 << 20);
    let data = bytes(7, 100_003);
    for piece in [1000, 4096, 4097, 65_536, 1 << 20] {
        let engine = Engine::new(
            config(kind).with_piece_bytes(piece).with_pieces_inflight(3).with_threads(3),
        )
        .unwrap();
        let (mut plain, file) = temp();
        let cuts = [0, 1, 4096, 4096, 33_333, 90_000, data.len()];
        let mut write = Job::write(Arc::clone(&file));
        let mut read = Job::read(file);
        for cut in cuts.windows(2).rev() {
            write = write.with_part(write_part(&arena, cut[0] as u64, &data[cut[0]..cut[1]]));
            read = read.with_part(read_part(&arena, cut[0] as u64, cut[1] - cut[0]));
        }
        assert_eq!(run(&engine, write).result.unwrap(), data.len() as u64);
        let mut found = Vec::new();
        plain.read_to_end(&mut found).unwrap();
        assert!(found == data, "written in pieces of {piece}");

        let seen = Arc::new(Mutex::new(Vec::new()));
        let see = Arc::clone(&seen);
        let read = run(
            &engine,
            read.with_watch(move |part, at, bytes| {
                see.lock().unwrap().push((part, at, bytes.to_vec()))
            }),
        );
        assert_eq!(*read.result.as_ref().unwrap(), data.len() as u64);
        assert!(read.job.watch.is_some(), "the watch comes back with the job");
        let mut seen = seen.lock().unwrap();
        seen.sort_by_key(|(part, at, _)| (*part, *at));
        assert!(seen.iter().all(|(_, at, bytes)| at % piece as u64 == 0 && bytes.len() <= piece));
        for (part, cut) in cuts.windows(2).rev().enumerate() {
            assert!(
                loaded(&read, part) == &data[cut[0]..cut[1]],
                "part {part} in pieces of {piece}"
            );
            let watched: Vec<u8> =
                seen.iter().filter(|s| s.0 == part).flat_map(|s| s.2.iter().copied()).collect();
            assert!(watched == data[cut[0]..cut[1]], "part {part}: each byte seen once");
        }
        drop(read);
        all_home(&arena);
    }
}

fn a_file_that_ends_early_is_a_short_read(kind: EngineKind) {
    let engine = engine(kind);
    let arena = arena(1 << 20);
    for len in [0, 100, PIECE, PIECE + 1, 3 * PIECE - 1] {
        let (plain, file) = temp();
        let data = bytes(3, len);
        plain.write_all_at(&data, 0).unwrap();
        let job = Job::read(file).with_part(read_part(&arena, 0, 5 * PIECE)).with_part(read_part(
            &arena,
            1 << 30,
            10,
        ));
        let read = run(&engine, job);
        assert_eq!(
            read.result.as_ref().unwrap_err().kind(),
            ErrorKind::ShortRead { got: len as u64 }
        );
        assert!(loaded(&read, 0) == data, "what there was of {len} bytes is there");
        assert!(loaded(&read, 1).is_empty());
    }
}

fn a_job_of_nothing_is_done(kind: EngineKind) {
    let engine = engine(kind);
    let arena = arena(1 << 20);
    let (_, file) = temp();
    assert_eq!(run(&engine, Job::read(Arc::clone(&file))).result.unwrap(), 0);
    assert_eq!(run(&engine, Job::read(file).with_part(read_part(&arena, 0, 0))).result.unwrap(), 0);
}

fn what_can_never_be_done_says_so(kind: EngineKind) {
    let engine = engine(kind);
    let arena = arena(1 << 20);
    let (_, file) = temp();
    let kind_of = |job| run(&engine, job).result.unwrap_err().kind();
    let long_read = Part::Read { at: 0, into: arena.lease(10).unwrap(), len: 11 };
    assert_eq!(kind_of(Job::read(Arc::clone(&file)).with_part(long_read)), ErrorKind::Invalid);
    let long_write = Part::Write { at: 0, from: view(&arena, b"ten bytes!"), len: 11 };
    assert_eq!(kind_of(Job::write(Arc::clone(&file)).with_part(long_write)), ErrorKind::Invalid);
    let both = Job::read(Arc::clone(&file))
        .with_part(read_part(&arena, 0, 5))
        .with_part(write_part(&arena, 0, b"x"));
    assert_eq!(kind_of(both), ErrorKind::Invalid);
    assert_eq!(
        kind_of(Job::read(Arc::clone(&file)).with_part(read_part(&arena, u64::MAX, 5))),
        ErrorKind::Invalid
    );
    let read_only = Arc::new(File::open("/dev/null").unwrap().into());
    let denied = run(&engine, Job::write(read_only).with_part(write_part(&arena, 0, b"x")))
        .result
        .unwrap_err();
    assert_eq!(denied.raw_os_error(), Some(libc::EBADF));
    all_home(&arena);
}

fn a_closed_engine_refuses(kind: EngineKind) {
    let engine = engine(kind);
    let arena = arena(1 << 20);
    let (_, file) = temp();
    engine.clone().close();
    engine.close();
    let refused = engine
        .submit(Job::read(file).with_part(read_part(&arena, 0, 5)), |_| panic!("not taken"))
        .unwrap_err();
    assert_eq!((refused.why, refused.job.parts.len()), (RefusalReason::Closed, 1));
    assert_eq!(engine.register(&arena).unwrap_err().kind(), ErrorKind::Closed);
}

/// Holds the engine's only thread in a callback until the test sends.
fn occupy(engine: &Engine, file: &Arc<OwnedFd>) -> SyncSender<()> {
    let (release, held) = sync_channel::<()>(1);
    let (entered, inside) = sync_channel(1);
    let hold = move |_| {
        entered.send(()).unwrap();
        let _ = held.recv_timeout(PATIENCE);
    };
    engine.submit(Job::read(Arc::clone(file)), hold).unwrap();
    inside.recv_timeout(PATIENCE).unwrap();
    release
}

fn a_full_queue_returns_the_job(kind: EngineKind) {
    let engine = Engine::new(config(kind).with_queue_max(2).with_threads(1)).unwrap();
    let arena = arena(1 << 20);
    let (plain, file) = temp();
    plain.write_all_at(b"12345", 0).unwrap();
    let release = occupy(&engine, &file);
    let job = || Job::read(Arc::clone(&file)).with_part(read_part(&arena, 0, 5));
    let waiting = [submit(&engine, job()), submit(&engine, job())];
    assert_eq!(engine.stats().queued, 2);
    let began = Instant::now();
    let refused = engine.submit(job(), |_| panic!("not taken")).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(600), "a refusal does not wait");
    assert_eq!((refused.why, refused.job.parts.len()), (RefusalReason::Full, 1));
    drop(release);
    for receiver in waiting {
        assert_eq!(receiver.recv_timeout(PATIENCE).unwrap().result.unwrap(), 5);
    }
    assert_eq!(run(&engine, refused.job).result.unwrap(), 5);
}

fn panics_of_callbacks_end_nothing(kind: EngineKind) {
    let engine = Engine::new(config(kind).with_threads(2)).unwrap();
    let arena = arena(1 << 20);
    let (plain, file) = temp();
    plain.write_all_at(&bytes(1, 4 * PIECE), 0).unwrap();
    let job = || Job::read(Arc::clone(&file)).with_part(read_part(&arena, 0, 4 * PIECE));
    for _ in 0..8 {
        engine.submit(job(), |_| panic!("a callback of the test")).unwrap();
        let watched = run(&engine, job().with_watch(|_, _, _| panic!("a watch of the test")));
        assert_eq!(watched.result.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(run(&engine, job()).result.unwrap(), 4 * PIECE as u64);
    }
    engine.close();
    all_home(&arena);
}

fn dropping_the_engine_returns_all_memory(kind: EngineKind) {
    let arena = arena(8 << 20);
    let (plain, file) = temp();
    plain.write_all_at(&bytes(1, 4 * PIECE), 0).unwrap();
    for round in 0..20 {
        let engine = engine(kind);
        let jobs: Vec<_> = (0..40)
            .map(|n| match n % 2 {
                0 => Job::read(Arc::clone(&file)).with_part(read_part(&arena, 0, 4 * PIECE)),
                _ => Job::write(Arc::clone(&file)).with_part(write_part(
                    &arena,
                    1 << 20,
                    &bytes(n, 4 * PIECE),
                )),
            })
            .map(|job| submit(&engine, job))
            .collect();
        if round % 2 == 0 {
            engine.close();
        }
        drop(engine);
        for answer in jobs {
            let finished = answer.try_recv().expect("answered before the engine was gone");
            assert_eq!(finished.job.parts.len(), 1);
            match finished.result {
                Ok(n) => assert_eq!(n, 4 * PIECE as u64),
                Err(e) => assert_eq!(e.kind(), ErrorKind::Closed),
            }
        }
        all_home(&arena);
    }
}

fn registered_or_not_the_bytes_are_the_same(kind: EngineKind) {
    let engine = engine(kind);
    let ours = arena(4 << 20);
    let foreign = arena(4 << 20);
    let registered = engine.register(&ours).unwrap();
    assert_eq!(registered.fixed, kind == EngineKind::Uring, "{}", registered.reason);
    assert_eq!(engine.register(&ours).unwrap().fixed, registered.fixed, "twice is once");
    let (_, file) = temp();
    let data = bytes(11, 3 * PIECE + 5);
    let mut seen = engine.stats();
    for (arena, fixed) in [(&ours, registered.fixed), (&foreign, false)] {
        let write = Job::write(Arc::clone(&file)).with_part(write_part(arena, 3, &data));
        assert_eq!(run(&engine, write).result.unwrap(), data.len() as u64);
        // A lease that starts somewhere inside the region.
        let (_head, into) = arena.lease(data.len() + 512).unwrap().split_at(512);
        let read = run(
            &engine,
            Job::read(Arc::clone(&file)).with_part(Part::Read { at: 3, into, len: data.len() }),
        );
        assert!(loaded(&read, 0) == data);
        let now = engine.stats();
        assert_eq!((now.fixed > seen.fixed, now.unfixed > seen.unfixed), (fixed, !fixed));
        assert_eq!((now.pieces - seen.pieces, now.bytes - seen.bytes), (8, 2 * data.len() as u64));
        seen = now;
    }
    drop(engine);
    all_home(&ours);
}

fn a_full_disk_is_reported(kind: EngineKind) {
    let engine = engine(kind);
    let arena = arena(1 << 20);
    let full = Arc::new(File::options().write(true).open("/dev/full").unwrap().into());
    let error =
        run(&engine, Job::write(full).with_part(write_part(&arena, 0, &bytes(1, 3 * PIECE))))
            .result
            .unwrap_err();
    assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::Io, Some(libc::ENOSPC)));
    let folder = Arc::new(File::open("/").unwrap().into());
    let error =
        run(&engine, Job::read(folder).with_part(read_part(&arena, 0, 100))).result.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EISDIR));
}

fn a_blocked_file_does_not_block_the_end(kind: EngineKind) {
    let engine = Engine::new(config(kind).with_pieces_inflight(2)).unwrap();
    let arena = arena(1 << 20);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let file: Arc<OwnedFd> = Arc::new(reader.into());
    writer.write_all(b"not enough").unwrap();
    let jobs: Vec<_> = (0..6)
        .map(|_| submit(&engine, Job::read(Arc::clone(&file)).with_part(read_part(&arena, 0, 100))))
        .collect();
    let began = Instant::now();
    std::thread::sleep(Duration::from_millis(50));
    engine.close();
    assert!(began.elapsed() < PATIENCE);
    for job in jobs {
        let error = job.try_recv().expect("answered when the engine is closed").result.unwrap_err();
        match kind {
            // A pipe has no offsets, which blocking threads say at once.
            EngineKind::Threads => {
                assert!(
                    error.raw_os_error() == Some(libc::ESPIPE) || error.kind() == ErrorKind::Closed
                )
            }
            _ => assert_eq!(error.kind(), ErrorKind::Closed),
        }
    }
    all_home(&arena);
}

fn callbacks_may_submit_and_close(kind: EngineKind) {
    let engine = engine(kind);
    let (plain, file) = temp();
    plain.write_all_at(b"12345", 0).unwrap();
    let arena = arena(1 << 20);
    let (send, receive) = sync_channel(1);
    let inner = engine.clone();
    let job = Job::read(Arc::clone(&file)).with_part(read_part(&arena, 0, 5));
    let first = move |_| {
        let again = inner.clone();
        let last = move |finished: Finished| {
            let refused = again
                .register(&kvtier_mem::Arena::new(ArenaConfig::heap(4096)).unwrap())
                .unwrap_err();
            again.close();
            send.send((finished.result.unwrap(), refused.kind())).unwrap();
        };
        inner.submit(job, last).unwrap();
    };
    engine.submit(Job::read(file), first).unwrap();
    // The last clone may die in the callback.
    drop(engine);
    assert_eq!(receive.recv_timeout(PATIENCE).unwrap(), (5, ErrorKind::Invalid));
}

fn wrong_numbers_are_refused(kind: EngineKind) {
    let wrong = [
        config(kind).with_piece_bytes(0),
        config(kind).with_piece_bytes(2 << 30),
        config(kind).with_pieces_inflight(0),
        config(kind).with_queue_max(0),
        config(kind).with_threads(0),
        config(kind).with_threads(100_000),
    ];
    for config in wrong {
        assert_eq!(Engine::new(config).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!("polling".parse::<EngineKind>().unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!("auto".parse::<EngineKind>().unwrap(), EngineKind::Auto);
}

fn a_large_direct_transfer_is_whole(kind: EngineKind) {
    use std::os::unix::fs::OpenOptionsExt;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut options = File::options();
    options.read(true).write(true).create(true);
    let path = folder.path().join("chunk");
    let direct = options.clone().custom_flags(libc::O_DIRECT).open(&path);
    // Where the file system has no direct I/O the transfer is the same through the cache.
    let file: Arc<OwnedFd> = Arc::new(direct.or_else(|_| options.open(&path)).unwrap().into());
    let engine =
        Engine::new(EngineConfig::default().with_kind(kind).with_piece_bytes(1 << 20)).unwrap();
    let arena = arena(32 << 20);
    engine.register(&arena).unwrap();
    let data = bytes(5, (9 << 20) + 4096);
    let mut write = Job::write(Arc::clone(&file)).with_part(write_part(&arena, 0, &data));
    write.class = JobClass::Write;
    assert_eq!(run(&engine, write).result.unwrap(), data.len() as u64);
    let read =
        run(&engine, Job::read(Arc::clone(&file)).with_part(read_part(&arena, 0, data.len())));
    assert!(loaded(&read, 0) == data);
    // A file of odd length ends early, whatever its file system says of direct reads past the end.
    File::options().write(true).open(&path).unwrap().set_len((1 << 20) + 777).unwrap();
    let short = run(&engine, Job::read(file).with_part(read_part(&arena, 0, 4 << 20)));
    assert_eq!(
        short.result.as_ref().unwrap_err().kind(),
        ErrorKind::ShortRead { got: (1 << 20) + 777 }
    );
    assert!(loaded(&short, 0) == &data[..(1 << 20) + 777]);
}

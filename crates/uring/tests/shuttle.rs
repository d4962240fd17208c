//! The engine's queue under shuttle: every run is another interleaving of callers, I/O threads and
//! a thread that closes. The file is real, the threads are the model checker's.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use kvtier_mem::{Arena, ArenaConfig};
use kvtier_uring::{Engine, EngineConfig, EngineKind, ErrorKind, Job, Part};
use shuttle::sync::Mutex;
use shuttle::thread;

const PAGE: usize = 4096;

/// Many interleavings by day, more by night.
fn explore(run: impl Fn() + Send + Sync + 'static) {
    let runs = if std::env::var_os("KVTIER_NIGHTLY").is_some() { 50_000 } else { 1_000 };
    shuttle::check_pct(run, runs, 3);
}

fn engine(queue_max: usize) -> Engine {
    let config = EngineConfig::default().with_kind(EngineKind::Threads).with_threads(2);
    Engine::new(config.with_queue_max(queue_max).with_piece_bytes(PAGE)).unwrap()
}

/// Two callers write and then read back through two I/O threads, from inside the answers: each is
/// answered once and finds its own bytes.
#[test]
fn every_job_is_answered_once_with_its_own_bytes() {
    explore(|| {
        let engine = engine(8);
        let arena = Arena::new(ArenaConfig::heap(8 * PAGE)).unwrap();
        let file = Arc::new(tempfile::tempfile().unwrap().into());
        let found = Arc::new(Mutex::new(Vec::new()));
        let callers: Vec<_> = (1..=2u8)
            .map(|me| {
                let engine = engine.clone();
                let arena = arena.clone();
                let file = Arc::clone(&file);
                let found = Arc::clone(&found);
                thread::spawn(move || {
                    let at = u64::from(me) * 2 * PAGE as u64;
                    let mut lease = arena.lease(2 * PAGE).unwrap();
                    lease.write_at(0, &[me; 2 * PAGE]).unwrap();
                    let write = Job::write(Arc::clone(&file));
                    let write =
                        write.with_part(Part::Write { at, from: lease.freeze(), len: 2 * PAGE });
                    let into = arena.lease(2 * PAGE).unwrap();
                    let again = engine.clone();
                    let done = move |finished: kvtier_uring::Finished| {
                        assert_eq!(finished.result.unwrap(), 2 * PAGE as u64);
                        let read =
                            Job::read(file).with_part(Part::Read { at, into, len: 2 * PAGE });
                        again
                            .submit(read, move |finished| {
                                found.lock().unwrap().push((me, finished))
                            })
                            .unwrap();
                    };
                    engine.submit(write, done).unwrap();
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        while found.lock().unwrap().len() < 2 {
            thread::yield_now();
        }
        for (me, finished) in found.lock().unwrap().drain(..) {
            let Part::Read { into, .. } = &finished.job.parts[0] else {
                panic!("a read came back as a write")
            };
            assert!(into.as_host().unwrap().iter().all(|byte| *byte == me));
        }
        engine.close();
        drop(engine);
        assert_eq!(arena.stats().free, 8 * PAGE);
    });
}

/// One closes while another submits: what was taken is answered, done or `Closed`; what was not
/// comes back; all memory is released.
#[test]
fn closing_completes_every_job() {
    explore(|| {
        let engine = engine(2);
        let arena = Arena::new(ArenaConfig::heap(8 * PAGE)).unwrap();
        let file = Arc::new(tempfile::tempfile().unwrap().into());
        let answered = Arc::new(Mutex::new(0));
        let caller = {
            let engine = engine.clone();
            let arena = arena.clone();
            let answered = Arc::clone(&answered);
            thread::spawn(move || {
                let mut taken = 0;
                for n in 0..3u64 {
                    let mut lease = arena.lease(PAGE).unwrap();
                    lease.write_at(0, &[7; PAGE]).unwrap();
                    let at = n * PAGE as u64;
                    let job = Job::write(Arc::clone(&file)).with_part(Part::Write {
                        at,
                        from: lease.freeze(),
                        len: PAGE,
                    });
                    let answered = Arc::clone(&answered);
                    taken += usize::from(
                        engine
                            .submit(job, move |finished| {
                                let ended = finished.result.map_err(|e| e.kind());
                                assert!(
                                    matches!(ended, Ok(n) if n == PAGE as u64)
                                        || ended == Err(ErrorKind::Closed)
                                );
                                *answered.lock().unwrap() += 1;
                            })
                            .is_ok(),
                    );
                }
                taken
            })
        };
        let closer = {
            let engine = engine.clone();
            thread::spawn(move || engine.close())
        };
        let taken = caller.join().unwrap();
        closer.join().unwrap();
        engine.close();
        assert_eq!(*answered.lock().unwrap(), taken);
        assert_eq!(arena.stats().free, 8 * PAGE);
    });
}

use kvtier_mem::{Arena, ArenaConfig};

use super::*;
use crate::Part;
use crate::config::RETRIES_MAX;

/// A schedule of 4 pieces of 4 KiB in flight, and a function that pushes jobs of this many pieces.
fn sched() -> (Scheduler, impl Fn(&mut Scheduler, JobClass, usize)) {
    let config = EngineConfig::default().with_piece_bytes(4096);
    let arena = Arena::new(ArenaConfig::heap(1 << 20)).unwrap();
    let file: Arc<std::os::fd::OwnedFd> = Arc::new(tempfile::tempfile().unwrap().into());
    let push = move |sched: &mut Scheduler, class, pieces: usize| {
        let len = pieces * 4096;
        let mut job = Job::read(Arc::clone(&file)).with_part(Part::Read {
            at: 0,
            into: arena.lease(len).unwrap(),
            len,
        });
        job.class = class;
        sched.push(job, Box::new(|_| {})).unwrap();
    };
    (Scheduler::new(&config, 4, 4096, Arc::default()), push)
}

fn classes(sched: &mut Scheduler, pieces: usize) -> Vec<JobClass> {
    let mut done = Vec::new();
    for _ in 0..pieces {
        let request = sched.next(&mut Vec::new()).unwrap();
        done.push(sched.pieces.get(request.number).unwrap().class);
        let _ = sched.completed(request.number, request.len as i32);
    }
    done
}

#[test]
fn reads_go_first_and_writes_do_not_starve() {
    use JobClass::{Read, Write};
    let (mut sched, push) = sched();
    push(&mut sched, Write, 4);
    push(&mut sched, Read, 9);
    let expected =
        [Read, Read, Read, Write, Read, Read, Read, Write, Read, Read, Read, Write, Write];
    assert_eq!(classes(&mut sched, 13), expected);
    assert!(sched.is_idle());
}

#[test]
fn while_reads_wait_writes_hold_a_part_of_the_pieces_in_flight() {
    let (mut sched, push) = sched();
    push(&mut sched, JobClass::Write, 8);
    push(&mut sched, JobClass::Read, 40);
    let mut ended = Vec::new();
    let mut flying: VecDeque<PieceRequest> = VecDeque::new();
    for _ in 0..30 {
        flying.extend(std::iter::from_fn(|| sched.next(&mut ended)));
        assert_eq!(flying.len(), 4);
        assert!(sched.writes_inflight <= 1);
        // Reads complete, the write does not.
        let at = flying
            .iter()
            .position(|r| sched.pieces.get(r.number).unwrap().class == JobClass::Read)
            .unwrap();
        let read = flying.remove(at).unwrap();
        let _ = sched.completed(read.number, 4096);
    }
}

#[test]
fn writes_are_long_where_no_read_waits_and_count_for_what_they_are() {
    let config = EngineConfig::default().with_piece_bytes(4096).with_write_bytes(3 * 4096);
    let mut sched = Scheduler::new(&config, 4, 4096, Arc::default());
    let file: Arc<std::os::fd::OwnedFd> = Arc::new(tempfile::tempfile().unwrap().into());
    let write = |pages: usize| {
        let from = kvtier_mem::View::from(vec![0; pages * 4096]);
        Job::write(Arc::clone(&file)).with_part(Part::Write { at: 0, from, len: pages * 4096 })
    };
    sched.push(write(8), Box::new(|_| {})).unwrap();
    let mut ended = Vec::new();
    let mut next = |sched: &mut Scheduler| {
        sched.next(&mut ended).map(|request| (request.number, request.len / 4096))
    };
    let first = next(&mut sched).unwrap();
    let second = next(&mut sched).unwrap();
    assert_eq!((first.1, second.1, sched.inflight), (3, 1, 4), "as many as fit");
    assert!(next(&mut sched).is_none() && !sched.has_more());
    let _ = sched.completed(first.0, 3 * 4096);
    assert_eq!((sched.inflight, sched.writes_inflight), (1, 1));
    let lease = kvtier_mem::Lease::from(vec![0; 4 * 4096]);
    let read =
        Job::read(Arc::clone(&file)).with_part(Part::Read { at: 0, into: lease, len: 4 * 4096 });
    sched.push(read, Box::new(|_| {})).unwrap();
    assert_eq!(
        [(); 3].map(|()| next(&mut sched).unwrap().1),
        [1; 3],
        "reads go first, and what is beside them is short"
    );
}

#[test]
fn a_late_completion_changes_nothing() {
    let (mut sched, push) = sched();
    push(&mut sched, JobClass::Read, 2);
    let first = sched.next(&mut Vec::new()).unwrap();
    assert!(matches!(sched.completed(first.number, 4096), NextStep::Nothing));
    let second = sched.next(&mut Vec::new()).unwrap();
    assert!(matches!(sched.completed(first.number, 4096), NextStep::Nothing));
    assert_eq!(sched.inflight(), [second.number]);
    assert!(matches!(sched.completed(second.number, 4096), NextStep::Ended(_)));
}

#[test]
fn interruptions_are_retried_a_limited_number_of_times() {
    let (mut sched, push) = sched();
    push(&mut sched, JobClass::Read, 1);
    for _ in 0..RETRIES_MAX {
        let request = sched.next(&mut Vec::new()).unwrap();
        assert!(matches!(sched.completed(request.number, -libc::EINTR), NextStep::Nothing));
    }
    let request = sched.next(&mut Vec::new()).unwrap();
    assert!(matches!(sched.completed(request.number, -libc::EINTR), NextStep::Ended(_)));
    assert_eq!(sched.counts.stats(0).retries, u64::from(RETRIES_MAX));
}

#[test]
fn a_short_request_continues_where_it_stopped() {
    let (mut sched, push) = sched();
    push(&mut sched, JobClass::Read, 1);
    let first = sched.next(&mut Vec::new()).unwrap();
    assert!(matches!(sched.completed(first.number, 1000), NextStep::Nothing));
    let rest = sched.next(&mut Vec::new()).unwrap();
    assert_eq!((rest.at, rest.addr, rest.len), (1000, first.addr + 1000, 3096));
    assert!(matches!(sched.completed(rest.number, 3096), NextStep::Ended(_)));
    assert_eq!(sched.counts.stats(0).short_ios, 1);
}

#[test]
fn closing_ends_what_has_not_begun_and_lets_the_rest_land() {
    let (mut sched, push) = sched();
    push(&mut sched, JobClass::Read, 2);
    push(&mut sched, JobClass::Write, 1);
    let first = sched.next(&mut Vec::new()).unwrap();
    sched.close();
    let mut ended = Vec::new();
    assert!(sched.next(&mut ended).is_none());
    assert_eq!((ended.len(), sched.queued(), sched.is_idle()), (1, 0, false));
    assert!(matches!(sched.completed(first.number, -libc::ECANCELED), NextStep::Ended(_)));
    assert!(sched.is_idle());
}

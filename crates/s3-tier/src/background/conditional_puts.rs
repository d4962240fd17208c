//! Finds out whether the store honours `If-None-Match`, where that is configured and unknown: with
//! PUTs of an object of one byte. A negative result expires, since a proxy or one node of the store
//! may have answered. Probes are rare.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvtier_mem::View;
use kvtier_s3::{CONDITIONAL_PUTS_RECHECK, Error, ErrorKind, Put, Stored};
use tokio::time::Instant;

use crate::state::object_names::OWN;
use crate::state::shared::Shared;

/// Pauses after a probe without an answer: the first, and the longest; each is twice the one
/// before.
const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// Pause after a probe that the store refused.
const DENIED_PAUSE: Duration = Duration::from_secs(600);

/// The result of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProbeOutcome {
    Honours,
    /// It overwrites, or cannot do it.
    Lacks,
    /// Writing is not permitted, so the result is unknown.
    Denied,
    Unknown,
}

impl ProbeOutcome {
    /// From a failed attempt.
    fn from_error(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Unsupported | ErrorKind::Invalid => ProbeOutcome::Lacks,
            ErrorKind::Denied => ProbeOutcome::Denied,
            _ => ProbeOutcome::Unknown,
        }
    }
}

/// Probes until the store honours such PUTs; repeats after a pause where it does not.
pub async fn probe(shared: Arc<Shared>) {
    if !shared.transfer.if_absent_unknown {
        return;
    }
    // One name for the life of the process: an object left by a lost answer is overwritten.
    let name = format!("{}{OWN}probe-{:016x}", shared.names.root(), fastrand::u64(..));
    let mut pauses = ProbePauses(PAUSE_MIN);
    while !shared.gate.is_closed() {
        let answer = ask(&shared, &name).await;
        match answer {
            ProbeOutcome::Honours => {
                shared.transfer.conditions.note_supported();
                shared.transfer.if_absent.store(true, Ordering::Relaxed);
            }
            ProbeOutcome::Lacks => shared.transfer.conditions.note_refused(Instant::now()),
            ProbeOutcome::Denied | ProbeOutcome::Unknown => {}
        }
        let Some(pause) = pauses.after(answer) else { return };
        tokio::time::sleep(pause).await;
    }
}

/// The pause before the next probe.
struct ProbePauses(Duration);

impl ProbePauses {
    /// The pause after this result; `None` after the last probe.
    fn after(&mut self, answer: ProbeOutcome) -> Option<Duration> {
        match answer {
            ProbeOutcome::Honours => None,
            ProbeOutcome::Lacks => Some(CONDITIONAL_PUTS_RECHECK),
            ProbeOutcome::Denied => Some(DENIED_PAUSE),
            ProbeOutcome::Unknown => {
                let pause = self.0;
                self.0 = PAUSE_MAX.min(pause * 2);
                Some(pause)
            }
        }
    }
}

async fn ask(shared: &Shared, name: &str) -> ProbeOutcome {
    let Some(body) = body(shared) else { return ProbeOutcome::Unknown };
    let how = Put::if_absent();
    let answer = match shared.client.put(name, &body, &how).await {
        Ok(Stored::Present) => ProbeOutcome::Honours,
        Ok(_) => match shared.client.put(name, &body, &how).await {
            Ok(Stored::Present) => ProbeOutcome::Honours,
            Ok(_) => ProbeOutcome::Lacks,
            Err(e) => ProbeOutcome::from_error(&e),
        },
        // The object may have been stored.
        Err(e) if matches!(e.kind(), ErrorKind::Io | ErrorKind::Timeout) => ProbeOutcome::Unknown,
        // Nothing was stored.
        Err(e) => return ProbeOutcome::from_error(&e),
    };
    drop(shared.client.delete(name).await);
    answer
}

fn body(shared: &Shared) -> Option<View> {
    let mut lease = shared.bounce.lease(1).ok()?;
    lease.write_at(0, &[0]).ok()?;
    Some(lease.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often a store with this result is probed in a day.
    fn asked_in_a_day(answer: ProbeOutcome) -> u32 {
        let mut pauses = ProbePauses(PAUSE_MIN);
        let mut asked = 0;
        let mut at = Duration::ZERO;
        while at < Duration::from_secs(24 * 3600) {
            asked += 1;
            let Some(pause) = pauses.after(answer) else { break };
            at += pause;
        }
        asked
    }

    #[test]
    fn a_store_is_asked_again_for_ever_but_seldom() {
        assert_eq!(asked_in_a_day(ProbeOutcome::Honours), 1);
        assert_eq!(asked_in_a_day(ProbeOutcome::Lacks), 144);
        assert_eq!(asked_in_a_day(ProbeOutcome::Denied), 144);
        let times = asked_in_a_day(ProbeOutcome::Unknown);
        assert!((280..310).contains(&times), "{times} times");
    }

    #[test]
    fn a_refusal_of_the_question_is_no_answer_to_it() {
        let of = |kind| ProbeOutcome::from_error(&Error::new(kind, "x"));
        assert_eq!(
            [of(ErrorKind::Denied), of(ErrorKind::Io), of(ErrorKind::NotFound)],
            [ProbeOutcome::Denied, ProbeOutcome::Unknown, ProbeOutcome::Unknown]
        );
        assert_eq!(
            (of(ErrorKind::Unsupported), of(ErrorKind::Invalid)),
            (ProbeOutcome::Lacks, ProbeOutcome::Lacks)
        );
    }
}

//! Whether the store honours `If-None-Match`, where that is wanted and not known: it is asked with
//! an object of one byte. Nothing that it answers against that lasts, since a proxy or one node of
//! many may have answered, and nothing is asked all the time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvtier_mem::View;
use kvtier_s3::{CONDITIONAL_PUTS_RECHECK, Error, ErrorKind, Put, Stored};
use tokio::time::Instant;

use crate::state::layout::OWN;
use crate::state::shared::Shared;

/// A question that the store did not answer is asked again after this long, then after twice as
/// long each time.
const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// A store that refuses the question is asked again after this long.
const DENIED_PAUSE: Duration = Duration::from_secs(600);

/// What the store answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProbeOutcome {
    Honours,
    /// It stores all the same, or cannot do it.
    Lacks,
    /// Writing is not allowed there, so it is not known.
    Denied,
    Unknown,
}

impl ProbeOutcome {
    /// Of an attempt that failed.
    fn from_error(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Unsupported | ErrorKind::Invalid => ProbeOutcome::Lacks,
            ErrorKind::Denied => ProbeOutcome::Denied,
            _ => ProbeOutcome::Unknown,
        }
    }
}

/// Asks until the store honours such PUTs, and again after a while where it does not.
pub async fn probe(shared: Arc<Shared>) {
    if !shared.transfer.if_absent_unknown {
        return;
    }
    // One for the life of the process, so that what a lost answer leaves is written over.
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

/// How long the next question waits that gets no answer.
struct ProbePauses(Duration);

impl ProbePauses {
    /// How long to wait for the next question; `None` where there is none more.
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
        // It may have been stored all the same.
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

    /// How often a store that always answers so is asked in a day.
    fn asked_in_a_day(answer: ProbeOutcome) -> u32 {
        let (mut pauses, mut asked, mut at) = (ProbePauses(PAUSE_MIN), 0, Duration::ZERO);
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

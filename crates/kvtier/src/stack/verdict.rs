use kvtier_core::{Error, ErrorKind, Loaded, MissReason, Saved, ShedReason};

/// What the tiers that could not load a chunk said of it.
#[derive(Debug, Default)]
pub struct Verdict {
    error: Option<Error>,
    throttled: bool,
    miss: Option<MissReason>,
}

impl Verdict {
    /// Hears one tier's answer, which is no hit.
    pub fn hear(&mut self, answer: Result<Loaded, Error>) {
        match answer {
            // The ends that the caller set speak before a tier's own troubles.
            Err(e) if self.error.as_ref().is_none_or(|old| !is_callers(old.kind())) => self.error = Some(e),
            Err(_) => {}
            // Corrupt or too long says more than absent.
            Ok(Loaded::Miss(reason)) if self.miss.is_none_or(|old| old == MissReason::Absent) => {
                self.miss = Some(reason)
            }
            Ok(Loaded::Miss(_)) => {}
            Ok(_) => self.throttled = true,
        }
    }

    /// Whether some tier held bytes that failed their checks.
    pub fn is_corrupt(&self) -> bool {
        self.miss == Some(MissReason::Corrupt)
    }

    /// What the stack says. One tier that answers is enough: a tier that fails beside it is a miss there. Only the ends that the caller
    /// set are told as they are, and the error when all tiers failed.
    pub fn sum_up(self) -> Result<Loaded, Error> {
        match (self.error, self.miss) {
            (Some(e), _) if is_callers(e.kind()) => Err(e),
            _ if self.throttled => Ok(Loaded::Throttled),
            (_, Some(reason)) => Ok(Loaded::Miss(reason)),
            (Some(e), None) => Err(e),
            (None, None) => Ok(Loaded::Miss(MissReason::Absent)),
        }
    }
}

fn is_callers(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Timeout | ErrorKind::Canceled)
}

/// The better of two tiers' answers to one save: stored anywhere is stored, next best is that it was there already, then a tier that
/// chose not to keep it; an error only if nobody did better.
pub fn better(a: Result<Saved, Error>, b: Result<Saved, Error>) -> Result<Saved, Error> {
    if rank(&b) > rank(&a) { b } else { a }
}

fn rank(answer: &Result<Saved, Error>) -> u8 {
    match answer {
        Ok(Saved::Stored) => 5,
        Ok(Saved::Present) => 4,
        Ok(Saved::Shed(ShedReason::Throttled)) => 3,
        Ok(_) => 2,
        Err(e) if e.kind() == ErrorKind::Invalid => 1,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum_up(answers: Vec<Result<Loaded, ErrorKind>>) -> Result<Loaded, ErrorKind> {
        let mut verdict = Verdict::default();
        answers.into_iter().for_each(|a| verdict.hear(a.map_err(|kind| Error::new(kind, "test"))));
        verdict.sum_up().map_err(|e| e.kind())
    }

    #[test]
    fn one_healthy_tier_is_enough_and_the_callers_ends_are_told() {
        use ErrorKind::{Closed, Io, Timeout};
        use MissReason::{Absent, Corrupt};
        let miss = |reason| Ok(Loaded::Miss(reason));
        assert_eq!(sum_up(vec![miss(Absent), Err(Io)]), miss(Absent));
        assert_eq!(sum_up(vec![Err(Closed), miss(Corrupt), miss(Absent)]), miss(Corrupt));
        assert_eq!(sum_up(vec![miss(Absent), Err(Timeout)]), Err(Timeout));
        assert_eq!(sum_up(vec![Err(Timeout), Err(Io)]), Err(Timeout));
        assert_eq!(sum_up(vec![Err(Io), Err(Closed)]), Err(Closed));
        assert_eq!(sum_up(vec![miss(Absent), Ok(Loaded::Throttled)]), Ok(Loaded::Throttled));
        assert_eq!(sum_up(vec![]), miss(Absent));
    }

    #[test]
    fn stored_anywhere_is_stored() {
        let io = || Err(Error::new(ErrorKind::Io, "test"));
        assert_eq!(better(io(), Ok(Saved::Stored)).unwrap(), Saved::Stored);
        assert_eq!(better(Ok(Saved::Present), Ok(Saved::Stored)).unwrap(), Saved::Stored);
        assert_eq!(better(Ok(Saved::Present), io()).unwrap(), Saved::Present);
        assert!(better(io(), io()).is_err());
    }
}

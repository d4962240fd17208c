use kvtier_core::{Error, ErrorKind, Loaded, MissReason, Saved, ShedReason};

/// What the tiers that could not load a chunk said of it.
#[derive(Debug, Default)]
pub struct Verdict {
    /// The end that the caller set.
    ended: Option<Error>,
    error: Option<Error>,
    throttled: bool,
    miss: Option<MissReason>,
}

impl Verdict {
    /// Hears one tier's answer, which is no hit.
    pub fn hear(&mut self, answer: Result<Loaded, Error>) {
        match answer {
            Err(e) if matches!(e.kind(), ErrorKind::Timeout | ErrorKind::Canceled) => {
                self.ended = Some(e)
            }
            Err(e) => self.error = Some(e),
            // Corrupt or too long says more than absent.
            Ok(Loaded::Miss(reason)) if self.miss.is_none_or(|old| old == MissReason::Absent) => {
                self.miss = Some(reason)
            }
            Ok(Loaded::Miss(_)) => {}
            Ok(_) => self.throttled = true,
        }
    }

    /// Hears of a trouble of one tier's own, whatever its kind.
    pub fn hear_own(&mut self, error: Error) {
        self.error = Some(error);
    }

    /// Whether some tier held bytes that failed their checks.
    pub fn is_corrupt(&self) -> bool {
        self.miss == Some(MissReason::Corrupt)
    }

    /// What the stack says. One tier that answers is enough: a tier that fails beside it is a miss
    /// there. Only the ends that the caller set are told as they are, and the error when all
    /// tiers failed.
    pub fn sum_up(self) -> Result<Loaded, Error> {
        if let Some(ended) = self.ended {
            return Err(ended);
        }
        match (self.error, self.miss) {
            _ if self.throttled => Ok(Loaded::Throttled),
            (_, Some(reason)) => Ok(Loaded::Miss(reason)),
            (Some(e), None) => Err(e),
            (None, None) => Ok(Loaded::Miss(MissReason::Absent)),
        }
    }
}

/// The better of two tiers' answers to one save: stored anywhere is stored, next best is that it
/// was there already, then a tier that chose not to keep it; an error only if nobody did better.
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
    fn a_tier_that_took_too_long_by_its_own_measure_is_a_miss_there() {
        let mut verdict = Verdict::default();
        verdict.hear(Ok(Loaded::Miss(MissReason::Absent)));
        verdict.hear_own(Error::new(ErrorKind::Timeout, "test"));
        assert_eq!(verdict.sum_up().unwrap(), Loaded::Miss(MissReason::Absent));
        let mut alone = Verdict::default();
        alone.hear_own(Error::new(ErrorKind::Timeout, "test"));
        assert_eq!(alone.sum_up().unwrap_err().kind(), ErrorKind::Timeout);
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

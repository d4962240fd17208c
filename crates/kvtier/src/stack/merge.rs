//! Merges the answers of several tiers into one.

use kvtier_core::{Error, ErrorKind, Loaded, MissReason, Saved, ShedReason};

/// The answers of the tiers that could not load a chunk.
#[derive(Debug, Default)]
pub struct LoadMerge {
    /// The end that the caller caused: its deadline or a cancellation.
    ended: Option<Error>,
    error: Option<Error>,
    throttled: bool,
    miss: Option<MissReason>,
}

impl LoadMerge {
    /// Adds one tier's answer, which is not a hit.
    pub fn add(&mut self, answer: Result<Loaded, Error>) {
        match answer {
            Err(e) if matches!(e.kind(), ErrorKind::Timeout | ErrorKind::Canceled) => {
                self.ended = Some(e)
            }
            Err(e) => self.error = Some(e),
            // Corrupt or too long is more specific than absent.
            Ok(Loaded::Miss(reason)) if self.miss.is_none_or(|old| old == MissReason::Absent) => {
                self.miss = Some(reason)
            }
            Ok(Loaded::Miss(_)) => {}
            Ok(_) => self.throttled = true,
        }
    }

    /// Adds an error that concerns this tier alone, whatever its kind.
    pub fn add_tier_error(&mut self, error: Error) {
        self.error = Some(error);
    }

    /// Whether some tier held bytes that failed their checks.
    pub fn is_corrupt(&self) -> bool {
        self.miss == Some(MissReason::Corrupt)
    }

    /// The stack's answer. One tier that answers is enough: a tier that failed counts as a miss. An
    /// error is returned only if the caller's deadline or cancellation ended the load, or if every
    /// tier failed.
    pub fn finish(self) -> Result<Loaded, Error> {
        // The caller's own end outranks everything: it asked for no answer after it.
        if let Some(ended) = self.ended {
            return Err(ended);
        }
        match (self.error, self.miss) {
            // The tier that was too busy may have the chunk. A miss would make the engine compute
            // what a retry could load.
            _ if self.throttled => Ok(Loaded::Throttled),
            (_, Some(reason)) => Ok(Loaded::Miss(reason)),
            (Some(e), None) => Err(e),
            (None, None) => Ok(Loaded::Miss(MissReason::Absent)),
        }
    }
}

/// The better of two tiers' answers to one save, in this order: stored, already present, throttled,
/// shed for another reason, error.
pub fn better(a: Result<Saved, Error>, b: Result<Saved, Error>) -> Result<Saved, Error> {
    if rank(&b) > rank(&a) { b } else { a }
}

fn rank(answer: &Result<Saved, Error>) -> u8 {
    match answer {
        Ok(Saved::Stored) => 5,
        Ok(Saved::Present) => 4,
        Ok(Saved::Shed(ShedReason::Throttled)) => 3,
        Ok(_) => 2,
        // The caller can mend an invalid op, so that error is worth more than one of a medium.
        Err(e) if e.kind() == ErrorKind::Invalid => 1,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finish(answers: Vec<Result<Loaded, ErrorKind>>) -> Result<Loaded, ErrorKind> {
        let mut merge = LoadMerge::default();
        answers.into_iter().for_each(|a| merge.add(a.map_err(|kind| Error::new(kind, "test"))));
        merge.finish().map_err(|e| e.kind())
    }

    #[test]
    fn one_healthy_tier_is_enough_and_the_callers_deadline_is_reported() {
        use ErrorKind::{Closed, Io, Timeout};
        use MissReason::{Absent, Corrupt};
        let miss = |reason| Ok(Loaded::Miss(reason));
        assert_eq!(finish(vec![miss(Absent), Err(Io)]), miss(Absent));
        assert_eq!(finish(vec![Err(Closed), miss(Corrupt), miss(Absent)]), miss(Corrupt));
        assert_eq!(finish(vec![miss(Absent), Err(Timeout)]), Err(Timeout));
        assert_eq!(finish(vec![Err(Timeout), Err(Io)]), Err(Timeout));
        assert_eq!(finish(vec![Err(Io), Err(Closed)]), Err(Closed));
        assert_eq!(finish(vec![miss(Absent), Ok(Loaded::Throttled)]), Ok(Loaded::Throttled));
        assert_eq!(finish(vec![]), miss(Absent));
    }

    #[test]
    fn a_tier_that_exceeds_its_own_deadline_counts_as_a_miss() {
        let mut merge = LoadMerge::default();
        merge.add(Ok(Loaded::Miss(MissReason::Absent)));
        merge.add_tier_error(Error::new(ErrorKind::Timeout, "test"));
        assert_eq!(merge.finish().unwrap(), Loaded::Miss(MissReason::Absent));
        let mut alone = LoadMerge::default();
        alone.add_tier_error(Error::new(ErrorKind::Timeout, "test"));
        assert_eq!(alone.finish().unwrap_err().kind(), ErrorKind::Timeout);
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

use std::collections::HashSet;

use kvtier_key::Digest;

/// The most keys noted while one listing runs.
const CHANGED_MAX: usize = 1 << 20;

/// Which keys changed while a listing runs, whose pages may tell of them as they were before.
#[derive(Debug, Default)]
pub struct Watch {
    changed: Option<HashSet<Digest>>,
    blind: bool,
}

impl Watch {
    /// A listing begins.
    pub fn begin(&mut self) {
        (self.changed, self.blind) = (Some(HashSet::new()), false);
    }

    /// It is over.
    pub fn end(&mut self) {
        self.changed = None;
    }

    /// The key was saved, deleted, or looked at just now.
    pub fn note(&mut self, digest: Digest) {
        let Some(changed) = &mut self.changed else { return };
        match changed.len() < CHANGED_MAX {
            true => drop(changed.insert(digest)),
            false => self.blind |= !changed.contains(&digest),
        }
    }

    /// Whether the key was noted since the listing began.
    pub fn has(&self, digest: &Digest) -> bool {
        self.changed.as_ref().is_some_and(|changed| changed.contains(digest))
    }

    /// Whether more changed than could be noted: then the listing proves nothing.
    pub fn is_blind(&self) -> bool {
        self.blind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_notes_while_a_listing_runs_and_says_when_it_could_not() {
        let (mut watch, one) = (Watch::default(), Digest::of("test", b"1"));
        watch.note(one);
        assert!(!watch.has(&one), "nobody lists");
        watch.begin();
        watch.note(one);
        assert!(watch.has(&one) && !watch.is_blind());
        (0..CHANGED_MAX).for_each(|n| watch.note(Digest::of("test", &n.to_le_bytes())));
        assert!(watch.is_blind());
        watch.begin();
        assert!(!watch.has(&one) && !watch.is_blind());
        watch.end();
        watch.note(one);
        assert!(!watch.has(&one));
    }
}

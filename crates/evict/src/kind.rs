use alloc::boxed::Box;
use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use crate::{Lru, Policy};

/// The policies there are, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PolicyKind {
    /// Least recently used first.
    #[default]
    Lru,
}

impl PolicyKind {
    /// Every policy.
    pub const ALL: [PolicyKind; 1] = [PolicyKind::Lru];

    /// The name by which configurations choose it.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Lru => "lru",
        }
    }

    /// An empty policy of this kind.
    pub fn build(self) -> Box<dyn Policy> {
        match self {
            PolicyKind::Lru => Box::new(Lru::new()),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    /// Reads a name, in any case.
    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let found = PolicyKind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| UnknownPolicy { name: text.to_string() })
    }
}

/// A name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    name: String,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no eviction policy is called {:?}; there are:", self.name)?;
        PolicyKind::ALL.iter().try_for_each(|kind| write!(f, " {kind}"))
    }
}

impl core::error::Error for UnknownPolicy {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_name() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.name().to_uppercase().parse(), Ok(kind));
            assert_eq!(kind.build().name(), kind.name());
        }
        let error = "fifo?".parse::<PolicyKind>().unwrap_err().to_string();
        assert_eq!(error, "no eviction policy is called \"fifo?\"; there are: lru");
    }
}

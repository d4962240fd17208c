//! The `Tier` and `Observe` traits of kvtier: operations, contexts, tickets, errors.
#![forbid(unsafe_code)]

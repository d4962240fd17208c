//! The region that requests go to: the configured one, or one that the store named.

mod destinations;
mod recheck;

pub use destinations::{Destination, Destinations};

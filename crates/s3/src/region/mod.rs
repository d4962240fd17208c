//! The region that requests go to: the configured one, or one that the store named.

mod destinations;
mod named_region;
mod periodic_recheck;

pub use destinations::{Destination, Destinations};
pub use named_region::named_region;

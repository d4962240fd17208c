//! HTTP/1.1 as S3 speaks it: a pool of connections whose bodies go from the socket straight into
//! the caller's memory. And HTTP/2, where it is asked for and offered.

mod body;
mod conn;
mod dial;
mod h2;
mod head;
mod inbox;
mod low_water;
mod names;
mod patience;
mod pool;
mod stream;
mod tls;
mod way;

pub use body::BodyObserver;
pub use body::{BodyBuffer, Sink};
pub use conn::Sent;
pub use dial::{Dialer, Target};
pub use h2::End;
pub use head::{BodyFraming, ResponseHead, digits};
pub use names::{Resolve, Resolved, StaticResolver, SystemResolver};
pub use pool::{Opened, Pool};
pub use tls::RootCerts;
#[cfg(all(any(fuzzing, clippy), feature = "tls-direct"))]
pub use tls::fuzz_records;
pub use way::Way;

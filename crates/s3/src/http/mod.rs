//! HTTP/1.1 as S3 speaks it: a pool of connections whose bodies go from the socket straight into the caller's memory.

mod body;
mod conn;
mod dial;
mod head;
mod names;
mod pool;
mod stream;
mod tls;

pub use body::{Landing, Sink};
pub use conn::{Conn, Sent};
pub use dial::{Dialer, Target};
pub use head::{Framing, Head, digits};
pub use names::{FixedNames, Resolve, Resolved, SystemNames};
pub use pool::Pool;
pub use tls::Trust;

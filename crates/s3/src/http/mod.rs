//! HTTP/1.1 as S3 speaks it: a pool of connections whose bodies go from the socket straight into
//! the caller's memory. And HTTP/2, where it is asked for and offered.

mod body_sink;
mod conn;
mod dial;
mod dns;
mod h2;
mod pool;
mod read_buffer;
mod receive_low_water;
mod response_head;
mod silence;
mod stall_timeout;
mod stream;
mod survey_result;
mod target;
mod tls;
mod transport;

pub use body_sink::BodyObserver;
pub use body_sink::{BodyBuffer, BodySink};
pub use conn::Sent;
pub use dial::Dialer;
pub use dns::{Resolve, Resolved, StaticResolver, SystemResolver};
pub use h2::StreamEnd;
pub use pool::{ConnectionPool, Opened};
pub use response_head::{BodyFraming, ResponseHead, digits};
pub use silence::{SILENT_AFTER, Silence};
pub use survey_result::{Connection, Secured};
pub use target::Target;
pub use tls::RootCerts;
#[cfg(all(any(fuzzing, clippy), feature = "tls-direct"))]
pub use tls::fuzz_records;
pub use transport::Transport;

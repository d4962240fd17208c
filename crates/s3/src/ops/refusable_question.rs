//! Questions that a store may refuse: its refusal is an answer too.

use std::sync::Arc;

use crate::attempt::CollectedResponse;
use crate::client::Inner;
use crate::error::{Error, ErrorKind, Result};
use crate::request::Request;
use crate::retry::RetryState;

/// The longest answer that is read.
pub const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// Whether the store says that it will not do this at all.
pub fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Invalid | ErrorKind::Conflict)
        && error.status().is_some_and(|status| status != 404)
}

/// Asks until there is an answer. That the store received other bytes than were sent is one: probes
/// send wrong checksums on purpose.
pub async fn answered(
    inner: &Arc<Inner>,
    request: &Request<'_>,
    bytes_max: usize,
) -> Result<CollectedResponse> {
    request.check()?;
    let mut retries = RetryState::new(inner, request.kind());
    loop {
        match retries.attempt(request, bytes_max).await {
            Ok(answer) => {
                retries.succeeded();
                return Ok(answer);
            }
            Err(failure)
                if failure.error.kind() == ErrorKind::Corrupt
                    && failure.error.status().is_some() =>
            {
                return Err(failure.error);
            }
            Err(failure) => retries.on_failure(failure).await?,
        }
    }
}

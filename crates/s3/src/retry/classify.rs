use super::{AttemptError, RetryAction};
use crate::error::{Error, ErrorKind};

/// An answer that is not a success.
#[derive(Clone, Debug, Default)]
pub struct StoreRefusal<'a> {
    /// The HTTP status.
    pub status: u16,
    /// S3's code, where the body has one.
    pub code: Option<String>,
    /// The region that the body or a header names.
    pub region: Option<String>,
    /// The region that the request was signed for.
    pub signed_for: &'a str,
    /// `retry-after` in seconds.
    pub retry_after: Option<u64>,
    /// The store's name for the request.
    pub request_id: Option<String>,
    /// Whether nothing about it is S3's: a proxy may have answered.
    pub foreign: bool,
    /// Whether the request had a body whose hash was not signed.
    pub unsigned: bool,
}

/// Decides on status and code, never on the message.
pub fn classify(refusal: StoreRefusal<'_>) -> AttemptError {
    let code = refusal.code.clone().unwrap_or_default();
    let (kind, what, retry) = match (refusal.status, code.as_str()) {
        (_, "RequestTimeTooSkewed") => (
            ErrorKind::Denied,
            "the clocks differ too much: set this machine's",
            RetryAction::CorrectClock,
        ),
        (_, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" | "ExpiredTokenException") => {
            (
                ErrorKind::Denied,
                "the credentials or the session have expired",
                RetryAction::RenewCredentials,
            )
        }
        (_, "InvalidAccessKeyId") => (
            ErrorKind::Denied,
            "the access key is unknown: check it",
            RetryAction::RenewCredentials,
        ),
        (400, "RequestTimeout") => {
            (ErrorKind::Timeout, "the body came too slowly", RetryAction::Backoff(None))
        }
        (_, "XAmzContentSHA256Mismatch") if refusal.unsigned => {
            (ErrorKind::Denied, "the store wants the body's hash signed", RetryAction::SignBody)
        }
        (_, "BadDigest" | "InvalidDigest" | "XAmzContentSHA256Mismatch") => (
            ErrorKind::Corrupt,
            "the store received other bytes than were sent",
            RetryAction::Backoff(None),
        ),
        (
            _,
            "SlowDown" | "SlowDownRead" | "SlowDownWrite" | "ServiceUnavailable" | "Throttling"
            | "TooManyRequests",
        )
        | (503 | 429, _) => (
            ErrorKind::Throttled,
            "the store asks to slow down",
            RetryAction::Backoff(refusal.retry_after),
        ),
        (_, "InternalError") | (500 | 502 | 504, _) => {
            (ErrorKind::Io, "the store failed", RetryAction::Backoff(refusal.retry_after))
        }
        (_, "OperationAborted" | "ConditionalRequestConflict") => {
            (ErrorKind::Conflict, "another write is under way", RetryAction::Backoff(None))
        }
        // Says nothing about the object.
        // Before the statuses below, which would make a miss of it.
        (404, _) if refusal.foreign => (
            ErrorKind::Io,
            "a 404 that is not S3's, as proxies send it",
            RetryAction::Backoff(None),
        ),
        (_, "NotImplemented") | (405 | 501, _) => {
            (ErrorKind::Unsupported, "the store cannot do this", RetryAction::Never)
        }
        // Some policies demand a signed hash, and their refusal names no other reason.
        (403, "AccessDenied") if refusal.unsigned => {
            (ErrorKind::Denied, "the store refuses", RetryAction::SignBody)
        }
        _ => return plain(refusal),
    };
    finish(refusal, kind, what, retry)
}

/// Where the status says it all, and perhaps a region.
fn plain(refusal: StoreRefusal<'_>) -> AttemptError {
    // A store that names the region that was used means something else by its refusal.
    let elsewhere = refusal.region.clone().filter(|region| region != refusal.signed_for);
    if let Some(region) = elsewhere.filter(|_| matches!(refusal.status, 301 | 307 | 400 | 403)) {
        return finish(
            refusal,
            ErrorKind::Invalid,
            "the bucket is in another region",
            RetryAction::Region(region),
        );
    }
    let (kind, what) = match refusal.status {
        404 if refusal.code.as_deref() == Some("NoSuchBucket") => (
            ErrorKind::NotFound,
            "there is no such bucket: check its name, the endpoint and the region",
        ),
        404 => (ErrorKind::NotFound, "there is no such thing"),
        401 | 403 => (ErrorKind::Denied, "the store refuses: check credentials and permissions"),
        409 | 412 => (ErrorKind::Conflict, "the condition does not hold"),
        301 | 302 | 307 | 308 => {
            (ErrorKind::Invalid, "the bucket is elsewhere: check endpoint and region")
        }
        416 => (ErrorKind::Invalid, "the range is outside the object"),
        _ => (ErrorKind::Invalid, "the store does not take the request"),
    };
    finish(refusal, kind, what, RetryAction::Never)
}

fn finish(
    refusal: StoreRefusal<'_>,
    kind: ErrorKind,
    what: &'static str,
    retry: RetryAction,
) -> AttemptError {
    // The other remedies are tried once inside an operation; a caller need not repeat it for them.
    let retryable = matches!(retry, RetryAction::Backoff(_));
    let endpoint_fault = matches!(refusal.status, 500 | 502 | 504);
    let error =
        Error::new(kind, what).with_answer(refusal.status, refusal.code, refusal.request_id);
    AttemptError { error: error.retryable(retryable), retry, endpoint_fault }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, code: &str) -> (ErrorKind, RetryAction) {
        let code = (!code.is_empty()).then(|| code.to_owned());
        let failure =
            classify(StoreRefusal { status, code, signed_for: "r", ..StoreRefusal::default() });
        (failure.error.kind(), failure.retry)
    }

    #[test]
    fn the_table_of_the_protocol() {
        let pause = || RetryAction::Backoff(None);
        assert_eq!(of(503, "SlowDown"), (ErrorKind::Throttled, pause()));
        assert_eq!(of(503, ""), (ErrorKind::Throttled, pause()));
        assert_eq!(of(429, ""), (ErrorKind::Throttled, pause()));
        assert_eq!(of(500, "InternalError"), (ErrorKind::Io, pause()));
        assert_eq!(of(200, "InternalError"), (ErrorKind::Io, pause()));
        assert_eq!(of(502, ""), (ErrorKind::Io, pause()));
        assert_eq!(of(400, "RequestTimeout"), (ErrorKind::Timeout, pause()));
        assert_eq!(of(403, "RequestTimeTooSkewed"), (ErrorKind::Denied, RetryAction::CorrectClock));
        assert_eq!(of(403, "ExpiredToken"), (ErrorKind::Denied, RetryAction::RenewCredentials));
        assert_eq!(of(400, "InvalidToken"), (ErrorKind::Denied, RetryAction::RenewCredentials));
        assert_eq!(of(403, "SignatureDoesNotMatch"), (ErrorKind::Denied, RetryAction::Never));
        assert_eq!(of(409, "ConditionalRequestConflict"), (ErrorKind::Conflict, pause()));
        assert_eq!(of(412, "PreconditionFailed"), (ErrorKind::Conflict, RetryAction::Never));
        assert_eq!(of(404, "NoSuchKey"), (ErrorKind::NotFound, RetryAction::Never));
        assert_eq!(of(416, "InvalidRange"), (ErrorKind::Invalid, RetryAction::Never));
        assert_eq!(of(501, "NotImplemented"), (ErrorKind::Unsupported, RetryAction::Never));
        assert_eq!(of(403, ""), (ErrorKind::Denied, RetryAction::Never));
    }

    #[test]
    fn a_404_that_is_not_the_stores_is_a_fault() {
        let failure = classify(StoreRefusal {
            status: 404,
            foreign: true,
            signed_for: "r",
            ..StoreRefusal::default()
        });
        assert_eq!(
            (failure.error.kind(), failure.retry),
            (ErrorKind::Io, RetryAction::Backoff(None))
        );
    }

    #[test]
    fn a_region_is_followed_once_it_differs() {
        let of = |status, region: &str| {
            let region = Some(region.to_owned());
            classify(StoreRefusal { status, region, signed_for: "r", ..StoreRefusal::default() })
                .retry
        };
        assert_eq!(of(400, "eu"), RetryAction::Region("eu".into()));
        assert_eq!(of(301, "eu"), RetryAction::Region("eu".into()));
        assert_eq!(of(403, "r"), RetryAction::Never);
        assert_eq!(of(404, "eu"), RetryAction::Never);
    }
}

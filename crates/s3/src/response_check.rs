//! Checks whether a response is the answer to its request: the status that S3 gives for the method,
//! and a document with the root element of the operation.
//!
//! Not everything that says 200 is the store: a proxy has pages of its own, and the store itself
//! says 200 first and fails later, in the body. Whatever is not the document that was asked for is
//! a failed attempt, never an empty success.

use zeroize::Zeroizing;

use crate::attempt::CollectedResponse;
use crate::error::{Error, ErrorKind};
use crate::http::ResponseHead;
use crate::retry::{AttemptError, RetryAction, StoreRefusal, classify};
use crate::xml::{self, ErrorDocument};

/// What an answer is read by.
pub type Parse<T> = fn(&ResponseHead, &[u8]) -> Result<T, AttemptError>;

/// Reads an answer; one longer than `here_max` on a thread of its own. The body is wiped where it may
/// hold a secret, which long ones never do.
pub async fn read<T: Send + 'static>(
    answer: CollectedResponse,
    parse: Parse<T>,
    here_max: usize,
) -> Result<T, AttemptError> {
    if answer.body.len() <= here_max {
        return parse(&answer.head, &Zeroizing::new(answer.body));
    }
    let reading = tokio::task::spawn_blocking(move || parse(&answer.head, &answer.body));
    let ended = |e| {
        AttemptError::fatal(
            Error::new(ErrorKind::Io, "the reading of an answer broke off").with_source(e),
        )
    };
    reading.await.unwrap_or_else(|e| Err(ended(e)))
}

/// An answer without a document. A body that is none of the store's errors and no page of a proxy's
/// is passed over.
pub fn done(_: &ResponseHead, body: &[u8]) -> Result<(), AttemptError> {
    if body.trim_ascii().is_empty() {
        return Ok(());
    }
    let mut is_page = false;
    let read = xml::each(body, |path, _| {
        is_page |= path.len() == 1 && path[0].eq_ignore_ascii_case("html")
    });
    match document_error(body) {
        Some(failure) => Err(failure),
        None if is_page || read.is_err() => Err(foreign(xml::nonsense())),
        None => Ok(()),
    }
}

/// As [`done`], of a request that stores: the version that was made, which every store names.
pub fn stored(head: &ResponseHead, body: &[u8]) -> Result<String, AttemptError> {
    done(head, body)?;
    let unnamed = || {
        foreign(xml::nonsense().with_source("no etag: the version that was stored is not named"))
    };
    head.etag().map(str::to_owned).ok_or_else(unnamed)
}

/// As [`done`], of a request that deletes: nothing but an empty answer says that something is gone.
/// Answers whether it is certainly the store that says so: S3 says 204. A 200 without the store's id
/// may be of something before it.
pub fn deleted(head: &ResponseHead, body: &[u8]) -> Result<bool, AttemptError> {
    done(head, body)?;
    if !body.trim_ascii().is_empty() {
        return Err(foreign(xml::nonsense()));
    }
    Ok(head.status == 204 || head.header("x-amz-request-id").is_some())
}

/// Reads a document whose root element is `root`: calls `leaf` as [`xml::each`] does. Whatever else
/// the body is, is a failed attempt: the store's own error, or no answer of the store at all.
pub fn document(
    body: &[u8],
    root: &str,
    leaf: impl FnMut(&[String], &str),
) -> Result<(), AttemptError> {
    match xml::each_in(body, root, leaf) {
        Ok(()) => Ok(()),
        Err(e) => Err(document_error(body).unwrap_or_else(|| foreign(e))),
    }
}

/// Not the store's answer: another attempt may meet the store. It says nothing of the store's
/// health.
pub fn foreign(error: Error) -> AttemptError {
    AttemptError { error, retry: RetryAction::Backoff(None), endpoint_fault: false }
}

/// The error that a body with a good status is, if it is one.
fn document_error(body: &[u8]) -> Option<AttemptError> {
    // Only a whole error document counts as the store's word; a page that mentions an error does
    // not.
    xml::each_in(body, "Error", |_, _| {}).ok()?;
    let ErrorDocument { code, request_id, .. } = ErrorDocument::of(body);
    // The status that the error would have had by itself.
    let status = match code.as_deref().unwrap_or_default() {
        "AccessDenied" | "SignatureDoesNotMatch" | "AccountProblem" | "AllAccessDisabled" => 403,
        "NoSuchUpload" | "NoSuchKey" | "NoSuchBucket" => 404,
        "PreconditionFailed" => 412,
        "MalformedXML" | "InvalidPart" | "InvalidPartOrder" | "EntityTooSmall"
        | "EntityTooLarge" | "InvalidRequest" | "InvalidArgument" => 400,
        "NotImplemented" | "MethodNotAllowed" => 501,
        _ => 500,
    };
    let failure = classify(StoreRefusal { status, code, request_id, ..StoreRefusal::default() });
    // The connection is well, and the store answers.
    Some(AttemptError { endpoint_fault: false, ..failure })
}

/// Whether a successful status is one that S3 has for this method; others say that something else
/// was done, or nothing yet.
pub fn is_expected(method: &str, status: u16) -> bool {
    match method {
        "GET" | "HEAD" => matches!(status, 200 | 206),
        "DELETE" => matches!(status, 200 | 204),
        "PUT" => matches!(status, 200 | 201 | 204),
        _ => status == 200,
    }
}

/// A success that S3 does not have.
pub fn unexpected(status: u16) -> Error {
    let what = "a success that S3 has not for this: check the endpoint, and what stands between";
    Error::foreign(what).with_answer(status, None, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::READ_HERE_MAX;

    fn head(headers: &str) -> ResponseHead {
        ResponseHead::parse(format!("HTTP/1.1 200 OK\r\n{headers}\r\n\r\n").as_bytes(), false)
            .unwrap()
            .unwrap()
            .0
    }

    #[tokio::test]
    async fn long_documents_are_read_elsewhere() {
        for (len, here) in [(0, true), (READ_HERE_MAX, true), (READ_HERE_MAX + 1, false)] {
            let answer = CollectedResponse { head: head("x: y"), body: vec![b' '; len] };
            let thread =
                read(answer, |_, _| Ok(std::thread::current().id()), READ_HERE_MAX).await.unwrap();
            assert_eq!(thread == std::thread::current().id(), here, "{len} bytes");
        }
    }

    #[test]
    fn a_page_is_neither_a_store_nor_a_delete() {
        let version = head("etag: \"v\"");
        assert_eq!(stored(&version, b"").unwrap(), "\"v\"");
        assert!(stored(&version, b"<PutObjectResult/>").is_ok());
        let named = head("x-amz-request-id: 1");
        assert!(deleted(&named, b" \n").unwrap() && !deleted(&version, b"").unwrap());
        assert!(stored(&head("x: y"), b"").is_err(), "no version");
        for page in [
            &b"<html>please log in</html>"[..],
            b"<!DOCTYPE html><html><br></html>",
            b"please log in",
            b"<Error><Code>InternalError</Code></Error>",
        ] {
            assert!(stored(&version, page).is_err() && deleted(&named, page).is_err());
        }
        assert!(deleted(&named, b"<DeleteResult/>").is_err());
    }

    fn of(body: &str) -> Option<(ErrorKind, RetryAction)> {
        let read = document(body.as_bytes(), "Wanted", |_, _| {});
        read.err().map(|failure| (failure.error.kind(), failure.retry))
    }

    #[test]
    fn only_the_document_that_was_asked_for_is_an_answer() {
        assert_eq!(of("<Wanted/>"), None);
        assert_eq!(of("  \n<?xml version='1.0'?>\n<Wanted xmlns='u'><a>1</a></Wanted>\n"), None);
        let again = Some((ErrorKind::Io, RetryAction::Backoff(None)));
        for other in [
            "",
            "   \n\n  ",
            "<html></html>",
            "<!DOCTYPE html><html><body>please log in<br></body></html>",
            "wanted",
            "<Wanted>",
            "<Wanted/><Wanted/>",
            "<Error/><Wanted/>",
            "<Wanted/>and more",
            "<Other><Wanted/></Other>",
            "<Error><Code>InternalError</Code></Error>",
            "<Error><Message>We encountered an internal error</Message></Error>",
            "<Error><Code>Internal Error</Code></Error>",
            "<Error><Code>SomethingNew</Code></Error>",
        ] {
            assert_eq!(of(other), again, "{other}");
        }
        let error =
            |code: &str| of(&format!("<Error><Code>{code}</Code></Error>")).map(|(kind, _)| kind);
        assert_eq!(error("AccessDenied"), Some(ErrorKind::Denied));
        assert_eq!(error("SlowDown"), Some(ErrorKind::Throttled));
        assert_eq!(error("NoSuchUpload"), Some(ErrorKind::NotFound));
        assert_eq!(error("InvalidPart"), Some(ErrorKind::Invalid));
        assert_eq!(error("PreconditionFailed"), Some(ErrorKind::Conflict));
        assert_eq!(error("NotImplemented"), Some(ErrorKind::Unsupported));
    }
}

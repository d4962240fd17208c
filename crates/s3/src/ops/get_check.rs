//! Checks the head of a response to a GET before any of its bytes is accepted, and tracks the
//! progress of the object over several attempts.

use crate::checksum::{Checksum, Running};
use crate::error::{Error, ErrorKind};
use crate::http::{BodyBuffer, BodyFraming, ResponseHead, digits};

/// Where in the object the next byte is, and what is known of it.
#[derive(Clone, Debug)]
pub struct GetProgress {
    /// The first byte wanted; `None` asks for the whole object without a range.
    pub start: Option<u64>,
    /// Whether the object (or the range) must fill the memory.
    pub exact: bool,
    /// The version that bytes have landed of.
    pub etag: Option<String>,
    /// Bytes of the whole object.
    pub total: Option<u64>,
    /// What the store says its checksum is.
    pub sum: Option<(Checksum, String)>,
    /// An answer ignored a range: what breaks off is read again as a whole.
    pub is_whole: bool,
}

impl GetProgress {
    /// The `range` header for what is still missing.
    pub fn range(&self, buffer: &BodyBuffer<'_>) -> Option<String> {
        let start = match (self.start, buffer.filled()) {
            (None, 0) => return None,
            (start, filled) => start.unwrap_or(0) + filled as u64,
        };
        // An object that may be shorter was asked for without an end; what is left of it is asked
        // for in the same way.
        match self.start {
            None if !self.exact => Some(format!("bytes={start}-")),
            _ => Some(format!(
                "bytes={start}-{}",
                start + (buffer.remaining() as u64).saturating_sub(1)
            )),
        }
    }

    /// Checks a successful head against what was asked for and the memory that is left.
    pub fn check(
        &mut self,
        head: &ResponseHead,
        buffer: &mut BodyBuffer<'_>,
        verify: bool,
    ) -> Result<(), Error> {
        let asked = self.range(buffer).is_some();
        let at = self.start.unwrap_or(0) + buffer.filled() as u64;
        let (len, total) = match (head.status, asked) {
            // In order: what was asked for, what a cache may send unasked, and stores that ignore
            // ranges.
            (206, true) => self.partial(head, at)?,
            // A cache before the store may do that. Its bytes would pass as a whole object that is
            // too short.
            (206, false) => return Err(wrong("unexpected 206 Partial Content")),
            // A store that ignores ranges sends everything: that is right when everything was
            // wanted.
            // The body starts at byte 0, and the next byte wanted is a later one. Written as it
            // comes, it would be the right number of wrong bytes.
            (_, true) if at > 0 => return Err(Error::ignored_range()),
            (_, asked) => {
                let len = length(head)?;
                // A range at the start: the whole object is right if it fits, and else counts as an
                // ignored range.
                if asked && len.is_some_and(|len| len > buffer.remaining() as u64) {
                    return Err(Error::ignored_range());
                }
                (len, len)
            }
        };
        self.check_fits(len, buffer)?;
        // Another length means another version, also where the store has no versions.
        if self.total.is_some() && total.is_some() && self.total != total {
            return Err(changed());
        }
        self.total = self.total.or(total);
        let etag = head.etag();
        // A continuation. The bytes already received are of `self.etag`; bytes of another version
        // must not be appended. Without any etag a continuation is never tried.
        if buffer.filled() > 0 {
            return if self.etag.as_deref() == etag { Ok(()) } else { Err(changed()) };
        }
        self.etag = etag.map(str::to_owned);
        // The stored checksum is that of the whole object, so it can prove only a read of the
        // whole.
        let whole = self.start.unwrap_or(0) == 0 && total.is_some() && total == len;
        let sum = if verify && whole { Checksum::returned(|name| head.header(name)) } else { None };
        buffer.restart(sum.and_then(|(sum, _)| Running::new(sum)));
        self.sum = sum.map(|(sum, value)| (sum, value.to_owned()));
        Ok(())
    }

    fn partial(&self, head: &ResponseHead, at: u64) -> Result<(Option<u64>, Option<u64>), Error> {
        let range = head.header("content-range").and_then(content_range);
        let (first, last, total) =
            range.ok_or_else(|| wrong("its content-range makes no sense"))?;
        // Length, range and object must agree, or one of them is not the store's.
        let len = length(head)?.unwrap_or(last - first + 1);
        match first == at && last - first + 1 == len && total.is_none_or(|total| last < total) {
            true => Ok((Some(len), total)),
            false => Err(wrong("its content-range is not the one that was asked for")),
        }
    }

    fn check_fits(&self, len: Option<u64>, buffer: &BodyBuffer<'_>) -> Result<(), Error> {
        let space = buffer.remaining() as u64;
        match len {
            Some(len) if len > space => {
                Err(misfit(format!("the object has {len} bytes, the memory {space}")))
            }
            Some(len) if self.exact && len < space => {
                Err(misfit(format!("the object has only {len} of {space} bytes")))
            }
            _ => Ok(()),
        }
    }

    /// What remains to be checked when the body is there.
    pub fn finish(&self, buffer: &BodyBuffer<'_>) -> Result<bool, Error> {
        if self.exact && buffer.remaining() > 0 {
            return Err(misfit(format!(
                "the object is {} bytes shorter than the memory",
                buffer.remaining()
            )));
        }
        match (&self.sum, buffer.sum()) {
            (Some((_, expected)), Some(sum)) if *expected != sum.value() => {
                Err(Error::wrong_checksum())
            }
            (Some(_), Some(_)) => Ok(true),
            _ => Ok(false),
        }
    }
}

fn length(head: &ResponseHead) -> Result<Option<u64>, Error> {
    match head.framing {
        BodyFraming::Length(len) => Ok(Some(len)),
        BodyFraming::Chunked => Ok(None),
        BodyFraming::UntilClose => Err(wrong("it does not say how long its body is")),
    }
}

/// First and last byte and the total of `bytes 0-9/100`; the total may be `*`.
fn content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let first = digits(first)?;
    let last = digits(last)?;
    let total = if total == "*" { None } else { Some(digits(total)?) };
    (first <= last && last < u64::MAX).then_some((first, last, total))
}

fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the response does not match the request: {what}"))
        .retryable(true)
}

fn misfit(what: String) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

fn changed() -> Error {
    Error::new(ErrorKind::Conflict, "the object was replaced while it was read")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, headers: &str) -> ResponseHead {
        let text = format!("HTTP/1.1 {status} X\r\n{headers}\r\n\r\n");
        ResponseHead::parse(text.as_bytes(), false).unwrap().unwrap().0
    }

    fn verdict(
        start: Option<u64>,
        exact: bool,
        space: usize,
        head: &ResponseHead,
    ) -> Option<ErrorKind> {
        let mut memory = vec![0; space];
        let mut buffer = BodyBuffer::new(&mut memory);
        let mut progress =
            GetProgress { start, exact, etag: None, total: None, sum: None, is_whole: false };
        progress.check(head, &mut buffer, true).err().map(|e| e.kind())
    }

    #[test]
    fn whole_objects_must_fit() {
        let of = |exact, space| verdict(None, exact, space, &head(200, "content-length: 10"));
        assert_eq!((of(true, 10), of(false, 10), of(false, 11)), (None, None, None));
        assert_eq!(
            (of(true, 11), of(true, 9), of(false, 9)),
            (Some(ErrorKind::Corrupt), Some(ErrorKind::Corrupt), Some(ErrorKind::Corrupt))
        );
        assert_eq!(
            verdict(
                None,
                true,
                10,
                &head(206, "content-length: 10\r\ncontent-range: bytes 0-9/10")
            ),
            Some(ErrorKind::Corrupt)
        );
        assert_eq!(verdict(None, true, 10, &head(200, "")), Some(ErrorKind::Corrupt));
    }

    #[test]
    fn ranges_must_be_the_ones_asked_for() {
        let of = |start, range: &str| {
            verdict(
                Some(start),
                true,
                10,
                &head(206, &format!("content-length: 10\r\ncontent-range: {range}")),
            )
        };
        assert_eq!(of(5, "bytes 5-14/100"), None);
        assert_eq!(of(5, "bytes 5-14/*"), None);
        for range in [
            "bytes 0-9/100",
            "bytes 5-15/100",
            "bytes 5-14/10",
            "bytes 14-5/100",
            "bytes */100",
            "5-14/100",
            "bytes 5-x/9",
            "",
        ] {
            assert_eq!(of(5, range), Some(ErrorKind::Corrupt), "{range}");
        }
        assert_eq!(
            verdict(Some(5), true, 10, &head(200, "content-length: 100")),
            Some(ErrorKind::Unsupported)
        );
        assert_eq!(
            verdict(Some(0), true, 10, &head(200, "content-length: 100")),
            Some(ErrorKind::Unsupported)
        );
        assert_eq!(verdict(Some(0), true, 10, &head(200, "content-length: 10")), None);
    }

    #[test]
    fn a_continuation_must_be_of_the_same_object() {
        let mut memory = [0; 10];
        let mut buffer = BodyBuffer::new(&mut memory);
        let mut progress = GetProgress {
            start: None,
            exact: true,
            etag: None,
            total: None,
            sum: None,
            is_whole: false,
        };
        progress.check(&head(200, "content-length: 10\r\netag: \"a\""), &mut buffer, true).unwrap();
        crate::http::BodySink::Buffer(&mut buffer).copy(b"1234").unwrap();
        assert_eq!(progress.range(&buffer).as_deref(), Some("bytes=4-9"));
        let rest = |etag: &str, total: u64| {
            head(
                206,
                &format!("content-length: 6\r\ncontent-range: bytes 4-9/{total}\r\netag: {etag}"),
            )
        };
        assert!(progress.clone().check(&rest("\"a\"", 10), &mut buffer, true).is_ok());
        assert_eq!(
            progress.clone().check(&rest("\"b\"", 10), &mut buffer, true).unwrap_err().kind(),
            ErrorKind::Conflict
        );
        assert_eq!(
            progress.clone().check(&rest("\"a\"", 11), &mut buffer, true).unwrap_err().kind(),
            ErrorKind::Conflict
        );
        assert_eq!(buffer.filled(), 4);
    }
}

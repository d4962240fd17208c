use super::list_cycles::ListStep;
use crate::client::Client;
use crate::endpoint::Provider;
use crate::error::{Error, ErrorKind, Result};
use crate::http::ResponseHead;
use crate::percent_encode;
use crate::request::Request;
use crate::response_check;
use crate::retry::{AttemptError, RequestKind};
use crate::time_formats::{http_date, iso};
use crate::xml;

/// A page of 1000 keys of 1024 bytes, each byte written with three, fits.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// What to list.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct List {
    /// Only keys that begin with this; on S3 Express it is empty or ends in `/`.
    pub prefix: String,
    /// Only keys after this one. S3 Express does not have it.
    pub start_after: Option<String>,
    /// Keys that go on after this behind the prefix are folded into one prefix.
    pub delimiter: Option<String>,
    /// The most entries on a page; the store decides when it is zero.
    pub page_max: u32,
}

impl List {
    /// Everything under a prefix.
    pub fn under(prefix: impl Into<String>) -> Self {
        List { prefix: prefix.into(), ..List::default() }
    }
}

/// One object in a listing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was written, in seconds since 1970 by the store's clock.
    pub modified: i64,
    /// Its version.
    pub etag: String,
}

/// A part of a listing, in no order to rely on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Page {
    /// Objects; a page may have none and not be the last.
    pub entries: Vec<Entry>,
    /// Folded prefixes.
    pub prefixes: Vec<String>,
    /// Where the next page begins; `None` on the last.
    pub next: Option<String>,
    /// When the store answered, in seconds since 1970 by its clock; `None` when it does not say.
    pub date: Option<i64>,
}

/// An unfinished upload.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Upload {
    /// The key that it is for.
    pub key: String,
    /// Its id.
    pub id: String,
    /// When it was begun, in seconds since 1970 by the store's clock.
    pub begun: i64,
}

/// A part of a listing of uploads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Uploads {
    /// The uploads.
    pub uploads: Vec<Upload>,
    /// Where the next page begins: key and upload id.
    pub next: Option<(String, String)>,
    /// When the store answered, in seconds since 1970 by its clock; `None` when it does not say.
    pub date: Option<i64>,
}

impl Client {
    /// One page of a listing; `next` is that of the page before.
    ///
    /// ```
    /// # let server = kvtier_testkit::s3::Server::start(Default::default())?;
    /// # use kvtier_s3::{BucketAddress, Client, Config, Credentials};
    /// # let address = BucketAddress::new(server.url()).bucket("bucket").region("us-east-1");
    /// # let client = Client::new(Config::new(address.resolve()?, Credentials::new("AKIDTEST", "secret/test+key")));
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use kvtier_s3::{List, Put};
    ///
    /// for name in ["kv/a", "kv/b", "other"] {
    ///     client.put_bytes(name, b"x", &Put::default()).await?;
    /// }
    /// let list = List::under("kv/");
    /// let mut names = Vec::new();
    /// let mut next = None;
    /// loop {
    ///     let page = client.list(&list, next.as_deref()).await?;
    ///     names.extend(page.entries.into_iter().map(|entry| entry.key));
    ///     next = page.next;
    ///     if next.is_none() {
    ///         break;
    ///     }
    /// }
    /// assert_eq!(names, ["kv/a", "kv/b"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Io` when the listing repeats earlier pages ([`Error::is_endless`]), `Invalid`
    /// for a prefix without a final slash on S3 Express, `NotFound` when the bucket does not exist.
    pub async fn list(&self, list: &List, next: Option<&str>) -> Result<Page> {
        // S3 Express lists directories, and no parts of names.
        if self.inner.config.endpoint.provider() == Provider::Express
            && !list.prefix.is_empty()
            && !list.prefix.ends_with('/')
        {
            return Err(Error::new(ErrorKind::Invalid, "on S3 Express a prefix ends in a slash")
                .with_op("list"));
        }
        let page_max = list.page_max.to_string();
        // In the order of the names, as the signature has them.
        let mut query = Vec::with_capacity(7);
        query.extend(next.map(|next| ("continuation-token", next)));
        query.extend(list.delimiter.as_deref().map(|delimiter| ("delimiter", delimiter)));
        query.extend([("encoding-type", "url"), ("list-type", "2")]);
        query.extend((list.page_max > 0).then_some(("max-keys", page_max.as_str())));
        query.extend((!list.prefix.is_empty()).then_some(("prefix", list.prefix.as_str())));
        query.extend(list.start_after.as_deref().map(|after| ("start-after", after)));
        let request = Request { query: &query, ..Request::new("GET", None) };
        let asked = async {
            let found = self.inner.ask_for(&request, ANSWER_BYTES_MAX, |head, body| {
                page(body).map(|page| Page { date: date(head), ..page })
            });
            found.await.and_then(|page| {
                let names = page.entries.iter().map(|entry| entry.key.as_str());
                let names: Vec<&str> =
                    names.chain(page.prefixes.iter().map(String::as_str)).collect();
                let what = (&list.prefix, &list.start_after, &list.delimiter, list.page_max);
                // Empty pages may repeat: stores send them where many objects were deleted.
                let content = (page.next.is_some() && !names.is_empty()).then_some(names);
                let step = ListStep { what, from: next, next: page.next.as_deref(), content };
                if self.inner.listings.is_cycle(step) { Err(Error::endless()) } else { Ok(page) }
            })
        };
        self.run(RequestKind::Control, "list", asked).await
    }

    /// One page of the unfinished uploads under a prefix; `next` is that of the page before.
    ///
    /// # Errors
    /// As [`Client::list`].
    pub async fn list_uploads(
        &self,
        prefix: &str,
        next: Option<&(String, String)>,
    ) -> Result<Uploads> {
        let mut query = vec![("encoding-type", "url")];
        query.extend(next.map(|(key, _)| ("key-marker", key.as_str())));
        query.extend((!prefix.is_empty()).then_some(("prefix", prefix)));
        query.extend(next.map(|(_, id)| ("upload-id-marker", id.as_str())));
        query.push(("uploads", ""));
        let request = Request { query: &query, ..Request::new("GET", None) };
        let asked = async {
            let found = self.inner.ask_for(&request, ANSWER_BYTES_MAX, |head, body| {
                uploads(body).map(|found| Uploads { date: date(head), ..found })
            });
            found.await.and_then(|page| {
                let ids: Vec<&str> = page.uploads.iter().map(|upload| upload.id.as_str()).collect();
                let content = (!ids.is_empty()).then_some(ids);
                let step = ListStep {
                    what: ("uploads", prefix),
                    from: next,
                    next: page.next.as_ref(),
                    content,
                };
                if self.inner.listings.is_cycle(step) { Err(Error::endless()) } else { Ok(page) }
            })
        };
        self.run(RequestKind::Control, "list_uploads", asked).await
    }
}

/// When the store answered.
fn date(head: &ResponseHead) -> Option<i64> {
    head.header("date").and_then(http_date)
}

/// Decodes the texts of a listing; whether all of them could be. Some stores say only behind the
/// keys that they encode them, so that this comes at the end.
fn decode<'a>(texts: impl IntoIterator<Item = &'a mut String>) -> bool {
    texts.into_iter().all(|text| match percent_encode::decode(text) {
        Some(decoded) => {
            *text = decoded;
            true
        }
        None => false,
    })
}

pub(super) fn page(body: &[u8]) -> Result<Page, AttemptError> {
    let mut page = Page::default();
    let mut entry = Entry::default();
    let mut truncated = false;
    let mut encoded = false;
    let mut sized = false;
    let mut bad = false;
    response_check::document(body, "ListBucketResult", |path, text| match path {
        [_, contents, field] if contents == "Contents" => match field.as_str() {
            "Key" => text.clone_into(&mut entry.key),
            "Size" => match text.parse() {
                Ok(bytes) => (entry.bytes, sized) = (bytes, true),
                Err(_) => bad = true,
            },
            "LastModified" => entry.modified = iso(text).unwrap_or(0),
            "ETag" => text.clone_into(&mut entry.etag),
            _ => {}
        },
        // The end of an object: its fields came before in any order.
        [_, contents] if contents == "Contents" => {
            // An object without a name or a length is none that can be counted.
            bad |= entry.key.is_empty() || !std::mem::take(&mut sized);
            page.entries.push(std::mem::take(&mut entry));
        }
        [_, prefixes, field] if prefixes == "CommonPrefixes" && field == "Prefix" => {
            page.prefixes.push(text.to_owned())
        }
        [_, field] if field == "EncodingType" => encoded |= text == "url",
        [_, field] if field == "IsTruncated" => truncated = text == "true",
        // Opaque: it is not encoded as the keys are.
        [_, field] if field == "NextContinuationToken" => page.next = Some(text.to_owned()),
        _ => {}
    })?;
    // A page that says it is not the last but names no next one is refused below. Taken as the
    // last, it would make every later object look deleted.
    page.next = page.next.filter(|next| truncated && !next.is_empty());
    // Keys were requested encoded, since XML cannot express all of them.
    let texts = page.entries.iter_mut().map(|entry| &mut entry.key).chain(&mut page.prefixes);
    bad |= encoded && !decode(texts);
    if !bad && truncated == page.next.is_some() {
        Ok(page)
    } else {
        Err(response_check::foreign(xml::nonsense()))
    }
}

pub(super) fn uploads(body: &[u8]) -> Result<Uploads, AttemptError> {
    let mut found = Uploads::default();
    let mut upload = Upload::default();
    let mut truncated = false;
    let mut encoded = false;
    let mut nameless = false;
    let mut next = (String::new(), String::new());
    response_check::document(body, "ListMultipartUploadsResult", |path, text| match path {
        [_, one, field] if one == "Upload" => match field.as_str() {
            "Key" => text.clone_into(&mut upload.key),
            "UploadId" => text.clone_into(&mut upload.id),
            "Initiated" => upload.begun = iso(text).unwrap_or(0),
            _ => {}
        },
        [_, one] if one == "Upload" => {
            nameless |= upload.key.is_empty() || upload.id.is_empty();
            found.uploads.push(std::mem::take(&mut upload));
        }
        [_, field] if field == "EncodingType" => encoded |= text == "url",
        [_, field] if field == "IsTruncated" => truncated = text == "true",
        [_, field] if field == "NextKeyMarker" => text.clone_into(&mut next.0),
        [_, field] if field == "NextUploadIdMarker" => text.clone_into(&mut next.1),
        _ => {}
    })?;
    // Where it goes on must be said, or the same page would come again.
    let lost = truncated && next.0.is_empty();
    let bad = nameless
        || encoded
            && !decode(found.uploads.iter_mut().map(|upload| &mut upload.key).chain([&mut next.0]));
    found.next = truncated.then_some(next);
    if bad || lost { Err(response_check::foreign(xml::nonsense())) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_with_odd_keys() {
        let body =
            b"<ListBucketResult xmlns='u'><IsTruncated>true</IsTruncated><Contents><Key>a%2F+b%25</Key><Size>7</Size>\
            <LastModified>2013-05-24T00:00:00.000Z</LastModified><ETag>&quot;x&quot;</ETag></Contents>\
            <CommonPrefixes><Prefix>p%2F</Prefix></CommonPrefixes><EncodingType>url</EncodingType>\
            <NextContinuationToken>a+b/=</NextContinuationToken></ListBucketResult>";
        let page = page(body).unwrap();
        let entry =
            Entry { key: "a/ b%".into(), bytes: 7, modified: 1_369_353_600, etag: "\"x\"".into() };
        assert_eq!(
            (page.entries, page.prefixes, page.next.as_deref()),
            (vec![entry], vec!["p/".to_owned()], Some("a+b/="))
        );
    }

    #[test]
    fn an_empty_page_may_not_be_the_last_and_a_token_may_be_stale() {
        let body = b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken></ListBucketResult>";
        assert_eq!(page(body).unwrap().next.as_deref(), Some("t"));
        let body = b"<ListBucketResult><IsTruncated>false</IsTruncated><NextContinuationToken>t</NextContinuationToken></ListBucketResult>";
        assert_eq!(page(body).unwrap().next, None);
    }

    #[test]
    fn what_is_no_listing_is_an_error_not_an_empty_bucket() {
        for body in [
            &b""[..],
            b"<html></html>",
            b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
            b"<Error><Code>x</Code></Error>",
            b"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
            b"<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>",
            b"<ListBucketResult><Contents><Key>a</Key><Size>1</Size></Contents><Contents><Key>b</Key></Contents></ListBucketResult>",
        ] {
            assert!(page(body).is_err(), "{}", String::from_utf8_lossy(body));
        }
        let broken =
            b"<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>%zz</Key></Contents></ListBucketResult>";
        assert!(page(broken).is_err());
    }

    #[test]
    fn uploads_with_odd_keys_and_pages_that_lead_nowhere() {
        let of = |inner: &str| {
            uploads(
                format!("<ListMultipartUploadsResult>{inner}</ListMultipartUploadsResult>")
                    .as_bytes(),
            )
        };
        let more = "<IsTruncated>true</IsTruncated><NextKeyMarker>a%2F+b%25</NextKeyMarker>";
        let one = "<Upload><Key>%C3%A9+k</Key><UploadId>i+/=</UploadId><Initiated>2013-05-24T00:00:00Z</Initiated></Upload>";
        let found = of(&format!("{more}{one}<EncodingType>url</EncodingType>")).unwrap();
        assert_eq!(
            found.uploads,
            [Upload { key: "\u{e9} k".into(), id: "i+/=".into(), begun: 1_369_353_600 }]
        );
        assert_eq!(
            found.next,
            Some(("a/ b%".into(), String::new())),
            "some stores mark only the key"
        );
        for nameless in ["<Upload><Key>k</Key></Upload>", "<Upload><UploadId>i</UploadId></Upload>"]
        {
            assert!(of(nameless).is_err());
        }
        assert!(of("<IsTruncated>true</IsTruncated>").is_err());
        assert_eq!(of("").unwrap(), Uploads::default());
        for body in [&b""[..], b"<html></html>", b"<ListBucketResult></ListBucketResult>"] {
            assert!(uploads(body).is_err(), "no listing is not an empty one");
        }
    }
}

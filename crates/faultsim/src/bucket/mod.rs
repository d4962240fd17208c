//! The simulated bucket: its objects, and which answer a request gets.

pub mod calendar;
pub mod counts;
pub mod http;
mod lag;
mod listing;

use std::collections::BTreeMap;

use self::counts::RequestCounts;
use self::http::{Request, Response, decode, texts};
use self::lag::Lag;

/// One object.
#[derive(Clone, Debug)]
pub struct Object {
    pub bytes: Vec<u8>,
    pub etag: String,
    /// When it was written, in seconds since 1970.
    pub modified_s: u64,
    /// Its metadata and checksums, as they came.
    headers: Vec<(String, String)>,
    /// What a listing says of it. It is listed far more often than written.
    entry: String,
}

/// The objects of a bucket.
#[derive(Debug, Default)]
pub struct Bucket {
    pub objects: BTreeMap<String, Object>,
    /// Whether it overwrites in spite of `If-None-Match`.
    pub ignores_conditions: bool,
    /// What listings show, where they lag behind the objects.
    lag: Option<Lag>,
    written: u64,
    /// The bytes of all chunks: of the objects that are not the tier's own.
    pub chunk_bytes: u64,
    /// The most there were at a time.
    pub chunk_bytes_most: u64,
    /// The requests that it answered.
    pub requests: RequestCounts,
}

impl Bucket {
    /// From now on each change appears in listings late, by up to this time.
    pub fn let_listings_lag(&mut self, rng: fastrand::Rng, max_ms: u64) {
        self.lag = Some(Lag::new(rng, max_ms));
    }

    /// Carries out a request and answers it, at this time in milliseconds since 1970.
    pub fn answer(&mut self, request: &Request, now_ms: u64) -> Response {
        let path = decode(&request.path);
        let key = key_of(&path);
        self.requests.note(request, key);
        match (request.method.as_str(), key) {
            ("HEAD", "") => Response::new(200, Vec::new()),
            ("GET", "") if request.has("list-type") => self.list(request, now_ms),
            ("GET", "") => settings(request),
            ("POST", "") if request.has("delete") => self.delete_many(&request.body, now_ms),
            ("GET" | "HEAD", key) => self.get(request, key),
            ("PUT", key) if request.query.is_empty() => self.put(request, key, now_ms),
            ("DELETE", key) if request.query.is_empty() => {
                self.remove(key, now_ms);
                Response::new(204, Vec::new())
            }
            _ => Response::error(501, "NotImplemented"),
        }
    }

    /// The objects that a request deletes.
    pub fn deleted_by(&self, request: &Request) -> Vec<String> {
        let mut names = match request.method.as_str() {
            "DELETE" if request.query.is_empty() => {
                vec![key_of(&decode(&request.path)).to_owned()]
            }
            "POST" if request.has("delete") => texts(&request.body, "Key"),
            _ => Vec::new(),
        };
        names.retain(|name| self.objects.contains_key(name));
        names
    }

    fn put(&mut self, request: &Request, key: &str, now_ms: u64) -> Response {
        let conditional = request.header("if-none-match").is_some() && !self.ignores_conditions;
        if conditional && self.objects.contains_key(key) {
            return Response::error(412, "PreconditionFailed");
        }
        self.written += 1;
        let (etag, modified_s) = (format!("\"{:032x}\"", self.written), now_ms / 1000);
        let object = Object {
            entry: listing::entry(key, modified_s, &etag, request.body.len()),
            bytes: request.body.clone(),
            etag,
            modified_s,
            headers: request.headers.iter().filter(|(name, _)| is_kept(name)).cloned().collect(),
        };
        let response = Response::new(200, Vec::new()).with("etag", object.etag.clone());
        // In no listing does an object that is overwritten vanish.
        let before = self.objects.get(key).map_or(0, |before| chunk_bytes(key, before));
        self.chunk_bytes = self.chunk_bytes - before + chunk_bytes(key, &object);
        self.chunk_bytes_most = self.chunk_bytes_most.max(self.chunk_bytes);
        if let Some(lag) = &mut self.lag {
            lag.changed(key, Some(object.clone()), now_ms);
        }
        self.objects.insert(key.to_owned(), object);
        response
    }

    /// Writes an object of another program.
    pub fn put_foreign(&mut self, key: &str, bytes: Vec<u8>, now_ms: u64) {
        let request = Request { body: bytes, ..Request::default() };
        self.put(&request, key, now_ms);
    }

    fn remove(&mut self, key: &str, now_ms: u64) {
        if let Some(object) = self.objects.remove(key) {
            self.chunk_bytes -= chunk_bytes(key, &object);
            if let Some(lag) = &mut self.lag {
                lag.changed(key, None, now_ms);
            }
        }
    }

    fn get(&self, request: &Request, key: &str) -> Response {
        let Some(object) = self.objects.get(key) else { return Response::error(404, "NoSuchKey") };
        let total = object.bytes.len();
        let range = request.header("range").and_then(|range| http::range(range, total));
        let response = match range {
            Some(range) => {
                let place = format!("bytes {}-{}/{total}", range.start, range.end - 1);
                Response::new(206, object.bytes[range].to_vec()).with("content-range", place)
            }
            None if request.header("range").is_some() => {
                return Response::error(416, "InvalidRange");
            }
            None => Response::new(200, object.bytes.clone()),
        };
        let response = response
            .with("etag", object.etag.clone())
            .with("last-modified", calendar::http(object.modified_s));
        object.headers.iter().fold(response, |response, (name, value)| response.with(name, value))
    }

    fn delete_many(&mut self, body: &[u8], now_ms: u64) -> Response {
        for key in texts(body, "Key") {
            self.remove(&key, now_ms);
        }
        Response::new(200, b"<?xml version=\"1.0\"?><DeleteResult></DeleteResult>".to_vec())
    }
}

/// The key in a decoded path, which begins with the bucket's name; empty for the bucket itself.
fn key_of(path: &str) -> &str {
    let key = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    key.map(|(_, key)| key).unwrap_or_default()
}

/// The bytes that count for the cap.
fn chunk_bytes(key: &str, object: &Object) -> u64 {
    if is_own(key) { 0 } else { object.bytes.len() as u64 }
}

/// Whether an object is the tier's own, and no chunk's.
fn is_own(key: &str) -> bool {
    key.starts_with(".kvtier/") || key.contains("/.kvtier/")
}

/// Whether a header of a request is kept with the object: metadata, and checksums.
fn is_kept(name: &str) -> bool {
    name.starts_with("x-amz-meta-") || name.starts_with("x-amz-checksum-")
}

/// The bucket's settings: no versions, no rules, no unfinished uploads.
fn settings(request: &Request) -> Response {
    let body = match () {
        () if request.has("versioning") => "<VersioningConfiguration></VersioningConfiguration>",
        () if request.has("uploads") => {
            "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>"
        }
        () if request.has("object-lock") => {
            return Response::error(404, "ObjectLockConfigurationNotFoundError");
        }
        () if request.has("lifecycle") => {
            return Response::error(404, "NoSuchLifecycleConfiguration");
        }
        () => return Response::error(501, "NotImplemented"),
    };
    Response::new(200, body.as_bytes().to_vec())
}

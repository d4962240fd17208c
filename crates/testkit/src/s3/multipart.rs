use super::calendar;
use super::object_store::{ObjectStore, Pending, StoredObject};
use super::upload_request::{kept_headers, sum_is_wrong};
use super::wire::{Response, WireRequest};
use super::xml;

/// A part but the last must be this long, in bytes.
const PART_MIN: usize = 5 << 20;

/// The most uploads on a page of their listing.
const PAGE_MAX: usize = 1000;

pub fn create(store: &mut ObjectStore, request: &WireRequest, key: &str) -> Response {
    let id = store.upload_id();
    let pending = Pending {
        key: key.to_owned(),
        begun: store.now(),
        headers: kept_headers(request),
        ..Pending::default()
    };
    store.uploads.insert(id.clone(), pending);
    let id = xml::escape(&id);
    Response::new(
        200,
        format!(
            "<InitiateMultipartUploadResult><Bucket>b</Bucket><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
        ),
    )
}

pub fn part(store: &mut ObjectStore, request: &WireRequest, id: &str, body: Vec<u8>) -> Response {
    let Some(number) = request.query("partNumber").and_then(|number| number.parse().ok()) else {
        return Response::error(400, "InvalidArgument");
    };
    if sum_is_wrong(request, &body) {
        return Response::error(400, "BadDigest");
    }
    let part = store.stored(body, kept_headers(request));
    let etag = part.etag.clone();
    match store.uploads.get_mut(id) {
        Some(pending) => {
            pending.parts.insert(number, part);
            Response::new(200, "").with("etag", etag)
        }
        None => Response::error(404, "NoSuchUpload"),
    }
}

pub fn complete(
    store: &mut ObjectStore,
    request: &WireRequest,
    id: &str,
    body: &[u8],
    consecutive: bool,
) -> Response {
    let Some(pending) = store.uploads.get(id).cloned() else {
        return Response::error(404, "NoSuchUpload");
    };
    // The condition is checked when the upload is completed, since only then does the object
    // appear.
    if request.header("if-none-match").is_some() && store.objects.contains_key(&pending.key) {
        return Response::error(412, "PreconditionFailed");
    }
    let numbers: Vec<u32> =
        xml::texts(body, "PartNumber").iter().filter_map(|number| number.parse().ok()).collect();
    let etags = xml::texts(body, "ETag");
    // S3 Express wants parts without gaps; S3 itself allows them.
    if consecutive && !numbers.iter().copied().eq(1..=u32::try_from(numbers.len()).unwrap_or(0)) {
        return Response::error(400, "InvalidPartOrder");
    }
    let mut bytes = Vec::new();
    for (at, (number, etag)) in numbers.iter().zip(&etags).enumerate() {
        // aws-crt names the parts' versions without their quotes, as S3 lets it.
        let is_it = |part: &&StoredObject| part.etag.trim_matches('"') == etag.trim_matches('"');
        let Some(part) = pending.parts.get(number).filter(is_it) else {
            return Response::error(400, "InvalidPart");
        };
        // Only the last part may be short.
        if part.bytes.len() < PART_MIN && at + 1 < numbers.len() {
            return Response::error(400, "EntityTooSmall");
        }
        bytes.extend_from_slice(&part.bytes);
    }
    let object = store.stored(bytes, pending.headers);
    let etag = object.etag.clone();
    store.objects.insert(pending.key, object);
    store.uploads.remove(id);
    let etag = xml::escape(&etag);
    // The blanks that a slow store sends to keep the connection alive.
    Response::new(
        200,
        format!(
            "  \n<?xml version=\"1.0\"?><CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>"
        ),
    )
}

pub fn abort(store: &mut ObjectStore, id: &str) -> Response {
    match store.uploads.remove(id) {
        Some(_) => Response::new(204, ""),
        None => Response::error(404, "NoSuchUpload"),
    }
}

/// A page of the unfinished uploads: those behind the markers, in an order of its own within the
/// page.
pub fn list(store: &ObjectStore, request: &WireRequest) -> Response {
    let of = |name: &str| request.query(name).unwrap_or_default();
    let prefix = of("prefix");
    // Two markers: one key may have several uploads.
    let after = (of("key-marker"), of("upload-id-marker"));
    let max = of("max-uploads").parse().unwrap_or(PAGE_MAX).min(PAGE_MAX);
    let mut all: Vec<_> =
        store.uploads.iter().map(|(id, pending)| (&pending.key, id, pending.begun)).collect();
    all.retain(|(key, id, _)| key.starts_with(&prefix) && (*key, *id) > (&after.0, &after.1));
    all.sort();
    let (page, more) = all.split_at(max.min(all.len()));
    let mut body =
        format!("<EncodingType>url</EncodingType><IsTruncated>{}</IsTruncated>", !more.is_empty());
    if let Some((key, id, _)) = page.last().filter(|_| !more.is_empty()) {
        let key = xml::url(key);
        let id = xml::escape(id);
        body.push_str(&format!(
            "<NextKeyMarker>{key}</NextKeyMarker><NextUploadIdMarker>{id}</NextUploadIdMarker>"
        ));
    }
    // As no store promises any other.
    for (key, id, begun) in page.iter().rev() {
        let key = xml::url(key);
        let id = xml::escape(id);
        let begun = calendar::iso(*begun);
        body.push_str(&format!(
            "<Upload><Key>{key}</Key><UploadId>{id}</UploadId><Initiated>{begun}</Initiated></Upload>"
        ));
    }
    Response::new(200, format!("<ListMultipartUploadsResult>{body}</ListMultipartUploadsResult>"))
}

use super::api::{kept_headers, sum_is_wrong};
use super::calendar;
use super::store::{Pending, Store};
use super::wire::{Request, Response};
use super::xml;

/// A part but the last must be this long, in bytes.
const PART_MIN: usize = 5 << 20;

pub fn create(store: &mut Store, request: &Request, key: &str) -> Response {
    let id = store.upload_id();
    let pending =
        Pending { key: key.to_owned(), begun: store.now(), headers: kept_headers(request), ..Pending::default() };
    store.uploads.insert(id.clone(), pending);
    let id = xml::escape(&id);
    Response::new(
        200,
        format!(
            "<InitiateMultipartUploadResult><Bucket>b</Bucket><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
        ),
    )
}

pub fn part(store: &mut Store, request: &Request, id: &str, body: Vec<u8>) -> Response {
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

pub fn complete(store: &mut Store, request: &Request, id: &str, body: &[u8], consecutive: bool) -> Response {
    let Some(pending) = store.uploads.get(id).cloned() else { return Response::error(404, "NoSuchUpload") };
    if request.header("if-none-match").is_some() && store.objects.contains_key(&pending.key) {
        return Response::error(412, "PreconditionFailed");
    }
    let numbers: Vec<u32> = xml::texts(body, "PartNumber").iter().filter_map(|number| number.parse().ok()).collect();
    let etags = xml::texts(body, "ETag");
    if consecutive && !numbers.iter().copied().eq(1..=u32::try_from(numbers.len()).unwrap_or(0)) {
        return Response::error(400, "InvalidPartOrder");
    }
    let mut bytes = Vec::new();
    for (at, (number, etag)) in numbers.iter().zip(&etags).enumerate() {
        let Some(part) = pending.parts.get(number).filter(|part| part.etag == *etag) else {
            return Response::error(400, "InvalidPart");
        };
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

pub fn abort(store: &mut Store, id: &str) -> Response {
    match store.uploads.remove(id) {
        Some(_) => Response::new(204, ""),
        None => Response::error(404, "NoSuchUpload"),
    }
}

pub fn list(store: &Store, prefix: &str) -> Response {
    let mut body =
        String::from("<ListMultipartUploadsResult><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>");
    for (id, pending) in store.uploads.iter().filter(|(_, pending)| pending.key.starts_with(prefix)) {
        let (key, id, begun) = (xml::url(&pending.key), xml::escape(id), calendar::iso(pending.begun));
        body.push_str(&format!(
            "<Upload><Key>{key}</Key><UploadId>{id}</UploadId><Initiated>{begun}</Initiated></Upload>"
        ));
    }
    body.push_str("</ListMultipartUploadsResult>");
    Response::new(200, body)
}

//! What the requests mean.

use super::object_store::{ObjectStore, StoredObject};
use super::server::Setup;
use super::upload_request::{kept_headers, sum_is_wrong};
use super::wire::{Response, WireRequest};
use super::{calendar, multipart, xml};

/// Answers a request for the bucket.
pub fn bucket(
    store: &mut ObjectStore,
    request: &WireRequest,
    body: &[u8],
    setup: &Setup,
) -> Response {
    let has = |name: &str| request.query(name).is_some();
    match request.method.as_str() {
        _ if !store.bucket_exists => Response::error(404, "NoSuchBucket"),
        // Stores say their region here, which clients use to correct a wrong one.
        "HEAD" => Response::new(200, "").with("x-amz-bucket-region", "us-east-1"),
        "DELETE" if store.objects.is_empty() => {
            store.bucket_exists = false;
            Response::new(204, "")
        }
        // As S3 has it: only an empty bucket can be deleted.
        "DELETE" => Response::error(409, "BucketNotEmpty"),
        "GET" if has("list-type") => list(store, request, setup),
        "GET" if has("uploads") => {
            let prefix = request.query("prefix").unwrap_or_default();
            // Directory buckets list by whole folders only.
            match setup.is_express() && !prefix.is_empty() && !prefix.ends_with('/') {
                true => Response::error(400, "InvalidRequest"),
                false => multipart::list(store, request),
            }
        }
        "GET" if setup.is_express() && (has("versioning") || has("object-lock")) => {
            Response::error(501, "NotImplemented")
        }
        "GET"
            if setup.hides_settings
                && (has("versioning") || has("object-lock") || has("lifecycle")) =>
        {
            Response::error(403, "AccessDenied")
        }
        "GET" if has("versioning") => versioning(setup.versioned),
        "GET" if has("object-lock") => object_lock(setup.object_lock),
        "GET" if has("lifecycle") => match &setup.lifecycle {
            Some(rules) => Response::new(200, rules.as_str()),
            None => Response::error(404, "NoSuchLifecycleConfiguration"),
        },
        "POST" if has("delete") => delete_many(store, request, body, setup),
        _ => Response::error(501, "NotImplemented"),
    }
}

fn versioning(versioned: bool) -> Response {
    let status = if versioned { "<Status>Enabled</Status>" } else { "" };
    let body = format!(
        "<VersioningConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{status}</VersioningConfiguration>"
    );
    Response::new(200, body)
}

fn object_lock(on: bool) -> Response {
    match on {
        true => Response::new(
            200,
            "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>",
        ),
        false => Response::error(404, "ObjectLockConfigurationNotFoundError"),
    }
}

/// Answers a request for an object.
pub fn object(
    store: &mut ObjectStore,
    request: &WireRequest,
    key: &str,
    body: Vec<u8>,
    setup: &Setup,
) -> Response {
    if !store.bucket_exists {
        return Response::error(404, "NoSuchBucket");
    }
    let id = request.query("uploadId");
    match (request.method.as_str(), id) {
        ("GET" | "HEAD", None) => get(store, request, key),
        ("PUT", None) => put(store, request, key, body, setup),
        ("DELETE", None) if key.contains("locked") => Response::error(403, "AccessDenied"),
        ("DELETE", None) => {
            store.objects.remove(key);
            Response::new(204, "")
        }
        ("POST", None) if request.query("uploads").is_some() => {
            multipart::create(store, request, key)
        }
        ("PUT", Some(id)) => multipart::part(store, request, &id, body),
        ("POST", Some(id)) => multipart::complete(store, request, &id, &body, setup.is_express()),
        ("DELETE", Some(id)) => multipart::abort(store, &id),
        _ => Response::error(501, "NotImplemented"),
    }
}

fn get(store: &ObjectStore, request: &WireRequest, key: &str) -> Response {
    let Some(object) = store.objects.get(key) else { return Response::error(404, "NoSuchKey") };
    if request.header("if-match").is_some_and(|etag| etag != object.etag) {
        return Response::error(412, "PreconditionFailed");
    }
    let describe = |mut response: Response| {
        let sums = request.header("x-amz-checksum-mode").is_some();
        for (name, value) in
            object.headers.iter().filter(|(name, _)| sums || !name.starts_with("x-amz-checksum"))
        {
            response = response.with(name, value.as_str());
        }
        response
            .with("etag", object.etag.as_str())
            .with("last-modified", calendar::http(object.modified))
    };
    let Some(range) = request.header("range") else {
        return describe(Response::new(200, object.bytes.to_vec()));
    };
    let total = object.bytes.len();
    let ends = range.strip_prefix("bytes=").and_then(|range| range.split_once('-'));
    let Some((Ok(first), last)) = ends.map(|(first, last)| (first.parse::<usize>(), last)) else {
        return Response::error(501, "NotImplemented");
    };
    if first >= total {
        return Response::error(416, "InvalidRange");
    }
    let last = last.parse::<usize>().unwrap_or(usize::MAX).min(total - 1);
    let response = Response::new(206, object.bytes[first..=last].to_vec());
    describe(response.with("content-range", format!("bytes {first}-{last}/{total}")))
}

fn put(
    store: &mut ObjectStore,
    request: &WireRequest,
    key: &str,
    body: Vec<u8>,
    setup: &Setup,
) -> Response {
    if sum_is_wrong(request, &body) {
        return Response::error(400, "BadDigest");
    }
    if !setup.overwrites
        && request.header("if-none-match").is_some()
        && store.objects.contains_key(key)
    {
        return Response::error(412, "PreconditionFailed");
    }
    let object: StoredObject = store.stored(body, kept_headers(request));
    let etag = object.etag.clone();
    store.objects.insert(key.to_owned(), object);
    Response::new(200, "").with("etag", etag)
}

fn delete_many(
    store: &mut ObjectStore,
    request: &WireRequest,
    body: &[u8],
    setup: &Setup,
) -> Response {
    if setup.deletes_singly {
        return Response::error(501, "NotImplemented");
    }
    let md5 = request.header("content-md5").is_some();
    let has_sum =
        md5 || request.headers.iter().any(|(name, _)| name.starts_with("x-amz-checksum-"));
    if !has_sum || (md5 && setup.is_express()) || sum_is_wrong(request, body) {
        return Response::error(400, "InvalidRequest");
    }
    let mut answer = String::from(
        "<?xml version=\"1.0\"?><DeleteResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">",
    );
    for key in xml::texts(body, "Key") {
        if key.contains("locked") {
            let key = if setup.spells_refusals { key.replace('/', "%2F") } else { key };
            answer.push_str(&format!(
                "<Error><Key>{}</Key><Code>AccessDenied</Code></Error>",
                xml::escape(&key)
            ));
        } else {
            store.objects.remove(&key);
        }
    }
    answer.push_str("</DeleteResult>");
    Response::new(200, answer)
}

fn list(store: &ObjectStore, request: &WireRequest, setup: &Setup) -> Response {
    let of = |name: &str| request.query(name).unwrap_or_default();
    let prefix = of("prefix");
    let delimiter = of("delimiter");
    if setup.is_express()
        && ((!prefix.is_empty() && !prefix.ends_with('/')) || !of("start-after").is_empty())
    {
        return Response::error(400, "InvalidRequest");
    }
    let max: usize = of("max-keys").parse().unwrap_or(1000).min(1000);
    let after = Some(of("continuation-token"))
        .filter(|token| !token.is_empty())
        .map(|token| token.replacen("t+/=", "", 1));
    let after = after.unwrap_or_else(|| of("start-after"));
    let mut body = String::new();
    let mut folded = Vec::new();
    let mut count = 0;
    let mut last = None;
    let mut keys =
        store.objects.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after);
    for (key, object) in keys.by_ref().take(max) {
        last = Some(key.clone());
        let rest = &key[prefix.len()..];
        if let Some((head, _)) =
            rest.split_once(delimiter.as_str()).filter(|_| !delimiter.is_empty())
        {
            folded.push(format!("{prefix}{head}{delimiter}"));
            continue;
        }
        count += 1;
        let entry = format!(
            "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size></Contents>",
            xml::url(key),
            calendar::iso(object.modified),
            xml::escape(&object.etag),
            object.bytes.len()
        );
        // S3 Express lists in no order.
        if setup.is_express() { body.insert_str(0, &entry) } else { body.push_str(&entry) }
    }
    let more = keys.next().is_some();
    folded.dedup();
    folded.iter().for_each(|prefix| {
        body.push_str(&format!(
            "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>",
            xml::url(prefix)
        ))
    });
    if let Some(last) = last.filter(|_| more) {
        body.push_str(&format!(
            "<NextContinuationToken>t+/={}</NextContinuationToken>",
            xml::escape(&last)
        ));
    }
    let head = format!(
        "<EncodingType>url</EncodingType><KeyCount>{count}</KeyCount><IsTruncated>{more}</IsTruncated>"
    );
    Response::new(
        200,
        format!(
            "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{head}{body}</ListBucketResult>"
        ),
    )
}

use std::net::IpAddr;

use super::known_hosts::parse_host;
use super::{BucketAddress, Endpoint, Provider, Style, invalid};
use crate::error::Result;

/// A url in its parts: whether TLS was named, host, port and the first segment of the path.
struct Url<'a> {
    tls: Option<bool>,
    host: &'a str,
    port: Option<u16>,
    bucket: Option<&'a str>,
}

pub fn resolve(place: &BucketAddress) -> Result<Endpoint> {
    let text = place.url.as_deref().unwrap_or_default().trim();
    // Before any message that quotes a part of either.
    refuse_at_sign(text, place.bucket.as_deref().unwrap_or_default())?;
    // From the endpoint or the settings; both only if they agree.
    let bucket = |name: Option<String>| match (name, &place.bucket) {
        (Some(found), Some(given)) if found != *given => Err(invalid(format!(
            "the endpoint names bucket {found}, the settings name {given}: drop one"
        ))),
        (found, given) => match found.or_else(|| given.clone()).filter(|name| !name.is_empty()) {
            Some(name) => named(name),
            None => {
                Err(invalid("no bucket: name it in the endpoint (s3://bucket) or in the settings"))
            }
        },
    };
    if let Some(rest) = text.strip_prefix("s3://") {
        let rest = rest.trim_end_matches('/');
        // `s3://bucket` and `s3://host/bucket` look alike: a bucket's name may have dots, and then
        // only the settings decide.
        let plain = !rest.contains(['.', ':', '/']) || place.bucket.as_deref() == Some(rest);
        if plain {
            return home(place, bucket(Some(rest.to_owned()))?);
        }
        let url = split(rest, None)?;
        return away(place, &url, bucket);
    }
    if text.is_empty() {
        return home(place, bucket(None)?);
    }
    let (tls, rest) = match text.split_once("://") {
        Some(("http", rest)) => (Some(false), rest),
        Some(("https", rest)) => (Some(true), rest),
        Some((scheme, _)) => {
            return Err(invalid(format!(
                "an endpoint cannot begin with {scheme}://: use https, http or s3"
            )));
        }
        None => (None, text),
    };
    away(place, &split(rest, tls)?, bucket)
}

/// Neither hosts nor buckets have an `@`, but credentials in a URL end with one. Nothing is quoted,
/// wherever it stands: a password may hold a `/`.
fn refuse_at_sign(url: &str, bucket: &str) -> Result<()> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split('/').next().unwrap_or_default();
    let what = if scheme.contains('@') || authority.contains('@') {
        "the endpoint has credentials in it (an `@`): write https://host[:port][/bucket], and set the credentials apart"
    } else if rest.contains('@') {
        "the endpoint has an `@` behind its host, where only a bucket may stand: set a prefix and credentials apart"
    } else if bucket.contains('@') {
        "the bucket has an `@`, which no bucket's name has: set a prefix and credentials apart"
    } else {
        return Ok(());
    };
    Err(invalid(what))
}

fn split(rest: &str, tls: Option<bool>) -> Result<Url<'_>> {
    let odd = |what: &str| {
        invalid(format!("the endpoint has {what}: write https://host[:port][/bucket]"))
    };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if rest.contains(['?', '#', ' ']) {
        return Err(odd("a query, a fragment or a blank"));
    }
    // An IPv6 address is in brackets, since its colons look like that of a port.
    let (host, port) = match authority.strip_prefix('[') {
        Some(v6) => {
            let (host, port) = v6.split_once(']').ok_or_else(|| odd("no closing bracket"))?;
            (
                host,
                port.strip_prefix(':')
                    .or(port.is_empty().then_some(""))
                    .ok_or_else(|| odd("no port after `]`"))?,
            )
        }
        None => authority
            .rsplit_once(':')
            .filter(|(host, _)| !host.contains(':'))
            .unwrap_or((authority, "")),
    };
    let port = match port {
        "" => None,
        digits => Some(
            digits
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(|| odd("a port that is no number"))?,
        ),
    };
    let path = path.trim_end_matches('/');
    if path.contains('/') {
        return Err(odd("more than a bucket in its path"));
    }
    let sane = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if host.is_empty() || !(host.parse::<IpAddr>().is_ok() || host.bytes().all(sane)) {
        return Err(odd("no valid host"));
    }
    Ok(Url { tls, host, port, bucket: (!path.is_empty()).then_some(path) })
}

/// AWS by region alone.
fn home(place: &BucketAddress, bucket: String) -> Result<Endpoint> {
    let zone = zone(&bucket).map(str::to_owned);
    let guess = if zone.is_some() { Provider::Express } else { Provider::Aws };
    let provider = place.provider.unwrap_or(guess);
    let region = place.region.clone().or_else(|| provider.region().map(str::to_owned));
    let region = region.filter(|region| !region.is_empty());
    let region =
        region.ok_or_else(|| invalid("no region: set it (AWS_REGION), or name an endpoint"))?;
    let host = match (provider, zone) {
        (Provider::Express, Some(zone)) => format!("s3express-{zone}.{region}.amazonaws.com"),
        (Provider::Express, None) => {
            return Err(invalid(format!("{bucket} is no directory bucket (name--zone--x-s3)")));
        }
        (Provider::Aws, _) => format!("s3.{region}.amazonaws.com"),
        (Provider::Coreweave, _) => "cwobject.com".into(),
        (Provider::Gcs, _) => "storage.googleapis.com".into(),
        (other, _) => {
            return Err(invalid(format!(
                "provider {} needs an endpoint: set its url",
                other.name()
            )));
        }
    };
    let tls = place.tls.unwrap_or(true);
    let style = place.style.unwrap_or(usual_style(&bucket, tls, provider.style()));
    Ok(Endpoint { tls, host, port: None, bucket, region, style, provider })
}

/// Somewhere that a host names.
fn away(
    place: &BucketAddress,
    url: &Url<'_>,
    bucket: impl Fn(Option<String>) -> Result<String>,
) -> Result<Endpoint> {
    let known = parse_host(url.host);
    if known.is_none() && url.host.contains(".vpce.amazonaws.com") {
        return Err(invalid(
            "for buckets an endpoint of PrivateLink is https://bucket.vpce-ID.s3.REGION.vpce.amazonaws.com: the word `bucket` first",
        ));
    }
    let mut in_host = known.as_ref().and_then(|host| host.bucket.clone());
    let mut host = known.as_ref().map_or_else(|| url.host.to_owned(), |host| host.host.clone());
    let is_address = url.host.parse::<IpAddr>().is_ok();
    let s3_form = place.url.as_deref().is_some_and(|text| text.trim().starts_with("s3://"));
    if known.is_none() && !is_address {
        let given = place.bucket.as_deref().and_then(|bucket| {
            Some((bucket, url.host.strip_prefix(bucket)?.strip_prefix('.')?))
                .filter(|(bucket, _)| !bucket.is_empty())
        });
        let first = || {
            url.host
                .split_once('.')
                .filter(|_| s3_form && url.bucket.is_none() && place.bucket.is_none())
        };
        if let Some((bucket, rest)) = given.or_else(first) {
            (in_host, host) = (Some(bucket.to_owned()), rest.to_owned());
        }
    }
    let in_path = url.bucket.map(str::to_owned);
    if in_host.is_some() && in_path.is_some() {
        return Err(invalid("the endpoint names a bucket in its host and in its path: drop one"));
    }
    let style = match (&in_host, &in_path) {
        (Some(_), _) => Some(Style::Virtual),
        (_, Some(_)) => Some(Style::Path),
        _ => None,
    };
    let bucket = bucket(in_host.or(in_path))?;
    let guess = known.as_ref().map_or(Provider::Other, |host| host.provider);
    let guess = if zone(&bucket).is_some() { Provider::Express } else { guess };
    let provider = place.provider.unwrap_or(guess);
    let local = is_address || url.host == "localhost";
    let usual = if local { Style::Path } else { provider.style() };
    let usual = style.or(known.as_ref().and_then(|host| host.style)).unwrap_or(usual);
    // Inside CoreWeave's clusters the cache on the node speaks plain HTTP only.
    let plain = host == "cwlota.com";
    let tls = url.tls.or(place.tls).unwrap_or(!plain);
    let style = place.style.unwrap_or(usual_style(&bucket, tls, usual));
    if style == Style::Virtual && is_address {
        return Err(invalid("a bucket cannot stand before an IP address: use path style"));
    }
    let region =
        known.and_then(|host| host.region).or_else(|| provider.region().map(str::to_owned));
    let region = place.region.clone().filter(|region| !region.is_empty()).or(region);
    let region = region
        .ok_or_else(|| invalid("no region: the endpoint does not name one; set it (AWS_REGION)"))?;
    Ok(Endpoint { tls, host, port: url.port, bucket, region, style, provider })
}

/// A certificate's wildcard covers one label: over TLS a name with dots goes into the path,
/// wherever it would go otherwise.
fn usual_style(bucket: &str, tls: bool, usual: Style) -> Style {
    if tls && bucket.contains('.') { Style::Path } else { usual }
}

/// The zone of a directory bucket.
pub fn zone(bucket: &str) -> Option<&str> {
    let (_, zone) = bucket.strip_suffix("--x-s3")?.rsplit_once("--")?;
    (!zone.is_empty()).then_some(zone)
}

fn named(bucket: String) -> Result<String> {
    let sane = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    match bucket.len() <= 255 && bucket.bytes().all(sane) && !bucket.starts_with('.') {
        true => Ok(bucket),
        false => Err(invalid(format!(
            "{bucket:?} is no name of a bucket: letters, digits, dots and dashes only"
        ))),
    }
}

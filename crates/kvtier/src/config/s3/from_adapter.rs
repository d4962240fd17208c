//! Reads the specification of an S3 tier from its object.

use std::path::PathBuf;
use std::time::Duration;

use kvtier_core::{Error, ErrorKind};
use kvtier_evict::PolicyKind;
use kvtier_index::Quotas;
use kvtier_s3::{Checksum, Credentials, Http2, Provider, Style};
use kvtier_s3_tier::{Compat, Evictor, Layout, TierConfig, Verify};

use super::spec::{BATCH_MAX, HIGH_MARK, S3Spec};
use crate::config::encoding::EncodingSpec;
use crate::config::lmcache::{Adapter, AdapterFields, Dialect};
use crate::config::native::stack_settings::size;
use crate::config::value::Value;

/// The spec that an object says.
pub(super) fn of(adapter: &Adapter) -> Result<S3Spec, Error> {
    let (fields, place) = adapter.parts();
    let text = |name: &str| fields.text(name).map(str::to_owned);
    let mut spec = S3Spec::new("");
    (spec.endpoint, spec.bucket, spec.region) =
        (text("s3_endpoint"), text("bucket"), text("s3_region"));
    spec.provider = word(adapter, "profile", Provider::named)?;
    if fields.is_on("s3_enable_s3express") {
        spec.provider = Some(express(spec.provider, place)?);
    }
    spec.style = fields
        .given("path_style")
        .map(|_| if fields.is_on("path_style") { Style::Path } else { Style::Virtual });
    spec.tls = !fields.is_on("disable_tls");
    spec.http2 = http2(adapter)?;
    let keys = fields.text("aws_access_key_id").zip(fields.text("aws_secret_access_key"));
    spec.credentials = keys.map(|(key, secret)| Credentials::new(key, secret));
    spec.instance_metadata =
        fields.given("instance_metadata").map(|_| fields.is_on("instance_metadata"));
    spec.ca_bundle = text("ca_bundle").map(PathBuf::from);
    spec.checksum = word(adapter, "checksum", checksum)?;
    spec.requests_max = requests_max(fields);
    spec.deadline = Duration::from_secs(fields.int("deadline_secs").cast_unsigned());
    spec.capacity_bytes = Some(crate::byte_size::from_gib(fields.number("max_capacity_gb")))
        .filter(|bytes| *bytes > 0);
    if let Some(eviction) = adapter.eviction_fields() {
        let marks = (eviction.number("trigger_watermark"), eviction.number("eviction_ratio"));
        // A mark of nothing would keep nothing; LMCache's batches are bounds here, and larger ones
        // than ours only cost hits.
        spec.high_mark = if marks.0 > 0.0 { marks.0.min(1.0) } else { HIGH_MARK };
        spec.batch_max = if marks.1 > 0.0 { marks.1.min(BATCH_MAX) } else { BATCH_MAX };
        let share = |n: f64| n.clamp(0.0, 1.0);
        let compat = Compat { watermark: share(marks.0), ratio: share(marks.1) };
        spec.compat = eviction.is_on("compat").then_some(compat);
        spec.capacity_bytes =
            spec.capacity_bytes.filter(|_| eviction.text("eviction_policy") != Some("noop"));
    }
    spec.policy = policy(adapter)?;
    spec.quotas = quotas(fields.value("quotas"), place)?.with_fair(fields.is_on("fair"));
    spec.prefix = text("prefix").or_else(|| text("s3_file_prefix")).unwrap_or_default();
    let own = if adapter.dialect() == Dialect::Native { Layout::Kvtier } else { Layout::LmcacheMp };
    spec.layout = word(adapter, "layout", |name| name.parse().ok())?.unwrap_or(own);
    spec.verify = word(adapter, "verify", verify)?.unwrap_or_default();
    spec.evictor = word(adapter, "evictor", Evictor::named)?.unwrap_or_default();
    spec.storage_class = text("storage_class");
    if let Some(class) =
        spec.storage_class.as_deref().filter(|class| !TierConfig::is_readable_class(class))
    {
        let what = format!(
            "{place}: storage_class = {class:?}: it is no word, or a class whose objects cannot be read at once (GLACIER, DEEP_ARCHIVE); \
             choose another, such as INTELLIGENT_TIERING"
        );
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    spec.chunk_bytes = fields.value("chunk_bytes").as_int().map(i64::cast_unsigned);
    spec.encoding = EncodingSpec::read(
        fields.value("encode"),
        fields.value("decode_keys"),
        fields.value("encode_bytes"),
    )
    .map_err(|what| Error::new(ErrorKind::Invalid, format!("{place}: {what}")))?;
    spec.name = text("name").unwrap_or(spec.name);
    let named = if fields.text("s3_endpoint").is_some() { "s3_endpoint" } else { "bucket" };
    spec.place = format!("{place}: {named}");
    Ok(spec)
}

/// `http2`, else LMCache's `s3_prefer_http2`. LMCache's default is true and has no effect there:
/// its client speaks HTTP/1.1.
fn http2(adapter: &Adapter) -> Result<Http2, Error> {
    let (fields, _) = adapter.parts();
    let preferred = fields.given("s3_prefer_http2").is_some() && fields.is_on("s3_prefer_http2");
    let otherwise = if preferred { Http2::Auto } else { Http2::Off };
    Ok(word(adapter, "http2", Http2::named)?.unwrap_or(otherwise))
}

/// In our words, or in LMCache's.
fn policy(adapter: &Adapter) -> Result<PolicyKind, Error> {
    let (fields, place) = adapter.parts();
    if fields.given("policy").is_some() && adapter.eviction_fields().is_some() {
        let what = format!("{place}: policy and eviction.eviction_policy say the same; keep one");
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    let named = word(adapter, "policy", |name| name.parse().ok())?;
    Ok(adapter.policy().or(named).unwrap_or_default())
}

/// A mapping of tenants to sizes; `*` is every other.
fn quotas(value: &Value, place: &str) -> Result<Quotas, Error> {
    let mut quotas = Quotas::new();
    for (tenant, _) in value.as_map().unwrap_or_default() {
        let Some(bytes) = size(value, tenant, &format!("{place}: quotas"))? else { continue };
        quotas = if tenant == "*" { quotas.with_others(bytes) } else { quotas.with(tenant, bytes) };
    }
    Ok(quotas)
}

fn express(said: Option<Provider>, place: &str) -> Result<Provider, Error> {
    match said {
        None | Some(Provider::Express) => Ok(Provider::Express),
        Some(other) => {
            let what = format!(
                "{place}: s3_enable_s3express and profile {:?} contradict each other; keep one",
                other.name()
            );
            Err(Error::new(ErrorKind::Invalid, what))
        }
    }
}

/// The least of what is written; the first has a default.
pub(crate) fn requests_max(fields: &AdapterFields) -> usize {
    let given = ["s3_num_io_threads", "s3_max_io_concurrency", "s3_max_inflight_reqs"]
        .map(|name| fields.given(name)?.as_int());
    let least = given.into_iter().flatten().min().unwrap_or(64);
    usize::try_from(least).unwrap_or(64)
}

fn word<T>(
    adapter: &Adapter,
    name: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, Error> {
    let (fields, place) = adapter.parts();
    let Some(word) = fields.text(name) else { return Ok(None) };
    let wrong = || {
        let key = fields
            .all
            .iter()
            .find(|field| field.definition.name == name)
            .map_or("", |field| field.definition.what);
        Error::new(
            ErrorKind::Invalid,
            format!("{place}: {name} {word:?} is none of its words; {key}"),
        )
    };
    read(word).map(Some).ok_or_else(wrong)
}

/// The checksum of that name.
pub(crate) fn checksum(name: &str) -> Option<Checksum> {
    match name {
        "none" => Some(Checksum::None),
        "crc32c" => Some(Checksum::Crc32c),
        "crc64nvme" => Some(Checksum::Crc64Nvme),
        "sha256" => Some(Checksum::Sha256),
        _ => None,
    }
}

fn verify(name: &str) -> Option<Verify> {
    match name {
        "lenient" => Some(Verify::Lenient),
        "strict" => Some(Verify::Strict),
        _ => None,
    }
}

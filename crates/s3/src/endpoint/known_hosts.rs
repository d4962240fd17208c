//! The hosts of the providers that are recognised, and what such a host names: provider, bucket,
//! region. What a provider needs by default is in `provider_defaults.rs`.

use super::aws::AwsHost;
use super::{Provider, Style};

/// A host without the bucket, and its provider.
pub struct ParsedHost {
    pub provider: Provider,
    pub host: String,
    pub bucket: Option<String>,
    pub region: Option<String>,
    /// Where the bucket goes, if not where the provider usually has it: certificates of endpoints
    /// in private networks name no buckets.
    pub style: Option<Style>,
}

/// What the host alone determines.
pub fn parse_host(host: &str) -> Option<ParsedHost> {
    let before = |suffix: &str| match host.strip_suffix(suffix) {
        Some("") => Some(None),
        Some(rest) => rest.strip_suffix('.').map(|bucket| Some(bucket.to_owned())),
        None => None,
    };
    for (suffix, provider) in [
        ("cwobject.com", Provider::Coreweave),
        ("cwlota.com", Provider::Coreweave),
        ("storage.googleapis.com", Provider::Gcs),
    ] {
        if let Some(bucket) = before(suffix) {
            return Some(ParsedHost {
                provider,
                host: suffix.to_owned(),
                bucket,
                region: None,
                style: None,
            });
        }
    }
    if let Some(labels) = host.strip_suffix(".r2.cloudflarestorage.com") {
        let (bucket, account) = labels
            .split_once('.')
            .filter(|(_, rest)| !matches!(*rest, "eu" | "fedramp"))
            .map_or((None, labels), |(b, a)| (Some(b), a));
        let host = format!("{account}.r2.cloudflarestorage.com");
        return Some(ParsedHost {
            provider: Provider::R2,
            host,
            bucket: bucket.map(str::to_owned),
            region: None,
            style: None,
        });
    }
    let aws = AwsHost::parse(host)?;
    let provider = if aws.is_express() { Provider::Express } else { Provider::Aws };
    let style = aws.is_private_link().then_some(Style::Path);
    Some(ParsedHost { provider, host: aws.host, bucket: aws.bucket, region: aws.region, style })
}

/// The host where directory buckets are made, if those at `host` are AWS's.
pub fn control_host(host: &str, region: &str) -> Option<String> {
    AwsHost::parse(host).filter(AwsHost::is_express)?;
    Some(format!("s3express-control.{region}.amazonaws.com"))
}

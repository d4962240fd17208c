//! The form of the guide for porting to LMCache's S3 storage: `storage_backend` and `local_device`.
//! LMCache 0.5.6 ignores both, so they are read as the settings that mean the same today.

use crate::config::suggest;
use crate::config::value::Value;

/// The settings of `storage_backend.connector`.
const CONNECTOR: [&str; 4] = ["type", "bucket", "prefix", "region"];

/// A file's settings with those of the guide's form under today's names.
#[derive(Debug, Default)]
pub(super) struct Ported {
    /// All settings of the file.
    pub pairs: Vec<(String, Value)>,
    /// What was read as what: the setting's name as it was written, and a text.
    pub notes: Vec<(&'static str, String)>,
    /// Whether `remote_url` comes from `storage_backend`.
    pub has_bucket: bool,
}

/// The bucket of a `storage_backend`.
struct ConnectorFields {
    name: String,
    prefix: Option<String>,
    region: Option<String>,
}

/// Renames the settings of the guide's form. `region` is the environment's, for a bucket without
/// one.
///
/// # Errors
/// A text that names the setting which has no tier, is missing, or contradicts another.
pub(super) fn read(pairs: Vec<(String, Value)>, region: Option<&str>) -> Result<Ported, String> {
    let mut ported = Ported::default();
    let mut backend = None;
    let mut device = None;
    for (name, value) in pairs {
        match name.as_str() {
            "storage_backend" if !value.is_null() => backend = Some(value),
            "local_device" if !value.is_null() => device = Some(value),
            // Written as null: as if absent.
            "storage_backend" | "local_device" => {}
            _ => ported.pairs.push((name, value)),
        }
    }
    // After all pairs were seen: whether today's name is written too must not depend on the order
    // of the file.
    if let Some(value) = device {
        ported.local_device(&value)?;
    }
    if let Some(value) = backend {
        let bucket = bucket(&value)?;
        ported.bucket(bucket, region)?;
    }
    Ok(ported)
}

impl Ported {
    fn has(&self, name: &str) -> bool {
        self.pairs.iter().any(|(other, value)| other == name && !value.is_null())
    }

    fn local_device(&mut self, value: &Value) -> Result<(), String> {
        let word = value.as_text().unwrap_or_default();
        let today = match word {
            "cpu" => ("local_cpu", Value::Bool(true)),
            path if path.starts_with("file://") => ("local_disk", value.clone()),
            _ => {
                let takes = "it takes cpu, or file:// and a directory; no tier is GPU memory";
                return Err(format!(
                    "local_device = {value}: {takes}; write one of these, or local_cpu or local_disk"
                ));
            }
        };
        if self.has(today.0) {
            return Err(format!(
                "local_device and {} are the same setting; keep {}",
                today.0, today.0
            ));
        }
        self.notes
            .push(("local_device", format!("a setting of earlier versions, read as {}", today.0)));
        self.pairs.push((today.0.into(), today.1));
        Ok(())
    }

    fn bucket(&mut self, bucket: ConnectorFields, region: Option<&str>) -> Result<(), String> {
        // Which of the two is meant cannot be known.
        if self.has("remote_url") {
            return Err("storage_backend and remote_url name two remote stores; keep one".into());
        }
        // Without a region here, that of the environment counts, which the AWS SDKs use too.
        let region = bucket.region.or_else(|| region.map(str::to_owned));
        let region = region.ok_or(
            "storage_backend.connector.region is missing; write it, or set AWS_DEFAULT_REGION",
        )?;
        let mut extra = self.take_extra()?;
        let today = [("s3_region", Some(region)), ("s3_file_prefix", bucket.prefix)];
        for (name, value) in today.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            let there = extra.iter().find(|(other, _)| other == name).map(|(_, there)| there);
            match there {
                // The same value twice is harmless; two different ones are not.
                Some(there) if there.as_text() != Some(value.as_str()) => {
                    return Err(format!(
                        "storage_backend.connector and extra_config.{name} differ; keep one"
                    ));
                }
                Some(_) => {}
                None => extra.push((name.to_owned(), Value::Text(value))),
            }
        }
        self.pairs.push(("remote_url".into(), Value::Text(format!("s3://{}", bucket.name))));
        self.pairs.push(("extra_config".into(), Value::Map(extra)));
        let today = "remote_url, extra_config.s3_region and extra_config.s3_file_prefix";
        self.notes
            .push(("storage_backend", format!("a form of earlier versions, read as {today}")));
        self.has_bucket = true;
        Ok(())
    }

    /// Takes `extra_config` out of the pairs.
    fn take_extra(&mut self) -> Result<Vec<(String, Value)>, String> {
        let Some(at) = self.pairs.iter().position(|(name, _)| name == "extra_config") else {
            return Ok(Vec::new());
        };
        match self.pairs.remove(at).1 {
            Value::Null => Ok(Vec::new()),
            Value::Map(map) => Ok(map),
            other => Err(format!(
                "extra_config = {}: write a mapping beside storage_backend",
                other.type_name()
            )),
        }
    }
}

/// Reads `{type: remote, connector: {type: s3, bucket, prefix, region}}`.
fn bucket(backend: &Value) -> Result<ConnectorFields, String> {
    let form = "write {type: remote, connector: {type: s3, bucket: NAME, prefix: TEXT, region: NAME}}, or remote_url";
    let map = backend.as_map().ok_or_else(|| format!("storage_backend = {backend}: {form}"))?;
    if let Some((other, _)) =
        // Unknown settings are errors in this form. LMCache ignores all of it, so nothing else
        // would report a misspelling.
        map.iter().find(|(name, _)| !matches!(name.as_str(), "type" | "connector"))
    {
        return Err(format!("storage_backend.{other}: no setting is called that; {form}"));
    }
    let kind = backend.field("type").unwrap_or(&Value::Null);
    if kind.as_text() != Some("remote") {
        return Err(format!("storage_backend.type = {kind}: only `remote` has a tier; {form}"));
    }
    let connector = backend.field("connector").unwrap_or(&Value::Null);
    let settings = connector
        .as_map()
        .ok_or_else(|| format!("storage_backend.connector = {connector}: {form}"))?;
    if let Some((other, _)) = settings.iter().find(|(name, _)| !CONNECTOR.contains(&name.as_str()))
    {
        let hint = suggest::hint(other, CONNECTOR);
        return Err(format!(
            "storage_backend.connector.{other}: no setting is called that{hint}; {form}"
        ));
    }
    let kind = connector.field("type").unwrap_or(&Value::Null);
    if kind.as_text() != Some("s3") {
        return Err(format!(
            "storage_backend.connector.type = {kind}: only `s3` has a tier; {form}"
        ));
    }
    let text = |name: &str| match connector.field(name).unwrap_or(&Value::Null) {
        Value::Null => Ok(None),
        Value::Text(text) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        other => Err(format!("storage_backend.connector.{name} takes a text, not {other}")),
    };
    let name = text("bucket")?
        .ok_or_else(|| format!("storage_backend.connector.bucket is missing; {form}"))?;
    Ok(ConnectorFields { name, prefix: text("prefix")?, region: text("region")? })
}

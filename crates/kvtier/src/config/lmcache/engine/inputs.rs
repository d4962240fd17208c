use std::path::Path;

use kvtier_core::{Error, ErrorKind};

use crate::config::value::Value;

/// Variables that name the region of a bucket whose configuration names none.
const REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];

/// Where LMCache's settings come from: a file, over it the environment, over that overrides.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Inputs {
    pub(in crate::config) file: Option<(String, String)>,
    pub(super) variables: Vec<(String, String)>,
    pub(super) overrides: Vec<(String, Value)>,
    pub(super) lenient: bool,
}

impl Inputs {
    /// Nothing yet: all defaults.
    pub fn new() -> Self {
        Inputs::default()
    }

    /// What LMCache itself would find: the file at `path`, or else at `LMCACHE_CONFIG_FILE`, if
    /// there is one, and the `LMCACHE_*` variables of this process.
    pub fn found(path: Option<&Path>) -> Result<Self, Error> {
        // The path that the caller names outranks the variable, which LMCache reads.
        let named = std::env::var_os("LMCACHE_CONFIG_FILE").filter(|name| !name.is_empty());
        let path = path.map(Path::to_path_buf).or_else(|| named.map(Into::into));
        let inputs = Inputs::from_environment();
        let Some(path) = path else { return Ok(inputs) };
        let text = std::fs::read_to_string(&path).map_err(|e| {
            let what = format!("cannot read the configuration {}", path.display());
            Error::new(ErrorKind::Invalid, what)
                .with_cause(e, "check the path, or LMCACHE_CONFIG_FILE")
        })?;
        Ok(inputs.with_file(path.display().to_string(), text))
    }

    /// The variables of this process alone.
    pub fn from_environment() -> Self {
        let all = std::env::vars_os().filter_map(|(name, value)| {
            // A variable that is not UTF-8 cannot be a setting. It must not stop the start.
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let mut inputs = Inputs::new();
        inputs.variables = all
            .filter(|(name, _)| name.starts_with("LMCACHE_") || REGIONS.contains(&name.as_str()))
            .collect();
        inputs
    }

    /// With a YAML file: what to call it in messages, and its text.
    pub fn with_file(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.file = Some((name.into(), text.into()));
        self
    }

    /// With an environment variable. Only those that begin with `LMCACHE_` count, and `AWS_REGION`
    /// and `AWS_DEFAULT_REGION` for a bucket without a region.
    pub fn with_variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// With a setting that outranks file and environment.
    pub fn with_override(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.overrides.push((name.into(), value.into()));
        self
    }

    /// The region that the environment names.
    pub(super) fn region(&self) -> Option<&str> {
        let named = |name: &str| self.variables.iter().rev().find(|(other, _)| other == name);
        let value =
            // As the AWS SDKs do: `AWS_REGION` first, and an empty variable counts as absent.
            REGIONS.iter().find_map(|name| named(name).filter(|(_, value)| !value.is_empty()));
        value.map(|(_, value)| value.as_str())
    }

    /// With settings that outrank file and environment, each a member of a JSON object.
    pub fn with_overrides(mut self, json: &str) -> Result<Self, Error> {
        let wrong = |e: String| {
            Error::new(ErrorKind::Invalid, format!("the overrides are no JSON object: {e}"))
        };
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(json).map_err(|e| wrong(e.to_string()))?;
        self.overrides.extend(object.into_iter().map(|(name, value)| (name, Value::from(value))));
        Ok(self)
    }

    /// Whether bad values are taken as LMCache takes them: as not set, with a warning. Otherwise
    /// they are errors.
    pub fn with_lenient(mut self, lenient: bool) -> Self {
        self.lenient = lenient;
        self
    }
}

/// The names of what there is; contents may be secret.
impl std::fmt::Debug for Inputs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Names only: values may be credentials.
        let names: Vec<_> = self.variables.iter().map(|(name, _)| name).collect();
        let file = self.file.as_ref().map(|(name, _)| name);
        f.debug_struct("Inputs")
            .field("file", &file)
            .field("variables", &names)
            .finish_non_exhaustive()
    }
}

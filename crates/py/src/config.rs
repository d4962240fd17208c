//! From a constructor's keywords to tiers.

use std::sync::Arc;
use std::time::Duration;

use kvtier::config::lmcache::{Inputs, LmcacheConfig};
use kvtier::config::{Adapter, Config, Value};
use kvtier::core::Error;
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::end::whole;
use crate::store::{Settings, Spelling, Store};

/// What names the tiers.
pub enum Source {
    /// A list of specs, as JSON.
    Tiers(String),
    /// A file.
    File(String),
    /// The parameters of an adapter of LMCache's, as JSON.
    Adapter(String),
    /// Settings of LMCache's in-process mode, as JSON.
    Engine(String),
}

impl Source {
    /// Just one of: `tiers`, a list of specs as the configuration file has them; `config`, such a file's path; `adapter`, what LMCache's
    /// `--l2-adapter` takes; `engine`, settings of LMCache's in-process mode.
    pub fn of(source: &Bound<'_, PyDict>) -> PyResult<Self> {
        let given: Vec<(String, Bound<'_, PyAny>)> = source.items().extract()?;
        let given: Vec<_> = given.into_iter().filter(|(_, value)| !value.is_none()).collect();
        match given.as_slice() {
            [(name, tiers)] if name == "tiers" => {
                let all = PyDict::new(tiers.py());
                all.set_item("tiers", tiers)?;
                Ok(Source::Tiers(json(&all)?))
            }
            [(name, path)] if name == "config" => Ok(Source::File(path.extract()?)),
            [(name, adapter)] if name == "adapter" => Ok(Source::Adapter(json(adapter)?)),
            [(name, engine)] if name == "engine" => Ok(Source::Engine(json(engine)?)),
            _ => Err(PyValueError::new_err("give either tiers=[...] or config=\"FILE\"")),
        }
    }

    fn config(&self) -> Result<Config, Error> {
        match self {
            Source::Tiers(text) => Config::from_text(text, "tiers"),
            Source::File(path) => Config::read(path.as_ref()),
            Source::Adapter(text) => Adapter::params(text, "adapter_params"),
            Source::Engine(text) => {
                let inputs = Inputs::new().with_override("local_cpu", Value::Bool(false));
                Ok(LmcacheConfig::read(&inputs.with_overrides(text)?)?.stack(0)?.config)
            }
        }
    }
}

/// Opens the tiers, for keys as the settings say.
pub fn open(py: Python<'_>, source: &Source, settings: &Settings) -> PyResult<Store> {
    if let Source::File(path) = source {
        std::fs::File::open(path).map_err(|e| PyOSError::new_err(format!("cannot read {path}: {e}")))?;
    }
    let opened = py.detach(|| {
        let config = source.config()?;
        match settings.spelling {
            Spelling::Mp => {
                config.with_namespace(&Arc::new(Store::namespace_of("", settings).with_salts_as_tenants())).open()
            }
            // Names of buckets are read right only when a key has told how its model is spelled: its namespace comes with it.
            Spelling::Engine => config.open(),
        }
    });
    opened.map(|opened| Store::new(opened, *settings)).map_err(|e| PyValueError::new_err(whole(&e)))
}

/// How a store behaves, where that is not said otherwise: as LMCache's connector wants it.
pub fn settings(keywords: Option<&Bound<'_, PyDict>>) -> PyResult<Settings> {
    let mut settings = Settings {
        timeout: Duration::from_secs(30),
        // So long LMCache keeps memory for a load at most; then it gives it to others by itself.
        home: Duration::from_secs(600),
        hold: Duration::from_secs(60),
        load_releases: true,
        spelling: Spelling::Mp,
        partial: false,
    };
    for (name, value) in keywords.into_iter().flatten() {
        match name.extract::<&str>()? {
            "timeout_seconds" => settings.timeout = seconds("timeout_seconds", value.extract()?)?,
            "home_seconds" => settings.home = seconds("home_seconds", value.extract()?)?,
            "hold_seconds" => settings.hold = seconds("hold_seconds", value.extract()?)?,
            "load_releases" => settings.load_releases = value.extract()?,
            "partial" => settings.partial = value.extract()?,
            "engine_keys" if value.extract()? => settings.spelling = Spelling::Engine,
            "engine_keys" => settings.spelling = Spelling::Mp,
            other => return Err(PyTypeError::new_err(format!("no setting is called {other}"))),
        }
    }
    Ok(settings)
}

/// A time above 0.
pub fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    let time = Duration::try_from_secs_f64(value).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| PyValueError::new_err(format!("{name} must be above 0")))
}

fn json(object: &Bound<'_, PyAny>) -> PyResult<String> {
    object.py().import("json")?.call_method1("dumps", (object,))?.extract()
}

//! Opens tiers from the keywords of a Python constructor.

use std::sync::Arc;
use std::time::Duration;

use kvtier::config::lmcache::{Inputs, LmcacheConfig};
use kvtier::config::{
    Adapter, Config, ConfigReader, LmcacheMode, OpenTiers, ShapeState, TierSpec, Value,
};
use kvtier::core::{Error, ErrorKind};
use kvtier::key::MemoryFormat;
use kvtier::metrics::MetricsServer;
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::log;
use crate::open_store::{Store, StoreSettings};
use crate::result::error_chain;
use crate::shape::ShapeSource;

/// The longest that opening waits for the check whether the buckets exist.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Where the configuration of the tiers comes from.
pub enum TierSource {
    /// A list of tier specs as JSON.
    Tiers(String),
    /// A configuration file.
    File(String),
    /// The parameters of an LMCache adapter as JSON.
    Adapter(String),
    /// Settings of LMCache's in-process mode as JSON.
    Engine(String),
}

impl TierSource {
    /// Reads exactly one of: `tiers`, a list of specs as in the configuration file; `config`, the
    /// path of such a file; `adapter`, an object for LMCache's `--l2-adapter`; `engine`, settings of
    /// LMCache's in-process mode.
    pub fn from_dict(source: &Bound<'_, PyDict>) -> PyResult<Self> {
        let given: Vec<(String, Bound<'_, PyAny>)> = source.items().extract()?;
        let given: Vec<_> = given.into_iter().filter(|(_, value)| !value.is_none()).collect();
        match given.as_slice() {
            [(name, tiers)] if name == "tiers" => {
                let all = PyDict::new(tiers.py());
                all.set_item("tiers", tiers)?;
                Ok(TierSource::Tiers(json(&all)?))
            }
            [(name, path)] if name == "config" => Ok(TierSource::File(path.extract()?)),
            [(name, adapter)] if name == "adapter" => Ok(TierSource::Adapter(json(adapter)?)),
            [(name, engine)] if name == "engine" => Ok(TierSource::Engine(json(engine)?)),
            _ => Err(PyValueError::new_err("give either tiers=[...] or config=\"FILE\"")),
        }
    }

    /// The configuration, and warnings about it.
    fn read(&self) -> Result<(Config, Vec<String>), Error> {
        let config = match self {
            TierSource::Tiers(text) => Config::from_text(text, "tiers")?,
            TierSource::File(path) => {
                let read = ConfigReader::new().file(path.as_ref())?;
                return Ok((read.config, read.notes));
            }
            TierSource::Adapter(text) => Adapter::params(text, "adapter_params")?,
            TierSource::Engine(text) => {
                let inputs = Inputs::new().with_override("local_cpu", Value::Bool(false));
                LmcacheConfig::read(&inputs.with_overrides(text)?)?.stack(0)?.config
            }
        };
        Ok((config, Vec::new()))
    }
}

/// The keywords of a constructor.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The settings of the store.
    pub store: StoreSettings,
    /// The mode that defines the keys; `None`: as the layouts of the tiers need.
    pub mode: Option<LmcacheMode>,
    /// The address of the metrics server; `None` without one.
    pub metrics: Option<String>,
    /// Whether the keys bring their namespace. Otherwise it is that of LMCache's multi-process mode.
    pub namespace_from_keys: bool,
    /// Whether opening fails if the metrics server does. Otherwise the error is logged.
    pub needs_metrics: bool,
}

impl OpenOptions {
    /// For an engine, whose keys are those of the multi-process mode in namespaces of its own.
    pub fn for_engine(mut self) -> Self {
        self.mode = Some(LmcacheMode::MultiProcess);
        self.namespace_from_keys = true;
        self
    }
}

/// Tiers that were opened.
struct StartedTiers {
    opened: OpenTiers,
    settings: StoreSettings,
    notes: Vec<String>,
}

/// Opens the tiers and starts the metrics server if configured.
///
/// # Errors
/// `OSError` if the configuration file cannot be read or the metrics server cannot start;
/// `ValueError` if the configuration is wrong or a tier cannot be opened.
pub fn open(py: Python<'_>, source: &TierSource, options: &OpenOptions) -> PyResult<Store> {
    if let TierSource::File(path) = source {
        std::fs::File::open(path)
            .map_err(|e| PyOSError::new_err(format!("cannot read {path}: {e}")))?;
    }
    let started =
        py.detach(|| start(source, options)).map_err(|e| PyValueError::new_err(error_chain(&e)))?;
    started.notes.iter().for_each(|note| log::write(py, "warning", note));
    log_problems(py, &started.opened);
    let server = match options
        .metrics
        .as_deref()
        .map(|address| serve(py, address, &started.opened))
        .transpose()
    {
        Err(e) if !options.needs_metrics => {
            log::write(py, "error", &format!("{}; the tiers work without metrics", e.value(py)));
            None
        }
        server => server?,
    };
    Ok(Store::new(started.opened, started.settings, server))
}

/// Logs problems of a bucket: an error if it does not exist, else a warning. A problem may be
/// temporary, so opening succeeds.
fn log_problems(py: Python<'_>, opened: &OpenTiers) {
    for problem in py.detach(|| opened.check(CHECK_TIMEOUT)) {
        let level = if problem.kind() == ErrorKind::Invalid { "error" } else { "warning" };
        log::write(py, level, &error_chain(&problem));
    }
}

/// A lossy stage takes chunks apart as keys and values of one shape. Chunks of vLLM and SGLang have other
/// layouts, and some hold other state than keys and values.
fn refuse_lossy(config: &Config) -> Result<(), Error> {
    let Some(tier) = config.lossy_tiers().into_iter().next() else { return Ok(()) };
    let what = format!("{tier}; chunks of vLLM and SGLang have other layouts than it needs");
    Err(Error::new(ErrorKind::Invalid, what))
}

fn start(source: &TierSource, options: &OpenOptions) -> Result<StartedTiers, Error> {
    let (config, notes) = source.read()?;
    if options.namespace_from_keys {
        refuse_lossy(&config)?;
    }
    let mode = lmcache_mode(&config, options.mode)?;
    let settings = StoreSettings { mode, shapes: shape_source(&config), ..options.store };
    let opened = match mode {
        LmcacheMode::MultiProcess if options.namespace_from_keys => config.open(),
        LmcacheMode::MultiProcess => config
            .with_namespace(&Arc::new(Store::namespace_of("", &settings).with_salts_as_tenants()))
            .open(),
        // Object names of a bucket abbreviate the model. Only a key states it in full, so the first
        // key brings the namespace.
        LmcacheMode::InProcess => config.open(),
    };
    Ok(StartedTiers { opened: opened?, settings, notes })
}

/// Where the shape of a chunk comes from. With several tiers that store shapes, the one with the
/// least information decides.
fn shape_source(config: &Config) -> ShapeSource {
    let source = |state| match state {
        ShapeState::Known(_) => ShapeSource::Configured,
        // Files of plain bytes do not state the shape of the next chunk.
        ShapeState::Files(shape) if shape.format == MemoryFormat::Binary => ShapeSource::Missing,
        ShapeState::Missing => ShapeSource::Missing,
        _ => ShapeSource::Files,
    };
    let sources = config.tiers.iter().filter_map(TierSpec::shape_state).map(source);
    sources.max().unwrap_or(ShapeSource::Configured)
}

/// The mode that defines the keys: the requested one, else the one that the layouts of the tiers
/// need, else the multi-process mode.
fn lmcache_mode(config: &Config, requested: Option<LmcacheMode>) -> Result<LmcacheMode, Error> {
    let needed = config.lmcache_mode()?;
    match (requested, needed) {
        (Some(requested), Some(needed)) if requested != needed => {
            let (has, gets, layout) = match needed {
                LmcacheMode::MultiProcess => ("multi-process", "in-process", "lmcache"),
                LmcacheMode::InProcess => ("in-process", "multi-process", "lmcache-mp"),
            };
            let what = format!(
                "the layout of these tiers has names for keys of LMCache's {has} mode alone, and they get keys of its {gets} mode: write \
                 layout {layout} or kvtier"
            );
            Err(Error::new(ErrorKind::Invalid, what))
        }
        (requested, needed) => Ok(requested.or(needed).unwrap_or(LmcacheMode::MultiProcess)),
    }
}

fn serve(py: Python<'_>, address: &str, opened: &OpenTiers) -> PyResult<MetricsServer> {
    let server = py.detach(|| MetricsServer::start(address, opened.monitored().to_vec())).map_err(|e| {
        PyOSError::new_err(format!(
            "cannot serve metrics at {address:?}: {e}; name a free address such as 127.0.0.1:9464"
        ))
    })?;
    log::write(py, "info", &format!("metrics at http://{}/metrics", server.address()));
    Ok(server)
}

/// Reads the keywords. The defaults are those that LMCache's connector needs.
///
/// # Errors
/// `TypeError` for an unknown keyword; `ValueError` for a time that is not above 0.
pub fn options(keywords: Option<&Bound<'_, PyDict>>) -> PyResult<OpenOptions> {
    let settings = StoreSettings {
        timeout: Duration::from_secs(30),
        // LMCache reserves memory for a load for at most this long, then it reuses it.
        return_timeout: Duration::from_secs(600),
        hold: Duration::from_secs(60),
        load_releases: true,
        mode: LmcacheMode::MultiProcess,
        partial: false,
        shapes: ShapeSource::Configured,
        chunk_bytes: None,
    };
    let mut options = OpenOptions {
        store: settings,
        mode: None,
        metrics: None,
        needs_metrics: true,
        namespace_from_keys: false,
    };
    let settings = &mut options.store;
    for (name, value) in keywords.into_iter().flatten() {
        match name.extract::<&str>()? {
            "timeout_seconds" => settings.timeout = seconds("timeout_seconds", value.extract()?)?,
            "return_timeout_seconds" => {
                settings.return_timeout = seconds("return_timeout_seconds", value.extract()?)?
            }
            "hold_seconds" => settings.hold = seconds("hold_seconds", value.extract()?)?,
            "load_releases" => settings.load_releases = value.extract()?,
            "partial" => settings.partial = value.extract()?,
            "engine_keys" if value.extract()? => options.mode = Some(LmcacheMode::InProcess),
            "engine_keys" => options.mode = Some(LmcacheMode::MultiProcess),
            "chunk_bytes" => settings.chunk_bytes = value.extract()?,
            "metrics" => options.metrics = value.extract()?,
            "needs_metrics" => options.needs_metrics = value.extract()?,
            other => return Err(PyTypeError::new_err(format!("unknown setting {other}"))),
        }
    }
    Ok(options)
}

/// Converts a time above 0.
pub fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    let time = Duration::try_from_secs_f64(value).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| PyValueError::new_err(format!("{name} must be above 0")))
}

fn json(object: &Bound<'_, PyAny>) -> PyResult<String> {
    object.py().import("json")?.call_method1("dumps", (object,))?.extract()
}

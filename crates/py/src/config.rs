//! From a constructor's keywords to tiers.

use std::sync::Arc;
use std::time::Duration;

use kvtier::config::lmcache::{Inputs, LmcacheConfig};
use kvtier::config::{Adapter, Config, KeyMode, Opened, Reading, ShapeState, TierSpec, Value};
use kvtier::core::{Error, ErrorKind};
use kvtier::key::MemoryFormat;
use kvtier::metrics::Server;
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::end::whole;
use crate::log;
use crate::shape::Shapes;
use crate::store::{Settings, Spelling, Store};

/// How long a bucket may take at the start to say whether it is there.
const CHECK_MAX: Duration = Duration::from_secs(2);

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
    /// Just one of: `tiers`, a list of specs as the configuration file has them; `config`, such a
    /// file's path; `adapter`, what LMCache's `--l2-adapter` takes; `engine`, settings of
    /// LMCache's in-process mode.
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

    /// The tiers, and warnings about what names them.
    fn read(&self) -> Result<(Config, Vec<String>), Error> {
        let config = match self {
            Source::Tiers(text) => Config::from_text(text, "tiers")?,
            Source::File(path) => {
                let read = Reading::new().file(path.as_ref())?;
                return Ok((read.config, read.notes));
            }
            Source::Adapter(text) => Adapter::params(text, "adapter_params")?,
            Source::Engine(text) => {
                let inputs = Inputs::new().with_override("local_cpu", Value::Bool(false));
                LmcacheConfig::read(&inputs.with_overrides(text)?)?.stack(0)?.config
            }
        };
        Ok((config, Vec::new()))
    }
}

/// How to open tiers, and what to make of them.
#[derive(Clone, Debug)]
pub struct Options {
    /// How the store behaves.
    pub store: Settings,
    /// Which keys it takes; `None` for those that the tiers have names for.
    pub spelling: Option<Spelling>,
    /// The address at which the tiers' metrics are served, if they are.
    pub metrics: Option<String>,
    /// Whether metrics that cannot be served are an error. Else they are logged as one, and the
    /// tiers work without.
    pub needs_metrics: bool,
}

/// Tiers that were opened.
struct Started {
    opened: Opened,
    settings: Settings,
    notes: Vec<String>,
}

/// Opens the tiers, and serves their metrics where that is asked for.
pub fn open(py: Python<'_>, source: &Source, options: &Options) -> PyResult<Store> {
    if let Source::File(path) = source {
        std::fs::File::open(path)
            .map_err(|e| PyOSError::new_err(format!("cannot read {path}: {e}")))?;
    }
    let started =
        py.detach(|| start(source, options)).map_err(|e| PyValueError::new_err(whole(&e)))?;
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

/// Logs what keeps a bucket from working: an error where it does not exist, else a warning. It may
/// pass, and so refuses nothing.
fn log_problems(py: Python<'_>, opened: &Opened) {
    for problem in py.detach(|| opened.check(CHECK_MAX)) {
        let level = if problem.kind() == ErrorKind::Invalid { "error" } else { "warning" };
        log::write(py, level, &whole(&problem));
    }
}

fn start(source: &Source, options: &Options) -> Result<Started, Error> {
    let (config, notes) = source.read()?;
    let spelling = spelling(&config, options.spelling)?;
    let settings = Settings { spelling, shapes: shapes(&config), ..options.store };
    let opened = match spelling {
        Spelling::Mp => config
            .with_namespace(&Arc::new(Store::namespace_of("", &settings).with_salts_as_tenants()))
            .open(),
        // Names of buckets are read right only when a key has told how its model is spelled: its
        // namespace comes with it.
        Spelling::Engine => config.open(),
    };
    Ok(Started { opened: opened?, settings, notes })
}

/// What the tiers know of the shapes of chunks before they open: where several keep shapes, the one
/// that knows least counts.
fn shapes(config: &Config) -> Shapes {
    let of = |state| match state {
        ShapeState::Known(_) => Shapes::Known,
        // What was saved here as bytes says nothing of the next chunk.
        ShapeState::Files(shape) if shape.format == MemoryFormat::Binary => Shapes::Missing,
        ShapeState::Missing => Shapes::Missing,
        _ => Shapes::Learned,
    };
    config.tiers.iter().filter_map(TierSpec::shape_state).map(of).max().unwrap_or(Shapes::Known)
}

/// Which keys a store over these tiers takes: those that are asked for, else those that the tiers
/// have names for, else our own.
fn spelling(config: &Config, asked: Option<Spelling>) -> Result<Spelling, Error> {
    let named = match config.key_mode()? {
        Some(KeyMode::MultiProcess) => Some(Spelling::Mp),
        Some(KeyMode::InProcess) => Some(Spelling::Engine),
        _ => None,
    };
    match (asked, named) {
        (Some(asked), Some(named)) if asked != named => {
            let (has, gets, layout) = match named {
                Spelling::Mp => ("multi-process", "in-process", "lmcache"),
                Spelling::Engine => ("in-process", "multi-process", "lmcache-mp"),
            };
            let what = format!(
                "the layout of these tiers has names for keys of LMCache's {has} mode alone, and they get keys of its {gets} mode: write \
                 layout {layout} or kvtier"
            );
            Err(Error::new(ErrorKind::Invalid, what))
        }
        (asked, named) => Ok(asked.or(named).unwrap_or(Spelling::Mp)),
    }
}

fn serve(py: Python<'_>, address: &str, opened: &Opened) -> PyResult<Server> {
    let server = py.detach(|| Server::start(address, opened.shown().to_vec())).map_err(|e| {
        PyOSError::new_err(format!(
            "cannot serve metrics at {address:?}: {e}; name a free address such as 127.0.0.1:9464"
        ))
    })?;
    log::write(py, "info", &format!("metrics at http://{}/metrics", server.address()));
    Ok(server)
}

/// How a store behaves, where that is not said otherwise: as LMCache's connector wants it.
pub fn options(keywords: Option<&Bound<'_, PyDict>>) -> PyResult<Options> {
    let settings = Settings {
        timeout: Duration::from_secs(30),
        // So long LMCache keeps memory for a load at most; then it gives it to others by itself.
        home: Duration::from_secs(600),
        hold: Duration::from_secs(60),
        load_releases: true,
        spelling: Spelling::Mp,
        partial: false,
        shapes: Shapes::Known,
        chunk_bytes: None,
    };
    let mut options =
        Options { store: settings, spelling: None, metrics: None, needs_metrics: true };
    let settings = &mut options.store;
    for (name, value) in keywords.into_iter().flatten() {
        match name.extract::<&str>()? {
            "timeout_seconds" => settings.timeout = seconds("timeout_seconds", value.extract()?)?,
            "home_seconds" => settings.home = seconds("home_seconds", value.extract()?)?,
            "hold_seconds" => settings.hold = seconds("hold_seconds", value.extract()?)?,
            "load_releases" => settings.load_releases = value.extract()?,
            "partial" => settings.partial = value.extract()?,
            "engine_keys" if value.extract()? => options.spelling = Some(Spelling::Engine),
            "engine_keys" => options.spelling = Some(Spelling::Mp),
            "chunk_bytes" => settings.chunk_bytes = value.extract()?,
            "metrics" => options.metrics = value.extract()?,
            "needs_metrics" => options.needs_metrics = value.extract()?,
            other => return Err(PyTypeError::new_err(format!("no setting is called {other}"))),
        }
    }
    Ok(options)
}

/// A time above 0.
pub fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    let time = Duration::try_from_secs_f64(value).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| PyValueError::new_err(format!("{name} must be above 0")))
}

fn json(object: &Bound<'_, PyAny>) -> PyResult<String> {
    object.py().import("json")?.call_method1("dumps", (object,))?.extract()
}

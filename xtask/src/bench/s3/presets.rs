use anyhow::{Result, bail};

/// A named set of measurements: what is measured unless the command line says otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The value of `--table`; empty for those that are chosen in another way.
    name: &'static str,
    ops: &'static str,
    schemes: &'static str,
    sizes: &'static str,
    inflight: &'static str,
    /// Empty for all clients.
    peers: &'static str,
    gb: &'static str,
    /// The server waits for this time before each answer.
    pub latency_ms: u64,
    /// Operations of a cell, whatever its size; `None` moves as many GB as asked for.
    pub count: Option<u64>,
}

/// All clients, all sizes.
const GRID: Preset = Preset {
    name: "",
    ops: "get,put,head",
    schemes: "http,https,h2",
    sizes: "64KiB,1MiB,10MiB,32MiB",
    inflight: "1,8,64",
    peers: "",
    gb: "0.5",
    latency_ms: 0,
    count: None,
};

/// What LMCache's adapter is asked for: chunks, over plain HTTP, by the tier.
const BESIDE_LMCACHE: Preset = Preset {
    ops: "put,get,delete",
    schemes: "http",
    sizes: "1MiB,4MiB,32MiB",
    inflight: "8",
    peers: "raw-tokio,raw-blocking,kvtier,kvtier-tier,lmcache",
    ..GRID
};

/// 100 uploads of 1 MB to a server that answers late.
const UPLOADS: Preset = Preset {
    name: "uploads",
    ops: "put",
    schemes: "http",
    sizes: "1MB",
    inflight: "1,10",
    peers: "kvtier,boto3,awscrt",
    latency_ms: 80,
    count: Some(100),
    ..GRID
};

/// Large bodies, where the times at which the client is woken decide how fast the server is.
const LARGE_GETS: Preset = Preset {
    name: "large-gets",
    ops: "get",
    schemes: "https,http",
    sizes: "1MiB,10MiB",
    inflight: "1,8",
    peers: "raw-tokio,kvtier,kvtier-direct,object_store,rusty-s3,aws-sdk-s3",
    gb: "1",
    ..GRID
};

impl Preset {
    /// The one that `--table` names, or the usual one.
    pub fn find(table: Option<&str>, with_lmcache: bool) -> Result<Preset> {
        let Some(name) = table else { return Ok(if with_lmcache { BESIDE_LMCACHE } else { GRID }) };
        match [UPLOADS, LARGE_GETS].into_iter().find(|preset| preset.name == name) {
            Some(_) if with_lmcache => bail!("LMCache's adapter has no part in the table '{name}'"),
            Some(preset) => Ok(preset),
            None => bail!("no table '{name}'; there are: {}, {}", UPLOADS.name, LARGE_GETS.name),
        }
    }

    /// Whether it is the table `uploads`, whose columns are seconds.
    pub fn is_uploads(&self) -> bool {
        self.name == UPLOADS.name
    }

    /// What it gives for a flag of the command line.
    pub fn value(&self, flag: &str) -> &'static str {
        match flag {
            "--ops" => self.ops,
            "--schemes" => self.schemes,
            "--sizes" => self.sizes,
            "--inflight" => self.inflight,
            "--peers" => self.peers,
            "--gb" => self.gb,
            _ => "",
        }
    }
}

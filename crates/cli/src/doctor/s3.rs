//! `kvtier doctor s3`: a bucket and its store, looked at from outside.

use anyhow::{Context, Result};
use kvtier::s3::probe::{Connection, Lifecycle, Listing, Probe, Setting};
use kvtier::s3::{Checksum, Client, Conditional, Endpoint, Provider, Style};
use serde_json::Value;

use super::finding::{self, Finding};
use super::lossy::LossyArgs;
use crate::bench::s3::{BenchLoad, measure, runtime};
use crate::bucket_args::{BucketArgs, failed};
use crate::json::json;
use crate::progress::{Progress, ProgressUnit};

/// `kvtier doctor s3`.
#[derive(clap::Args)]
pub struct DoctorS3Args {
    #[command(flatten)]
    store: BucketArgs,
    /// Requests in flight to measure with; 0 measures nothing.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
    concurrency: Vec<usize>,
    /// Size of the objects to measure with.
    #[arg(long, default_value = "4MiB")]
    size: String,
    /// GB to move in each direction and concurrency.
    #[arg(long, default_value_t = 0.25)]
    gb: f64,
    #[command(flatten)]
    lossy: LossyArgs,
    /// Print each step on standard error also where that is no terminal.
    #[arg(long)]
    progress: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A concurrency that gives this share of the best rate is enough.
const ENOUGH: f64 = 0.9;
/// Clocks may differ so much before someone should look, in seconds.
const CLOCK_MAX_S: i64 = 30;

/// Everything that was found out.
struct Findings {
    endpoint: Endpoint,
    signer: String,
    ca_bundle: Option<String>,
    connection: Connection,
    probe: Probe,
    clock_offset_s: i64,
    rates: Vec<S3Rate>,
}

/// The speed with a number of requests in flight.
struct S3Rate {
    concurrency: u64,
    put_mb_per_s: f64,
    get_mb_per_s: f64,
    get_p50_ms: f64,
    get_p99_ms: f64,
}

/// Looks at the bucket and prints findings, rates and settings.
pub fn run(args: &DoctorS3Args) -> Result<()> {
    crate::interrupt::watch()?;
    let lossy = args.lossy.findings()?;
    let found = look(args)?;
    let mut findings = found.findings();
    findings.extend(lossy);
    let settings = found.settings();
    if args.json {
        return crate::stdout::line(&found.json(&findings, &settings).to_string());
    }
    findings.iter().try_for_each(Finding::print)?;
    found.rates.iter().try_for_each(|rate| {
        let text = format!(
            "{} in flight: put {:.0} MB/s, get {:.0} MB/s (p50 {:.1} ms, p99 {:.1} ms)",
            rate.concurrency,
            rate.put_mb_per_s,
            rate.get_mb_per_s,
            rate.get_p50_ms,
            rate.get_p99_ms
        );
        finding::print("rate", &text)
    })?;
    for (name, value, reason) in &settings {
        finding::print("set", &format!("{name} = {value}: {reason}"))?;
    }
    Ok(())
}

fn look(args: &DoctorS3Args) -> Result<Findings> {
    let size = crate::replay::size("--size", &args.size)? as usize;
    let runtime = runtime(1)?;
    let store = args.store.find(&runtime)?;
    let client = Client::new(store.config());
    let measured: Vec<usize> =
        args.concurrency.iter().copied().filter(|n| *n > 0 && size > 0).collect();
    let progress = Progress::start(ProgressUnit::Steps, 2 + measured.len() as u64, args.progress)?;
    progress.step("connecting".to_owned());
    // First whether the store can be reached at all: the reasons differ from those of a refused
    // request.
    let connection = runtime.block_on(client.survey()).map_err(failed)?;
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos());
    // Names that no other run has: a probe writes and deletes objects under them.
    let prefix = format!("kvtier-doctor/{nanos:x}-{}/", std::process::id());
    progress.add(1);
    progress.step("probing what the store supports".to_owned());
    let probe = runtime.block_on(client.probe(&prefix)).map_err(failed)?;
    let ops = ["put", "get"].map(str::to_owned);
    let mut rates = Vec::new();
    for concurrency in measured {
        progress.add(1);
        progress.step(format!("measuring with {concurrency} requests in flight"));
        let mut cells = Vec::new();
        let load = BenchLoad { ops: &ops, size, concurrency, gb: args.gb, same_keys: false };
        measure(store.config(), &runtime, &load, &mut cells)?;
        rates.push(rate(&cells).context("a rate is missing")?);
    }
    progress.add(1);
    progress.finish();
    let endpoint = client.endpoint();
    // After the requests, whose answers carry the store's time.
    let clock_offset_s = client.clock_offset();
    let signer = format!("{}, from {}{}", store.access_key, store.source, good_for(store.expires));
    let ca_bundle = args.store.ca_bundle().map(str::to_owned);
    Ok(Findings { endpoint, signer, ca_bundle, connection, probe, clock_offset_s, rates })
}

/// How long credentials that end are good for.
fn good_for(expires: Option<i64>) -> String {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |now| now.as_secs());
    let left = expires.map(|end| (end.saturating_sub_unsigned(now)) / 60);
    left.map_or_else(String::new, |minutes| {
        format!(", good for another {minutes} min; renewed before that")
    })
}

fn rate(cells: &[Value]) -> Option<S3Rate> {
    // In the order of `ops` above.
    let [put, get] = cells else { return None };
    Some(S3Rate {
        concurrency: put["concurrency"].as_u64()?,
        put_mb_per_s: put["mb_per_s"].as_f64()?,
        get_mb_per_s: get["mb_per_s"].as_f64()?,
        get_p50_ms: get["p50_ms"].as_f64()?,
        get_p99_ms: get["p99_ms"].as_f64()?,
    })
}

fn yes(can: bool) -> &'static str {
    if can { "yes" } else { "no" }
}

fn style(endpoint: &Endpoint) -> &'static str {
    if endpoint.style() == Style::Path { "path" } else { "virtual" }
}

impl Findings {
    fn findings(&self) -> Vec<Finding> {
        let Findings { endpoint, probe, .. } = self;
        let clock = match self.clock_offset_s {
            // Stores report whole seconds.
            -1..=1 => "the store's is ours, within a second or so".to_owned(),
            offset if offset < 0 => format!("the store's is {} s behind", -offset),
            offset => format!("the store's is {offset} s ahead"),
        };
        let clock_off = self.clock_offset_s.abs() > CLOCK_MAX_S;
        let mut all = vec![
            Finding::new(
                "bucket",
                format!("{} at {endpoint}, {} style", endpoint.bucket(), style(endpoint)),
            ),
            Finding::new("region", endpoint.region()),
            Finding::new("provider", endpoint.provider().name()).advising(
                endpoint.provider() == Provider::Other,
                "a profile is missing: name it with --provider if it is known",
            ),
            Finding::new("credentials", &self.signer),
        ];
        all.extend(self.wire());
        all.push(
            Finding::new("clock", clock).advising(
                clock_off,
                "the client corrects it; set this machine's clock all the same",
            ),
        );
        all.extend([
            Finding::new("signed bodies", if probe.wants_signed_bodies { "wanted by the store" } else { "not wanted" })
                .advising(
                    probe.wants_signed_bodies,
                    "found out by each client with one request more; hashing costs more than the transfer itself: allow UNSIGNED-PAYLOAD if you can",
                ),
            self.sums(),
            self.conditional(),
            Finding::new("ranges", yes(probe.ranges))
                .advising(!probe.ranges, "one object cannot be read in parallel parts"),
            Finding::new("if-match", yes(probe.if_match)).advising(
                !probe.if_match,
                "a body that breaks off may be continued from another version: checksums must catch it",
            ),
            listing(&probe.listing),
            Finding::new("many deletes", yes(probe.deletes_many))
                .advising(!probe.deletes_many, "eviction costs one request an object"),
            setting(
                "versioning",
                &probe.settings.versioning,
                "evicted objects stay as old versions and are paid for: suspend it, or let them expire by a rule",
            ),
            setting(
                "object lock",
                &probe.settings.object_lock,
                "objects that cannot be deleted fill the bucket: use one without it",
            ),
            lifecycle(&probe.settings.lifecycle),
        ]);
        all
    }

    /// The connection, and what it does not protect.
    fn wire(&self) -> Vec<Finding> {
        let Connection { address, addresses, took, tls, .. } = &self.connection;
        let ms = took.as_secs_f64() * 1e3;
        let others = if *addresses > 1 {
            format!("one of {addresses} addresses")
        } else {
            "the only address".to_owned()
        };
        let connection =
            Finding::new("connection", format!("{address}, {others}, open after {ms:.1} ms"));
        let Some(tls) = tls else {
            let risk = "anyone on the path can read everything and change what has no checksum; requests cannot be forged";
            return vec![connection, Finding::new("TLS", "no: plain HTTP").advising(true, risk)];
        };
        let offers = tls.alpn.as_deref() == Some("h2");
        let alpn = Finding::new(
            "ALPN",
            tls.alpn.clone().unwrap_or_else(|| "the server does not choose".into()),
        );
        let why =
            "leave http2 off all the same: bodies of megabytes cost half the CPU over HTTP/1.1";
        vec![
            connection,
            Finding::new("TLS", format!("{}, {}", tls.version, tls.suite)),
            alpn.advising(offers, why),
        ]
    }

    fn sums(&self) -> Finding {
        let results = self.probe.sums.iter().map(|sum| {
            let makes = match (sum.verified, sum.returned) {
                (true, true) => "verified and returned",
                (true, false) => "verified",
                (false, true) => "returned, not verified",
                (false, false) => "ignored",
            };
            format!("{} {makes}", name(sum.checksum))
        });
        let none = self.probe.sums.iter().all(|sum| !sum.verified);
        Finding::new("checksums", results.collect::<Vec<_>>().join(", ")).advising(
            none,
            "the store does not notice a body that was damaged on its way in: a load does",
        )
    }

    fn conditional(&self) -> Finding {
        let found = self.probe.conditional;
        let usual = self.endpoint.provider().conditional();
        // The store does not behave as its profile says: the profile is probably that of another
        // store.
        let other = usual != Conditional::Unknown && usual != found;
        let makes = match found {
            Conditional::Honoured => "honoured",
            Conditional::Ignored => "ignored: it overwrites",
            _ => "refused",
        };
        let advice = match other {
            true => "this is not how the provider's profile has it: check --provider",
            false => "two writers of one object both pay for their PUT",
        };
        Finding::new("conditional PUT", makes)
            .advising(other || found != Conditional::Honoured, advice)
    }

    /// Name, value and reason of what to set, as a configuration takes it.
    fn settings(&self) -> Vec<(&'static str, Value, String)> {
        let Findings { endpoint, probe, .. } = self;
        let (sum, sum_reason) = self.checksum();
        let path_style = endpoint.style() == Style::Path;
        let mut all = vec![
            ("s3_endpoint", json!(endpoint.to_string()), "it answers there".to_owned()),
            (
                "bucket",
                json!(endpoint.bucket()),
                "it is there and open to these credentials".into(),
            ),
            ("s3_region", json!(endpoint.region()), "the store takes signatures for it".into()),
            ("path_style", json!(path_style), "requests in this style were answered".into()),
            (
                "profile",
                json!(endpoint.provider().name()),
                "it says what else is usual there".into(),
            ),
            ("checksum", json!(name(sum)), sum_reason.into()),
        ];
        if let Some(path) = &self.ca_bundle {
            all.push(("ca_bundle", json!(path), "it trusts the server's certificate".into()));
        }
        // Without conditional writes two nodes could both believe to hold the lease.
        if probe.conditional != Conditional::Honoured {
            let reason = "the store has no conditional writes, so nodes cannot elect an evictor: one node has single, all others never";
            all.push(("evictor", json!("single"), reason.into()));
        }
        if let Some((rate, best)) = self.enough() {
            let reason = format!("get {:.0} MB/s, where the best was {best:.0}", rate.get_mb_per_s);
            all.push(("s3_max_io_concurrency", json!(rate.concurrency), reason));
        }
        all
    }

    /// The cheapest checksum that the store makes something of.
    fn checksum(&self) -> (Checksum, &'static str) {
        let of = |good: &dyn Fn(&&kvtier::s3::probe::Sum) -> bool| {
            self.probe.sums.iter().find(good).map(|sum| sum.checksum)
        };
        if let Some(sum) = of(&|sum| sum.verified && sum.returned) {
            return (sum, "the store verifies and returns it");
        }
        match of(&|sum| sum.verified) {
            Some(sum) => (sum, "the store verifies it"),
            None => (
                Checksum::None,
                "the store makes nothing of any; every load is verified by the tier's own",
            ),
        }
    }

    /// The fewest requests in flight that are nearly as fast as any, and the best rate.
    fn enough(&self) -> Option<(&S3Rate, f64)> {
        let best = self.rates.iter().map(|rate| rate.get_mb_per_s).reduce(f64::max)?;
        // The fewest requests in flight that come close to the best: more cost memory and
        // connections for little.
        let mut enough = self.rates.iter().filter(|rate| rate.get_mb_per_s >= best * ENOUGH);
        Some((enough.next()?, best))
    }

    fn json(&self, findings: &[Finding], settings: &[(&'static str, Value, String)]) -> Value {
        let rates = self.rates.iter().map(|rate| {
            json!({
                "concurrency": rate.concurrency, "put_mb_per_s": rate.put_mb_per_s, "get_mb_per_s": rate.get_mb_per_s,
                "get_p50_ms": rate.get_p50_ms, "get_p99_ms": rate.get_p99_ms,
            })
        });
        let mut values = json!({ "type": "s3" });
        settings.iter().for_each(|(name, value, _)| values[*name] = value.clone());
        let reasons: serde_json::Map<String, Value> =
            settings.iter().map(|(name, _, reason)| ((*name).to_owned(), json!(reason))).collect();
        json!({
            "findings": findings.iter().map(Finding::json).collect::<Vec<_>>(), "rates": rates.collect::<Vec<_>>(),
            "settings": values, "reasons": reasons,
        })
    }
}

fn name(sum: Checksum) -> String {
    sum.name().unwrap_or("none").to_lowercase()
}

fn setting(what: &'static str, found: &Setting, advice: &str) -> Finding {
    let text = match found {
        Setting::On => "on".to_owned(),
        Setting::Suspended => "suspended".to_owned(),
        Setting::Unknown(why) => format!("unknown ({why})"),
        _ => "off".to_owned(),
    };
    Finding::new(what, text).advising(*found == Setting::On, advice)
}

fn lifecycle(found: &Lifecycle) -> Finding {
    let (text, acts) = match found {
        Lifecycle::Rules(rules) => {
            let acts: Vec<&str> = rules
                .iter()
                .filter(|rule| rule.enabled && (rule.expires || rule.moves_to.is_some()))
                .map(|rule| rule.id.as_str())
                .collect();
            (
                if acts.is_empty() {
                    "none that touch objects".to_owned()
                } else {
                    acts.join(", ")
                },
                !acts.is_empty(),
            )
        }
        Lifecycle::Unknown(why) => (format!("unknown ({why})"), false),
        _ => ("unknown".to_owned(), false),
    };
    Finding::new("lifecycle rules", text)
        .advising(acts, "the store deletes or moves objects itself, used or not")
}

fn listing(listing: &Listing) -> Finding {
    let traits = [
        (listing.complete, "complete at once", "INCOMPLETE"),
        (listing.sorted, "sorted", "unsorted"),
        (listing.pages, "pages as asked", "pages of its own size"),
        (listing.start_after, "start-after", "no start-after"),
        (listing.folds, "folds at /", "does not fold"),
        (listing.any_prefix, "any prefix", "prefixes end in /"),
    ];
    let found: Vec<&str> =
        traits.iter().map(|(so, yes, no)| if *so { *yes } else { *no }).collect();
    let advice = "what was just written is not listed: the tier's usage will be wrong";
    Finding::new("listing", found.join(", ")).advising(!listing.complete, advice)
}

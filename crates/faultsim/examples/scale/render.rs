//! Writes the tables of `SCALE.md` between their marks, and the pictures beside it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::Outcome;
use crate::model::{EXPRESS, FleetModel, Requests, STANDARD, Size};
use crate::record::{Memory, Record, Run};
use crate::svg::{Axis, Chart, Point, Series};

/// Chunks of a petabyte, of 10 MB each.
const PETABYTE_CHUNKS: f64 = 1e8;
/// The share of the cap that the fleet saves in a second, in all runs of a full bucket.
const CHURN: f64 = 0.0002;

/// How far the model may be from a run.
const DIFFERENCE_MAX: f64 = 0.1;

/// Renders the record in this directory of documents.
pub fn render(docs: &Path) -> Outcome<()> {
    let record = Record::read(docs)?;
    let model =
        FleetModel::fit(&record).ok_or("the run of 10 nodes over 100,000 chunks is missing")?;
    let page = docs.join("SCALE.md");
    let mut text = fs::read_to_string(&page)?;
    for (name, table) in [
        ("requests", requests(&record)),
        ("behaviour", behaviour(&record)),
        ("filling", filling(&record)),
        ("check", check(&record, &model)?),
        ("petabyte", petabyte(&record, &model)),
        ("memory", memory(&record)),
    ] {
        text = replaced(&text, name, &table)?;
    }
    fs::write(page, text)?;
    for (name, chart) in [
        ("cost", cost_chart(&record, &model)),
        ("behaviour", behaviour_chart(&record)),
        ("cap", cap_chart(&record)),
        ("shed", shed_chart(&record)),
        ("memory", memory_chart(&record)),
    ] {
        fs::write(docs.join(format!("scale/{name}.svg")), chart.draw())?;
    }
    Ok(())
}

/// The text with this table between its marks.
fn replaced(text: &str, name: &str, table: &str) -> Outcome<String> {
    let (begin, end) = (format!("<!-- table {name} -->\n"), "<!-- end -->");
    let (before, rest) = text.split_once(&begin).ok_or_else(|| format!("no mark {begin}"))?;
    let (_, after) = rest.split_once(end).ok_or_else(|| format!("{begin} has no end"))?;
    Ok(format!("{before}{begin}{table}{end}{after}"))
}

fn full(record: &Record) -> impl Iterator<Item = &Run> {
    record.runs.iter().filter(|run| run.is_full())
}

fn requests(record: &Record) -> String {
    let mut out = "| nodes | chunks | PUT | LIST | GET, HEAD | Standard, a node | Express, a node | Standard, the fleet |\n|---|---|---|---|---|---|---|---|\n".to_owned();
    for run in full(record) {
        let all = Requests::of(run);
        let nodes = run.get("nodes");
        let dollars = all.dollars(STANDARD);
        let _ = writeln!(
            out,
            "| {nodes} | {} | {:.0} | {:.0} | {:.0} | ${:.3} | ${:.4} | ${dollars:.2} |",
            thousands(run.get("chunks")),
            all.put / nodes,
            all.list / nodes,
            all.get / nodes,
            dollars / nodes,
            all.dollars(EXPRESS) / nodes,
        );
    }
    out
}

fn behaviour(record: &Record) -> String {
    let mut out = "| nodes | chunks | memory, MB | deletes known after | saves known after | saves known at all | most of the cap | shed | take-over |\n|---|---|---|---|---|---|---|---|---|\n".to_owned();
    for run in full(record) {
        let lag = |name: &str| match run.get("nodes") > 1.0 {
            true => format!(
                "{:.0} s, {:.0} s",
                run.get(&format!("{name}.median_s")),
                run.get(&format!("{name}.p99_s"))
            ),
            false => "-".into(),
        };
        let known = match run.get("nodes") > 1.0 {
            true => format!("{:.0} %", 100.0 * run.get("saves.learned")),
            false => "-".into(),
        };
        let takeover = match run.get("takeover_s") {
            none if none < 0.0 => "-".into(),
            seconds => format!("{seconds:.0} s"),
        };
        let _ = writeln!(
            out,
            "| {} | {} | {:.1} | {} | {} | {known} | {:.1} % | {:.2} % | {takeover} |",
            run.get("nodes"),
            thousands(run.get("chunks")),
            run.get("node_bytes") / 1e6,
            lag("deletes"),
            lag("saves"),
            100.0 * run.get("most_of_cap"),
            100.0 * shed(run),
        );
    }
    out
}

fn filling(record: &Record) -> String {
    let mut out =
        "| nodes | most of the cap | shed | journals read, a node and hour |\n|---|---|---|---|\n"
            .to_owned();
    for run in record.runs.iter().filter(|run| !run.is_full()) {
        let nodes = run.get("nodes");
        let _ = writeln!(
            out,
            "| {nodes} | {:.1} % | {:.1} % | {:.0} |",
            100.0 * run.get("most_of_cap"),
            100.0 * shed(run),
            run.per_day("journals", "get") / nodes / 24.0,
        );
    }
    out
}

fn shed(run: &Run) -> f64 {
    run.get("shed") / (run.get("shed") + run.get("stored")).max(1.0)
}

/// How far the model is from the runs; an error where it is too far.
fn check(record: &Record, model: &FleetModel) -> Outcome<String> {
    let mut out = "| nodes | chunks | simulated | modelled | difference | of PUTs | of LISTs | of GETs and HEADs |\n|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for run in full(record).filter(|run| run.nodes() > 8) {
        let nodes = run.get("nodes");
        let (ran, model) = (Requests::of(run), model.requests(Size::of(run)));
        let [simulated, modelled] = [ran, model].map(|all| all.dollars(STANDARD) / nodes);
        let values = [
            ("dollars", modelled, simulated),
            ("PUTs", model.put, ran.put),
            ("LISTs", model.list, ran.list),
            ("GETs and HEADs", model.get, ran.get),
        ];
        let _ = write!(
            out,
            "| {nodes} | {} | ${simulated:.4} | ${modelled:.4} |",
            thousands(run.get("chunks"))
        );
        for (name, model, ran) in values {
            let difference = model / ran - 1.0;
            if difference.abs() > DIFFERENCE_MAX {
                let chunks = run.chunks();
                return Err(format!(
                    "{nodes} nodes, {chunks} chunks: {ran} {name} are simulated, {model} modelled"
                )
                .into());
            }
            let _ = write!(out, " {:+.1} % |", 100.0 * difference);
        }
        out.push('\n');
    }
    Ok(out)
}

fn petabyte(record: &Record, model: &FleetModel) -> String {
    let mut out = "| nodes | PUT | LIST | GET, HEAD | Standard, a node | Express, a node | Standard, the fleet | saves known after at most |\n|---|---|---|---|---|---|---|---|\n".to_owned();
    for nodes in [10.0, 100.0, 1000.0] {
        let size = Size { nodes, chunks: PETABYTE_CHUNKS, churn: CHURN };
        let all = model.requests(size);
        let dollars = all.dollars(STANDARD);
        let _ = writeln!(
            out,
            "| {nodes} | {:.0} | {:.0} | {:.0} | ${:.2} | ${:.2} | ${dollars:.0} | {:.0} min |",
            all.put / nodes,
            all.list / nodes,
            all.get / nodes,
            dollars / nodes,
            all.dollars(EXPRESS) / nodes,
            size.sweep_s() / 60.0,
        );
    }
    if let Some(each) = bytes_per_chunk(record) {
        let _ = writeln!(
            out,
            "\nMemory of each node over 100,000,000 chunks: {:.1} GB (modelled, {each:.1} bytes a chunk).",
            each * PETABYTE_CHUNKS / 1e9
        );
    }
    out
}

fn memory(record: &Record) -> String {
    let mut out = "| chunks | bytes | bytes a chunk |\n|---|---|---|\n".to_owned();
    for Memory { chunks, bytes } in &record.memory {
        let each = *bytes as f64 / *chunks as f64;
        let _ = writeln!(out, "| {} | {bytes} | {each:.1} |", thousands(*chunks as f64));
    }
    out
}

/// Of the node with the most chunks.
fn bytes_per_chunk(record: &Record) -> Option<f64> {
    let most = record.memory.iter().max_by_key(|memory| memory.chunks)?;
    Some(most.bytes as f64 / most.chunks as f64)
}

fn cost_chart(record: &Record, model: &FleetModel) -> Chart {
    let simulated = |chunks: u64| {
        let of = full(record).filter(move |run| run.chunks() == chunks && run.nodes() > 1);
        of.map(|run| Point {
            x: run.get("nodes"),
            y: Requests::of(run).dollars(STANDARD) / run.get("nodes"),
        })
        .collect()
    };
    let modelled = |chunks: f64| {
        let at = |nodes: f64| {
            let all = model.requests(Size { nodes, chunks, churn: CHURN });
            Point { x: nodes, y: all.dollars(STANDARD) / nodes }
        };
        [10.0, 30.0, 100.0, 300.0, 1000.0].map(at).to_vec()
    };
    Chart {
        title: "What sharing a full bucket costs a node in a day, S3 Standard".into(),
        x: "nodes".into(),
        y: "dollars".into(),
        y_axis: Axis::Decades,
        series: vec![
            Series {
                name: "10,000 chunks, simulated".into(),
                points: simulated(10_000),
                is_model: false,
            },
            Series {
                name: "10,000 chunks, modelled".into(),
                points: modelled(10_000.0),
                is_model: true,
            },
            Series {
                name: "1,000,000 chunks, modelled".into(),
                points: modelled(1e6),
                is_model: true,
            },
            Series {
                name: "100,000,000 chunks, modelled".into(),
                points: modelled(PETABYTE_CHUNKS),
                is_model: true,
            },
        ],
    }
}

fn behaviour_chart(record: &Record) -> Chart {
    let of = |name: &str, value: &str| Series {
        name: name.to_owned(),
        points: full(record)
            .filter(|run| run.chunks() == 10_000 && run.nodes() > 1)
            .map(|run| Point { x: run.get("nodes"), y: run.get(value) })
            .collect(),
        is_model: false,
    };
    Chart {
        title: "How late a follower is, and how long a dead evictor is missed (simulated, 10,000 chunks)".into(),
        x: "nodes".into(),
        y: "seconds".into(),
        y_axis: Axis::Decades,
        series: vec![
            of("median until a follower has learned of a delete", "deletes.median_s"),
            of("median until a follower has learned of a save", "saves.median_s"),
            of("from the evictor's death to the next delete", "takeover_s"),
        ],
    }
}

fn cap_chart(record: &Record) -> Chart {
    let percent = |run: &Run| 100.0 * run.get("most_of_cap");
    Chart {
        title: "The most bytes of chunks at a time (simulated, 10,000 chunks)".into(),
        x: "nodes".into(),
        y: "percent of the cap".into(),
        y_axis: Axis::Linear { from: 96.0, to: 108.0, step: 2.0 },
        series: by_bucket(record, percent),
    }
}

fn shed_chart(record: &Record) -> Chart {
    Chart {
        title: "Saves that are shed (simulated, 10,000 chunks)".into(),
        x: "nodes".into(),
        y: "percent of saves".into(),
        y_axis: Axis::Linear { from: 0.0, to: 8.0, step: 2.0 },
        series: by_bucket(record, |run| 100.0 * shed(run)),
    }
}

/// A value by the number of nodes, while an empty bucket is filled and while a full one is used.
fn by_bucket(record: &Record, value: impl Fn(&Run) -> f64) -> Vec<Series> {
    let of = |name: &str, is_full: bool| Series {
        name: name.to_owned(),
        points: record
            .runs
            .iter()
            .filter(|run| run.chunks() == 10_000 && run.is_full() == is_full)
            .map(|run| Point { x: run.get("nodes"), y: value(run) })
            .collect(),
        is_model: false,
    };
    vec![
        of("all nodes start on an empty bucket, and save the whole cap in 500 s", false),
        of("the bucket is full, and all nodes together save the whole cap in 83 minutes", true),
    ]
}

fn memory_chart(record: &Record) -> Chart {
    let points: Vec<Point> = record
        .memory
        .iter()
        .map(|memory| Point { x: memory.chunks as f64, y: memory.bytes as f64 / 1e6 })
        .collect();
    let each = bytes_per_chunk(record).unwrap_or_default();
    let line = [1e6, 1e7, PETABYTE_CHUNKS].map(|x| Point { x, y: x * each / 1e6 }).to_vec();
    Chart {
        title: "Memory of a node by its chunks".into(),
        x: "chunks".into(),
        y: "MB".into(),
        y_axis: Axis::Decades,
        series: vec![
            Series { name: "one real node, measured".into(), points, is_model: false },
            Series { name: "modelled".into(), points: line, is_model: true },
        ],
    }
}

/// A number with commas.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

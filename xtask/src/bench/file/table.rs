use super::ours;
use super::plan::{Cell, Plan};
use super::sample::{Sample, Samples};

/// Operation, and what fio does that is nearest to it.
const ROWS: [(&str, &str); 4] =
    [("put", "put"), ("put churning", "put"), ("put recycled", "put recycled"), ("get", "get")];

/// Prints tables as Markdown: ours beside fio, and all rivals.
pub fn print(plan: &Plan, samples: &Samples) {
    println!(
        "\n| chunks | at once | | MB/s | fio's best | ratio | CPU s/GB | checksum pass | I/O | fio's | p50 ms | p99 ms | p99/p50 |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for cell in plan.cells() {
        ROWS.iter()
            .filter_map(|(op, rival)| row(&cell, samples, op, rival))
            .for_each(|row| println!("{row}"));
    }
    let rivals: Vec<String> =
        samples.contenders().into_iter().filter(|who| who != ours::NAME && who != "fio").collect();
    if rivals.is_empty() {
        return;
    }
    println!(
        "\n| chunks | at once | rival | put MB/s | CPU s/GB | ours over it | get MB/s | CPU s/GB | ours over it |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for cell in plan.cells() {
        rivals
            .iter()
            .filter_map(|who| rival(&cell, samples, who))
            .for_each(|row| println!("{row}"));
    }
}

fn row(cell: &Cell, samples: &Samples, op: &str, rival: &str) -> Option<String> {
    let own = samples.best(cell, ours::NAME, op)?;
    let fio = samples.best(cell, "fio", rival)?;
    let sum = samples.best(cell, ours::NAME, "sum")?.cpu_s_per_gb;
    // A put without its checksum pass is measured; a get is never without.
    let io = match op {
        "put" => samples.best(cell, ours::NAME, "put summed")?.cpu_s_per_gb,
        _ => (own.cpu_s_per_gb - sum).max(0.0),
    };
    let p50 = own.p50_ms.unwrap_or(f64::NAN);
    let p99 = own.p99_ms.unwrap_or(f64::NAN);
    Some(format!(
        "| {} MiB | {} | {op} | {:.0} | {:.0} ({}) | {:.2} | {:.3} | {sum:.3} | {io:.3} | {:.3} | {p50:.2} | {p99:.2} | {:.1} |",
        cell.size as f64 / 1048576.0,
        cell.inflight,
        own.mb_per_s,
        fio.mb_per_s,
        fio.how,
        own.mb_per_s / fio.mb_per_s,
        own.cpu_s_per_gb,
        fio.cpu_s_per_gb,
        p99 / p50
    ))
}

fn rival(cell: &Cell, samples: &Samples, who: &str) -> Option<String> {
    let part = |op: &str| {
        let own: Sample = samples.best(cell, ours::NAME, op)?;
        let theirs: Sample = samples.best(cell, who, op)?;
        let ratio = own.mb_per_s / theirs.mb_per_s;
        Some(format!("{:.0} | {:.3} | {ratio:.2}", theirs.mb_per_s, theirs.cpu_s_per_gb))
    };
    Some(format!(
        "| {} MiB | {} | {who} | {} | {} |",
        cell.size as f64 / 1048576.0,
        cell.inflight,
        part("put")?,
        part("get")?
    ))
}

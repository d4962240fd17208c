//! The table, and the same as JSON.

use anyhow::Result;

use super::blocks::Blocks;
use super::cache::Hits;
use super::{Cell, OPTIMUM};
use crate::json::json;
use crate::stdout;
use crate::trace::Trace;

/// Prints the cells.
pub fn print(cells: &[Cell], blocks: &Blocks, trace: &Trace, as_json: bool) -> Result<()> {
    let asked: usize = (0..blocks.requests()).map(|request| blocks.chain(request).len()).sum();
    if as_json {
        let cell = |cell: &Cell| {
            json!({
                "policy": cell.row.name(),
                "size": cell.size.text,
                "blocks": cell.size.blocks,
                "prefix_hit_ratio": cell.hits.prefix_ratio(),
                "block_hit_ratio": cell.hits.block_ratio(),
                "gap_closed": gap_closed(cells, cell),
            })
        };
        let whole = json!({
            "requests": blocks.requests(),
            "blocks_asked": asked,
            "blocks_distinct": blocks.distinct(),
            "block_tokens": trace.block_tokens,
            "cells": cells.iter().map(cell).collect::<Vec<_>>(),
        });
        return stdout::line(&whole.to_string());
    }
    stdout::line(&format!(
        "{} requests, {asked} blocks asked for, {} distinct",
        blocks.requests(),
        blocks.distinct()
    ))?;
    let texts = [
        (
            "prefix hits %; closed: share of the gap from lru to the optimum",
            table(cells, Hits::prefix_ratio, true),
        ),
        ("block hits %", table(cells, Hits::block_ratio, false)),
    ];
    for (title, lines) in texts {
        stdout::line(&format!("\n{title}"))?;
        lines.iter().try_for_each(|line| stdout::line(line))?;
    }
    Ok(())
}

fn table(cells: &[Cell], ratio: impl Fn(&Hits) -> f64, with_closed: bool) -> Vec<String> {
    let columns = columns(cells);
    let mut head = vec!["policy"];
    head.extend(&columns);
    head.extend(with_closed.then_some("closed"));
    let row = |row: &[Cell]| {
        let mut texts = vec![row[0].row.name().to_owned()];
        texts.extend(row.iter().map(|cell| format!("{:.2}", 100.0 * ratio(&cell.hits))));
        let closed = || {
            closed_in_total(cells, row)
                .map_or(String::new(), |share| format!("{:.0} %", 100.0 * share))
        };
        texts.extend(with_closed.then(closed));
        texts
    };
    crate::table::lines(&head, &cells.chunks(columns.len()).map(row).collect::<Vec<_>>())
}

fn columns(cells: &[Cell]) -> Vec<&str> {
    cells
        .iter()
        .take_while(|cell| cell.row == cells[0].row)
        .map(|cell| cell.size.text.as_str())
        .collect()
}

fn prefix_of(cells: &[Cell], name: &str, size: &str) -> Option<f64> {
    let found = cells.iter().find(|cell| cell.row.name() == name && cell.size.text == size);
    found.map(|cell| cell.hits.prefix_ratio())
}

/// What a cell gains over LRU, and the most that it could.
fn gain(cells: &[Cell], cell: &Cell) -> Option<(f64, f64)> {
    // Only where both ends of the gap were simulated.
    let lru = prefix_of(cells, "lru", &cell.size.text)?;
    Some((cell.hits.prefix_ratio() - lru, prefix_of(cells, OPTIMUM, &cell.size.text)? - lru))
}

fn gap_closed(cells: &[Cell], cell: &Cell) -> Option<f64> {
    gain(cells, cell).filter(|(_, all)| *all > 0.0).map(|(gained, all)| gained / all)
}

fn closed_in_total(cells: &[Cell], row: &[Cell]) -> Option<f64> {
    let gains: Vec<(f64, f64)> = row.iter().map(|cell| gain(cells, cell)).collect::<Option<_>>()?;
    // Sums before the division: sizes with a tiny gap would dominate a mean of shares.
    let all: f64 = gains.iter().map(|(_, all)| all).sum();
    (all > 0.0).then(|| gains.iter().map(|(gained, _)| gained).sum::<f64>() / all)
}

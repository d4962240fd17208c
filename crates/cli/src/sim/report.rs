//! The table, and the same as JSON.

use anyhow::Result;
use serde_json::json;

use super::blocks::Blocks;
use super::{Cell, OPTIMUM};
use crate::out;
use crate::replay::trace::Trace;

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
        return out::line(&whole.to_string());
    }
    out::line(&format!("{} requests, {asked} blocks asked for, {} distinct", blocks.requests(), blocks.distinct()))?;
    out::line("prefix hits % [block hits %]; last: share of the gap from lru to the optimum that is closed\n")?;
    let columns = columns(cells);
    let head: String = columns.iter().map(|size| format!("{size:>16}")).collect();
    out::line(&format!("{:<18}{head}{:>8}", "policy", "closed"))?;
    for row in cells.chunks(columns.len()) {
        let values: String = row
            .iter()
            .map(|cell| format!("{:>7.2} [{:>6.2}]", 100.0 * cell.hits.prefix_ratio(), 100.0 * cell.hits.block_ratio()))
            .collect();
        let closed = closed_in_total(cells, row).map_or(String::new(), |share| format!("{:>6.0} %", 100.0 * share));
        out::line(&format!("{:<18}{values}{closed}", row[0].row.name()))?;
    }
    Ok(())
}

fn columns(cells: &[Cell]) -> Vec<&str> {
    cells.iter().take_while(|cell| cell.row == cells[0].row).map(|cell| cell.size.text.as_str()).collect()
}

fn prefix_of(cells: &[Cell], name: &str, size: &str) -> Option<f64> {
    let found = cells.iter().find(|cell| cell.row.name() == name && cell.size.text == size);
    found.map(|cell| cell.hits.prefix_ratio())
}

/// What a cell gains over LRU, and the most that it could.
fn gain(cells: &[Cell], cell: &Cell) -> Option<(f64, f64)> {
    let lru = prefix_of(cells, "lru", &cell.size.text)?;
    Some((cell.hits.prefix_ratio() - lru, prefix_of(cells, OPTIMUM, &cell.size.text)? - lru))
}

fn gap_closed(cells: &[Cell], cell: &Cell) -> Option<f64> {
    gain(cells, cell).filter(|(_, all)| *all > 0.0).map(|(gained, all)| gained / all)
}

fn closed_in_total(cells: &[Cell], row: &[Cell]) -> Option<f64> {
    let gains: Vec<(f64, f64)> = row.iter().map(|cell| gain(cells, cell)).collect::<Option<_>>()?;
    let all: f64 = gains.iter().map(|(_, all)| all).sum();
    (all > 0.0).then(|| gains.iter().map(|(gained, _)| gained).sum::<f64>() / all)
}

//! The tables that are printed, as Markdown.

pub mod clients;
pub mod rivals;
pub mod tier;
pub mod uploads;

use super::cells::Cell;

/// The first three columns of a row.
pub fn title(cell: &Cell) -> String {
    let size = if cell.op == "head" { "-".to_owned() } else { cell.bytes() };
    format!("| {} {} | {size} | {} |", cell.scheme, cell.op.to_uppercase(), cell.inflight)
}
